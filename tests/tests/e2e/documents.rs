//! The pictures of the documentation.

use std::process::Command;

use bay_tests::suite::Scratch;

const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pictures");

#[test]
fn the_picture_of_a_session_shows_what_was_recorded() {
    let scratch = Scratch::new();
    let drawn = scratch.path().join("session.svg");
    let status = Command::new("python3")
        .arg(format!("{PICTURES}/terminal.py"))
        .arg("draw")
        .arg(format!("{PICTURES}/session.json"))
        .arg(&drawn)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let [drawn, kept] = [drawn.as_path(), format!("{PICTURES}/session.svg").as_ref()]
        .map(|path| std::fs::read_to_string(path).unwrap());
    assert!(drawn == kept, "docs/pictures/session.svg differs: draw it with terminal.py, do not edit it");
}
