//! HTTP/1.1 and HTTP/2 servers for the bay's clients, with their limits.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::timeout;

use crate::body::AnswerBody;
use crate::exchange::{self, HttpConnection};
use crate::limits::{
    CONNECTION_WINDOW_BYTES, HEADER_TABLE_BYTES, MAX_FRAME_BYTES, MAX_HEAD_BYTES, MAX_HEADER_LIST_BYTES,
    MAX_HEADERS, MAX_RESET_STREAMS, MAX_STREAMS, SEND_BUFFER_BYTES, STREAM_WINDOW_BYTES,
};
use crate::state::GatewayState;
use crate::stream::{Gathering, Io};

pub(crate) async fn serve_http1(site: HttpConnection, stream: impl Io) {
    let site = Arc::new(site);
    let service = service_fn({
        let site = site.clone();
        move |request| exchange::serve(site.clone(), request)
    });
    let connection = http1_server(&site.connection.gateway)
        .serve_connection(TokioIo::new(Gathering::new(stream)), service)
        .with_upgrades();
    let served = serve_until_end(&site.connection.gateway, connection).await;
    record_parse_error(&site, served).await;
}

/// Serves a connection to its end. When the gateway shuts down, the connection closes after its current answer.
pub(crate) async fn serve_until_end<I: Io, S>(
    gateway: &GatewayState,
    connection: http1::UpgradeableConnection<TokioIo<I>, S>,
) -> Result<(), hyper::Error>
where
    S: HttpService<Incoming, ResBody = AnswerBody, Error = Infallible>,
{
    let mut ending = gateway.ending.subscribe();
    tokio::pin!(connection);
    tokio::select! {
        served = connection.as_mut() => return served,
        _ = ending.wait_for(|ending| *ending) => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

pub(crate) fn http1_server(gateway: &GatewayState) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(gateway.timeouts.head)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .auto_date_header(false);
    builder
}

/// Records an HTTP/1.1 request that hyper could not parse. hyper has already answered most of them, with 400, 414 or
/// 431.
async fn record_parse_error(site: &HttpConnection, served: Result<(), hyper::Error>) {
    if let Err(error) = served
        && error.is_parse()
    {
        let why = format!("not HTTP as it should be: {error}");
        site.connection.refuse_protocol(&why).await;
    }
}

pub(crate) async fn serve_http2(site: HttpConnection, stream: impl Io) {
    let site = Arc::new(site);
    let service = service_fn({
        let site = site.clone();
        move |request| exchange::serve(site.clone(), request)
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(MAX_RESET_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .header_table_size(HEADER_TABLE_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(Gathering::new(stream)), service);
    tokio::pin!(connection);
    let idle = site.connection.gateway.timeouts.head;
    let mut was_idle = false;
    let mut ending = site.connection.gateway.ending.subscribe();
    let mut told_to_end = false;
    loop {
        let served = tokio::select! {
            served = timeout(idle, connection.as_mut()) => served,
            _ = ending.wait_for(|ending| *ending), if !told_to_end => {
                connection.as_mut().graceful_shutdown();
                told_to_end = true;
                continue;
            }
        };
        match served {
            Ok(served) => return record_parse_error(&site, served).await,
            // The connection holds one clone; every request under way holds another.
            Err(_) if Arc::strong_count(&site.connection.busy) > 1 => was_idle = false,
            Err(_) if was_idle => return,
            Err(_) => {
                connection.as_mut().graceful_shutdown();
                was_idle = true;
            }
        }
    }
}
