//! Sockets of a bay as the host's kernel shows them: who opened one, and aborting those that lead nowhere any more.
//!
//! ```text
//!  ends of a connection ──► Kernel: sock_diag in the bay's network namespace ──► control group, inode, user
//!                             │ not the bay's own socket                            │             │
//!                             ▼                                                     ▼             ▼
//!                           conntrack: an address behind the bay's      Groups: exec, guest   Processes: pid, exe, argv
//! ```
//!
//! The kernel records a socket's control group when the socket is made. So it identifies the exec that opened a
//! connection, even if that exec passed it on, moved to another group or ended. The process is the one that has the
//! socket open now, if it can be found.
//!
//! Failure paths: what is not found is unknown. If a process ends right after sending, a TCP socket of it still shows
//! its group for `ORPHANS_KEPT_S` seconds (`network.rs`); afterwards only the addresses are left. A UDP socket is
//! gone at once.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use bay_types::egress::{Process, Transport, Who};
use bay_types::runtime::RuntimeRecord;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_SOCK_DIAG};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::network::LINK_INDEX;
use crate::run_directory;

mod conntrack;
mod diag;
mod groups;
mod kernel;
mod outside;
mod processes;

use groups::{Groups, Purpose};
use kernel::Kernel;
use processes::Processes;

pub use outside::can_destroy;
pub(crate) use outside::destroy_outside;

/// Longest path of a group that is reported.
const MAX_GROUP_NAME: usize = 200;

/// Requests about the sockets of one running bay. Keeps the bay's network namespace alive.
#[derive(Debug)]
pub struct Sockets {
    diag: Mutex<Kernel>,
    /// None if the kernel has no such table.
    conntrack: Option<Mutex<Kernel>>,
    /// First id of the bay on the host, and the number of its ids.
    ids: Option<(u32, u32)>,
}

/// To whom a socket belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Id of the control group that opened it.
    pub cgroup: u64,
    /// Zero if no process has it open.
    pub inode: u64,
    /// The user id in the bay. None for an id that the bay does not have.
    pub uid: Option<u32>,
}

impl Sockets {
    /// Opens the tables of a running bay.
    ///
    /// # Errors
    /// If the bay no longer runs, or its namespace cannot be entered.
    pub fn open(record: &RuntimeRecord) -> io::Result<Self> {
        // In a thread that enters the bay's namespace and ends there.
        let opened = std::thread::scope(|scope| scope.spawn(|| Self::open_here(record)).join());
        opened.unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    }

    fn open_here(record: &RuntimeRecord) -> io::Result<Self> {
        let namespace = File::open(format!("/proc/{}/ns/net", record.pid))?;
        let ids = std::fs::read_to_string(format!("/proc/{}/uid_map", record.pid))?;
        // Checked last: if the process is the same now, everything above belongs to it.
        if run_directory::process_start_ticks(record.pid)? != record.start_ticks {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the bay does not run any more"));
        }
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(Self {
            diag: Mutex::new(Kernel::open(NETLINK_SOCK_DIAG)?),
            conntrack: Kernel::open(NETLINK_NETFILTER).ok().map(Mutex::new),
            ids: first_ids(&ids),
        })
    }

    /// The owner of the socket at the bay's end of a connection; for UDP, of the socket that would get an answer.
    ///
    /// # Errors
    /// If the kernel does not answer, or answers in an unexpected form.
    pub fn owner(
        &self,
        bay_end: SocketAddr,
        gateway_end: SocketAddr,
        transport: Transport,
    ) -> io::Result<Option<Owner>> {
        let (local, remote) = (without_scope(bay_end), without_scope(gateway_end));
        let mut kernel = self.diag.lock().unwrap_or_else(PoisonError::into_inner);
        let found = diag::find(&mut kernel, local, remote, LINK_INDEX, transport)?;
        let uid = |uid: u32| {
            self.ids.and_then(|(first, count)| uid.checked_sub(first).filter(|inner| *inner < count))
        };
        Ok(found.and_then(|socket| {
            Some(Owner { cgroup: socket.cgroup?, inode: socket.inode, uid: uid(socket.uid) })
        }))
    }

    /// Where a connection began that the bay forwarded from inside under its own address.
    ///
    /// # Errors
    /// If the kernel does not answer, or answers in an unexpected form.
    pub fn origin(
        &self,
        bay_end: SocketAddr,
        gateway_end: SocketAddr,
        transport: Transport,
    ) -> io::Result<Option<IpAddr>> {
        let Some(conntrack) = &self.conntrack else { return Ok(None) };
        let mut kernel = conntrack.lock().unwrap_or_else(PoisonError::into_inner);
        conntrack::origin(&mut kernel, without_scope(bay_end), without_scope(gateway_end), transport)
    }
}

/// The address as IPv4 if it is a mapped one, and without the scope of an interface.
fn without_scope(end: SocketAddr) -> SocketAddr {
    SocketAddr::new(end.ip().to_canonical(), end.port())
}

/// The first line of an id map: first id inside, first id outside, count.
fn first_ids(map: &str) -> Option<(u32, u32)> {
    let mut numbers = map.split_ascii_whitespace().map_while(|word| word.parse().ok());
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(0), Some(first), Some(count)) => Some((first, count)),
        _ => None,
    }
}

/// Identifies who in one bay opened a connection.
#[derive(Debug)]
pub struct Callers {
    sockets: Sockets,
    groups: Groups,
    processes: Processes,
}

impl Callers {
    /// `group` is the bay's own group in version 2.
    ///
    /// # Errors
    /// If the bay no longer runs, or its namespace cannot be entered.
    pub fn of(record: &RuntimeRecord, group: PathBuf) -> io::Result<Self> {
        let callers = Self {
            sockets: Sockets::open(record)?,
            groups: Groups::of(group),
            processes: Processes::default(),
        };
        callers.groups.remember_present();
        Ok(callers)
    }

    /// Remembers the present execs, so that their sockets can be attributed after they have ended.
    pub fn remember_present(&self) {
        self.groups.remember_present();
    }

    /// Who opened a connection, without the process, which takes longer to find.
    #[must_use]
    pub fn who(&self, bay_end: SocketAddr, gateway_end: SocketAddr, transport: Transport) -> Who {
        match self.sockets.owner(bay_end, gateway_end, transport) {
            Ok(Some(owner)) => self.known(owner),
            Ok(None) => {
                let origin = self.sockets.origin(bay_end, gateway_end, transport);
                Who { nested: origin.ok().flatten().map(|address| address.to_string()), ..Who::default() }
            }
            Err(_) => Who::default(),
        }
    }

    fn known(&self, owner: Owner) -> Who {
        let mut who = Who { uid: owner.uid, ..Who::default() };
        let Some(group) = self.groups.find(owner.cgroup) else { return who };
        match group.purpose {
            Purpose::Guest => who.guest = true,
            Purpose::Exec(exec) => {
                who.exec = Some(exec);
                who.service = self.groups.service(&group);
            }
            Purpose::Other => {
                let name = group.path.to_string_lossy();
                who.nested = Some(name.chars().take(MAX_GROUP_NAME).collect());
            }
        }
        who
    }

    /// The process that has the bay's end open. Best effort: searched among those of the exec that opened it.
    #[must_use]
    pub fn process(
        &self,
        bay_end: SocketAddr,
        gateway_end: SocketAddr,
        transport: Transport,
    ) -> Option<Process> {
        let owner = self.sockets.owner(bay_end, gateway_end, transport).ok()??;
        let group = self.groups.find(owner.cgroup)?;
        // Only an open socket has a process.
        (owner.inode != 0).then(|| self.processes.find(self.groups.directory(&group), owner.inode))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_a_bay_are_its_first_extent() {
        assert_eq!(first_ids("         0 1900019712      65536\n"), Some((1_900_019_712, 65_536)));
        assert_eq!(first_ids("1 5 1"), None);
        assert_eq!(first_ids(""), None);
    }
}
