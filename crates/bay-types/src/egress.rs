//! The process in a bay behind a connection or a name lookup.

use serde::{Deserialize, Serialize};

use crate::id::ExecId;

/// Longest reported argument list, in bytes, and longest path of a program.
pub const MAX_ARGV_BYTES: usize = 4096;
pub const MAX_EXE_BYTES: usize = 1024;

/// Dropped packets of one bay since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Datagrams to ports without a listener: everything but DNS, including QUIC.
    pub udp: u64,
    pub icmp: u64,
    /// Packets of protocols that are neither TCP, UDP nor ICMP.
    pub other: u64,
}

/// The transport protocol of a connection or lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    Tcp,
    Udp,
}

/// Who opened a connection, as the host's kernel reports it. Unknown parts are absent, and never belong to another
/// bay. Root in a bay can move processes between execs, so within its own bay the attribution can be wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Who {
    /// The exec that opened the socket, even if another one uses it now. A run of a service is an exec too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecId>,
    /// The service whose run that exec is, as the guest names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The guest itself opened it to forward a port.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub guest: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// A container in the bay: its address, or the control group that it made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nested: Option<String>,
    /// The user id inside the bay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

impl Who {
    /// Drops an exec id that is not of this bay. Root in a bay can give a control group any name, for example the
    /// id of another bay's exec. Runs of services are in no list of execs; `service` still identifies them.
    #[must_use]
    pub fn confined_to(mut self, is_of_bay: impl FnOnce(ExecId) -> bool) -> Self {
        self.exec = self.exec.filter(|exec| is_of_bay(*exec));
        self
    }

    /// Whether nothing identifies the sender.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.exec.is_none()
            && self.service.is_none()
            && !self.guest
            && self.process.is_none()
            && self.nested.is_none()
    }
}

/// A process that has the socket open. Its texts are bounded, and the process chose them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its process id inside the bay.
    pub pid: i32,
    /// Its process id on the host.
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
