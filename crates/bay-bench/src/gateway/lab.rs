//! A separate daemon for the contest, whose bays reach the [`origin`](super::origin). It knows that origin's name and
//! authority. Its record is separate from that of the person's bays.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bay_client::{Client, Endpoint, Silent, bay_path, local};
use bay_types::bay::{BayView, Health, Source};
use bay_types::guest::{DNS_PORT, GATEWAY_V4};
use bay_types::image::{ImageImport, ImageView};
use bay_types::{ApiError, ErrorCode};

use super::load::{Order, Told, Way, Work};
use super::origin::{ADDRESS, NAME, Origin, SECRET_NAME};
use crate::peers::{output_of, timed};
use crate::setup::{on, small_tree};

const IMAGE: &str = "bench-gateway";
/// The path of the load generator in a bay.
const PROGRAM: &str = "/bin/bay";
const POOL_MIB: &str = "2048";
/// How long a daemon or another proxy may take to start or to end.
const WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Paths that the policy allows; it denies others.
const OPEN: [&str; 2] = ["/open/**", "/bytes/*"];
/// The prefix of paths that need an approval.
pub(super) const ASK: &str = "/ask";
/// The path of a denied request.
pub(super) const SHUT: &str = "/shut";

/// The directories of the lab's own daemon.
#[derive(Debug)]
struct Location {
    data_dir: PathBuf,
    pool: PathBuf,
    socket: PathBuf,
}

pub(super) struct Lab {
    pub(super) dir: PathBuf,
    pub(super) origin: Origin,
    executable: PathBuf,
    location: Location,
    pub(super) client: Client,
    daemon: Child,
    bays: Vec<String>,
}

fn preparing(error: &io::Error) -> ApiError {
    local("preparing the bench of the gateway", error)
}

/// Starts the daemon.
fn serve(executable: &Path, location: &Location, dir: &Path) -> Result<Child, ApiError> {
    let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("serve.log"));
    Command::new(executable)
        .args(["serve", "--pool-mib", POOL_MIB, "--data-dir"])
        .arg(&location.data_dir)
        .arg("--pool")
        .arg(&location.pool)
        .arg("--key-file")
        .arg(dir.join("key"))
        .arg("--gateway-hosts")
        .arg(dir.join("hosts"))
        .arg("--gateway-ca")
        .arg(dir.join("origin.pem"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.map_err(|error| preparing(&error))?)
        .spawn()
        .map_err(|error| preparing(&error))
}

impl Lab {
    pub(super) async fn open() -> Result<Self, ApiError> {
        let dir = std::env::temp_dir().join(format!("workbay-bench-gateway-{}", std::process::id()));
        fs::create_dir_all(&dir).map_err(|error| preparing(&error))?;
        let origin = Origin::open().map_err(|error| preparing(&error))?;
        fs::write(dir.join("hosts"), format!("{ADDRESS} {NAME}\n{ADDRESS} {SECRET_NAME}\n"))
            .map_err(|error| preparing(&error))?;
        fs::write(dir.join("origin.pem"), &origin.pem).map_err(|error| preparing(&error))?;
        let location = Location {
            data_dir: dir.join("data"),
            pool: dir.join("pool"),
            socket: dir.join("data/bay.sock"),
        };
        fs::create_dir_all(&location.data_dir).map_err(|error| preparing(&error))?;
        let executable = std::env::current_exe().map_err(|error| preparing(&error))?;
        let daemon = serve(&executable, &location, &dir)?;
        let client = Client::new(Endpoint::at(&location.socket));
        let mut lab = Self { dir, origin, executable, location, client, daemon, bays: Vec::new() };
        match lab.prepare().await {
            Ok(()) => Ok(lab),
            Err(error) => {
                lab.close().await;
                Err(error)
            }
        }
    }

    /// Kills the daemon without a warning, and starts the next.
    pub(super) async fn kill_and_start(&mut self) -> Result<(), ApiError> {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        self.daemon = serve(&self.executable, &self.location, &self.dir)?;
        self.client = Client::new(Endpoint::at(&self.location.socket));
        self.answers().await
    }

    async fn prepare(&mut self) -> Result<(), ApiError> {
        self.answers().await?;
        let tree = self.dir.join("tree");
        small_tree(&tree).map_err(|error| preparing(&error))?;
        fs::copy(&self.executable, tree.join(&PROGRAM[1..])).map_err(|error| preparing(&error))?;
        let import = ImageImport {
            source: format!("dir:{}", tree.display()),
            name: Some(IMAGE.to_owned()),
            add: vec![],
            force: false,
        };
        let _: ImageView = self.client.work("/v1/images", &import, &mut Silent).await?;
        Ok(())
    }

    /// Waits until the daemon answers.
    async fn answers(&mut self) -> Result<(), ApiError> {
        let begin = Instant::now();
        while let Err(error) = self.client.get::<Health>("/v1/health").await {
            let ended = self.daemon.try_wait().map_err(|error| preparing(&error))?.is_some();
            if ended || begin.elapsed() > WITHIN {
                return Err(error);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// The daemon's process id.
    pub(super) fn daemon(&self) -> u32 {
        self.daemon.id()
    }

    /// A bay that may send requests to the origin.
    pub(super) async fn bay(&mut self, name: &str) -> Result<BayView, ApiError> {
        let create = on(name, IMAGE, Source::Empty);
        let _: BayView = self.client.work("/v1/bays", &create, &mut Silent).await?;
        self.bays.push(name.to_owned());
        let policy = self.dir.join("policy.toml");
        let text = format!(
            "[[rule]]\nid = \"origin\"\noutcome = \"allow\"\nhost = [\"{NAME}\", \"{SECRET_NAME}\"]\nport = {0}\naddress = \"{ADDRESS}\"\npath = {OPEN:?}\n\
             [[rule]]\nid = \"asked\"\noutcome = \"ask\"\nhost = \"{NAME}\"\nport = {0}\naddress = \"{ADDRESS}\"\npath = \"{ASK}/**\"\n",
            self.origin.port
        );
        fs::write(&policy, text).map_err(|error| preparing(&error))?;
        timed(self.command(&["policy", "set", name]).arg(&policy))?;
        self.client.get(&bay_path(name, "")).await
    }

    /// Makes a secret for every path of the origin.
    pub(super) fn set_secret(&self, name: &str, value: &str) -> Result<(), ApiError> {
        let file = self.dir.join("secret");
        fs::write(&file, value).map_err(|error| preparing(&error))?;
        let uses = format!("{SECRET_NAME}:{} as bearer", self.origin.port);
        let set = ["secret", "set", name, "--for", &uses, "--from-file"];
        timed(self.command(&set).arg(&file)).map(drop)
    }

    pub(super) fn remove_secret(&self, name: &str) -> Result<(), ApiError> {
        timed(&mut self.command(&["secret", "rm", name])).map(drop)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.executable);
        command.arg("--data-dir").arg(&self.location.data_dir).args(args);
        command
    }

    fn order(&self, way: Way, trust: &Path, path: &str, work: Work) -> Order {
        Order {
            way,
            name: NAME.to_owned(),
            port: self.origin.port,
            trust: trust.to_owned(),
            path: path.to_owned(),
            header: None,
            work,
        }
    }

    /// The command that runs the load generator in a bay.
    pub(super) fn inside(&self, bay: &str, path: &str, work: Work) -> Result<Command, ApiError> {
        self.inside_with(bay, path, work, None)
    }

    /// The command that runs the load generator in a bay, with one more header line: the secret and its host.
    pub(super) fn inside_with(
        &self,
        bay: &str,
        path: &str,
        work: Work,
        header: Option<String>,
    ) -> Result<Command, ApiError> {
        let resolver = SocketAddr::new(GATEWAY_V4.into(), DNS_PORT);
        let order = self.order(Way::Named(resolver), Path::new("/.bay/ca-bundle.crt"), path, work);
        let name = if header.is_some() { SECRET_NAME } else { NAME };
        let order = Order { header, name: name.to_owned(), ..order };
        let order = serde_json::to_string(&order).map_err(|error| ApiError::internal(&error))?;
        Ok(self.command(&["exec", bay, "--interactive", "--", PROGRAM, "__load", &order]))
    }

    /// The command that runs the load generator on the host, directly to the origin.
    pub(super) fn direct(&self, path: &str, work: Work) -> Result<Command, ApiError> {
        self.outside(Way::Direct(ADDRESS), &self.dir.join("origin.pem"), path, work)
    }

    fn outside(&self, way: Way, trust: &Path, path: &str, work: Work) -> Result<Command, ApiError> {
        let order = self.order(way, trust, path, work);
        let order = serde_json::to_string(&order).map_err(|error| ApiError::internal(&error))?;
        let mut command = Command::new(&self.executable);
        command.args(["__load", &order]);
        Ok(command)
    }

    /// The command that runs the load generator on the host, through another proxy.
    pub(super) fn through(&self, proxy: &Mitmproxy, path: &str, work: Work) -> Result<Command, ApiError> {
        let at = SocketAddr::new(ADDRESS, proxy.port);
        self.outside(Way::Proxy(at, ADDRESS), &proxy.trust, path, work)
    }

    /// Removes everything that the lab made, and reports what cannot be removed.
    pub(super) async fn close(mut self) {
        for bay in std::mem::take(&mut self.bays) {
            if let Err(error) = timed(&mut self.command(&["rm", "--yes", &bay])) {
                crate::talk::talk(&format!("{bay} stays: {}", error.message));
            }
        }
        end(&mut self.daemon).await;
        if let Err(error) = bay_pool::Pool::unmount(&self.location.pool) {
            crate::talk::talk(&format!("{} stays mounted: {error}", self.location.pool.display()));
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            crate::talk::talk(&format!("{} stays: {error}", self.dir.display()));
        }
    }
}

/// Asks a process to end, and kills it if it does not.
async fn end(child: &mut Child) {
    let asked = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = asked {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let begin = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && begin.elapsed() < WITHIN {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Runs the load generator to its end, and returns its result.
pub(super) fn told(command: &mut Command) -> Result<Told, ApiError> {
    let said = output_of(command)?;
    let wrong = |error| ApiError::internal(&error);
    serde_json::from_str(said.lines().last().unwrap_or_default()).map_err(wrong)
}

/// mitmproxy on this machine, in a virtual environment below the person's cache directory.
pub(super) struct Mitmproxy {
    port: u16,
    trust: PathBuf,
    child: Child,
}

impl Mitmproxy {
    /// Installs it if it is missing, and starts it.
    pub(super) async fn start(lab: &Lab) -> Result<Self, ApiError> {
        let program = installed()?;
        let confdir = lab.dir.join("mitmproxy");
        let port = std::net::TcpListener::bind(SocketAddr::new(ADDRESS, 0))
            .and_then(|listener| listener.local_addr())
            .map_err(|error| preparing(&error))?
            .port();
        let child = Command::new(program)
            .args(["-q", "--listen-host", &ADDRESS.to_string(), "--listen-port", &port.to_string()])
            .args(["--set", &format!("confdir={}", confdir.display())])
            .args([
                "--set",
                &format!("ssl_verify_upstream_trusted_ca={}", lab.dir.join("origin.pem").display()),
            ])
            .args(["--set", "flow_detail=0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| preparing(&error))?;
        let mut proxy = Self { port, trust: confdir.join("mitmproxy-ca-cert.pem"), child };
        let begin = Instant::now();
        while !proxy.trust.exists() || !answers(ADDRESS, port).await {
            if begin.elapsed() > WITHIN || !matches!(proxy.child.try_wait(), Ok(None)) {
                proxy.stop().await;
                return Err(ApiError::new(ErrorCode::HostUnfit, "mitmproxy does not answer", ""));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(proxy)
    }

    pub(super) async fn stop(mut self) {
        end(&mut self.child).await;
    }
}

async fn answers(address: IpAddr, port: u16) -> bool {
    tokio::net::TcpStream::connect((address, port)).await.is_ok()
}

/// The path of `mitmdump`, which is installed with pip if it is missing.
fn installed() -> Result<PathBuf, ApiError> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let none = || ApiError::new(ErrorCode::HostUnfit, "there is no cache to keep it in", "set HOME");
    let place = cache.ok_or_else(none)?.join("workbay/bench/mitmproxy");
    let program = place.join("bin/mitmdump");
    if !program.exists() {
        timed(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
        timed(Command::new(place.join("bin/pip")).args(["install", "--quiet", "mitmproxy"]))?;
    }
    timed(Command::new(&program).arg("--version"))?;
    Ok(program)
}
