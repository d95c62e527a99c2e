//! What root inside a bay tries against the way out, end to end: real bays, a real daemon, servers on loopback.
//!
//! `README.md` beside this has the list of attacks and the test of each, here and in the crates; [`table`] keeps it true.

mod addresses;
mod api;
mod bombs;
mod copies;
mod faults;
mod packets;
mod record;
mod table;
mod terminal;

/// Lets everything out that a rule without addresses can let out.
const OPEN: &str = r#"
[[rule]]
id = "all"
outcome = "allow"
host = "*"
port = "*"
scheme = ["http", "https"]
method = "*"
"#;
