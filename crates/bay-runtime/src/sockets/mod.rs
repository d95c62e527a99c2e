//! Sockets of a bay as the host's kernel sees them: who opened one, and the end of those that lead nowhere any more.
//!
//! ```text
//!  ends of a connection ──► Kernel: sock_diag in the bay's network namespace ──► control group, inode, user
//!                             │ not the bay's own socket                            │             │
//!                             ▼                                                     ▼             ▼
//!                           conntrack: an address behind the bay's      Groups: exec, guest   Processes: pid, exe, argv
//! ```
//!
//! The kernel notes a socket's control group when it is made. So it tells the exec that opened a connection, also after
//! that passed it on, moved elsewhere or ended; the process is whoever has it open now, as far as it can be seen.
//!
//! Failure paths: what is not found is unknown. A process that ends right after sending leaves a socket that still tells,
//! for `ORPHANS_TELL` seconds at least (`network.rs`); after that only the ends are left.

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
use crate::place;

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

/// Longest path of a group that is told.
const MAX_GROUP_NAME: usize = 200;

/// A way to ask about the sockets of one bay, for as long as it runs. Keeps the bay's network namespace alive.
#[derive(Debug)]
pub struct Sockets {
    diag: Mutex<Kernel>,
    /// Absent where the kernel has no such table.
    conntrack: Option<Mutex<Kernel>>,
    /// First id of the bay on the host, and how many it has.
    ids: Option<(u32, u32)>,
}

/// Whose a socket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Number of the control group that opened it.
    pub cgroup: u64,
    /// Zero when no process has it open any more.
    pub inode: u64,
    /// By its number in the bay; absent for one that the bay has not.
    pub uid: Option<u32>,
}

impl Sockets {
    /// # Errors
    /// When the bay does not run any more, or its namespace cannot be entered.
    pub fn open(record: &RuntimeRecord) -> io::Result<Self> {
        // In a thread that ends in the bay's namespace.
        let opened = std::thread::scope(|scope| scope.spawn(|| Self::open_here(record)).join());
        opened.unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    }

    fn open_here(record: &RuntimeRecord) -> io::Result<Self> {
        let namespace = File::open(format!("/proc/{}/ns/net", record.pid))?;
        let ids = std::fs::read_to_string(format!("/proc/{}/uid_map", record.pid))?;
        // Looked at last: all of it was of this process, or is not used.
        if place::process_start_ticks(record.pid)? != record.start_ticks {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the bay does not run any more"));
        }
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(Self {
            diag: Mutex::new(Kernel::open(NETLINK_SOCK_DIAG)?),
            conntrack: Kernel::open(NETLINK_NETFILTER).ok().map(Mutex::new),
            ids: first_ids(&ids),
        })
    }

    /// Whose socket is at the bay's end of a connection; for UDP, whose socket an answer would be given to.
    ///
    /// # Errors
    /// When the kernel does not answer, or not as it should.
    pub fn owner(
        &self,
        bay_end: SocketAddr,
        gateway_end: SocketAddr,
        transport: Transport,
    ) -> io::Result<Option<Owner>> {
        let (local, remote) = (plain(bay_end), plain(gateway_end));
        let mut kernel = self.diag.lock().unwrap_or_else(PoisonError::into_inner);
        let found = diag::find(&mut kernel, local, remote, LINK_INDEX, transport)?;
        let uid = |uid: u32| {
            self.ids.and_then(|(first, count)| uid.checked_sub(first).filter(|inner| *inner < count))
        };
        Ok(found.and_then(|socket| {
            Some(Owner { cgroup: socket.cgroup?, inode: socket.inode, uid: uid(socket.uid) })
        }))
    }

    /// Where a connection began that the bay passed on from inside itself under its own address.
    ///
    /// # Errors
    /// When the kernel does not answer, or not as it should.
    pub fn origin(
        &self,
        bay_end: SocketAddr,
        gateway_end: SocketAddr,
        transport: Transport,
    ) -> io::Result<Option<IpAddr>> {
        let Some(conntrack) = &self.conntrack else { return Ok(None) };
        let mut kernel = conntrack.lock().unwrap_or_else(PoisonError::into_inner);
        conntrack::origin(&mut kernel, plain(bay_end), plain(gateway_end), transport)
    }
}

/// An IPv4 address in its own form, and without what an interface has to do with it.
fn plain(end: SocketAddr) -> SocketAddr {
    SocketAddr::new(end.ip().to_canonical(), end.port())
}

/// The first line of an id map: first id inside, first id outside, how many.
fn first_ids(map: &str) -> Option<(u32, u32)> {
    let mut numbers = map.split_ascii_whitespace().map_while(|word| word.parse().ok());
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(0), Some(first), Some(count)) => Some((first, count)),
        _ => None,
    }
}

/// Tells who in one bay is behind a connection.
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
    /// As [`Sockets::open`].
    pub fn of(record: &RuntimeRecord, group: PathBuf) -> io::Result<Self> {
        let callers = Self {
            sockets: Sockets::open(record)?,
            groups: Groups::of(group),
            processes: Processes::default(),
        };
        callers.groups.note();
        Ok(callers)
    }

    /// Takes note of the execs there are, so that they are known by what they left when they are gone.
    pub fn note(&self) {
        self.groups.note();
    }

    /// Who opened a connection; all but the process, which takes longer to find.
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

    /// The process that has the bay's end open. Best effort: looked for among those of the exec that opened it.
    #[must_use]
    pub fn process(
        &self,
        bay_end: SocketAddr,
        gateway_end: SocketAddr,
        transport: Transport,
    ) -> Option<Process> {
        let owner = self.sockets.owner(bay_end, gateway_end, transport).ok()??;
        let group = self.groups.find(owner.cgroup)?;
        // One that nobody has open has no process.
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
