//! Every bound of the gateway in one place. All of them are per bay: what one bay exhausts is its own.

use std::time::Duration;

/// Names that one bay can have looked up in its life; addresses are never used again, so this is final.
pub const MAX_NAMES: usize = 65_536;
/// Longest DNS message that is read. A question is at most 300 bytes; options may follow it.
pub const MAX_DNS_MESSAGE: usize = 4096;
/// Questions in a second, after a burst of as many. What is beyond is dropped and counted.
pub const DNS_QUERIES_PER_SECOND: u32 = 1000;
/// Names that a bay may ask for within [`NEW_NAMES_WITHIN`] and has no address of yet. Questions for others are refused and
/// added up: the record and the list of names are no place to write data to. Package managers and browsers ask for tens.
pub const MAX_NEW_NAMES: usize = 600;
pub const NEW_NAMES_WITHIN: Duration = Duration::from_secs(60);
/// DNS connections over TCP at a time.
pub const MAX_DNS_CONNECTIONS: usize = 16;
/// How long a DNS connection may be silent.
pub const DNS_IDLE: Duration = Duration::from_secs(10);
/// How long an answer may be kept; names never change their address.
pub const DNS_TTL_SECONDS: u32 = 300;

/// Connections of a bay at a time. The next one is closed at once.
pub const MAX_CONNECTIONS: usize = 1024;
/// SSH connections of a bay at a time; each has one to an origin. The next one is closed at once.
pub const MAX_SSH_CONNECTIONS: usize = 32;
/// Commands on one SSH connection at a time.
pub const MAX_SSH_CHANNELS: usize = 8;
/// What is on its way on one channel of SSH before the other side has to say that it goes on, the largest packet, and how
/// many of them wait for whoever passes them on.
pub const SSH_WINDOW_BYTES: u32 = 1024 * 1024;
pub const SSH_PACKET_BYTES: u32 = 32 * 1024;
pub const SSH_CHANNEL_MESSAGES: usize = 16;
/// Requests of a bay under way at a time, on all its connections together. The next one is answered with a 503. Each may
/// have a connection to an origin, and as much in memory as the windows below let it have.
pub const MAX_REQUESTS: usize = 512;
/// Certificates that are kept, the least used of them is forgotten first.
pub const MAX_LEAVES: usize = 1024;
/// Longest TLS ClientHello that is passed on unread.
pub const MAX_CLIENT_HELLO: usize = 64 * 1024;
/// Largest head of a request or answer over HTTP/1.1.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most headers in one head.
pub const MAX_HEADERS: usize = 200;
/// Largest list of headers over HTTP/2, and its compression table.
pub const MAX_HEADER_LIST_BYTES: u32 = 64 * 1024;
pub const HEADER_TABLE_BYTES: u32 = 4096;
/// Requests on one HTTP/2 connection at a time.
pub const MAX_STREAMS: u32 = 128;
/// Requests that a client took back before they were looked at, and that broke the protocol, before its connection ends.
pub const MAX_RESET_STREAMS: usize = 32;
/// What is on its way for one stream and one connection of HTTP/2.
pub const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
pub const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
pub const SEND_BUFFER_BYTES: usize = 256 * 1024;
/// Largest frame of HTTP/2 that is accepted.
pub const MAX_FRAME_BYTES: u32 = 64 * 1024;
/// How much of a request's body is read and thrown away after it was answered, and for how long.
pub const MAX_REST_BYTES: usize = 4 * 1024 * 1024;
pub const REST_WITHIN: Duration = Duration::from_secs(5);
/// How much of a request's body is read before it is decided on, where whoever decides looks at it, and for how long.
pub const MAX_LOOK_BYTES: usize = 64 * 1024;
pub const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// How long nothing may come of a push over SSH before what is there is shown to a person.
pub const PACK_QUIET: Duration = Duration::from_millis(300);
/// Connections to origins that are kept for later, of one origin and in all. Requests that came together are decided on
/// together, and meanwhile all of their connections are idle: with room for fewer, most would be made anew every time.
pub const MAX_IDLE_PER_ORIGIN: usize = 128;
pub const MAX_IDLE: usize = 256;
/// What one body passes on before all others have had their turn: less than the system holds for a connection, or those
/// for which it holds more would get more.
pub const TURN_BYTES: usize = 128 * 1024;
/// What is read at once of an encrypted connection to an origin. The TLS library asks for a quarter of a record at a time.
pub const ORIGIN_READ_BYTES: usize = 64 * 1024;
/// Addresses of one name that are tried.
pub const MAX_ADDRESSES: usize = 8;

/// How long things may take. A test shortens them; the daemon has no reason to.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// From accepting a connection to its first byte.
    pub first_byte: Duration,
    /// The same on a connection of which nothing can be allowed: long enough for a client that speaks to get an
    /// answer, and short for one that listens.
    pub refused_first_byte: Duration,
    /// The whole TLS handshake with the bay.
    pub handshake: Duration,
    /// A whole head of a request; also how long a connection of the bay may lie idle.
    pub head: Duration,
    /// Looking up a name.
    pub resolve: Duration,
    /// Connecting to one address, and the TLS handshake with it.
    pub connect: Duration,
    /// From the request to the head of its answer.
    pub answer: Duration,
    /// A body that does not move, in either direction.
    pub body_idle: Duration,
    /// A tunnel in which nothing moves.
    pub tunnel_idle: Duration,
    /// How long a connection to an origin is kept without use.
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
            // Model servers think for minutes before they say a word.
            answer: Duration::from_secs(600),
            body_idle: Duration::from_secs(600),
            tunnel_idle: Duration::from_secs(3600),
            keep_idle: Duration::from_secs(60),
        }
    }
}
