//! Texts in all spellings, split in all ways.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use proptest::prelude::*;

use super::{SENTINEL, VALUE, contains, patterns};
use crate::scrub::{Hidden, MAX_NEAR_MISSES, MAX_VALUE_BYTES, Patterns, Stream, Tally, ValueError};

/// The text in one spelling, as an encoder writes it.
fn spelled(how: usize, text: &[u8], capitals: bool) -> Vec<u8> {
    let hex = |byte: &u8| if capitals { format!("{byte:02X}") } else { format!("{byte:02x}") };
    let each = |write: &dyn Fn(&u8) -> String| text.iter().map(write).collect::<String>().into_bytes();
    match how {
        0 => text.to_vec(),
        1 => each(&|byte| format!("%{}", hex(byte))),
        2 => each(&|byte| format!("%25{}", hex(byte))),
        3 => each(&|byte| format!("\\u00{}", hex(byte))),
        4 => each(&|byte| format!("\\x{}", hex(byte))),
        5 => each(&|byte| format!("&#{byte};")),
        6 => each(&|byte| format!("&#x{};", hex(byte))),
        7 => each(&|byte| format!("={}", hex(byte))),
        8 => each(&hex),
        9 => text.iter().flat_map(|byte| u16::from(*byte).to_le_bytes()).collect(),
        10 => text.iter().flat_map(|byte| u16::from(*byte).to_be_bytes()).collect(),
        11 => STANDARD.encode(text).into_bytes(),
        _ => URL_SAFE_NO_PAD.encode(text).into_bytes(),
    }
}
const WAYS: usize = 13;
const BY_CHARACTER: &[usize] = &[3, 5, 6, 9, 10];

fn scrubbed(text: &[u8]) -> Vec<u8> {
    let mut text = text.to_vec();
    patterns(VALUE.as_bytes(), SENTINEL.as_bytes()).scrub(&mut text);
    text
}

#[test]
fn a_sentinel_replaces_the_value_in_the_same_spelling() {
    for how in 0..WAYS {
        // Decimal references differ in length.
        if how == 5 {
            continue;
        }
        for capitals in [false, true] {
            let was = spelled(how, format!("{{\"key\": \"{VALUE}\"}}").as_bytes(), capitals);
            let is = spelled(how, format!("{{\"key\": \"{SENTINEL}\"}}").as_bytes(), capitals);
            let got = String::from_utf8_lossy(&scrubbed(&was)).into_owned();
            let is = String::from_utf8_lossy(&is).into_owned();
            // Digits alone do not show whether letters beside them would be in upper case.
            let escaped = (1..=8).contains(&how);
            assert!(if escaped { got.eq_ignore_ascii_case(&is) } else { got == is }, "{how} {got} {is}");
        }
    }
    let decimal = spelled(5, VALUE.as_bytes(), false);
    assert_eq!(scrubbed(&decimal).len(), decimal.len());
}

#[test]
fn basic_credentials_are_found_for_every_user() {
    for user in ["", "x", "me", "git", "x-access-token"] {
        let was = STANDARD.encode(format!("{user}:{VALUE}"));
        let is = STANDARD.encode(format!("{user}:{SENTINEL}"));
        assert_eq!(scrubbed(format!("Basic {was}").as_bytes()), format!("Basic {is}").into_bytes());
        let was = STANDARD_NO_PAD.encode(format!("{user}:{VALUE}, and more"));
        let is = STANDARD_NO_PAD.encode(format!("{user}:{SENTINEL}, and more"));
        assert_eq!(scrubbed(was.as_bytes()), is.into_bytes());
    }
}

#[test]
fn lines_of_base64_are_joined() {
    let whole = STANDARD.encode(format!("{} {VALUE} {}", "x".repeat(37), "y".repeat(60)));
    let clean = STANDARD.encode(format!("{} {SENTINEL} {}", "x".repeat(37), "y".repeat(60)));
    for end in ["\n", "\r\n", "\\n", "%0A"] {
        for width in [19, 64, 76] {
            let lines = |text: &str| {
                let lines: Vec<&str> =
                    text.as_bytes().chunks(width).map(|line| std::str::from_utf8(line).unwrap()).collect();
                lines.join(end)
            };
            assert_eq!(scrubbed(lines(&whole).as_bytes()), lines(&clean).into_bytes(), "{end:?} {width}");
        }
    }
}

#[test]
fn soft_line_breaks_and_special_characters_are_ignored() {
    let value = b"p%ss w/rd&\"\\<x>='\n\xc3\xa9";
    let found = |text: &str| {
        let patterns = patterns(value, b"sentinel-sentinel-sen");
        let mut text = text.as_bytes().to_vec();
        let count = patterns.scrub(&mut text);
        (count, String::from_utf8_lossy(&text).into_owned())
    };
    for text in [
        "p%ss w/rd&\"\\<x>='\n\u{e9}",
        "p%25ss+w%2Frd%26%22%5C%3Cx%3E%3D%27%0A%C3%A9",
        r#"p%ss w\/rd&\"\\<x>='\n\u00e9"#,
        r#"p%ss w/rd&\u0022\u005c\u003Cx\u003e='\n\u00E9"#,
        "p%ss w/rd&amp;&quot;\\&lt;x&gt;=&#039;\n\u{e9}",
        "p%ss w/rd&amp;&#34;\\&lt;x&gt;=&apos;\n&#233;",
        "p%ss w=\r\n/rd&\"\\<x>=3D=\n'\n=C3=A9",
    ] {
        assert_eq!(found(&format!("before {text} after")).0, 1, "{text:?}");
    }
    assert_eq!(found("p%ss w/rd&\"\\<x>='\n").0, 1, "cut off at the end");
    assert_eq!(found("p%ss w/rd&\"\\<x>=' and something else").0, 0);
}

#[test]
fn a_text_that_ends_within_a_value_does_not_show_its_beginning() {
    for how in 0..WAYS {
        let whole = spelled(how, VALUE.as_bytes(), true);
        let cut = &whole[..whole.len() - 6];
        assert!(!contains(&scrubbed(cut), &whole[..whole.len() / 2]), "{how}");
    }
    assert_eq!(scrubbed(b"ends with ghp_Ca"), b"ends with ghp_Ca");
}

#[test]
fn values_must_have_a_length_that_can_be_searched() {
    let made = |length: usize| Patterns::new(&[Hidden::new(&vec![b'v'; length], b"")]).map(|_| ());
    assert_eq!(made(7), Err(ValueError::TooShort(7)));
    assert_eq!(made(8), Ok(()));
    assert_eq!(made(MAX_VALUE_BYTES), Ok(()));
    assert_eq!(made(MAX_VALUE_BYTES + 1), Err(ValueError::TooLong(MAX_VALUE_BYTES + 1)));
    assert!(!format!("{:?}", patterns(VALUE.as_bytes(), b"")).contains("Canary"));
}

/// The output of a stream after each piece: at once, and after a pause.
fn told(stream: &mut Stream, pieces: &[&str]) -> Vec<(usize, usize)> {
    let mut told = Vec::new();
    for piece in pieces {
        let at_once = stream.push(Bytes::copy_from_slice(piece.as_bytes())).len();
        told.push((at_once, stream.release().len()));
    }
    told
}

fn stream() -> Stream {
    Stream::new(Arc::new(patterns(VALUE.as_bytes(), SENTINEL.as_bytes())))
}

#[test]
fn at_a_pause_only_a_possible_value_is_held_back() {
    let mut out = stream();
    let event = "data: {\"delta\":\"Hello\"}\n\n";
    let passed = |stream: &mut Stream, piece: &str| {
        let mut passed = stream.push(Bytes::copy_from_slice(piece.as_bytes())).to_vec();
        passed.extend(stream.release());
        String::from_utf8(passed).unwrap()
    };
    for piece in [event, "ping ghp", " ok\n", "see ghp_Can", "berra\n"] {
        assert_eq!(passed(&mut out, piece), piece);
    }
    // The stream remembers what it released, so the rest of a value does not follow.
    assert_eq!(passed(&mut out, "gh"), "gh");
    assert_eq!(passed(&mut out, &VALUE[2..]), SENTINEL[2..]);
    // A significant prefix waits for the rest.
    let most = VALUE.len() - 2;
    assert_eq!(passed(&mut out, &format!("so: {}", &VALUE[..most])), "so: ");
    assert_eq!(passed(&mut out, &VALUE[most..]), SENTINEL);
    assert!(!out.is_guessed());
    assert_eq!(out.finish(), "");
}

/// An attacker makes a server store and return guesses, and observes everything visible.
#[test]
fn how_far_a_guess_is_right_cannot_be_seen() {
    // What the sentinel reveals, and five bytes more.
    let known = VALUE.bytes().zip(SENTINEL.bytes()).take_while(|(own, told)| own == told).count();
    for how in 0..WAYS {
        let longest = spelled(how, &VALUE.as_bytes()[..known + 5], true).len();
        for right in 0..=longest {
            let value = spelled(how, VALUE.as_bytes(), true);
            let mut wrong = value[..right].to_vec();
            wrong.resize(longest + 8, b'!');
            let texts = [&value[..right], &wrong[..right.saturating_sub(1)], b"!"];
            let guess = [&b"x".repeat(40)[..], texts[0]].concat();
            let other = [&b"x".repeat(40)[..], texts[1], if right > 0 { texts[2] } else { b"" }].concat();
            // At the end of a text.
            let end = |text: &[u8]| {
                let mut text = text.to_vec();
                patterns(VALUE.as_bytes(), SENTINEL.as_bytes()).scrub(&mut text)
            };
            assert_eq!((end(&guess), end(&other)), (0, 0), "{how} {right}");
            // Before a pause, and before more text.
            let pieces = |text: &[u8]| {
                let mut stream = stream();
                let first = stream.push(Bytes::copy_from_slice(text)).len();
                let second = stream.push(Bytes::from_static(b"more of something else")).len();
                let third = stream.release().len();
                let fourth = stream.push(Bytes::copy_from_slice(text)).len();
                (first, second, third, fourth, stream.release().len())
            };
            assert_eq!(pieces(&guess), pieces(&other), "{how} {right}");
        }
    }
}

#[test]
fn answers_with_more_guesses_than_chance_explains_are_closed() {
    let patterns = Arc::new(patterns(VALUE.as_bytes(), SENTINEL.as_bytes()));
    let most = VALUE.len() - 1;
    let guess = Bytes::copy_from_slice(&VALUE.as_bytes()[..most]);
    let mut answers = 0;
    while !patterns.are_guessed() {
        let mut stream = Stream::new(patterns.clone());
        assert_eq!(told(&mut stream, &["begin "]), [(0, 6)]);
        assert!(stream.push(guess.clone()).is_empty() && stream.release().is_empty(), "it is held");
        let _shown = stream.push(Bytes::from_static(b"! that was none"));
        answers += 1;
        assert!(answers < 20);
    }
    let mut stream = Stream::new(patterns);
    assert_eq!(told(&mut stream, &["anything", " else"]), [(0, 0), (0, 0)]);
    assert!(stream.is_guessed());
}

/// A right guess is held and a wrong one is not. So a guess must count even if the reader leaves as soon as it sees
/// that.
#[test]
fn cred_guess_leave_a_guess_counts_also_when_its_reader_leaves_before_the_end() {
    let patterns = Arc::new(patterns(VALUE.as_bytes(), SENTINEL.as_bytes()));
    let guess = Bytes::copy_from_slice(&VALUE.as_bytes()[..VALUE.len() - 1]);
    for left_after_a_pause in [true, false] {
        let mut answers = 0;
        while !patterns.are_guessed() && answers < 4 {
            let mut stream = Stream::new(patterns.clone());
            assert!(stream.push(guess.clone()).is_empty());
            if left_after_a_pause {
                assert!(stream.release().is_empty(), "it is held");
            }
            drop(stream);
            answers += 1;
        }
        assert_eq!(answers, 4);
    }
    assert!(patterns.are_guessed(), "eight in all");
}

#[test]
fn a_value_divided_by_a_pause_never_counts_as_a_guess() {
    let patterns = Arc::new(patterns(VALUE.as_bytes(), SENTINEL.as_bytes()));
    let (begin, end) = VALUE.as_bytes().split_at(VALUE.len() - 1);
    for _ in 0..20 {
        let mut stream = Stream::new(patterns.clone()).tallied(Tally::answer(patterns.all_guesses()));
        let mut out = stream.push(Bytes::copy_from_slice(begin)).to_vec();
        for _ in 0..3 {
            out.extend_from_slice(&stream.release());
        }
        out.extend_from_slice(&stream.push(Bytes::copy_from_slice(end)));
        out.extend_from_slice(&stream.finish());
        assert_eq!(String::from_utf8_lossy(&out), SENTINEL);
    }
    assert!(!patterns.are_guessed());
}

/// Examining a longer prefix takes longer, at any place. Measuring that takes very many prefixes.
#[test]
fn cred_guess_timing_beginnings_in_the_middle_of_a_text_are_counted_once_each() {
    let near = Bytes::from(format!("{}! ", &VALUE[..VALUE.len() - 1]));
    let patterns = Arc::new(patterns(VALUE.as_bytes(), SENTINEL.as_bytes()));
    let mut stream = Stream::new(patterns.clone());
    // Shorter prefixes occur by chance.
    let short = format!("{}! ", &VALUE[.."ghp_".len() + 5]).repeat(2 * MAX_NEAR_MISSES as usize);
    assert!(!stream.push(Bytes::from(short)).is_empty());
    // A prefix at the end of a text is examined again with the next piece.
    for _ in 1..MAX_NEAR_MISSES {
        let _out = stream.push(near.clone());
    }
    assert!(!stream.is_guessed());
    let _out = stream.push(near);
    assert!(stream.is_guessed());
}

#[test]
fn an_incomplete_value_is_released_at_the_end() {
    let mut stream = stream();
    assert_eq!(told(&mut stream, &["a ghp_C"]), [(0, 7)]);
    assert_eq!(stream.push(Bytes::from_static(b" b ghp_C")), "");
    assert_eq!(stream.finish(), " b ghp_C");
}

#[test]
fn adjacent_and_nested_values_are_found() {
    let hidden =
        |value: &'static str, sentinel: &'static str| Hidden::new(value.as_bytes(), sentinel.as_bytes());
    let patterns = Patterns::new(&[
        hidden("first-value-1", "AAAAAAAAAAAAA"),
        hidden("second-value", "BBBBBBBBBBBB"),
        hidden("value-12", "CCCCCCCC"),
    ])
    .unwrap();
    let mut text = b"first-value-1second-value first-value-12".to_vec();
    assert_eq!(patterns.scrub(&mut text), 3);
    let text = String::from_utf8(text).unwrap();
    assert!(!text.contains("value-12") && !text.contains("second") && !text.contains("first"), "{text}");
}

/// The output for a text that is split at these places.
fn in_pieces(stream: &mut Stream, text: &[u8], cuts: &[usize], releases: bool) -> Vec<u8> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    let mut out = Vec::new();
    for pair in cuts.windows(2) {
        out.extend(stream.push(Bytes::copy_from_slice(&text[pair[0]..pair[1]])));
        if releases {
            out.extend(stream.release());
        }
    }
    out.extend(stream.finish());
    out
}

/// A value and a sentinel without a common character, so that the output contains no value by chance.
fn values() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let letters = |of: &'static [u8]| prop::sample::select(of);
    let value = prop_oneof![
        prop::collection::vec(letters(b"abcdefghijkABCDEFGHIJK01234_-"), 8..40),
        prop::collection::vec(letters(b"ab%\\&=25u0;#x/\"' +"), 8..24),
        prop::collection::vec(
            any::<u8>().prop_filter("the sentinel's", |byte| !b"stvwyzSTVWYZ".contains(byte)),
            8..40
        ),
    ];
    value.prop_flat_map(move |value| {
        let sentinel = prop::collection::vec(letters(b"stvwyzSTVWYZ"), value.len());
        (Just(value), sentinel)
    })
}

proptest! {
    #[test]
    fn every_spelling_is_found_in_any_pieces(
        (value, sentinel) in values(),
        how in 0..WAYS, capitals: bool,
        before in prop::collection::vec(any::<u8>(), 0..100),
        after in prop::collection::vec(any::<u8>(), 0..100),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
        ahead in 0usize..3,
    ) {
        // These spellings write characters beyond ASCII, not their bytes.
        let by_character = BY_CHARACTER.contains(&how);
        prop_assume!(!by_character || value.is_ascii() || std::str::from_utf8(&value).is_err());
        let written = match how {
            11 | 12 => {
                // Other bytes before it, so that it begins at any alignment.
                let joined = [&before[..ahead.min(before.len())], &value, &after].concat();
                spelled(how, &joined, capitals)
            }
            _ => spelled(how, &value, capitals),
        };
        let text = [&before[..], &written, &after].concat();
        let patterns = Arc::new(patterns(&value, &sentinel));
        let mut stream = Stream::new(patterns.clone());
        let out = in_pieces(&mut stream, &text, &cuts, false);
        prop_assert_eq!(out.len(), text.len());
        prop_assert!(out != text, "nothing was overwritten");
        prop_assert!(!contains(&out, &spelled(how % 11, &value, capitals)));
        if how < 11 {
            prop_assert!(!contains(&out, &written));
        }
        // The findings do not depend on the splits.
        let mut whole = text.clone();
        patterns.scrub(&mut whole);
        prop_assert_eq!(&out, &whole);
        // With pauses, only a prefix of the value is visible.
        let mut stream = Stream::new(patterns);
        let out = in_pieces(&mut stream, &text, &cuts, true);
        prop_assert_eq!(out.len(), text.len());
        prop_assert!(!contains(&out, &written));
    }

    #[test]
    fn any_mix_of_escapes_is_found(
        value in prop::collection::vec(prop::sample::select(&b"abcXYZ0189-_/+%\\&=\"' .~"[..]), 8..30),
        family in 0usize..4,
        picks in prop::collection::vec(any::<(u8, bool)>(), 30),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let ways: &[usize] = [&[0, 1, 2][..], &[0, 3, 4], &[0, 5, 6], &[0, 7]][family];
        let mut mixed = Vec::new();
        for (byte, (pick, capitals)) in value.iter().zip(&picks) {
            let how = ways[usize::from(*pick) % ways.len()];
            mixed.extend(spelled(how, &[*byte], *capitals));
        }
        let sentinel = vec![b'S'; value.len()];
        let text = [b"<< ", &mixed[..], b" >>"].concat();
        let patterns = Arc::new(patterns(&value, &sentinel));
        let mut stream = Stream::new(patterns);
        let out = in_pieces(&mut stream, &text, &cuts, false);
        prop_assert_eq!(out.len(), text.len());
        prop_assert!(!contains(&out, &mixed), "{}", String::from_utf8_lossy(&out));
        prop_assert!(out.starts_with(b"<< ") && out.ends_with(b" >>"));
    }

    #[test]
    fn text_without_a_value_is_unchanged(
        text in prop::collection::vec(any::<u8>(), 0..2000),
        words in prop::collection::vec("ghp_Ca[b-z]?|%67|\\\\u00|&#10;|[A-Za-z0-9+/]{3}", 0..40),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
        releases: bool,
    ) {
        let text = [text, words.concat().into_bytes()].concat();
        let mut stream = Stream::new(Arc::new(patterns(VALUE.as_bytes(), SENTINEL.as_bytes())));
        prop_assert_eq!(in_pieces(&mut stream, &text, &cuts, releases), text);
    }
}
