//! `bay forward`: what it adds to a message and its answer, and how much of loopback's throughput is left.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bay_types::ApiError;

use crate::peers::timed;
use crate::scoring::{Bar, Scored, Series, Unit, score};
use crate::setup::{BUSYBOX, Setup};

/// Messages of each round, one after the other on one connection.
const MESSAGES: usize = 500;
/// Mebibytes of one download.
const DOWNLOAD_MIB: u64 = 1024;
/// Ports in the bay, whose network is its own.
const ECHO: u16 = 7000;
const DOWNLOAD: u16 = 7001;
/// How long a server may take to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
const READ_SIZE: usize = 1 << 20;

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The arguments of busybox for a server that runs a program for each connection.
fn server(port: u16, program: &[&str]) -> Vec<String> {
    let port = port.to_string();
    let fixed = ["nc", "-ll", "-p", &port, "-e", BUSYBOX];
    fixed.iter().chain(program).map(|word| (*word).to_owned()).collect()
}

fn echo(port: u16) -> Vec<String> {
    server(port, &["cat"])
}

fn download(port: u16) -> Vec<String> {
    server(port, &["dd", "if=/dev/zero", "bs=1M", &format!("count={DOWNLOAD_MIB}")])
}

pub(crate) async fn forward(setup: &mut Setup, rounds: usize) -> Result<Vec<Scored>, ApiError> {
    let name = setup.up()?;
    let measured = measure(setup, &name, rounds).await;
    timed(&mut setup.bay(&["rm", "--yes", &name]))?;
    measured.map_err(|error| bay_client::local("measuring a forward", &error))
}

async fn measure(setup: &Setup, name: &str, rounds: usize) -> io::Result<Vec<Scored>> {
    for arguments in [echo(ECHO), download(DOWNLOAD)] {
        let mut started = setup.bay(&["exec", name, "-d", "--", BUSYBOX]);
        if !started.args(arguments).stdout(Stdio::null()).status()?.success() {
            return Err(io::Error::other("the server in the bay did not start"));
        }
    }
    let (host_echo, host_download) = (free_port()?, free_port()?);
    let mut servers = Vec::new();
    for arguments in [echo(host_echo), download(host_download)] {
        servers.push(Running(quiet(Command::new(BUSYBOX).args(arguments)).spawn()?));
    }
    let (bay_echo, bay_download) = (free_port()?, free_port()?);
    let ports = [format!("{ECHO}:{bay_echo}"), format!("{DOWNLOAD}:{bay_download}")];
    let mut forwarding = setup.bay(&["forward", name, "--json", &ports[0], &ports[1]]);
    let mut forwarding = Running(forwarding.stdout(Stdio::piped()).spawn()?);
    let mut lines = BufReader::new(forwarding.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
    for _ in &ports {
        lines.read_line(&mut String::new())?;
    }
    for port in [bay_echo, host_echo] {
        until_it_answers(port).await?;
    }
    Ok(vec![
        latency(bay_echo, host_echo, rounds)?,
        first_byte(bay_echo, host_echo, rounds)?,
        throughput(bay_download, host_download, rounds)?,
    ])
}

/// A byte there and back, on a connection that is open.
fn latency(bay: u16, host: u16, rounds: usize) -> io::Result<Scored> {
    let mut through = Series::new("bay forward", None);
    let mut direct = Series::new("loopback", None);
    let mut added = Series::of("added by the forward", Unit::Milliseconds, &[Bar::Is(0.3)]);
    let (mut to_bay, mut to_host) = (connect(bay)?, connect(host)?);
    for _ in 0..rounds {
        let (bay, host) = (messages(&mut to_bay)?, messages(&mut to_host)?);
        through.was(bay);
        direct.was(host);
        added.was(bay - host);
    }
    let title = "a byte through bay forward and back, on an open connection";
    Ok(score(title, &[added, through, direct], vec![format!("each round is the median of {MESSAGES}")]))
}

/// The median time of a message and its answer, in milliseconds.
fn messages(tcp: &mut TcpStream) -> io::Result<f64> {
    let mut all = Series::new("messages", None);
    for _ in 0..MESSAGES {
        let begin = Instant::now();
        tcp.write_all(b"x")?;
        tcp.read_exact(&mut [0])?;
        all.took(begin.elapsed());
    }
    Ok(all.median())
}

/// A byte there and back, on a connection made for it.
fn first_byte(bay: u16, host: u16, rounds: usize) -> io::Result<Scored> {
    let mut through = Series::new("bay forward", None);
    let mut direct = Series::new("loopback", None);
    for _ in 0..rounds {
        for (series, port) in [(&mut through, bay), (&mut direct, host)] {
            let begin = Instant::now();
            let mut tcp = connect(port)?;
            tcp.write_all(b"x")?;
            tcp.read_exact(&mut [0])?;
            series.took(begin.elapsed());
        }
    }
    let note = "the server starts a program for each connection".to_owned();
    Ok(score("a new connection through bay forward, to its first byte back", &[through, direct], vec![note]))
}

fn throughput(bay: u16, host: u16, rounds: usize) -> io::Result<Scored> {
    let bars = [Bar::Of(0.6, "loopback")];
    let mut through = Series::of("bay forward", Unit::MegabytesPerSecond, &bars);
    let mut direct = Series::of("loopback", Unit::MegabytesPerSecond, &[]);
    for _ in 0..rounds {
        through.was(megabytes_per_second(bay)?);
        direct.was(megabytes_per_second(host)?);
    }
    Ok(score(&format!("{DOWNLOAD_MIB} MiB through bay forward"), &[through, direct], vec![]))
}

fn megabytes_per_second(port: u16) -> io::Result<f64> {
    let mut buffer = vec![0; READ_SIZE];
    let begin = Instant::now();
    let mut tcp = connect(port)?;
    let mut bytes = 0_u64;
    loop {
        match tcp.read(&mut buffer)? {
            0 => break,
            count => bytes += count as u64,
        }
    }
    if bytes != DOWNLOAD_MIB << 20 {
        return Err(io::Error::other(format!("{bytes} bytes came of {DOWNLOAD_MIB} MiB")));
    }
    Ok(crate::throughput::per_second(bytes, begin.elapsed()))
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect(("127.0.0.1", port))?;
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

/// A forward takes connections before anything in the bay listens, and then closes them.
async fn until_it_answers(port: u16) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        match connect(port).and_then(|mut tcp| messages(&mut tcp)) {
            Ok(_) => return Ok(()),
            Err(error) if begin.elapsed() > LISTENS_WITHIN => return Err(error),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}
