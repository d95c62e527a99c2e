//! Whole answers: heads, compressed bodies, trailers.

use std::convert::Infallible;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame};

use super::{SENTINEL, VALUE, patterns};
use crate::scrub::{Coding, CodingError, Patterns, Scrubbed, Tally, Unreadable, open, prepare};

/// Three hundred lines with the value in each, compressed by the tools of these formats.
const BROTLI: &str = "G11C+B0HdhvXzosDNgKKR6TTobT0cTKn9twwVgKVcNSQT3F3mpxRTBAzOYzYAdgPDyMPNIcwh7qAFIwgyPaoPX7S2rfoP3UDUE7P3m99zFjU+fDsx5SRTwCAQMAgoMGABXcDhYCgkLCIaDFiwRUsAUEhYRHRYsSCK1QCgkLCIqLFiAVXuAQEhYRFRIsRC65ICQgKCYuIFiMWXNElICgkLCJajFhwxZSAoJCwiGgxYsEVWwKCQsIiosWIBVdcCQgKCYuIFiMW3BNUQUBIRExCmgxZcQmKgJCImIQ0GbLiEhYBIRExCWkyZMUlKgJCImIS0mTIiktcBIRExCSkyZAVl6QICImISUiTISsu6SIgJCImIU2GrLhkioCQiJiENBmy4pItAkIiYhLSZMiKS64ICImISUiTIQtuCasICImISUiTISsuQREQEhGTkCZDVlzCIiAkIiYhTYasuERFQEhETEKaDFlxiYuAkIiYhDQZsuKSFAEhETEJaTJkxSVdBIRExCSkyZAVl0wREBIRk5AmQ1ZcskVASERMQpoMWXHJFQEhETEJaTJkZw8=";
const ZSTANDARD: &str = "KLUv/WReQf0PAKYhSRtQVTkHYJgwONRQ2cDMt8AwiIiIkBwMjZkZEwJXADsAQADftm3btm3bZlVVVVVVREREREQzMzMzM23btq2IiIiISOJZ0VQGUFKQAEEHDhsOGChAYIAACA8cNGDwkHhWNJXgkOHBwgOBBRgkRAhg4QGFCxqOH1iYUCFzY1NDM9ORiclir9YqddpKoykoJyYlJCMVkZAMjAuLCoqJhkTIeZ7neZ7neY7jOI7jOI7j933f933fFyLRo0ePHj169OjRo2dmZmZmIiIiIqLk4d3Z1dHN9eTi0tDOzMrIxmpiYVlYV1ZVVFMtqagkpCOjIqKhklBQDga9995777333nvvvffee++9995777333nvvvffee6uIiIiIiGZmZmZm2rZtWxEREZGBLKghbPvs/xnRN8rVEkgQ+P//+wdIxMzMzMyZmZmZmTkzMzMzM3NmZmZmZk5g65Hp7t21d3fv7t579+7u3d27d+/u3t29d2/p6Ojo6Ojo6OiaXlWlqkqrKlVVrj3UtDTGTESEGBEREREjIiIiIiJGRERERMSIiIiIiIgRERERETEiIiIiRsSIKJ2i3OzMrJmZmZmZGTMzMzMzY2ZmZmY2EyJERIiIECLCiAgREUJEiIgQEUFEhBFnKJTxMcaHMD6++OjiY4sPWXxc8VFFY2bGzIytsqcBVBXAGcFK";

fn lines(value: &str) -> String {
    (0..300).map(|line| format!("line {line} token={value}; ")).collect()
}

fn both() -> Arc<Patterns> {
    Arc::new(patterns(VALUE.as_bytes(), SENTINEL.as_bytes()))
}

#[derive(Debug, PartialEq)]
struct Broken(CodingError);

impl From<CodingError> for Broken {
    fn from(error: CodingError) -> Self {
        Self(error)
    }
}

impl From<Infallible> for Broken {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

fn body(pieces: impl IntoIterator<Item = Frame<Bytes>>) -> impl Body<Data = Bytes, Error = Broken> + Unpin {
    let frames: Vec<Result<_, Broken>> = pieces.into_iter().map(Ok).collect();
    StreamBody::new(futures_util::stream::iter(frames))
}

fn pieces(bytes: &[u8], size: usize) -> Vec<Frame<Bytes>> {
    bytes.chunks(size).map(|piece| Frame::data(Bytes::copy_from_slice(piece))).collect()
}

/// The output for a body that arrives in pieces of `size` bytes.
async fn read(coding: Coding, packed: &[u8], size: usize) -> Result<Vec<u8>, Broken> {
    let body = Scrubbed::new(body(pieces(packed, size)), both(), coding, Arc::default());
    Ok(body.collect().await?.to_bytes().to_vec())
}

fn packed(coding: Coding, text: &[u8]) -> Vec<u8> {
    match coding {
        Coding::Gzip => {
            let mut encoder = flate2::GzBuilder::new()
                .filename("name")
                .comment("comment")
                .extra("extra")
                .write(Vec::new(), Compression::default());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        }
        Coding::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        }
        Coding::Zstandard => {
            ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
        }
        Coding::Brotli => STANDARD.decode(BROTLI).unwrap(),
        Coding::Identity => text.to_vec(),
    }
}

const ALL: [Coding; 5] = [Coding::Identity, Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Zstandard];

#[tokio::test]
async fn compressed_answers_are_unpacked_and_scrubbed_in_any_pieces() {
    let (was, is) = (lines(VALUE), lines(SENTINEL));
    for coding in ALL {
        let packed = packed(coding, was.as_bytes());
        for size in [1, 7, 100, 100_000] {
            assert_eq!(read(coding, &packed, size).await.unwrap(), is.as_bytes(), "{coding:?} {size}");
        }
    }
    let zstandard = STANDARD.decode(ZSTANDARD).unwrap();
    assert_eq!(read(Coding::Zstandard, &zstandard, 50).await.unwrap(), is.as_bytes());
}

#[tokio::test]
async fn several_members_bare_deflate_and_empty_bodies_are_read() {
    let twice = packed(Coding::Gzip, b"one ").repeat(2);
    assert_eq!(read(Coding::Gzip, &twice, 3).await.unwrap(), b"one one ");
    let padded = [packed(Coding::Gzip, b"one"), vec![0; 10]].concat();
    assert_eq!(read(Coding::Gzip, &padded, 3).await.unwrap(), b"one");
    // A skippable frame between two others.
    let skipped =
        [&packed(Coding::Zstandard, b"one ")[..], b"\x50\x2a\x4d\x18\x03\0\0\0abc"].concat().repeat(2);
    assert_eq!(read(Coding::Zstandard, &skipped, 3).await.unwrap(), b"one one ");
    let mut bare = DeflateEncoder::new(Vec::new(), Compression::default());
    bare.write_all(VALUE.as_bytes()).unwrap();
    assert_eq!(read(Coding::Deflate, &bare.finish().unwrap(), 4).await.unwrap(), SENTINEL.as_bytes());
    for coding in ALL {
        assert_eq!(read(coding, b"", 1).await.unwrap(), b"", "{coding:?}");
    }
}

#[tokio::test]
async fn malformed_compression_ends_the_answer() {
    let text = lines(VALUE);
    for coding in &ALL[1..] {
        let packed = packed(*coding, text.as_bytes());
        let cut = read(*coding, &packed[..packed.len() - 3], 1000).await;
        assert!(cut.is_err(), "{coding:?}");
        let garbage = read(*coding, &[0x7e; 1000], 1000).await;
        assert!(garbage.is_err(), "{coding:?}");
    }
    let mut wrong = packed(Coding::Gzip, text.as_bytes());
    let at = wrong.len() - 6;
    wrong[at] ^= 1;
    assert_eq!(read(Coding::Gzip, &wrong, 1000).await, Err(Broken(CodingError::Malformed)));
    // A frame with a window of a gigabyte.
    let greedy = b"\x28\xb5\x2f\xfd\x00\xa0\x01\x00\x00";
    assert_eq!(read(Coding::Zstandard, greedy, 1000).await, Err(Broken(CodingError::Window)));
}

/// Reads to the end or to an error. Returns the largest piece and the total length.
async fn swallowed(coding: Coding, packed: Vec<u8>) -> (usize, usize, Result<(), Broken>) {
    let mut body = Scrubbed::new(body([Frame::data(packed.into())]), both(), coding, Arc::default());
    let (mut largest, mut all) = (0, 0);
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                largest = largest.max(length);
                all += length;
            }
            Err(error) => return (largest, all, Err(error)),
        }
    }
    (largest, all, Ok(()))
}

#[tokio::test]
async fn a_compression_bomb_is_decompressed_in_pieces_or_not_at_all() {
    // gzip's highest ratio passes, and only one piece at a time is in memory.
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..1500 {
        bomb.write_all(&[0; 64 * 1024]).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    let (largest, all, end) = swallowed(Coding::Gzip, bomb).await;
    assert_eq!((all, end), (1500 * 64 * 1024, Ok(())));
    assert!(largest <= 64 * 1024, "{largest}");
    // Four bytes of a Zstandard block are 128 KiB of zeros.
    let mut bomb = b"\x28\xb5\x2f\xfd\x00\x40".to_vec();
    for _ in 0..2000 {
        bomb.extend_from_slice(&(((128 * 1024) << 3 | 1 << 1) as u32).to_le_bytes()[..3]);
        bomb.push(0);
    }
    let (largest, all, end) = swallowed(Coding::Zstandard, bomb).await;
    assert_eq!(end, Err(Broken(CodingError::Bomb)));
    assert!(largest <= 64 * 1024 && all < 100 * 1024 * 1024, "{largest} {all}");
}

#[tokio::test]
async fn lengths_stay_and_trailers_are_scrubbed() {
    let found: Arc<AtomicU64> = Arc::default();
    let text = format!("{{\"echo\": \"{VALUE}\"}}");
    let mut trailers = HeaderMap::new();
    trailers.insert("x-echo", HeaderValue::from_str(VALUE).unwrap());
    let mut frames = pieces(text.as_bytes(), 5);
    frames.push(Frame::trailers(trailers));
    let body = Scrubbed::new(body(frames), both(), Coding::Identity, found.clone());
    let collected = body.collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-echo"], SENTINEL);
    assert_eq!(collected.to_bytes(), text.replace(VALUE, SENTINEL));
    assert_eq!(found.load(Relaxed), 2);

    let whole = http_body_util::Full::new(Bytes::from(text.clone())).map_err(Broken::from);
    let body = Scrubbed::new(whole, both(), Coding::Identity, Arc::default());
    assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
    assert!(!body.is_end_stream());
}

fn head(status: u16, headers: &[(&str, &str)]) -> http::response::Parts {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(()).unwrap().into_parts().0
}

#[test]
fn every_header_is_scrubbed_and_one_named_like_a_value_is_removed() {
    let location = format!("https://user:{VALUE}@ok.test/?t={VALUE}");
    let cookie = format!("s={}; Path=/", STANDARD.encode(VALUE));
    let link = format!("<https://ok.test/?t={}>; rel=next", VALUE.replace('_', "%5F"));
    let mut head = head(
        302,
        &[
            ("location", &location),
            ("set-cookie", &cookie),
            ("set-cookie", "plain=1"),
            ("etag", &format!("\"{VALUE}\"")),
            ("refresh", &format!("0; url=/{VALUE}")),
            ("link", &link),
            (&format!("x-{VALUE}"), "1"),
            ("content-length", "120"),
        ],
    );
    let (coding, found) = open(&both(), &mut head, &mut Tally::default()).unwrap();
    assert_eq!((coding, found), (Coding::Identity, 7));
    assert_eq!(head.headers["location"], location.replace(VALUE, SENTINEL).as_str());
    let cookies: Vec<_> = head.headers.get_all("set-cookie").iter().collect();
    assert_eq!(cookies, [&format!("s={}; Path=/", STANDARD.encode(SENTINEL)), "plain=1"]);
    assert_eq!(
        head.headers["link"],
        link.replace(&VALUE.replace('_', "%5F"), &SENTINEL.replace('_', "%5F")).as_str()
    );
    assert_eq!(head.headers["content-length"], "120");
    assert!(head.headers.keys().all(|name| !name.as_str().contains("canary")), "{:?}", head.headers);
}

#[test]
fn a_compression_header_is_adapted_to_the_scrubbed_body() {
    let mut packed = head(
        200,
        &[
            ("content-encoding", "GZip"),
            ("content-length", "9"),
            ("etag", "\"1\""),
            ("accept-ranges", "bytes"),
        ],
    );
    assert_eq!(open(&both(), &mut packed, &mut Tally::default()).unwrap().0, Coding::Gzip);
    let expected = head(200, &[("etag", "W/\"1\""), ("accept-ranges", "none")]);
    assert_eq!(packed.headers, expected.headers);
}

#[test]
fn unreadable_content_is_not_forwarded() {
    let opened = |status, headers: &[(&str, &str)]| {
        open(&both(), &mut head(status, headers), &mut Tally::default()).map(|(coding, _)| coding)
    };
    assert_eq!(opened(206, &[]), Err(Unreadable::Partial));
    assert_eq!(opened(226, &[]), Err(Unreadable::Partial));
    assert_eq!(opened(200, &[("content-range", "bytes 0-1/2")]), Err(Unreadable::Partial));
    assert_eq!(opened(416, &[("content-range", "bytes */2")]), Ok(Coding::Identity));
    for unknown in ["aws-chunked", "compress", "gzip, br", "dcb"] {
        assert_eq!(opened(200, &[("content-encoding", unknown)]), Err(Unreadable::Coding));
    }
    assert_eq!(opened(200, &[("transfer-encoding", "chunked")]), Ok(Coding::Identity));
    for packed in ["gzip, chunked", "gzip", "Chunked, deflate"] {
        assert_eq!(opened(200, &[("transfer-encoding", packed)]), Err(Unreadable::Coding));
    }
    assert_eq!(opened(200, &[("content-encoding", "identity, gzip")]), Ok(Coding::Gzip));
    assert_eq!(opened(200, &[("grpc-encoding", "gzip")]), Err(Unreadable::Messages));
    assert_eq!(opened(200, &[("grpc-encoding", "identity")]), Ok(Coding::Identity));
}

#[test]
fn a_request_with_a_secret_accepts_only_readable_encodings() {
    let asked = |accepts: &[&str]| {
        let mut headers = HeaderMap::new();
        for accept in accepts {
            headers.append("accept-encoding", HeaderValue::from_str(accept).unwrap());
        }
        for name in ["range", "if-range", "sec-websocket-extensions", "grpc-accept-encoding", "a-im"] {
            headers.insert(name, HeaderValue::from_static("x"));
        }
        prepare(&mut headers);
        assert_eq!(headers.len(), 1, "{headers:?}");
        headers["accept-encoding"].to_str().unwrap().to_owned()
    };
    assert_eq!(asked(&[]), "identity");
    assert_eq!(asked(&["br, zstd"]), "identity");
    assert_eq!(asked(&["GZIP;q=0.5, br", "deflate"]), "gzip, deflate");
    assert_eq!(asked(&["gzip;q=0, *"]), "identity");
}
