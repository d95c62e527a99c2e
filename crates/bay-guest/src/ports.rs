//! Listening sockets in the bay: the kernel's socket tables, joined with the processes that hold the sockets.
//!
//! Reads only the guest's own network namespace, and in `/proc` only files of the kernel ([`procfs`]). The agent
//! controls the names and the number of processes, so everything is bounded.

use std::collections::HashMap;
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

use bay_types::inside::{Port, Protocol};
use bay_types::service::ServiceName;
use bay_types::{ApiError, ExecId};
use http::StatusCode;
use tokio::sync::Semaphore;

use crate::http::{Answer, json};
use crate::procfs;

/// Most bytes of a socket table that are read: about 25,000 lines.
const MAX_TABLE: u64 = 4 << 20;
/// Most listening sockets in one answer; further ones are left out.
const MAX_PORTS: usize = 1024;
/// Processes and open files that are examined to find the holders of sockets.
const MAX_PROCESSES: usize = 16 << 10;
const MAX_FILES: usize = 1 << 18;
/// Longest name of a process, and longest line of its group file, that is read.
const MAX_LINE: u64 = 4096;

const TCP_LISTEN: &str = "0A";
/// A datagram socket that is bound but not connected.
const UDP_BOUND: &str = "07";

/// One search at a time for the daemon. Each search needs a thread and may read many files.
static OUTER_TURN: Semaphore = Semaphore::const_new(1);
/// One search at a time for processes of the bay.
static INNER_TURN: Semaphore = Semaphore::const_new(1);

/// Answers `GET /v1/ports`. `viewer` is the user inside the bay who asks, or None for the daemon. Processes of other
/// users are left out unless the viewer is root, because the kernel hides them too. `service_of` returns the service of
/// which an exec is a run.
pub(crate) async fn route(viewer: Option<u32>, service_of: impl Fn(ExecId) -> Option<ServiceName>) -> Answer {
    let turn = if viewer.is_some() { &INNER_TURN } else { &OUTER_TURN };
    let turn = turn.acquire().await.map_err(|e| ApiError::internal(&e))?;
    let search = move || {
        let _turn = turn;
        listening(viewer)
    };
    let mut found = tokio::task::spawn_blocking(search).await.map_err(|e| ApiError::internal(&e))?;
    for port in &mut found {
        port.service = port.exec.and_then(&service_of);
    }
    Ok(json(StatusCode::OK, &found))
}

fn listening(viewer: Option<u32>) -> Vec<Port> {
    let mut ports: Vec<(u64, Port)> = Vec::new();
    for (table, protocol, state) in [
        ("tcp", Protocol::Tcp, TCP_LISTEN),
        ("tcp6", Protocol::Tcp, TCP_LISTEN),
        ("udp", Protocol::Udp, UDP_BOUND),
        ("udp6", Protocol::Udp, UDP_BOUND),
    ] {
        let text = procfs::read_text(&format!("net/{table}"), MAX_TABLE);
        ports.extend(text.lines().skip(1).filter_map(|line| parse(line, protocol, state)));
    }
    ports.truncate(MAX_PORTS);
    let mut missing: HashMap<u64, Vec<usize>> = HashMap::new();
    for (at, (inode, _)) in ports.iter().enumerate() {
        missing.entry(*inode).or_default().push(at);
    }
    find_holders(viewer, &mut missing, &mut ports);
    let mut ports: Vec<Port> = ports.into_iter().map(|(_, port)| port).collect();
    ports.sort_by_key(|port| (port.protocol, port.port, port.address));
    ports
}

/// Parses a line of a table: number, local address, remote address, state, four more fields, inode.
fn parse(line: &str, protocol: Protocol, state: &str) -> Option<(u64, Port)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (address, port) = fields.next()?.split_once(':')?;
    let remote = fields.next()?;
    if fields.next()? != state || !remote.ends_with(":0000") {
        return None;
    }
    let inode = fields.nth(5)?.parse().ok()?;
    let address = parse_address(address)?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let loopback = address.to_canonical().is_loopback();
    Some((
        inode,
        Port {
            protocol,
            address,
            port,
            loopback,
            pid: None,
            process: None,
            exec: None,
            exec_number: None,
            service: None,
        },
    ))
}

/// The kernel prints each four bytes as a number in the byte order of this machine.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(text.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let mut bytes = [0; 16];
            bytes.copy_from_slice(words.as_flattened());
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

fn find_holders(viewer: Option<u32>, missing: &mut HashMap<u64, Vec<usize>>, ports: &mut [(u64, Port)]) {
    let Ok(processes) = procfs::directory(".") else { return };
    let mut files_left = MAX_FILES;
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse::<i32>().ok());
    for pid in pids.take(MAX_PROCESSES) {
        if missing.is_empty() || files_left == 0 {
            return;
        }
        let may_see = viewer
            .is_none_or(|uid| uid == 0 || procfs::owner(&pid.to_string()).is_ok_and(|owner| owner == uid));
        if !may_see {
            continue;
        }
        let Ok(mut files) = procfs::directory(&format!("{pid}/fd")) else { continue };
        let mut holder = None;
        while files_left > 0
            && let Some(Ok(file)) = files.read()
        {
            files_left -= 1;
            let inode = files.fd().ok().and_then(|dir| socket_inode(dir, file.file_name()));
            let Some(at) = inode.and_then(|inode| missing.remove(&inode)) else {
                continue;
            };
            let (process, exec) = holder.get_or_insert_with(|| (name_of(pid), exec_of(pid)));
            for at in at {
                let port = &mut ports[at].1;
                (port.pid, port.process, port.exec) = (Some(pid), Some(process.clone()), *exec);
            }
        }
    }
}

fn socket_inode(files: BorrowedFd<'_>, link: &CStr) -> Option<u64> {
    let target = rustix::fs::readlinkat(files, link, Vec::new()).ok()?;
    target.to_str().ok()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn name_of(pid: i32) -> String {
    procfs::read_text(&format!("{pid}/comm"), MAX_LINE).trim_end_matches('\n').to_owned()
}

/// The exec in whose cgroup leaf a process is.
pub(crate) fn exec_of(pid: i32) -> Option<ExecId> {
    let groups = procfs::read_text(&format!("{pid}/cgroup"), MAX_LINE);
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    path.split('/').find_map(|part| part.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn lines_of_the_kernels_tables_are_understood() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100";
        let (inode, port) = parse(line, Protocol::Tcp, TCP_LISTEN).unwrap();
        assert_eq!((inode, port.port, port.loopback), (4711, 8080, true));
        assert_eq!(port.address, IpAddr::from([127, 0, 0, 1]));
        let six = "   1: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 12 1";
        let (_, port) = parse(six, Protocol::Tcp, TCP_LISTEN).unwrap();
        assert_eq!((port.address, port.port), (IpAddr::from(Ipv6Addr::LOCALHOST), 22));
        assert!(parse(&line.replace(" 0A ", " 01 "), Protocol::Tcp, TCP_LISTEN).is_none());
    }

    #[test]
    fn lines_that_make_no_sense_are_skipped() {
        for line in [
            "",
            "x",
            "0: :",
            "0: 0100007F:ZZZZ 0:0000 0A 0 0 0 0 0 1",
            "0: é0000000000:1 0:0000 0A 0 0 0 0 0 1",
        ] {
            assert!(parse(line, Protocol::Tcp, TCP_LISTEN).is_none(), "{line}");
        }
    }

    #[test]
    fn a_listening_socket_is_found_with_its_process() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("[::]:0").unwrap();
        let found = listening(None);
        let own = i32::try_from(std::process::id()).unwrap();
        for (protocol, address, loopback) in [
            (Protocol::Tcp, tcp.local_addr().unwrap(), true),
            (Protocol::Udp, udp.local_addr().unwrap(), false),
        ] {
            let port = found
                .iter()
                .find(|p| (p.protocol, p.address, p.port) == (protocol, address.ip(), address.port()))
                .unwrap_or_else(|| panic!("{address} is not in {found:?}"));
            assert_eq!((port.pid, port.loopback), (Some(own), loopback));
        }
        let unseen = listening(Some(4_000_000));
        assert!(unseen.iter().all(|port| port.pid.is_none()), "{unseen:?}");
    }
}
