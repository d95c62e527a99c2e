//! Removes CRIU's lock on TCP. While CRIU examines connections, it blocks TCP in a bay's network namespace with a table
//! of rules, and puts the sockets into repair mode. If it is killed, both stay, and every connection inside hangs.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;

use bay_types::runtime::RuntimeRecord;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::failure::{Failure, Try};
use crate::run_directory;

const STEP: &str = "mend";
/// How the names of CRIU's tables begin.
const PREFIX: &[u8] = b"CRIU-";

// From linux/netlink.h, linux/netfilter/nfnetlink.h and nf_tables.h.
const HEADER: usize = 16;
const FAMILY_HEADER: usize = 4;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_NEWTABLE: u16 = NFNL_SUBSYS_NFTABLES << 8;
const NFT_MSG_GETTABLE: u16 = NFT_MSG_NEWTABLE | 1;
const NFT_MSG_DELTABLE: u16 = NFT_MSG_NEWTABLE | 2;
const NFTA_TABLE_NAME: u16 = 1;
const NFPROTO_INET: u8 = 1;

/// Removes the tables, and ends the repair mode of sockets. Runs in a thread of its own, which enters the bay's network
/// namespace and ends there.
pub(super) fn end_lock(record: &RuntimeRecord) -> Result<(), Failure> {
    let done = std::thread::scope(|scope| scope.spawn(|| end_lock_here(record)).join());
    done.unwrap_or_else(|_| {
        let error = io::Error::other("the thread panicked");
        Err(Failure::new(STEP, "could not look for a lock that CRIU left in the bay's network", error))
    })
}

fn end_lock_here(record: &RuntimeRecord) -> Result<(), Failure> {
    let what = || "could not look for a lock that CRIU left in the bay's network".to_owned();
    if run_directory::process_start_ticks(record.pid).ok() != Some(record.start_ticks) {
        return Ok(());
    }
    let namespace = File::open(format!("/proc/{}/ns/net", record.pid)).at(STEP, what)?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).at(STEP, what)?;
    unlock().at(STEP, what)?;
    end_repairs(record.pid);
    Ok(())
}

/// Ends the repair mode of every TCP socket of the bay's processes. Sockets that are closed meanwhile and other files
/// are skipped.
fn end_repairs(first: i32) {
    let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let own = network(&first.to_string());
    let mut seen = HashSet::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str() else { continue };
        let Some(number) = pid.parse().ok().and_then(Pid::from_raw) else { continue };
        // The handle first, then the check: so what is taken with the handle belongs to the process that was checked,
        // or to none.
        let Ok(handle) = pidfd_open(number, PidfdFlags::empty()) else { continue };
        if network(pid).is_none_or(|ns| own.as_ref() != Some(&ns)) {
            continue;
        }
        for open in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let is_new = fs::read_link(open.path()).is_ok_and(|link| {
                link.as_os_str().as_encoded_bytes().starts_with(b"socket:[") && seen.insert(link)
            });
            let descriptor = open.file_name().to_str().and_then(|fd| fd.parse().ok()).filter(|_| is_new);
            if let Some(descriptor) = descriptor
                && let Ok(socket) = pidfd_getfd(&handle, descriptor, PidfdGetfdFlags::empty())
            {
                let _ = bay_sys::tcp::leave_repair(socket);
            }
        }
    }
}

fn unlock() -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&message(NFT_MSG_GETTABLE, NLM_F_DUMP, NFPROTO_INET, 0, &[]), 0)?;
    let mut left = Vec::new();
    'answers: loop {
        let (answer, _) = socket.recv_from_full()?;
        let mut rest = answer.as_slice();
        while let Some((kind, body, next)) = split(rest) {
            match kind {
                NLMSG_DONE => break 'answers,
                // A kernel without nftables, so CRIU locked nothing with it.
                NLMSG_ERROR => return Ok(()),
                NFT_MSG_NEWTABLE => left.extend(table_name(body).filter(|name| name.starts_with(PREFIX))),
                _ => {}
            }
            rest = next;
        }
    }
    for name in left {
        let batch = [
            message(NFNL_MSG_BATCH_BEGIN, 0, 0, NFNL_SUBSYS_NFTABLES, &[]),
            message(NFT_MSG_DELTABLE, NLM_F_ACK, NFPROTO_INET, 0, &attribute(NFTA_TABLE_NAME, &name)),
            message(NFNL_MSG_BATCH_END, 0, 0, NFNL_SUBSYS_NFTABLES, &[]),
        ]
        .concat();
        socket.send(&batch, 0)?;
        let (answer, _) = socket.recv_from_full()?;
        if let Some((NLMSG_ERROR, body, _)) = split(&answer)
            && let Some(code) = body.first_chunk::<4>().map(|bytes| i32::from_ne_bytes(*bytes))
            && code != 0
        {
            return Err(io::Error::from_raw_os_error(-code));
        }
    }
    Ok(())
}

fn message(kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) -> Vec<u8> {
    let length = HEADER + FAMILY_HEADER + attributes.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(u32::try_from(length).unwrap_or_default().to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags | NLM_F_REQUEST).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes);
    bytes
}

fn attribute(kind: u16, text: &[u8]) -> Vec<u8> {
    let length = 4 + text.len() + 1;
    let mut bytes = Vec::new();
    bytes.extend(u16::try_from(length).unwrap_or_default().to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(text);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

/// Type and body of the first message, and the bytes after it.
fn split(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(HEADER..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn table_name(body: &[u8]) -> Option<Vec<u8>> {
    let mut rest = body.get(FAMILY_HEADER..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..length)?;
        if kind == NFTA_TABLE_NAME {
            return Some(value.strip_suffix(&[0]).unwrap_or(value).to_vec());
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tables_name_is_found_in_its_message() {
        let written = message(
            NFT_MSG_NEWTABLE,
            0,
            NFPROTO_INET,
            0,
            &[attribute(7, b"x"), attribute(1, b"CRIU-1")].concat(),
        );
        let (kind, body, rest) = split(&written).unwrap();
        assert_eq!((kind, rest), (NFT_MSG_NEWTABLE, &[][..]));
        assert_eq!(table_name(body).unwrap(), b"CRIU-1");
        assert!(split(&written[..10]).is_none());
    }
}
