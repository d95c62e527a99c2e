//! A daemon for one test, with its own data directory and its own corner of the pool.
//!
//! Dropping it removes its bays with `bay rm`, stops the daemon by its process id, and then checks the host for
//! leftovers. A leak fails a test that passed; after a test that failed, leftovers are only removed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use bay_types::bay::State;
use serde_json::Value;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use crate::cli_run::CliRun;
use crate::leaks::{self, Leak};
use crate::rest::{self, Answer};
use crate::wait::{PATIENCE, pause, until, within};
use crate::{SMALL, image, suite};

/// The setup of a daemon.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    own_pool_mib: Option<u64>,
    pool_path: Option<PathBuf>,
    data_dir: Option<PathBuf>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    without_image: bool,
    directory: Option<PathBuf>,
    binary: Option<PathBuf>,
}

impl Setup {
    /// Uses a separate pool of this size instead of the shared one.
    #[must_use]
    pub fn own_pool(mut self, mib: u64) -> Self {
        self.own_pool_mib = Some(mib);
        self
    }

    /// Uses a separate pool at this path.
    #[must_use]
    pub fn pool_at(mut self, path: PathBuf, mib: u64) -> Self {
        self.own_pool_mib = Some(mib);
        self.pool_path = Some(path);
        self
    }

    /// Uses a data directory at this path.
    #[must_use]
    pub fn data_at(mut self, path: PathBuf) -> Self {
        self.data_dir = Some(path);
        self
    }

    /// Adds an argument of `bay serve`.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Adds a variable to the daemon's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Uses another executable than the one under test, until [`Daemon::upgrade`].
    #[must_use]
    pub fn binary(mut self, path: &Path) -> Self {
        self.binary = Some(path.to_owned());
        self
    }

    /// Sets the directory in which the daemon is started.
    #[must_use]
    pub fn directory(mut self, path: &Path) -> Self {
        self.directory = Some(path.to_owned());
        self
    }

    /// Does not import the small image.
    #[must_use]
    pub fn without_image(mut self) -> Self {
        self.without_image = true;
        self
    }

    /// Starts the daemon and waits until it answers.
    #[must_use]
    pub fn start(self) -> Daemon {
        let with_image = !self.without_image;
        let mut daemon = self.unstarted();
        daemon.launch();
        if with_image {
            daemon.import_small();
        }
        daemon
    }

    /// Prepares the daemon's directory without starting it.
    #[must_use]
    pub fn unstarted(self) -> Daemon {
        let data_dir = self.data_dir.unwrap_or_else(|| suite::fresh("d"));
        fs::create_dir_all(data_dir.join("home")).unwrap();
        fs::write(
            data_dir.join("home/.gitconfig"),
            "[user]\nname = Test\nemail = test@example.invalid\n[init]\ndefaultBranch = main\n",
        )
        .unwrap();
        let own_disk = self.pool_path.is_some();
        let (pool, own_pool) = match self.own_pool_mib {
            Some(_) => (self.pool_path.unwrap_or_else(|| suite::fresh("p")), true),
            None => (suite::shared_pool(), false),
        };
        Daemon {
            data_dir,
            pool,
            own_pool,
            own_disk,
            pool_mib: self.own_pool_mib.unwrap_or(suite::POOL_MIB),
            binary: self.binary.unwrap_or_else(suite::binary),
            arguments: self.arguments,
            environment: self.environment,
            directory: self.directory,
            child: None,
            id: None,
        }
    }
}

/// A daemon of a test: running, killed, or not started yet.
#[derive(Debug)]
pub struct Daemon {
    pub data_dir: PathBuf,
    pub pool: PathBuf,
    own_pool: bool,
    /// The pool is on a disk that the test made, whose free space the test controls.
    own_disk: bool,
    pool_mib: u64,
    binary: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    directory: Option<PathBuf>,
    child: Option<Child>,
    id: Option<String>,
}

impl Daemon {
    /// A daemon on the shared pool, with the small image.
    #[must_use]
    pub fn start() -> Self {
        Setup::default().start()
    }

    #[must_use]
    pub fn setup() -> Setup {
        Setup::default()
    }

    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.data_dir.join("bay.sock")
    }

    /// The daemon's id, which is part of the names of its cgroups and its corner.
    ///
    /// # Panics
    /// If it has none yet.
    #[must_use]
    pub fn id(&self) -> &str {
        self.id.as_deref().expect("the daemon has started once")
    }

    /// The daemon's process id.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the daemon runs").id()
    }

    /// The command `bay serve` as this fixture runs it.
    #[must_use]
    pub fn serve(&self) -> Command {
        let mut command = self.plain(&self.binary);
        command.args(["serve", "--data-dir"]).arg(&self.data_dir).arg("--pool").arg(&self.pool);
        command.args(["--pool-mib", &self.pool_mib.to_string()]).args(&self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }

    fn plain(&self, binary: &Path) -> Command {
        let mut command = Command::new(binary);
        command.env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.data_dir.join("home"));
        command.env("BAY_DATA_DIR", &self.data_dir).env("BAY_POOL", &self.pool);
        command.env("BAY_KEY_FILE", self.key_file());
        if !self.own_disk {
            command.env("BAY_DISK_RESERVE_MIB", suite::DISK_RESERVE_MIB.to_string());
        }
        // A daemon that a test killed must not be started again by the CLI.
        command.env("BAY_NO_AUTOSTART", "1");
        command.stdin(Stdio::null());
        command
    }

    /// Starts the daemon again after a kill, and waits until it answers.
    ///
    /// # Panics
    /// If it does not answer; shows its log.
    pub fn launch(&mut self) {
        assert!(self.child.is_none(), "the daemon runs already");
        let mut child = self.spawn_serve();
        let answered = within(PATIENCE * 2, || match child.try_wait() {
            Ok(Some(status)) => Some(Err(format!("ended with {status}"))),
            _ => self.health().map(Ok),
        });
        match answered {
            Some(Ok(_)) => self.child = Some(child),
            Some(Err(ended)) => panic!("`bay serve` {ended}:\n{}", self.log()),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("`bay serve` does not answer:\n{}", self.log());
            }
        }
        if self.id.is_none() {
            self.id = leaks::daemon_id(&self.data_dir);
            suite::append("daemons", &format!("{}\n", self.id()));
        }
    }

    fn spawn_serve(&self) -> Child {
        let log = File::options().create(true).append(true).open(self.data_dir.join("serve.log")).unwrap();
        let mut command = self.serve();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.binary.display()))
    }

    /// Starts it without waiting, for tests of daemons that are killed before they are ready.
    pub fn launch_blindly(&mut self) {
        assert!(self.child.is_none(), "the daemon runs already");
        self.child = Some(self.spawn_serve());
    }

    fn health(&self) -> Option<Value> {
        let answer = rest::request(&self.socket(), "GET", "/v1/health", b"").ok()?;
        (answer.status == 200).then(|| answer.json())
    }

    /// The daemon's log.
    #[must_use]
    pub fn log(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.data_dir.join(name)).unwrap_or_default();
        format!("{}{}", read("serve.log"), read("daemon.log"))
    }

    /// Kills the daemon with `kill -9`. Bays keep running.
    pub fn kill_9(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Ends the daemon with a signal, and returns its exit status. Bays keep running.
    ///
    /// # Panics
    /// If it does not run, or does not end.
    pub fn end_by(&mut self, signal: rustix::process::Signal) -> ExitStatus {
        let mut child = self.child.take().expect("the daemon runs");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).unwrap();
        until("the daemon to end by a signal", || child.try_wait().unwrap())
    }

    /// Asks the daemon to end, and waits for that. Bays keep running.
    pub fn terminate(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if let Some(pid) = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap_or(0)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if within(PATIENCE, || child.try_wait().ok().flatten()).is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills the daemon with `kill -9`, then starts a new one on the same directory.
    pub fn restart(&mut self) {
        self.kill_9();
        self.launch();
    }

    /// Replaces the executable by another copy and starts that: an upgrade under running bays.
    pub fn upgrade(&mut self) {
        let copy = self.data_dir.join("bay-copy");
        fs::copy(suite::binary(), &copy).unwrap();
        // Another version has other bytes. An additional byte at the end changes only the hash.
        File::options().append(true).open(&copy).unwrap().write_all(b"\n").unwrap();
        self.kill_9();
        self.binary = copy;
        self.launch();
    }

    /// Replaces the variables that the fixture adds to the environment of the daemon, from its next start on.
    pub fn set_environment(&mut self, environment: &[(&str, &str)]) {
        self.environment = environment.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    }

    /// The command that runs the CLI.
    #[must_use]
    pub fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = self.plain(&self.binary);
        command.args(args);
        command
    }

    /// Runs the CLI to its end.
    pub fn bay<S: AsRef<OsStr>>(&self, args: &[S]) -> CliRun {
        self.finish(args, self.command(args))
    }

    /// Runs the CLI with this standard input.
    pub fn bay_with_input<S: AsRef<OsStr>>(&self, args: &[S], input: &[u8]) -> CliRun {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().unwrap();
        // A command may end without reading all of it.
        let _ = writer.join();
        CliRun::new(line(args), output)
    }

    /// Runs the CLI on a terminal of 100 columns and 40 rows, and types `keys` into it line by line.
    pub fn on_a_terminal(&self, line: &str, keys: &str) -> CliRun {
        let mut command = Command::new("script");
        command.env_clear();
        for (name, value) in self.plain(&self.binary).get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        let shell_line = format!("stty cols 100 rows 40; exec {} {line}", self.binary.display());
        command
            .args(["-q", "-e", "-c", &shell_line, "/dev/null"])
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        for key in keys.split_inclusive('\n') {
            // Type slowly, as a person does: `script` would forward a Ctrl-C before the previous line was read.
            pause(Duration::from_millis(300));
            let _ = stdin.write_all(key.as_bytes());
        }
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        CliRun::new(line.to_owned(), output)
    }

    fn finish<S: AsRef<OsStr>>(&self, args: &[S], mut command: Command) -> CliRun {
        let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", self.binary.display()));
        CliRun::new(line(args), output)
    }

    /// A request to the daemon's socket.
    #[track_caller]
    pub fn rest(&self, method: &str, target: &str, body: &Value) -> Answer {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        match rest::request(&self.socket(), method, target, &body) {
            Ok(answer) => answer,
            Err(error) => panic!("{method} {target}: {error}\n{}", self.log()),
        }
    }

    /// Executes a statement on the daemon's database directly, for faults that nothing else can cause.
    pub fn sql(&self, statement: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let database = SqliteConnectOptions::new().filename(self.data_dir.join("bay.db"));
            let mut connection = database.busy_timeout(PATIENCE).connect().await.unwrap();
            sqlx::query(AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
            connection.close().await.unwrap();
        });
    }

    /// Makes every insertion of such a row into a table of the database fail, until [`Daemon::allow_inserts`].
    pub fn break_inserts(&self, table: &str, when: &str) {
        self.sql(&format!(
            "CREATE TRIGGER broken BEFORE INSERT ON {table} WHEN {when} \
             BEGIN SELECT RAISE(ABORT, 'broken by the test'); END"
        ));
    }

    pub fn allow_inserts(&self) {
        self.sql("DROP TRIGGER broken");
    }

    /// The bodies of a bay's events of one kind, oldest first, among the first of its record.
    #[must_use]
    pub fn events(&self, bay: &str, kind: &str) -> Vec<Value> {
        let all = self.rest("GET", &format!("/v1/events?bay={bay}&since=0"), &Value::Null).json();
        let all = all.as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|event| event["kind"] == kind).map(|event| event["body"].clone()).collect()
    }

    /// A bay on the small image, with an empty workspace.
    pub fn empty_bay(&self, name: &str) -> Value {
        self.bay_from(name, SMALL)
    }

    /// A bay on an imported image, with an empty workspace.
    pub fn bay_from(&self, name: &str, image: &str) -> Value {
        self.make(&serde_json::json!({ "name": name, "source": { "kind": "empty" }, "image": image }))
    }

    /// A bay with this request body, once it runs.
    pub(crate) fn make(&self, body: &Value) -> Value {
        let answer = self.rest("POST", "/v1/bays", body);
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let last = text.lines().last().unwrap_or_default();
        let news: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(news["news"], "done", "{text}\n{}", self.log());
        news["result"].clone()
    }

    /// `bay exec NAME -- sh -c SCRIPT`
    pub fn sh(&self, bay: &str, script: &str) -> CliRun {
        self.bay(&["exec", bay, "--", "sh", "-c", script])
    }

    /// `bay show NAME --json`
    #[track_caller]
    #[must_use]
    pub fn show(&self, bay: &str) -> Value {
        self.bay(&["show", bay, "--json"]).ok().json()
    }

    /// `bay ls --json`
    #[track_caller]
    #[must_use]
    pub fn list(&self) -> Vec<Value> {
        match self.bay(&["ls", "--json"]).ok().json() {
            Value::Array(bays) => bays,
            other => panic!("`bay ls --json` is not an array: {other}"),
        }
    }

    /// Waits until a bay shows this state, and returns it.
    #[track_caller]
    pub fn until_state(&self, bay: &str, state: State) -> Value {
        until(&format!("{bay} to be {state}"), || {
            Some(self.show(bay)).filter(|view| view["state"] == state.as_str())
        })
    }

    /// The host's process id of PID 1 of a running bay.
    #[track_caller]
    #[must_use]
    pub fn host_pid(&self, bay: &str) -> i32 {
        let view = self.show(bay);
        i32::try_from(view["host_pid"].as_i64().unwrap_or_else(|| panic!("no host_pid: {view}"))).unwrap()
    }

    fn import_small(&self) {
        self.import(&image::small(), SMALL);
    }

    /// Imports a directory as an image, unless there is one of that name.
    pub fn import(&self, directory: &Path, name: &str) {
        let source = format!("dir:{}", directory.display());
        // The daemons of a pool share images: one import is enough for all, and only one may run at a time.
        let _alone = (!self.own_pool).then(|| suite::lock("import"));
        let known = self.bay(&["images", "ls", "--json"]).ok().json();
        let known = known.as_array().is_some_and(|all| all.iter().any(|image| image["name"] == name));
        if !known {
            let _imported = self.bay(&["images", "import", &source, "--name", name]).ok();
        }
    }

    /// Everything of this daemon on the host that belongs to no bay in `bay ls`.
    #[must_use]
    pub fn orphans(&self) -> Vec<Leak> {
        let bays = self.list();
        let known: BTreeSet<&str> = bays.iter().filter_map(|bay| bay["id"].as_str()).collect();
        let daemons = BTreeSet::from([self.id().to_owned()]);
        let unknown = |path: &Path| !path.iter().filter_map(OsStr::to_str).any(|part| known.contains(part));
        let mut found: Vec<Leak> = Vec::new();
        found.extend(
            leaks::mounts(&self.data_dir.join("run")).into_iter().filter(|p| unknown(p)).map(Leak::Mount),
        );
        found.extend(leaks::bay_cgroups(&daemons).into_iter().filter(|p| unknown(p)).map(Leak::Cgroup));
        found.extend(
            leaks::bay_subvolumes(&self.pool, self.id())
                .into_iter()
                .filter(|p| unknown(p))
                .map(Leak::Subvolume),
        );
        for leak in leaks::processes(&self.data_dir, &daemons) {
            let Leak::Process { pid, .. } = leak else { continue };
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            if groups.contains("bay_") && !known.iter().any(|id| groups.contains(id)) {
                found.push(leak);
            }
        }
        found
    }

    /// Removes every bay with `bay rm`. Returns the first failure.
    fn remove_bays(&self) -> Result<(), String> {
        let list = self.bay(&["ls", "--json"]);
        if list.code != 0 {
            return Err(list.to_string());
        }
        for bay in list.json().as_array().into_iter().flatten() {
            let name = bay["name"].as_str().unwrap_or_default();
            let removed = self.bay(&["rm", name, "--yes"]);
            if removed.code != 0 {
                return Err(removed.to_string());
            }
        }
        Ok(())
    }

    /// Asserts that nothing of this daemon is left on the host, after the test removed its installation.
    ///
    /// # Panics
    /// If its process goes on, or something is left.
    pub fn uninstalled(mut self) {
        if let Some(mut child) = self.child.take() {
            until("the daemon of a removed installation to end", || child.try_wait().unwrap());
        }
        let id = self.id.take().expect("the daemon has started once");
        let mut left = leaks::of_daemon(&self.data_dir, &self.pool, &id);
        left.extend(leaks::daemon_cgroups(&BTreeSet::from([id.clone()])).into_iter().map(Leak::Cgroup));
        if self.own_pool {
            left.extend(leaks::mounts(&self.pool).into_iter().map(Leak::Mount));
            let devices = leaks::loop_devices(&self.pool).into_iter();
            left.extend(devices.map(|(device, file)| Leak::LoopDevice { device, file }));
        } else if leaks::corner(&self.pool, &id).exists() {
            left.push(Leak::Subvolume(leaks::corner(&self.pool, &id)));
        }
        assert!(left.is_empty(), "left on the host:\n{}", listed(&left));
    }

    fn stop(&mut self) {
        self.terminate();
        self.stop_started_by_cli();
    }

    /// Ends daemons on this data directory that are not this fixture's child: the CLI starts one if it finds none.
    pub fn stop_started_by_cli(&self) {
        let left = leaks::processes(&self.data_dir, &BTreeSet::new());
        let child = self.child.as_ref().map(|child| i64::from(child.id()));
        let serving = |leak: &Leak| matches!(leak, Leak::Process { pid, what } if what.contains(" serve") && child != Some(i64::from(*pid)));
        leaks::end_processes(&left.into_iter().filter(serving).collect::<Vec<_>>());
    }

    /// The key of the daemon's secrets, beside its data directory.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        self.data_dir.with_extension("key")
    }

    /// Kills the daemon and all processes of its bays, and unmounts a separate pool: like a power cut, but nothing
    /// written is lost.
    pub fn pull_the_plug(&mut self) {
        self.kill_9();
        let daemons = BTreeSet::from([self.id().to_owned()]);
        leaks::clear(&self.data_dir, &daemons);
        leaks::unmount_below(&self.data_dir.join("run"));
        if self.own_pool {
            leaks::close_pool(&self.pool);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let passed = !std::thread::panicking();
        if !passed {
            println!("--- log of the daemon in {}\n{}", self.data_dir.display(), tail(&self.log()));
        }
        if suite::keeping() && !passed {
            println!("BAY_KEEP is set: {} was left as it is", self.data_dir.display());
            // Leave the daemon running for the person.
            std::mem::forget(self.child.take());
            return;
        }
        if self.child.is_none() && self.id.is_some() && passed {
            self.environment.clear();
            self.launch();
        }
        let removed = if self.child.is_some() { self.remove_bays() } else { Ok(()) };
        self.stop();
        let id = self.id.clone().unwrap_or_default();
        let left = if id.is_empty() { Vec::new() } else { leaks::of_daemon(&self.data_dir, &self.pool, &id) };
        leaks::clear(
            &self.data_dir,
            &BTreeSet::from([id.clone()]).into_iter().filter(|id| !id.is_empty()).collect(),
        );
        leaks::unmount_below(&self.data_dir);
        if self.own_pool {
            leaks::close_pool(&self.pool);
            let _ = fs::remove_dir_all(&self.pool);
        } else if !id.is_empty() {
            leaks::delete_tree(&leaks::corner(&self.pool, &id));
        }
        let _ = fs::remove_dir_all(&self.data_dir);
        let _ = fs::remove_file(self.key_file());
        if passed {
            if let Err(why) = removed {
                panic!("a bay could not be removed:\n{why}");
            }
            assert!(left.is_empty(), "left on the host:\n{}", listed(&left));
        }
    }
}

fn tail(text: &str) -> &str {
    const SHOWN: usize = 6000;
    let from = text.len().saturating_sub(SHOWN);
    let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[from..]
}

/// Leaks, one per line.
#[must_use]
pub fn listed(leaks: &[Leak]) -> String {
    leaks.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn line<S: AsRef<OsStr>>(args: &[S]) -> String {
    args.iter().map(|arg| arg.as_ref().to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
