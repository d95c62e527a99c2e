//! The process in a bay behind a connection or a name lookup.

use serde::{Deserialize, Serialize};

use crate::id::ExecId;

/// Longest reported argument list, in bytes.
pub const MAX_ARGV_BYTES: usize = 4096;
/// Longest reported path of a program, in bytes.
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

/// The mark that the kernel adds to the path of a program whose file is gone.
const DELETED: &str = " (deleted)";

impl Process {
    /// The name of the program that runs, by its binary. A process can rewrite its first argument, so that differs from
    /// the binary only as an addition: `node (as claude)`. Nothing of it is safe to show yet.
    #[must_use]
    pub fn program(&self) -> String {
        let binary = file_name(self.exe.strip_suffix(DELETED).unwrap_or(&self.exe));
        // A title is a sentence. Its first word is the name: `nginx: worker process`.
        let title = self.argv.first().map(String::as_str).unwrap_or_default();
        let word = title.split([' ', ':']).next().unwrap_or_default();
        // A login shell has a `-` before its name.
        let called = file_name(word).trim_start_matches('-');
        match (binary, called) {
            ("", called) => called.to_owned(),
            (binary, "") => binary.to_owned(),
            // `python3` runs the binary `python3.11`.
            (binary, called) if is_version(binary.strip_prefix(called)) => called.to_owned(),
            (binary, called) => format!("{binary} (as {called})"),
        }
    }

    /// The program and its arguments. A process that rewrites its title leaves empty arguments after it: they are left
    /// out. Nothing of it is safe to show yet.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let end = self.argv.iter().rposition(|word| !word.is_empty()).map_or(0, |last| last + 1);
        let program = Some(self.program()).filter(|program| !program.is_empty());
        program.into_iter().chain(self.argv[..end].iter().skip(1).cloned()).collect()
    }
}

/// Whether the rest of a name is only a version, or nothing.
fn is_version(rest: Option<&str>) -> bool {
    rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-')))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(exe: &str, argv: &[&str]) -> Process {
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        Process { pid: 1, host_pid: 2, exe: exe.to_owned(), argv }
    }

    #[test]
    fn a_process_is_named_by_its_binary_and_not_by_a_title_that_it_wrote() {
        let program = |exe, argv: &[&str]| process(exe, argv).program();
        assert_eq!(program("/usr/bin/curl", &["curl", "-s"]), "curl");
        assert_eq!(program("/usr/bin/python3.11", &["/usr/bin/python3", "x.py"]), "python3");
        assert_eq!(program("/usr/bin/bash", &["-bash"]), "bash");
        assert_eq!(program("/usr/bin/node", &["claude", "", "", ""]), "node (as claude)");
        assert_eq!(program("/usr/sbin/nginx", &["nginx: worker process", "", ""]), "nginx");
        assert_eq!(program("/tmp/evil", &["/usr/bin/curl"]), "evil (as curl)");
        assert_eq!(program("/tmp/curl-evil", &["curl"]), "curl-evil (as curl)");
        assert_eq!(program("/bin/busybox", &["wget"]), "busybox (as wget)");
        assert_eq!(program("/tmp/x (deleted)", &["x"]), "x");
        assert_eq!(program("/usr/bin/node", &["", "", ""]), "node");
        assert_eq!(program("/usr/bin/node", &[]), "node");
        assert_eq!(program("", &["curl"]), "curl");
        assert_eq!(program("", &[]), "");
    }

    #[test]
    fn the_empty_rest_of_a_rewritten_title_is_not_shown() {
        let words = |exe, argv: &[&str]| process(exe, argv).words();
        assert_eq!(words("/usr/bin/node", &["claude", "", "", ""]), ["node (as claude)"]);
        assert_eq!(words("/usr/bin/node", &["", "", ""]), ["node"]);
        assert_eq!(words("/usr/bin/curl", &["curl", "-s", "https://x"]), ["curl", "-s", "https://x"]);
        assert_eq!(words("", &["", ""]), Vec::<String>::new());
    }

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
