//! Who in a bay is behind a connection or a look-up.

use serde::{Deserialize, Serialize};

use crate::id::ExecId;

/// Longest argument list that is told, in bytes, and how long the path of a program may be.
pub const MAX_ARGV_BYTES: usize = 4096;
pub const MAX_EXE_BYTES: usize = 1024;

/// Packets of one bay that went nowhere, counted for as long as it runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Datagrams to ports at which nobody listens: everything but DNS, QUIC included.
    pub udp: u64,
    pub icmp: u64,
    /// Packets of protocols that are neither TCP, UDP nor ICMP.
    pub other: u64,
}

/// What carries a connection or a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    Tcp,
    Udp,
}

/// Who opened a connection, as the host's kernel tells it. What could not be found out is absent; it is never somebody of
/// another bay. Inside its own bay root can move processes between execs, so it can make this wrong there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Who {
    /// The exec that opened the socket, whoever uses it since. A run of a service is an exec too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecId>,
    /// The service whose run that is, as the guest names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The guest itself, on behalf of whoever forwards a port.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub guest: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// A container in the bay: its address there, or the control group that it made for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nested: Option<String>,
    /// The user, by its number in the bay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

impl Who {
    /// Without an exec that is none of the bay's own: root in a bay can give a group any name, also that of an exec it has
    /// heard of. A run of a service is in no list of execs; it stays known by the service.
    #[must_use]
    pub fn confined_to(mut self, is_of_bay: impl FnOnce(ExecId) -> bool) -> Self {
        self.exec = self.exec.filter(|exec| is_of_bay(*exec));
        self
    }

    /// Whether nothing is known that leads to somebody.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.exec.is_none()
            && self.service.is_none()
            && !self.guest
            && self.process.is_none()
            && self.nested.is_none()
    }
}

/// A process that has the socket open. Bounded, and in the process's own words: it can call itself anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number in the bay.
    pub pid: i32,
    /// Its number on the host.
    pub host_pid: i32,
    pub exe: String,
    pub argv: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_written() {
        assert_eq!(serde_json::to_string(&Who::default()).unwrap(), "{}");
        assert!(serde_json::from_str::<Who>("{}").unwrap().is_unknown());
        let exec = ExecId::generate();
        let who = Who { exec: Some(exec), uid: Some(0), ..Who::default() };
        assert!(!who.is_unknown());
        assert_eq!(serde_json::to_string(&who).unwrap(), format!(r#"{{"exec":"{exec}","uid":0}}"#));
        assert!(Who { uid: Some(0), ..Who::default() }.is_unknown());
        assert_eq!(who.clone().confined_to(|found| found == exec), who);
        assert!(who.confined_to(|_| false).is_unknown());
    }
}
