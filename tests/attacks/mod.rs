//! Attacks by root inside a bay on its egress, end to end: real bays, a real daemon, servers on loopback.
//!
//! `README.md` in this directory lists every attack with its tests, here and in the crates. [`readme_table`] compares
//! that list with the source.

mod addresses;
mod api;
mod compression_bombs;
mod copying_out;
mod gateway_faults;
mod packets;
mod readme_table;
mod terminal;
mod traffic_record;

/// Allows every HTTP request that a rule without addresses can allow.
const OPEN: &str = r#"
[[rule]]
id = "all"
outcome = "allow"
host = "*"
port = "*"
scheme = ["http", "https"]
method = "*"
"#;
