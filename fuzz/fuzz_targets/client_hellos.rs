//! The beginning of TLS: read, or refused, and more of the same bytes never takes a name back.
#![no_main]

use bay_gateway::hello::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = parse(bytes);
    let half = parse(&bytes[..bytes.len() / 2]);
    if let (Ok(Some(half)), Ok(Some(whole))) = (half, whole) {
        assert_eq!(half.server_name, whole.server_name);
    }
});
