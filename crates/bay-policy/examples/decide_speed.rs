//! Prints how long one decision takes with 1,000 rules: `cargo run --release -p bay-policy --example decide_speed`.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::Instant;

use bay_policy::bench::{Spread, policy, requests};
use bay_policy::{CanonicalRequest, decide};
use jiff::Timestamp;

const RULES: usize = 1_000;
const ROUNDS: usize = 2_000;

fn main() {
    let now = Timestamp::UNIX_EPOCH;
    for spread in Spread::ALL {
        let policy = policy(RULES, spread);
        let requests = requests(RULES, spread);
        let mut nanoseconds: Vec<u128> = Vec::with_capacity(ROUNDS * requests.len());
        for _ in 0..ROUNDS {
            for request in &requests {
                let begin = Instant::now();
                black_box(decide(black_box(&policy), black_box(request), now));
                nanoseconds.push(begin.elapsed().as_nanos());
            }
        }
        nanoseconds.sort_unstable();
        let at = |share: f64| nanoseconds[(nanoseconds.len() as f64 * share) as usize];
        println!("{spread:?}: p50 {} ns, p99 {} ns, p99.9 {} ns", at(0.5), at(0.99), at(0.999));
    }
    let line = "GET https://www.example.com/api/v1/things/7?page=2&order=name";
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        let _ = black_box(CanonicalRequest::from_line(black_box(line)));
    }
    println!("canonicalise: {} ns", begin.elapsed().as_nanos() / ROUNDS as u128);
}
