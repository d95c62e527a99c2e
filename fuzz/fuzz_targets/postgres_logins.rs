//! Logins to PostgreSQL, as the gateway reads them from a bay's client and from a database.
#![no_main]

use bay_gateway::postgres::fuzz::{client_says, database_says};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((side, said)) = bytes.split_first() else { return };
    match side {
        0 => client_says(said),
        side => database_says(said, side % 2 == 0),
    }
});
