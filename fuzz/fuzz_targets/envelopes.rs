//! Envelopes of the envd interface, cut anywhere: what was taken is what was sent, and no more.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (messages, used) = bay_guest::fuzz::envelopes(bytes);
    assert!(used <= bytes.len());
    let taken: usize = messages.iter().map(|message| 5 + message.as_ref().map_or(0, |m| m.len())).sum();
    assert!(taken <= used, "{taken} bytes out of {used}");
    // However much of it has come, the messages so far are the same.
    for cut in [used / 2, used.saturating_sub(1)] {
        let (fewer, _) = bay_guest::fuzz::envelopes(&bytes[..cut]);
        assert_eq!(fewer[..], messages[..fewer.len()]);
    }
});
