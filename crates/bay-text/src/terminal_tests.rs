use proptest::prelude::*;

use super::*;

fn whole(bytes: &[u8]) -> Vec<u8> {
    let mut filter = Filter::default();
    [filter.push(bytes), filter.finish()].concat()
}

fn shown(text: &str) -> String {
    String::from_utf8(whole(text.as_bytes())).unwrap()
}

fn in_pieces(pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut filter = Filter::default();
    let mut out: Vec<u8> = pieces.iter().flat_map(|piece| filter.push(piece)).collect();
    out.extend(filter.finish());
    out
}

/// Parses text as a terminal would, and returns the first part that the terminal would obey or not show.
fn obeyed(written: &[u8]) -> Option<String> {
    let Ok(text) = std::str::from_utf8(written) else { return Some("not UTF-8".to_owned()) };
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let colour = after.strip_prefix('[').and_then(|after| {
            let end = after.find(|c: char| !c.is_ascii_digit() && c != ';' && c != ':')?;
            (end <= MAX_COLOUR && after[end..].starts_with('m')).then(|| &after[end + 1..])
        });
        rest = match c {
            '\n' | '\t' => after,
            '\r' if after.starts_with('\n') => after,
            '\u{1b}' if colour.is_some() => colour.unwrap(),
            c if misleads(c) => {
                return Some(format!("{c:?} before {:?}", &after.chars().take(9).collect::<String>()));
            }
            _ => after,
        };
    }
    None
}

#[test]
fn terminal_sequences_are_shown_as_text() {
    assert_eq!(shown("a\x1b]52;c;aGk=\x07b"), "a\\x1b]52;c;aGk=\\x07b");
    assert_eq!(shown("\x1b[2J\x1b[H\x1bc\x1bP$q\x1b\\"), "\\x1b[2J\\x1b[H\\x1bc\\x1bP$q\\x1b\\");
    assert_eq!(shown("secret\x08\x08\x7f\x00"), "secret\\x08\\x08\\x7f\\x00");
    assert_eq!(shown("\u{9b}2J \u{9d}0;t\u{9c}"), "\\u{9b}2J \\u{9d}0;t\\u{9c}");
    assert_eq!(
        whole(b"\x9b2J \xff\xc3 \xe2\x82 \xc0\x80 \xed\xa0\x80"),
        b"\\x9b2J \\xff\\xc3 \\xe2\\x82 \\xc0\\x80 \\xed\\xa0\\x80"
    );
    assert_eq!(shown("a\u{202e}b\u{2060}c\u{e0041}"), "a\\u{202e}b\\u{2060}c\\u{e0041}");
}

#[test]
fn colours_pass_and_are_reset_at_the_end_of_the_stream() {
    assert_eq!(shown("\x1b[1;31mred\x1b[0m plain"), "\x1b[1;31mred\x1b[0m plain");
    assert_eq!(shown("\x1b[32mok\x1b[m"), "\x1b[32mok\x1b[m");
    assert_eq!(shown("\x1b[38;5;8mgrey"), "\x1b[38;5;8mgrey\x1b[0m");
    assert_eq!(shown("\x1b[38;2;8;8;8;48:2::1:2:3mx"), "\x1b[38;2;8;8;8;48:2::1:2:3mx\x1b[0m");
    assert_eq!(shown("\x1b[0;1mx"), "\x1b[0;1mx\x1b[0m");
}

#[test]
fn invalid_colours_are_shown_as_text() {
    for text in [
        "[8m",
        "[1;08m",
        "[58;5;8m",
        "[38;5m",
        "[38;8m",
        "[>4;2m",
        "[?25m",
        "[1 m",
        "[31",
        "[",
        "",
        "[3\x1b[31",
    ] {
        let written = shown(&format!("\x1b{text}"));
        assert_eq!(written, format!("\\x1b{}", text.replace('\x1b', "\\x1b")));
    }
    let long = format!("\x1b[{}m", "1;".repeat(MAX_COLOUR));
    assert!(shown(&long).starts_with("\\x1b[1;1;"));
    assert_eq!(shown("\x1b\x1b[31mx"), "\\x1b\x1b[31mx\x1b[0m");
}

#[test]
fn a_carriage_return_hides_nothing() {
    assert_eq!(shown("rm -rf /\recho hello\n"), "rm -rf /\\r\necho hello\n");
    assert_eq!(shown("10%\r20%\r\r100%\r\n"), "10%\\r\n20%\\r\n100%\r\n");
    assert_eq!(shown("a\r\r\nb\r"), "a\r\nb\\r\n");
}

#[test]
fn only_incomplete_sequences_are_buffered() {
    let mut filter = Filter::default();
    assert_eq!(filter.push(b"prompt> \x1b[3"), b"prompt> ");
    assert_eq!(filter.push(b"1mx\xe2\x82"), b"\x1b[31mx");
    assert_eq!(filter.push(b"\xac\r"), "€".as_bytes());
    assert_eq!(filter.push(&[b'\r'; 1000]), b"");
    assert!(filter.held.len() <= 1);
    assert_eq!(filter.push(b"\n"), b"\r\n");
    assert_eq!(filter.finish(), RESET);
    assert_eq!(filter.finish(), b"");
}

/// Bytes that are mostly pieces of sequences.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"\x1b".to_vec()),
        Just(b"\x1b[".to_vec()),
        Just(b"\x1b[31m".to_vec()),
        Just(b"\x1b]0;".to_vec()),
        Just(b"\x9b".to_vec()),
        Just("\u{9b}\u{202e}".as_bytes().to_vec()),
        Just(b"\r".to_vec()),
        Just(b"\n".to_vec()),
        Just("größe 🦀".as_bytes().to_vec()),
        "[0-9;:]{0,70}m?".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..6),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_bytes_control_a_terminal(bytes in hostile()) {
        prop_assert_eq!(obeyed(&whole(&bytes)), None);
    }

    #[test]
    fn the_filtered_output_does_not_depend_on_where_the_stream_is_divided(bytes in hostile(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)) {
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        let pieces: Vec<Vec<u8>> = at.windows(2).map(|pair| bytes[pair[0]..pair[1]].to_vec()).collect();
        prop_assert_eq!(in_pieces(&pieces), whole(&bytes));
        let bytewise: Vec<Vec<u8>> = bytes.iter().map(|byte| vec![*byte]).collect();
        prop_assert_eq!(in_pieces(&bytewise), whole(&bytes));
    }

    #[test]
    fn ordinary_text_is_not_changed(text in "[ -~\t\näöü日本語€]{0,80}") {
        prop_assert_eq!(shown(&text), text);
    }

    #[test]
    fn the_buffer_of_the_filter_is_bounded(bytes in hostile()) {
        let mut filter = Filter::default();
        for byte in bytes {
            let _ = filter.push(&[byte]);
            prop_assert!(filter.held.len() <= MAX_COLOUR + 2);
        }
    }
}
