//! Spans to an OpenTelemetry collector: OTLP over HTTP as JSON, `POST URL/v1/traces`.
//!
//! ```text
//!   offer ──► queue (bounded; full: dropped and counted) ──► gather a batch ──► POST
//!                                                                ▲              │ refused for good: dropped
//!                                                                └── back off ◄─┘ down, slow, busy: again
//! ```
//!
//! Plain HTTP only: collectors run beside the daemon (as a sidecar or an agent of the host), and use TLS to others.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bay_types::{CoreError, ErrorCode};
use tokio::sync::{mpsc, oneshot};

use super::Counters;

mod send;
mod span;

pub(crate) use span::{Requested, Span, text};

/// How many spans wait for a collector. Further ones are dropped.
const QUEUE: usize = 2048;
/// The port of OTLP over HTTP.
const DEFAULT_PORT: u16 = 4318;
const TRACES: &str = "/v1/traces";

/// Where spans go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    host: Host,
    port: u16,
    /// As in the `Host` header.
    authority: String,
    path: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    Name(String),
}

impl Collector {
    /// Parses the URL of a collector, and adds [`TRACES`] if its path is missing.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidInput`] if the URL cannot be used.
    pub fn parse(url: &str) -> Result<Self, CoreError> {
        let odd = |why: &str, next: &'static str| {
            let shown: String = url.chars().take(200).collect();
            Err(CoreError::new(
                ErrorCode::InvalidInput,
                format!("spans cannot be sent to {shown:?}: {why}"),
                next,
            ))
        };
        let Ok(uri) = url.trim().parse::<http::Uri>() else {
            return odd("it is not a URL", "write --otlp http://127.0.0.1:4318");
        };
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return odd(
                    "this release speaks plain HTTP only",
                    "run a collector beside the daemon, give it this URL, and write --otlp http://127.0.0.1:4318",
                );
            }
            _ => return odd("it does not begin with http://", "write --otlp http://127.0.0.1:4318"),
        }
        let Some(authority) = uri.authority().filter(|authority| !authority.as_str().contains('@')) else {
            return odd("it names no host, or a password", "write --otlp http://HOST:PORT");
        };
        let name = authority.host().trim_start_matches('[').trim_end_matches(']');
        if name.is_empty() || name.starts_with('-') || uri.query().is_some() {
            return odd("its host is not one, or it has a query", "write --otlp http://HOST:PORT");
        }
        let base = uri.path().trim_end_matches('/');
        let path = if base.ends_with(TRACES) { base.to_owned() } else { format!("{base}{TRACES}") };
        Ok(Self {
            host: name.parse().map_or_else(|_| Host::Name(name.to_owned()), Host::Address),
            port: authority.port_u16().unwrap_or(DEFAULT_PORT),
            authority: authority.to_string(),
            path,
        })
    }
}

/// An item of the queue.
enum Item {
    Span(Box<Span>),
    /// Answered when everything before it was sent or given up.
    Flush(oneshot::Sender<()>),
}

/// The sending end of the queue.
#[derive(Debug)]
pub(crate) struct Spans {
    queue: mpsc::Sender<Item>,
    counters: Arc<Counters>,
}

impl Spans {
    pub(super) fn start(collector: Collector, daemon_id: &str, counters: Arc<Counters>) -> Self {
        let (queue, from) = mpsc::channel(QUEUE);
        tokio::spawn(send::run(collector, daemon_id.to_owned(), from, Arc::clone(&counters)));
        Self { queue, counters }
    }

    /// Queues a span, or drops it if the queue is full. Never waits.
    pub(crate) fn offer(&self, span: Span) {
        if self.queue.try_send(Item::Span(Box::new(span))).is_err() {
            self.counters.spans_dropped.add(1);
        }
    }

    /// Waits until everything queued was sent or given up, for at most this time. If the queue is full, it does
    /// not wait.
    pub(crate) async fn flush(&self, within: Duration) {
        let (done, when_done) = oneshot::channel();
        if self.queue.try_send(Item::Flush(done)).is_ok() {
            let _ = tokio::time::timeout(within, when_done).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_named_with_or_without_port_and_path() {
        let plain = Collector::parse("http://127.0.0.1").unwrap();
        assert_eq!((plain.port, plain.path.as_str()), (4318, "/v1/traces"));
        assert_eq!(plain.host, Host::Address("127.0.0.1".parse().unwrap()));
        let long = Collector::parse("http://[::1]:9999/otel/").unwrap();
        assert_eq!((long.port, long.path.as_str()), (9999, "/otel/v1/traces"));
        assert_eq!(long.host, Host::Address("::1".parse().unwrap()));
        let whole = Collector::parse("http://collector.example:4318/v1/traces").unwrap();
        assert_eq!(whole.path, "/v1/traces");
        assert_eq!(whole.host, Host::Name("collector.example".to_owned()));
    }

    #[test]
    fn what_cannot_be_reached_is_refused_with_what_to_do() {
        for bad in
            ["", "collector:4318", "ftp://x", "http://", "http://user:pw@x", "http://-x", "http://x?y=1"]
        {
            assert!(Collector::parse(bad).is_err(), "{bad}");
        }
        let error = Collector::parse("https://collector.example").unwrap_err();
        assert!(
            error.message.contains("plain HTTP") && error.hint.worded(|_| None).contains("beside the daemon"),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn a_full_queue_drops_and_counts() {
        let counters = Arc::<Counters>::default();
        let (queue, _from) = mpsc::channel(1);
        let spans = Spans { queue, counters: Arc::clone(&counters) };
        for _ in 0..3 {
            spans.offer(span::tests::span());
        }
        assert_eq!(counters.spans_dropped.get(), 2);
    }
}
