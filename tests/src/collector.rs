//! An OpenTelemetry collector on loopback.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::until;

/// Accepts every request and keeps its spans.
#[derive(Debug)]
pub struct Collector {
    pub url: String,
    pub spans: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let spans = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&spans);
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Some(body) = take(stream) {
                    let found = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().cloned();
                    kept.lock().unwrap().extend(found.unwrap_or_default());
                }
            }
        });
        Self { url, spans }
    }

    /// The span with this name, once it arrived.
    ///
    /// # Panics
    /// If it does not arrive.
    #[must_use]
    pub fn span(&self, name: &str) -> Value {
        until(&format!("a span {name}"), || {
            self.spans.lock().unwrap().iter().find(|span| span["name"] == name).cloned()
        })
    }
}

fn take(stream: TcpStream) -> Option<Value> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).ok()?;
    assert_eq!(line, "POST /v1/traces HTTP/1.1\r\n");
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let header = line.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    reader.get_mut().write_all(answer).ok()?;
    Some(serde_json::from_slice(&body).unwrap())
}
