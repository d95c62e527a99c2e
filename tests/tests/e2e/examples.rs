//! Every example of the documentation and of `--help` is run, with the bays and files that it names.
//!
//! Bays in examples have no network, and an image that has few programs. So a command *inside* may be missing there
//! (exit code 127); what a person types on the host must work.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bay_tests::suite::Scratch;
use bay_tests::wait::within;
use bay_tests::{Daemon, Repository, SMALL, image, until};
use rustix::process::{Pid, Signal, kill_process_group};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Beginnings of examples that are not run here, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("bay __", "a program runs it, not a person"),
    ("bay bench", "it measures for minutes"),
    ("bay branch web --push git@", "the remote is another machine"),
    ("bay notify test", "it sends to another machine"),
    ("bay repos sync", "it fetches from another machine"),
    ("bay up https://", "the repository is on another machine"),
    ("bay images import host", "it copies the whole host; the suite of images does it"),
    (
        "bay install",
        "it changes this host; the suite of installations runs it on a directory in place of the host",
    ),
    ("bay uninstall", "as bay install"),
    ("bay pool prune --yes", "it would remove what another test left"),
    ("bay serve", "it replaces the daemon; its options have tests of their own"),
];

/// Parts of examples that may fail here, what is said then, and why.
const MAY_FAIL: &[(&str, &str, &str)] = &[
    ("--backend gvisor", "no backend", "this daemon has only the local one"),
    ("--listen 192.0.2.7", "an address of this host", "it is an address for documentation"),
    ("policy check", "deny", "the exit code is the decision"),
    ("from-command", "secret-source", "there is no program that prints the value"),
];

/// Words that stand for something, and what they stand for here.
const PLACEHOLDERS: &[(&str, &str)] = &[
    ("NAME-OR-ID", "spare"),
    ("NAME:/path", "web:/workspace/log.txt"),
    ("OTHER:/path", "api:/workspace/log.txt"),
    ("--image NAME", "--image small"),
    ("NAME BRANCH", "web topic"),
    ("REMOTE BRANCH", "origin topic"),
    ("NAME EXEC", "web 3"),
    ("NAME PATH", "web src"),
    ("NAME", "web"),
    (" A B C ", " web api demo "),
    ("CMD ARGS…", "true"),
    ("-- CMD", "-- true"),
    ("FILE-OR-DIR", "notes.txt"),
    ("repos rm REPO", "repos rm $PWD"),
    ("repos rm project", "repos rm $PWD"),
    ("URL-OR-ID", "$PWD"),
    ("--since-offset 4096", "--since-offset 0"),
    ("bay logs my-project 4", "bay logs my-project 3"),
    ("--since 1000", "--since 10"),
    ("services add", "services add --no-wait"),
    ("bay images import SOURCE", "bay images import dir:image --name another"),
];

/// Names of bays in examples.
const BAYS: &[&str] = &[
    "web",
    "api",
    "a",
    "b",
    "demo",
    "my-project",
    "second",
    "third",
    "fix-1",
    "fix-2",
    "fix-3",
    "web-fork-2",
    "my-project-fork-1",
];

/// Names of services in examples.
const SERVICES: &[&str] = &["db", "app", "postgres"];

/// What shows something, and leaves the bays as they were.
const HARMLESS: &[&str] = &[
    "ls", "show", "top", "execs", "logs", "diff", "review", "egress", "timeline", "story", "df", "audit",
    "doctor", "backends", "ports", "watch", "bundle", "cp", "exec", "attach", "forward", "compare", "images",
    "notify",
];

/// Examples that go on until they are interrupted.
const ENDLESS: &[&str] = &[
    "--follow",
    "web --ask",
    "--watch",
    "bay watch",
    "bay forward",
    "--interval",
    "bay attach",
    "while sleep 1",
];

/// A policy that asks about a request.
const ASK: &str = r#"[[rule]]
id = "ask"
outcome = "ask"
host = "files.example.com"
method = "*"
checkpoint = true
"#;

const POOL_MIB: u64 = 1024;
/// How long such an example may take to show something, before it is interrupted.
const SHOWS_WITHIN: Duration = Duration::from_millis(600);
/// Exit code of `timeout`.
const TIMED_OUT: i32 = 124;
/// Longest time of an example.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

fn pages() -> Vec<PathBuf> {
    let docs = fs::read_dir(format!("{ROOT}/docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> =
        docs.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.push(Path::new(ROOT).join("README.md"));
    pages.sort();
    pages
}

fn quotes_are_open(line: &str) -> bool {
    ['\'', '"'].iter().any(|quote| line.matches(*quote).count() % 2 == 1)
}

/// The command lines in code blocks, without what explains them, each once.
fn examples() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for page in pages() {
        let is_help = page.ends_with("cli.md");
        let text = fs::read_to_string(&page).unwrap().replace("\\\n", " ");
        let (mut code, mut shown, mut lines) = (false, false, text.lines().peekable());
        while let Some(line) = lines.next() {
            if line.trim_start().starts_with("```") {
                code = !code;
                shown = !is_help;
                continue;
            }
            // The rest of a help text has sentences that begin like a command.
            shown |= line == "Examples:";
            let line = line.trim_start();
            let line = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")).unwrap_or(line);
            let line = line.strip_prefix("sudo ").unwrap_or(line);
            if !code || !shown || !line.starts_with("bay ") {
                continue;
            }
            let mut line = line.to_owned();
            // The help folds long lines.
            while is_help
                && explained(&line).is_none()
                && let Some(next) =
                    lines.next_if(|next| quotes_are_open(&line) || next.trim_start().starts_with('\''))
            {
                line = format!("{line} {}", next.trim_start());
            }
            line.truncate(explained(&line).unwrap_or(line.len()));
            found.insert(line.trim_end().to_owned());
        }
    }
    found
}

/// Where the explanation of a command line begins: behind two spaces outside of quotes, or behind a `#`.
fn explained(line: &str) -> Option<usize> {
    let begins = [line.match_indices("  "), line.match_indices(" # ")];
    begins.into_iter().flatten().map(|(at, _)| at).find(|at| !quotes_are_open(&line[..*at]))
}

/// What the example says, with the placeholders filled, without optional parts and what reads its output.
fn filled(example: &str) -> String {
    let mut text = example.to_owned();
    while let (Some(begin), Some(end)) = (text.find(" ["), text.find(']'))
        && begin < end
    {
        text.replace_range(begin..=end, "");
    }
    for (placeholder, filling) in PLACEHOLDERS {
        text = text.replace(placeholder, filling);
    }
    for reader in [" | jq", " | less", " | ssh"] {
        if let Some(at) = text.find(reader) {
            text.truncate(at);
        }
    }
    let default_image = text.starts_with("bay up") && !text.contains("--image") && !text.contains("--from");
    if default_image { text.replacen("bay up", "bay up --image small", 1) } else { text }
}

/// A directory with what the examples name, and the bays of one daemon.
struct World {
    daemon: Daemon,
    scratch: Scratch,
    repository: Repository,
    made: BTreeSet<String>,
    /// Something was made that the next example may not find.
    spent: bool,
}

impl World {
    fn new() -> Self {
        // Examples remove images, which daemons of one pool share.
        let daemon = Daemon::setup().own_pool(POOL_MIB).start();
        let (scratch, repository) = (Scratch::new(), Repository::sample());
        let this = Self { daemon, scratch, repository, made: BTreeSet::new(), spent: false };
        for dir in ["my-project", "other", "srv/data", "srv/datasets", "etc"] {
            fs::create_dir_all(this.scratch.join(dir)).unwrap();
        }
        this.lay_out();
        this
    }

    fn project(&self) -> PathBuf {
        self.scratch.join("my-project")
    }

    /// The files that examples read.
    fn lay_out(&self) {
        for dir in ["my-project", "other"] {
            let at = self.scratch.join(dir);
            let clone =
                format!("rm -rf '{0}' && git clone -q '{1}' '{0}'", at.display(), self.repository.arg());
            assert!(Command::new("sh").args(["-c", &clone]).status().unwrap().success());
        }
        let policy = "version = 1\n";
        for (name, contents) in [
            ("notes.txt", "a note\n"),
            ("token.txt", "Ue7Qm2xV9pLw4Rk8Zs1Tn6Yb\n"),
            ("new-token.txt", "Hc5Jd8Fg3Ka7Nv2Mx9Bq4Wt6\n"),
            ("password.txt", "Pz3Xr7Cy1Do5Ei9Su2Gl8Ah4\n"),
            ("policy.toml", policy),
            ("project.toml", policy),
            ("limits.toml", policy),
        ] {
            fs::write(self.project().join(name), contents).unwrap();
        }
    }

    fn run(&self, script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(self.project()).stdin(Stdio::null());
        // What the CLI needs to find this daemon.
        for (name, value) in self.daemon.command::<&str>(&[]).get_envs() {
            if let Some(value) = value {
                shell.env(name, value);
            }
        }
        let programs = self.scratch.join("bin");
        if !programs.exists() {
            fs::create_dir_all(&programs).unwrap();
            std::os::unix::fs::symlink(bay_tests::suite::binary(), programs.join("bay")).unwrap();
        }
        shell
            .env("PATH", format!("{}:/usr/bin:/bin", programs.display()))
            .env("GITHUB_TOKEN", "Rb6Vt1Ny8Uc3Ij7Ok2Lp9Qs5");
        shell
    }

    #[track_caller]
    fn must(&self, script: &str) -> String {
        let output = self.run(script).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Makes the bays that an example is about, as it needs them, and fills the ids that it names.
    fn prepare(&mut self, example: &str) -> String {
        let mut text = filled(example);
        let words: Vec<String> =
            text.split([' ', ':', '=']).map(|word| word.trim_matches('\'').to_owned()).collect();
        let verb = words[1].as_str();
        if self.spent || verb == "up" || verb == "fork" {
            self.clear();
        }
        let new = |name: &str| {
            (verb == "up" || verb == "fork") && text.contains(&format!("--name {name}"))
                || verb == "up" && !text.contains(&format!("--from {name}"))
        };
        let mut wanted: Vec<&str> =
            words.iter().map(String::as_str).filter(|word| BAYS.contains(word) && !new(word)).collect();
        let mut seen = BTreeSet::new();
        wanted.retain(|name| seen.insert(*name));
        for name in &wanted {
            self.bay(name);
        }
        if verb == "approvals" || text.contains("1041") {
            self.bay("web");
        }
        let checkpoints = ["v1", "v2", "v3"].iter().any(|v| words.iter().any(|word| word == v));
        let first = wanted.first().copied().unwrap_or_default();
        if checkpoints {
            for number in 1..=3 {
                let _made = self.must(&format!(
                    "bay exec {first} -- sh -c 'echo {number} > made'; bay checkpoint {first} --files-only"
                ));
            }
            self.spent = true;
        }
        if verb == "start" {
            let _stopped = self.must(&format!("bay stop {}", wanted.join(" ")));
        }
        if verb == "resume" {
            let _paused = self.must(&format!("for bay in {}; do bay pause $bay; done", wanted.join(" ")));
        }
        if verb == "services" && !text.contains("--preset") {
            let add = words[2] == "add";
            for service in SERVICES.iter().filter(|service| words[3..].iter().any(|word| word == **service)) {
                if !add || text.contains(&format!("--needs {service}")) {
                    let _added = self.must(&format!("bay services add {first} {service} -- sleep 1000"));
                }
            }
            if words[2] == "logs" && words.iter().any(|word| word == "web") && first == "my-project" {
                let _added = self.must("bay services add my-project web -- sleep 1000");
            }
        }
        self.ids(&mut text, verb, first);
        text.replace("/srv/", &format!("{}/srv/", self.scratch.path().display()))
            .replace("/etc/bash_completion.d", &self.scratch.join("etc").display().to_string())
    }

    /// Makes what an example names by an id, and writes the id into it.
    fn ids(&self, text: &mut String, verb: &str, first: &str) {
        if text.contains("bay repos") && text.contains("$PWD") {
            let _cached = self.must("bay up --image small --name cached . && bay rm --yes cached");
        }
        if text.contains("spare") {
            let _imported = self.must("mkdir -p image/bin && cp /bin/busybox image/bin/sh && bay images import dir:image --name spare");
        } else if text.contains("dir:image") || text.contains("tar:") {
            let _made = self.must(
                "mkdir -p image/bin && cp /bin/busybox image/bin/sh && for t in image rootfs; do tar -C image -cf $t.tar .; done",
            );
        }
        if text.contains("WORKSPACE") || text.contains("web-20260102T030405Z") {
            let _kept = self.must("bay up --image small --name kept . && bay rm --yes --keep-workspace kept");
            let listed = self.must("bay workspaces ls --json");
            let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
            let name = listed[0]["name"].as_str().unwrap();
            *text = text.replace("WORKSPACE", name).replace("web-20260102T030405Z", name);
        }
        if verb == "approvals" && text.contains("1f00ba12") {
            let _set = self.must(&format!("printf '{ASK}' > ask.toml && bay policy set web ask.toml"));
            let _asked = self.must("bay exec web -d -- curl -s https://files.example.com/x");
            let id = until("the question", || {
                let open: serde_json::Value =
                    serde_json::from_str(&self.must("bay approvals --json")).unwrap();
                open[0]["id"].as_str().map(str::to_owned)
            });
            if text.contains("revoke") {
                let _allowed = self.must(&format!("bay approvals allow {id} --for 10m"));
            }
            *text = text.replace("1f00ba12", &id);
        } else if text.contains("g-1f00ba12") {
            let added = self
                .must(&format!("bay grants add {first} 'GET https://files.example.com/x' --for 10m --json"));
            let added: serde_json::Value = serde_json::from_str(&added).unwrap();
            *text = text.replace("g-1f00ba12", added["id"].as_str().unwrap());
        }
        if text.contains("hook-1f00ba12") {
            let added = self.must("bay notify add webhook https://hooks.example.com/workbay --json");
            let added: serde_json::Value = serde_json::from_str(&added).unwrap();
            *text = text.replace("hook-1f00ba12", added["id"].as_str().unwrap());
        }
        if text.contains("1041") || text.contains("explain my-project 24") {
            let bay = if first.is_empty() { "web" } else { first };
            let _refused = self.daemon.sh(bay, "curl -s -m 5 http://files.example.com/");
            let refused = until("the refusal on record", || {
                let lines = self.must(&format!("bay egress {bay} --json"));
                let last: serde_json::Value = serde_json::from_str(lines.lines().last()?).unwrap();
                last["seq"].as_u64()
            });
            *text = text.replace("1041", &refused.to_string()).replace(" 24", &format!(" {refused}"));
        }
        if verb == "secret" && !text.contains("secret set") && !text.contains("secret ls") {
            let _set = self
                .must("bay secret set API_KEY --from-file password.txt --for 'api.example.com as bearer'");
        }
        if verb == "audit" {
            let _made = self.must(
                "bay audit export > events.bundle; bay audit key > ledger.pub; bay audit head > head.txt",
            );
        }
    }

    /// A bay that runs, with two finished commands and one that still runs.
    fn bay(&mut self, name: &str) {
        if self.made.insert(name.to_owned()) {
            let repository = self.project();
            let up = format!("bay up {} --image {SMALL} --name {name}", repository.display());
            let _made = self.must(&up);
            let _ran = self.must(&format!(
                "bay exec {name} -- true; bay exec {name} -- sh -c 'mkdir -p report dist; echo x > log.txt; echo more >> README.md; git commit -qam work'; bay exec {name} -d -- sleep 1000"
            ));
        }
    }

    fn clear(&mut self) {
        let names: Vec<String> =
            self.daemon.list().iter().map(|bay| bay["name"].as_str().unwrap().to_owned()).collect();
        if !names.is_empty() {
            let _removed = self.must(&format!("bay rm --yes {}", names.join(" ")));
        }
        self.made.clear();
        self.spent = false;
        self.lay_out();
    }

    /// Why an example does not work, unless it does.
    fn trial(&mut self, example: &str) -> Option<String> {
        let text = self.prepare(example);
        let verb = text.split(' ').nth(1).unwrap_or_default().to_owned();
        let endless = ENDLESS.iter().any(|part| text.contains(part)) || text == "bay top";
        let (code, said) = if endless { self.interrupted(&text) } else { self.to_its_end(&text) };
        // What a command inside says of itself is not about the command line.
        let of_inside = !said.contains("error[") || said.contains("error[command-not-found]");
        let inside = (text.contains(" -- ") || text.contains("--run")) && of_inside;
        let expected = MAY_FAIL.iter().find(|(part, _, _)| example.contains(part));
        let wrong = match expected {
            Some((_, words, _)) => code != 0 && !said.contains(words),
            None => !(code == 0 || endless && code == 130 || inside && code != TIMED_OUT),
        };
        if text.starts_with("bay images prune") {
            self.daemon.import(&image::small(), SMALL);
        }
        if !HARMLESS.contains(&verb.as_str()) {
            self.clear();
        }
        wrong.then(|| format!("{example}\n  as: {text}\n  exit code {code}: {said}"))
    }

    fn to_its_end(&self, text: &str) -> (i32, String) {
        use std::os::unix::process::CommandExt;
        // A terminal for what asks for one.
        let script = if text.contains(" -t ") || text.starts_with("bay shell") {
            format!("echo exit | script -qec '{text}' /dev/null")
        } else if text.contains(" - ") || text.ends_with(" -") {
            format!("printf 'Kd4Wm9Xe2Tz7Ry5Bf8Nj1Gq6' | {text}")
        } else {
            match text.strip_prefix("bay rm ") {
                Some(names) if !text.contains("--yes") => format!("bay rm --yes {names}"),
                _ => text.to_owned(),
            }
        };
        let output = self
            .run(&format!("timeout {} sh -c \"$SCRIPT\"", ENDS_WITHIN.as_secs()))
            .env("SCRIPT", &script)
            .process_group(0)
            .output()
            .unwrap();
        let said =
            [output.stderr, output.stdout].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        (output.status.code().unwrap_or(-1), said)
    }

    /// Lets an endless example show something, and ends it as a person would.
    fn interrupted(&self, text: &str) -> (i32, String) {
        use std::os::unix::process::CommandExt;
        let mut child = self.run(&format!("exec {text}"));
        let mut child = child.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let ended = within(SHOWS_WITHIN, || child.try_wait().unwrap());
        if ended.is_none() {
            kill_process_group(Pid::from_child(&child), Signal::INT).unwrap();
        }
        let status = child.wait().unwrap();
        let mut said = String::new();
        let _read = child.stderr.take().unwrap().read_to_string(&mut said);
        (status.code().unwrap_or(130), said)
    }
}

/// Runs each `of`th example, beginning with this one, in a world of its own.
fn run_examples(this: usize, of: usize) {
    let mut world = World::new();
    let all = examples();
    assert!(all.len() > 300, "only {} examples were found", all.len());
    let run = |example: &&String| NOT_RUN.iter().all(|(beginning, _)| !example.starts_with(beginning));
    let mut wrong = Vec::new();
    // Two forwards at once would want the same port of this host.
    let quarter = |at: usize, example: &str| if example.contains("forward") { 0 } else { at % of };
    for (_, example) in
        all.iter().filter(run).enumerate().filter(|(at, example)| quarter(*at, example) == this)
    {
        // One example that cannot be prepared must not hide the others.
        match std::panic::catch_unwind(AssertUnwindSafe(|| world.trial(example))) {
            Ok(outcome) => wrong.extend(outcome),
            Err(panic) => {
                let why = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                wrong.push(format!("{example}\n  could not be prepared: {why}"));
                world.clear();
            }
        }
    }
    assert!(wrong.is_empty(), "{} examples:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_example_works_first_quarter() {
    run_examples(0, 4);
}

#[test]
fn every_example_works_second_quarter() {
    run_examples(1, 4);
}

#[test]
fn every_example_works_third_quarter() {
    run_examples(2, 4);
}

#[test]
fn every_example_works_last_quarter() {
    run_examples(3, 4);
}
