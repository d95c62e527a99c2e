//! Compressed responses that expand without bound: the gateway decompresses none of them.

use std::fs;
use std::io::Write;

use bay_tests::lab::lab;
use bay_tests::origin::text;
use bay_tests::{image, until};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{Request, Response};
use hyper::body::Incoming;

/// The size of the bomb when decompressed.
const OPENED_MIB: usize = 512;
/// How often the bomb is sent.
const TIMES: usize = 4;
/// Much less than one decompressed bomb.
const MOST_MIB: u64 = 48;

/// Reads the bytes without decompressing them, and prints their number and hash.
const CLIENT: &str = r#"
import hashlib, sys, urllib.request
answer = urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers={"accept-encoding": "gzip, br, zstd"}), timeout=60)
body = answer.read()
print(answer.headers["content-encoding"], len(body), hashlib.sha256(body).hexdigest())
"#;

fn bomb() -> Bytes {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    let block = vec![0; 1 << 20];
    for _ in 0..OPENED_MIB {
        packed.write_all(&block).unwrap();
    }
    packed.finish().unwrap().into()
}

/// The peak memory of a process so far, in MiB.
fn peak_mib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[test]
fn http_decomp_bomb_a_compressed_answer_passes_unchanged_and_is_never_decompressed() {
    if !image::with_python() {
        return;
    }
    let lab = lab();
    let bomb = bomb();
    let sent = bomb.clone();
    let origin = lab.servers.https("origin.test", move |_: Request<Incoming>| {
        let body = sent.clone();
        async move {
            let answer = Response::builder().header("content-encoding", "gzip");
            answer.header("content-type", "text/plain").body(text(body)).unwrap()
        }
    });
    lab.bay("b", &origin.allowed(""));
    let url = origin.url("https", "/bomb");
    let first = lab.python("b", CLIENT, &[&url]).ok().text();
    assert!(first.starts_with(&format!("gzip {} ", bomb.len())), "{first}");
    let before = peak_mib(lab.daemon.pid());
    for _ in 1..TIMES {
        assert_eq!(lab.python("b", CLIENT, &[&url]).ok().text(), first);
    }
    let after = peak_mib(lab.daemon.pid());
    assert!(after < before + MOST_MIB, "{before} MiB before, {after} MiB after");
    let ended = until("every end is on record", || {
        Some(lab.record("b", "egress.ended")).filter(|ended| ended.len() == TIMES)
    });
    assert!(ended.iter().all(|body| body["received"] == bomb.len()), "{ended:#?}");
}
