//! SSH clients know the gateway by one key for every host, because the gateway answers for all of them.

use std::io;

use bay_types::guest::GatewaySsh;

use super::tree::{Tree, invalid_data};

/// The file that the clients of all users read.
const KNOWN_HOSTS: &str = "etc/ssh/ssh_known_hosts";
/// The comment at the end of each line that this module wrote.
const MARK: &str = "the gateway of this bay";
/// Longest file of an image that is extended.
const MAX_KNOWN_HOSTS: u64 = 4 << 20;
/// Longest key that is accepted from the daemon.
const MAX_KEY: usize = 1024;

pub(super) fn install(tree: &Tree<'_>, ssh: &GatewaySsh) -> io::Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b" +/=-".contains(&byte);
    if ssh.host_key.len() > MAX_KEY || !ssh.host_key.bytes().all(plain) {
        return Err(invalid_data("the gateway's host key is none"));
    }
    let old = tree.read(KNOWN_HOSTS, MAX_KNOWN_HOSTS)?.unwrap_or_default();
    let old = String::from_utf8(old).map_err(|_| invalid_data("known hosts that are no text"))?;
    let mut text = format!("* {} {MARK}\n", ssh.host_key);
    for line in old.lines().filter(|line| !line.ends_with(MARK)) {
        text.push_str(line);
        text.push('\n');
    }
    tree.write(KNOWN_HOSTS, text.as_bytes())
}
