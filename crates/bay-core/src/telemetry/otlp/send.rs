//! The only task that talks to the collector. If the collector refuses, hangs or answers nonsense, only this task
//! notices.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::span::encode;
use super::{Collector, Host, Item, Span};
use crate::outgoing_http::{Trouble, post_json};
use crate::telemetry::Counters;

/// The most spans in one request.
const BATCH: usize = 256;
/// How long spans are gathered before they are sent.
const GATHER: Duration = Duration::from_millis(500);
/// How long one attempt may take, from the connection to the last byte of the answer.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(10);
/// Waits between attempts.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MOST: Duration = Duration::from_secs(30);
/// After this time a batch is given up, so that newer spans are sent.
const GIVE_UP_AFTER: Duration = Duration::from_secs(300);
/// The most addresses of a collector that are tried.
const MAX_ADDRESSES: usize = 8;

pub(super) async fn run(
    collector: Collector,
    daemon_id: String,
    mut from: mpsc::Receiver<Item>,
    counters: Arc<Counters>,
) {
    // Failures are logged once per stretch.
    let mut told = false;
    while let Some(first) = from.recv().await {
        let (spans, flush) = gather(first, &mut from).await;
        if !spans.is_empty() {
            let body = encode(&spans, &daemon_id);
            let patience = if flush.is_some() { Duration::ZERO } else { GIVE_UP_AFTER };
            let count = spans.len() as u64;
            if deliver(&collector, &body, patience, &counters, &mut told).await {
                counters.spans_sent.add(count);
            } else {
                counters.spans_dropped.add(count);
            }
        }
        if let Some(flush) = flush {
            let _ = flush.send(());
        }
    }
}

/// Gathers what arrives within [`GATHER`], up to a full batch or a flush.
async fn gather(
    first: Item,
    from: &mut mpsc::Receiver<Item>,
) -> (Vec<Box<Span>>, Option<oneshot::Sender<()>>) {
    let until = Instant::now() + GATHER;
    let mut spans = Vec::new();
    let mut next = Some(first);
    loop {
        match next {
            Some(Item::Span(span)) => spans.push(span),
            Some(Item::Flush(done)) => return (spans, Some(done)),
            None => return (spans, None),
        }
        if spans.len() >= BATCH {
            return (spans, None);
        }
        next = match tokio::time::timeout_at(until, from.recv()).await {
            Ok(item) => item,
            Err(_) => return (spans, None),
        };
    }
}

/// Tries until the batch arrives, is refused for good, or `patience` is over. Returns whether it arrived.
async fn deliver(
    collector: &Collector,
    body: &[u8],
    patience: Duration,
    counters: &Counters,
    told: &mut bool,
) -> bool {
    let until = Instant::now() + patience;
    let mut wait = RETRY_FIRST;
    loop {
        let attempt = tokio::time::timeout(ATTEMPT_WITHIN, post(collector, body)).await;
        let trouble = attempt.unwrap_or_else(|_| Err(Trouble::Passing("it took too long".to_owned())));
        let (why, over) = match trouble {
            Ok(()) => {
                *told = false;
                return true;
            }
            Err(Trouble::Passing(why)) => (why, Instant::now() + wait > until),
            Err(Trouble::Lasting(why)) => (why, true),
        };
        counters.export_failures.add(1);
        if !std::mem::replace(told, true) {
            tracing::warn!(collector = %collector.authority, why, "spans do not reach the collector");
        }
        if over {
            return false;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY_MOST);
    }
}

async fn post(collector: &Collector, body: &[u8]) -> Result<(), Trouble> {
    let stream = connect(collector).await.map_err(Trouble::passing)?;
    let body = Bytes::copy_from_slice(body);
    let status = post_json(stream, &collector.authority, &collector.path, HeaderMap::new(), body).await?;
    judge(status)
}

/// The protocol defines which answers are worth another attempt.
fn judge(status: StatusCode) -> Result<(), Trouble> {
    match status {
        status if status.is_success() => Ok(()),
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Err(Trouble::Passing(format!("it answers {status}"))),
        status => Err(Trouble::Lasting(format!("it answers {status}"))),
    }
}

async fn connect(collector: &Collector) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "its name leads to no address");
    for address in addresses(&collector.host).await?.into_iter().take(MAX_ADDRESSES) {
        match TcpStream::connect((address, collector.port)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A static executable cannot load the C library's resolver; `getent` is that resolver as a program.
async fn addresses(host: &Host) -> std::io::Result<Vec<IpAddr>> {
    let name = match host {
        Host::Address(address) => return Ok(vec![*address]),
        Host::Name(name) if name == "localhost" => {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        Host::Name(name) => name,
    };
    let output = tokio::process::Command::new("getent")
        .args(["ahosts", name])
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut found: Vec<IpAddr> =
        text.lines().filter_map(|line| line.split_ascii_whitespace().next()?.parse().ok()).collect();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::span::tests::span;
    use super::*;

    /// A collector that gives these answers, one per connection, and passes on the requests.
    async fn collector(answers: &'static [&'static str]) -> (Collector, mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (to, from) = mpsc::channel(16);
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                // Every body ends with these bytes.
                while !request.ends_with(b"}]}]}]}") {
                    match stream.read(&mut buffer).await {
                        Ok(0) | Err(_) => break,
                        Ok(read) => request.extend_from_slice(&buffer[..read]),
                    }
                }
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = to.send(String::from_utf8_lossy(&request).into_owned()).await;
            }
        });
        (Collector::parse(&url).unwrap(), from)
    }

    const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    const BUSY: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    const NO: &str = "HTTP/1.1 400 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

    async fn send_one(to: &Collector, counters: &Counters, patience: Duration) -> bool {
        let body = encode(&[Box::new(span())], "d");
        deliver(to, &body, patience, counters, &mut false).await
    }

    #[tokio::test]
    async fn a_busy_collector_is_asked_again() {
        let (to, mut requests) = collector(&[BUSY, OK]).await;
        let counters = Counters::default();
        assert!(send_one(&to, &counters, GIVE_UP_AFTER).await);
        assert_eq!(counters.export_failures.get(), 1);
        let (first, second) = (requests.recv().await.unwrap(), requests.recv().await.unwrap());
        assert!(first.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{first}");
        assert_eq!(first, second);
    }

    #[tokio::test]
    async fn a_refusal_for_good_is_not_repeated() {
        let (to, _requests) = collector(&[NO, OK]).await;
        let counters = Counters::default();
        assert!(!send_one(&to, &counters, GIVE_UP_AFTER).await);
        assert_eq!(counters.export_failures.get(), 1);
    }

    #[tokio::test]
    async fn nonsense_instead_of_an_answer_is_only_a_failure() {
        let (to, _requests) = collector(&["\0\0garbage\r\n\r\n"]).await;
        assert!(!send_one(&to, &Counters::default(), Duration::ZERO).await);
    }

    #[tokio::test]
    async fn spans_that_come_together_go_together_and_a_flush_waits_for_them() {
        let (to, mut requests) = collector(&[OK]).await;
        let counters = Arc::<Counters>::default();
        let spans = super::super::Spans::start(to, "d", Arc::clone(&counters));
        spans.offer(span());
        spans.offer(span());
        spans.flush(Duration::from_secs(30)).await;
        assert_eq!((counters.spans_sent.get(), counters.spans_dropped.get()), (2, 0));
        assert_eq!(requests.recv().await.unwrap().matches("\"spanId\"").count(), 2);
    }
}
