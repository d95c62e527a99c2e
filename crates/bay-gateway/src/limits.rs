//! Limits of the gateway. Each bay has a gateway of its own, which counts against them only what this bay does. A few
//! limits of one protocol stand beside its parser, such as those of PostgreSQL and of decompression.

use std::time::Duration;

/// Names that can have an address in one bay, with those that a fork inherits. The bay cannot look up further names,
/// because addresses are never reused. Smaller pools lower the limit.
pub const MAX_NAMES: usize = 65_536;
/// Longest DNS message that is read. A question has at most 300 bytes, plus options.
pub const MAX_DNS_MESSAGE: usize = 4096;
/// DNS questions per second, with a burst of the same size. The gateway drops and counts the rest.
pub const DNS_QUERIES_PER_SECOND: u32 = 1000;
/// New names that a bay may ask for within [`NEW_NAMES_WITHIN`]. Questions for more are refused, so that the record and
/// the list of names grow slowly. Package managers and browsers ask for tens.
pub const MAX_NEW_NAMES: usize = 600;
/// The time in which new names are counted. It begins with the first new name after the previous one is over.
pub const NEW_NAMES_WITHIN: Duration = Duration::from_secs(60);
/// DNS connections over TCP at a time.
pub const MAX_DNS_CONNECTIONS: usize = 16;
/// How long a DNS connection may be silent.
pub const DNS_IDLE: Duration = Duration::from_secs(10);
/// How long a client may cache an answer. Names never change their address.
pub const DNS_TTL_SECONDS: u32 = 300;

/// Connections of a bay at a time, besides those to DNS. The gateway closes further ones at once.
pub const MAX_CONNECTIONS: usize = 1024;
/// SSH connections of a bay at a time. The gateway closes further ones at once.
pub const MAX_SSH_CONNECTIONS: usize = 32;
/// Open channels of one SSH connection, with a command or before it. Each command has a connection of its own to an
/// origin.
pub const MAX_SSH_CHANNELS: usize = 8;
/// The window of an SSH channel.
pub const SSH_WINDOW_BYTES: u32 = 1024 * 1024;
/// The largest packet of an SSH channel.
pub const SSH_PACKET_BYTES: u32 = 32 * 1024;
/// How many messages of an SSH channel are queued.
pub const SSH_CHANNEL_MESSAGES: usize = 16;
/// Requests of a bay under way at a time, on all its connections together. The gateway answers further ones with 503.
/// Each may have a connection to an origin, and as much memory as the windows below allow.
pub const MAX_REQUESTS: usize = 512;
/// Certificates in the cache. It forgets the least recently used.
pub const MAX_LEAVES: usize = 1024;
/// Longest TLS ClientHello that is passed through.
pub const MAX_CLIENT_HELLO: usize = 64 * 1024;
/// Largest head of an HTTP/1.1 request or answer.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most headers in one head.
pub const MAX_HEADERS: usize = 200;
/// Largest header list of HTTP/2.
pub const MAX_HEADER_LIST_BYTES: u32 = 64 * 1024;
/// Size of the table with which HTTP/2 compresses headers.
pub const HEADER_TABLE_BYTES: u32 = 4096;
/// Requests on one HTTP/2 connection at a time.
pub const MAX_STREAMS: u32 = 128;
/// Streams that a client reset before the gateway handled them, and streams that violated the protocol, before the
/// connection ends.
pub const MAX_RESET_STREAMS: usize = 32;
/// HTTP/2 window of one stream.
pub const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// HTTP/2 window of one connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// How much an HTTP/2 stream may have waiting to be sent.
pub const SEND_BUFFER_BYTES: usize = 256 * 1024;
/// Largest HTTP/2 frame that is accepted.
pub const MAX_FRAME_BYTES: u32 = 64 * 1024;
/// The longest first line of a connection that is read to tell HTTP/1 from other protocols.
pub const MAX_FIRST_LINE_BYTES: usize = 8 * 1024;
/// How much of a request's body is read and discarded if the gateway does not send all of it to the origin.
pub const MAX_REST_BYTES: usize = 4 * 1024 * 1024;
/// How long the rest of a request's body is read and discarded.
pub const REST_WITHIN: Duration = Duration::from_secs(5);
/// The length at which reading ahead stops: of a push, for its refs and for the decider, and of a request's body, for
/// the decider and for the checks before anything is sent. The last piece that was read may exceed it.
pub const MAX_LOOK_BYTES: usize = 64 * 1024;
/// How long such a reading ahead waits at most. For the refs of a push over SSH the gateway waits as long as for an
/// idle tunnel.
pub const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// The pause in a push over SSH after which the decider gets what has arrived.
pub const PACK_QUIET: Duration = Duration::from_millis(300);
/// Connections for reuse that are kept per origin. Many requests that arrive together are also decided together, and
/// their connections are idle meanwhile. With a lower limit most of these would be opened again each time.
pub const MAX_IDLE_PER_ORIGIN: usize = 128;
/// Connections for reuse that are kept in total.
pub const MAX_IDLE: usize = 256;
/// A body yields to the others once it has passed on this many bytes. This is less than a socket buffer, so that
/// bodies with a larger buffer get no larger share.
pub const TURN_BYTES: usize = 128 * 1024;
/// The read size for an encrypted connection to an origin. The TLS library asks for a quarter of a record at a time.
pub const ORIGIN_READ_BYTES: usize = 64 * 1024;
/// Addresses of one name that are tried.
pub const MAX_ADDRESSES: usize = 8;

/// Timeouts of the gateway. Tests shorten them; the daemon uses the defaults.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// How long the gateway waits for the first byte of a connection on which it expects TLS, HTTP or SSH.
    pub first_byte: Duration,
    /// The first byte, on a connection where nothing can be allowed and the port is neither 80 nor 443: long enough for
    /// a client that sends first to get an answer, short for a client that waits for the server. Also the time in
    /// which a client of a service of the host shows whether it speaks HTTP.
    pub refused_first_byte: Duration,
    /// The beginning of a protocol with the bay: a TLS handshake, a ClientHello, or a login by SSH or PostgreSQL.
    pub handshake: Duration,
    /// The complete head of an HTTP/1.1 request, and so how long such a connection of the bay may be idle. An
    /// HTTP/2 connection without requests, or an SSH connection without commands, ends within twice this time.
    pub head: Duration,
    /// Resolving a name.
    pub resolve: Duration,
    /// Connecting to one address. Then, counted anew, the handshake and the login there.
    pub connect: Duration,
    /// From the request to the head of its answer. The gateway waits longer while the request's body is still moving.
    pub answer: Duration,
    /// A body without progress, in either direction.
    pub body_idle: Duration,
    /// A tunnel without traffic.
    pub tunnel_idle: Duration,
    /// How long an unused connection to an origin is kept.
    pub keep_idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            first_byte: Duration::from_secs(30),
            refused_first_byte: Duration::from_millis(500),
            handshake: Duration::from_secs(15),
            head: Duration::from_secs(60),
            resolve: Duration::from_secs(10),
            connect: Duration::from_secs(15),
            // Model servers may compute for minutes before they send the first byte.
            answer: Duration::from_secs(600),
            body_idle: Duration::from_secs(600),
            tunnel_idle: Duration::from_secs(3600),
            keep_idle: Duration::from_secs(60),
        }
    }
}
