//! Bytes that a guest or a client sends as frames, cut anywhere: no panic, no frame out of nothing, and what was
//! understood is written the same way again.
#![no_main]

use bay_types::frame::{Frame, HEADER_LEN, MAX_PAYLOAD};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some((frame, used))) = Frame::decode(rest) {
        assert!(used >= HEADER_LEN && used <= rest.len() && used <= HEADER_LEN + MAX_PAYLOAD);
        let again = frame.to_bytes();
        // An end of input has no body, whatever was sent as one.
        let (second, _) = Frame::decode(&again).expect("our own frame").expect("a whole frame");
        assert_eq!(second, frame);
        rest = &rest[used..];
    }
});
