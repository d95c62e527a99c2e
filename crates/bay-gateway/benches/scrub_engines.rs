//! Compares ways to search answers for a value: `cargo bench -p bay-gateway --bench scrub_engines`.
//!
//! The product's engine finds every mix of escapes. The others search for the value as some encoders write all of it.
//! Results are in `bench/RESULTS.md`.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aho_corasick::{AhoCorasick, AhoCorasickKind, packed};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bay_gateway::scrub::{Hidden, Patterns, Stream};
use bytes::Bytes;
use memchr::memmem;

const VALUE: &[u8] = b"ghp_Canary0123456789abcdefABCDEFxyzXYZ42";
const SENTINEL: &[u8] = b"ghp_Qw7RtYuIoPaSdFgHjKlZxCvBnM1234567890";
/// The length of one read from a connection.
const PIECE_BYTES: usize = 64 * 1024;
const TEXT_BYTES: usize = 64 * 1024 * 1024;
const LONG_ENOUGH: Duration = Duration::from_millis(700);

fn main() {
    let literals = literals();
    let firsts: Vec<&[u8]> = literals.iter().map(|literal| &literal[..4]).collect();
    let nfa = automaton(&literals, AhoCorasickKind::ContiguousNFA);
    let dfa = automaton(&literals, AhoCorasickKind::DFA);
    let teddy = packed::Searcher::new(&firsts);
    let finders: Vec<_> = literals.iter().map(memmem::Finder::new).collect();
    let begun = Instant::now();
    let patterns = Arc::new(Patterns::new(&[Hidden::new(VALUE, SENTINEL)]).expect("a value"));
    println!("{} literals; the product's tables are made in {:?}\n", literals.len(), begun.elapsed());
    println!("| GB/s | random | base64 | JSON | zeros |");
    println!("|---|---|---|---|---|");
    let texts = [random(), base64(), json(), Bytes::from(vec![0; TEXT_BYTES])];
    let row = |name: &str, run: &mut dyn FnMut(&Bytes)| {
        let speeds = texts.iter().map(|text| format!("{:.2}", speed(text, run)));
        println!("| {name} | {} |", speeds.collect::<Vec<_>>().join(" | "));
    };
    row("the product", &mut |text| {
        let mut stream = Stream::new(patterns.clone());
        for at in (0..text.len()).step_by(PIECE_BYTES) {
            black_box(stream.push(text.slice(at..at + PIECE_BYTES)));
        }
    });
    row("one pass of memmem for each literal", &mut |text| {
        for piece in text.chunks(PIECE_BYTES) {
            black_box(finders.iter().any(|finder| finder.find(piece).is_some()));
        }
    });
    row("aho-corasick, automaton", &mut |text| {
        for piece in text.chunks(PIECE_BYTES) {
            black_box(nfa.find(piece));
        }
    });
    row("aho-corasick, table", &mut |text| {
        for piece in text.chunks(PIECE_BYTES) {
            black_box(dfa.find(piece));
        }
    });
    if let Some(teddy) = teddy {
        row("aho-corasick, vectors, first four bytes", &mut |text| {
            for piece in text.chunks(PIECE_BYTES) {
                black_box(teddy.find_iter(piece).count());
            }
        });
    }
    row("a copy", &mut |text| {
        for piece in text.chunks(PIECE_BYTES) {
            black_box(piece.to_vec());
        }
    });
    println!(
        "\nWhat the time tells of a value: GB/s of texts that somebody makes of guesses, the product alone\n"
    );
    for (name, guess) in [
        ("three characters that are not in it", "qzj"),
        ("three characters of its first ones", "ary"),
        ("its beginning, no character of the rest", "ghp_!!!!!!!!"),
        ("its beginning, one character right", "ghp_C!!!!!!!"),
        ("its beginning, three characters right", "ghp_Can!!!!!"),
        ("its beginning, five characters right", "ghp_Canar!!!"),
    ] {
        let text = Bytes::from(guess.repeat(TEXT_BYTES / guess.len() + 1).into_bytes()).slice(..TEXT_BYTES);
        let speed = speed(&text, &mut |text| {
            let mut stream = Stream::new(patterns.clone());
            for at in (0..text.len()).step_by(PIECE_BYTES) {
                black_box(stream.push(text.slice(at..at + PIECE_BYTES)));
            }
            assert!(!stream.is_guessed());
        });
        println!("| {name} | {speed:.3} |");
    }
}

fn automaton(literals: &[Vec<u8>], kind: AhoCorasickKind) -> AhoCorasick {
    AhoCorasick::builder().kind(Some(kind)).build(literals).expect("few literals")
}

/// The value as some encoders write all of it.
fn literals() -> Vec<Vec<u8>> {
    let each = |write: &dyn Fn(&u8) -> String| VALUE.iter().map(write).collect::<String>().into_bytes();
    let mut literals = vec![
        VALUE.to_vec(),
        each(&|byte| format!("%{byte:02X}")),
        each(&|byte| format!("%{byte:02x}")),
        each(&|byte| format!("\\u00{byte:02x}")),
        each(&|byte| format!("&#{byte};")),
        each(&|byte| format!("{byte:02x}")),
        each(&|byte| format!("{byte:02X}")),
        VALUE.iter().flat_map(|byte| [*byte, 0]).collect(),
        VALUE.iter().flat_map(|byte| [0, *byte]).collect(),
    ];
    for after in 0..3 {
        let bytes = [&vec![0; after][..], VALUE].concat();
        for text in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            literals.push(text.into_bytes()[(after * 8).div_ceil(6)..text_end(after)].to_vec());
        }
    }
    literals
}

/// The end of the characters that depend only on the value.
fn text_end(after: usize) -> usize {
    (after + VALUE.len()) * 8 / 6
}

/// Bytes per second of processor time, so that other processes do not count.
fn speed(text: &Bytes, run: &mut dyn FnMut(&Bytes)) -> f64 {
    run(text);
    let begun = processor_time();
    let mut rounds = 0;
    while processor_time() - begun < LONG_ENOUGH {
        run(text);
        rounds += 1;
    }
    f64::from(rounds) * text.len() as f64 / (processor_time() - begun).as_secs_f64() / 1e9
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Pseudo-random bytes, the same in every run.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..length / 8).flat_map(|_| next().to_le_bytes()).collect()
}

fn random() -> Bytes {
    noise(TEXT_BYTES).into()
}

fn base64() -> Bytes {
    let mut text = STANDARD_NO_PAD.encode(noise(TEXT_BYTES * 3 / 4 + 8)).into_bytes();
    text.truncate(TEXT_BYTES);
    text.into()
}

fn json() -> Bytes {
    let mut text = Vec::with_capacity(TEXT_BYTES + 200);
    for line in 0.. {
        if text.len() >= TEXT_BYTES {
            break;
        }
        let url = format!("https%3A%2F%2Fexample.test%2Fitems%2F{line}");
        text.extend(
            format!(
                "{{\"id\": {line}, \"name\": \"item \\u00e9 {line}\", \"url\": \"{url}\", \"ok\": true}},\n"
            )
            .bytes(),
        );
    }
    text.truncate(TEXT_BYTES);
    text.into()
}
