//! The traffic in a bay's network namespace, read from the host's side of its PID 1.

use std::fs::File;
use std::io::Read;

use bay_types::stats::NetworkUse;

/// Longest table that is read: about ten thousand connections.
const MAX_TABLE: u64 = 2 << 20;
/// `TCP_ESTABLISHED` in the kernel's tables.
const ESTABLISHED: &str = "01";

/// The traffic of this process's network namespace. Zero if it cannot be read.
#[must_use]
pub fn network_use(pid: i32) -> NetworkUse {
    let read = |file: &str| {
        let mut text = String::new();
        let opened = File::open(format!("/proc/{pid}/net/{file}"));
        // A table that is cut off in the middle of a line can still be used.
        let _ = opened.and_then(|file| file.take(MAX_TABLE).read_to_string(&mut text));
        text
    };
    NetworkUse {
        external_connections: external_connections(&read("tcp")) + external_connections(&read("tcp6")),
        external_bytes: external_bytes(&read("dev")),
    }
}

fn external_connections(table: &str) -> usize {
    let external = |line: &&str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (Some(local), Some(remote), Some(state)) = (words.next(), words.next(), words.next()) else {
            return false;
        };
        let address = |end: &'_ str| end.split(':').next().unwrap_or_default().to_owned();
        let (local, remote) = (address(local), address(remote));
        state == ESTABLISHED && local != remote && !is_loopback(&remote)
    };
    table.lines().skip(1).filter(external).count()
}

/// Addresses are written as words of four bytes, each in the byte order of this machine.
fn is_loopback(address: &str) -> bool {
    const V6: &str = "00000000000000000000000001000000";
    const V4_IN_V6: &str = "0000000000000000FFFF0000";
    let v4 = address.strip_prefix(V4_IN_V6).unwrap_or(address);
    address == V6 || (v4.len() == 8 && v4.ends_with("7F"))
}

fn external_bytes(table: &str) -> u64 {
    let mut bytes = 0_u64;
    for (name, counters) in table.lines().filter_map(|line| line.split_once(':')) {
        let counters: Vec<u64> =
            counters.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        if name.trim() != "lo"
            && let (Some(received), Some(sent)) = (counters.first(), counters.get(8))
        {
            bytes = bytes.saturating_add(*received).saturating_add(*sent);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connections_that_leave_the_bay_count() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue
   0: 00000000:1538 00000000:0000 0A 00000000:00000000
   1: 0100007F:1538 0100007F:A001 01 00000000:00000000
   2: 0202000A:A002 0202000A:1538 01 00000000:00000000
   3: 0202000A:A003 08080808:01BB 01 00000000:00000000
   4: 0202000A:A004 08080808:01BB 06 00000000:00000000
odd";
        assert_eq!(external_connections(table), 1);
        let v6 = "\
  sl  local_address                         remote_address                        st
   0: 00000000000000000000000001000000:0050 00000000000000000000000001000000:A001 01
   1: 0000000000000000FFFF00000100007F:0050 0000000000000000FFFF00000200007F:A001 01
   2: BA0000FD000000000000000002000000:A001 BA0000FD000000000000000001000000:01BB 01";
        assert_eq!(external_connections(v6), 1);
        assert_eq!(external_connections(""), 0);
    }

    #[test]
    fn loopback_traffic_does_not_count() {
        let table = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets
    lo: 5000 10 0 0 0 0 0 0 5000 10 0 0 0 0 0 0
  eth0: 1000 10 0 0 0 0 0 0 200 10 0 0 0 0 0 0";
        assert_eq!(external_bytes(table), 1200);
        assert_eq!(external_bytes("odd: x"), 0);
    }
}
