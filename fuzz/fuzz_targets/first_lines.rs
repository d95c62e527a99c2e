//! The first line of a connection: HTTP/1 or not, and more of the same bytes never changes the answer.
#![no_main]

use bay_gateway::first_line::judge;
use bay_gateway::limits::MAX_FIRST_LINE_BYTES;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let bytes = &bytes[..bytes.len().min(MAX_FIRST_LINE_BYTES - 1)];
    let half = judge(&bytes[..bytes.len() / 2]);
    assert!(half.is_none() || half == judge(bytes));
});
