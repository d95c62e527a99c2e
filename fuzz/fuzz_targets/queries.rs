//! Queries of the guest's routes, and text for a person's terminal: what was escaped comes back as it was, and nothing
//! that a terminal obeys gets through.
#![no_main]

use bay_text::{clip, escape, shell};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let _ = bay_guest::fuzz::query(&text, "path");
    let sent = &bytes[..bytes.len().min(4096)];
    let found = bay_guest::fuzz::query(&format!("a=b&path={}", bay_text::percent::path_value(sent)), "path");
    if sent.contains(&0) {
        assert_eq!(found, None);
    } else {
        assert_eq!(found, Some(Some(sent.to_vec())));
    }
    for shown in [escape::visible(&text), escape::one_line(&text), escape::message(&text)] {
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
        assert!(clip(&shown, 20).chars().count() <= 20);
    }
    let json = escape::json(serde_json::to_string(&text).expect("a string"));
    assert!(!json.chars().any(char::is_control));
    assert_eq!(serde_json::from_str::<String>(&json).expect("still JSON"), text);
    assert!(!shell::command(&[text.into_owned()]).chars().any(char::is_control));
});
