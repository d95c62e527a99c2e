//! The interface between the gateway and the daemon: questions that the gateway asks, and events that it reports. The
//! daemon answers them from the policy and keeps the record.

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bay_policy::{CanonicalRequest, Decision, Explanation, Host, Refusal, Route};
use secrecy::SecretString;
use serde::Serialize;

use crate::secrets::{Misuse, Secrets};
use crate::sight::Sight;

/// The decider's knowledge of who opened a connection (an exec, a process). The gateway only hands it back.
pub type Known = Arc<dyn Any + Send + Sync>;

/// The origin of a request: one connection from the bay.
#[derive(Clone)]
pub struct Caller {
    /// The bay's address of the connection.
    pub peer: SocketAddr,
    /// The address that the bay connected to. Only the gateway accepts connections there.
    pub local: SocketAddr,
    pub known: Known,
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("peer", &self.peer).field("local", &self.local).finish_non_exhaustive()
    }
}

/// The id of an entry in the record.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct RecordId(pub String);

/// A decision that is recorded.
#[derive(Debug, Clone)]
pub struct Ruling {
    pub id: RecordId,
    /// Only `allow` lets the request through. `ask` means that nobody answered.
    pub decision: Decision,
    /// The explanation for the client of a refused request.
    pub explanation: Option<Box<Explanation>>,
    /// Set if a person was asked and has not answered yet. The client should send the request again.
    pub waiting: Option<Waiting>,
}

/// A question that is still open when the gateway cannot hold its request any longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The id under which a person sees the question.
    pub question: String,
    pub retry_after: Duration,
}

/// The answer to a DNS look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookUp {
    /// An address of the synthetic pool. The decider still decides on every request to it.
    Answer,
    /// The bay gets "no such name".
    NoSuchName,
    /// The bay gets "refused".
    Refused,
    /// The bay has asked for too many new names. Only the gateway itself gives this answer.
    TooManyNames,
}

/// A refusal that is not a decision on a request. Most come before there is a request to decide on.
#[derive(Debug, Clone)]
pub enum Refused<'a> {
    /// The policy can allow nothing at this host and port. The client spoke no protocol in which the gateway could give
    /// the reason, or it asked the proxy for a tunnel there.
    Connection { host: &'a Host, port: u16, decision: &'a Decision },
    /// An address of the pool without a name.
    Nameless { destination: SocketAddr },
    /// A request without a canonical form, or a connection with contradicting names.
    Form { host: &'a Host, port: u16, refusal: &'a Refusal },
    /// The client speaks no protocol that the gateway serves there, violates it, or asks for something in it that the
    /// gateway does not pass on, such as a shell over SSH.
    Protocol { host: &'a Host, port: u16, why: &'a str },
    /// The bay has its maximum of connections, SSH connections or requests under way.
    TooMany { destination: SocketAddr },
    /// An upgrade that is not a valid WebSocket handshake.
    Upgrade { host: &'a Host, port: u16, why: &'a str },
    /// A misplaced sentinel, a credential that is not one of the bay's secrets, or a host that is closed because of
    /// guesses. A sentinel in a body is also reported while an allowed request is under way.
    Secret { host: &'a Host, port: u16, misuse: &'a Misuse },
}

/// How a recorded request ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "ending")]
pub enum Ending {
    /// The ruling did not allow it.
    Refused,
    /// The gateway passed on the complete answer of the origin.
    Answered { status: u16 },
    /// The answer ended early, after its head.
    Broken { status: u16, failure: Failure },
    /// It failed before an answer, or as a tunnel.
    Failed { failure: Failure },
    /// The tunnel, or the command over SSH, came to its own end. Also the first of two rulings on a push over SSH.
    Closed,
    /// The bay disconnected before the end, or the gateway was stopped.
    Abandoned,
    /// A change of the policy or the secrets ended the request or the tunnel. Also a tunnel whose gateway was dropped.
    Revoked,
}

/// Why an allowed request failed. The names are stable: they appear in the ledger and in answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// The name does not resolve.
    Name,
    NameTimeout,
    /// The name resolves to an address that the policy does not permit.
    Address,
    Connect,
    ConnectTimeout,
    /// The certificate is not valid for this name, or no trusted authority signed it.
    Certificate,
    /// The TLS handshake failed for another reason.
    Tls,
    /// The operator's known hosts do not contain the SSH server's host key, or say that it is revoked.
    HostKey,
    /// The operator gave no usable SSH key for the host and this user, or the server rejected the key.
    Login,
    /// The connection broke.
    Broken,
    /// The answer is not one that the gateway can pass on. Examples: it is not HTTP, its head is too large, it is
    /// compressed so that it cannot be scrubbed, or a database rejects the login.
    BadAnswer,
    AnswerTimeout,
    /// The body of the answer, or a tunnel, stopped moving.
    Stalled,
    /// The request's body ended too early or stopped moving.
    RequestBody,
    /// The value of a secret for this request was not available, did not fit into its place, or could not be scrubbed.
    Secret,
    /// The request's body contains a sentinel.
    Sentinel,
    /// The request's body is a form that asks for another method than the one in the decision, or that cannot be read.
    Override,
    /// The answer contained too many guesses of a secret, or a value that is easy to guess. It was cut there, or not
    /// passed on at all.
    SecretShown,
}

impl Failure {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::NameTimeout => "name-timeout",
            Self::Address => "address",
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect-timeout",
            Self::Certificate => "certificate",
            Self::Tls => "tls",
            Self::HostKey => "host-key",
            Self::Login => "login",
            Self::Broken => "broken",
            Self::BadAnswer => "bad-answer",
            Self::AnswerTimeout => "answer-timeout",
            Self::Stalled => "stalled",
            Self::RequestBody => "request-body",
            Self::Secret => "secret",
            Self::Sentinel => "sentinel",
            Self::Override => "override",
            Self::SecretShown => "secret-shown",
        }
    }
}

/// The end of a recorded request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ended {
    #[serde(flatten)]
    pub ending: Ending,
    /// Bytes of the request's body, or of the tunnel, from the bay.
    pub sent: u64,
    /// Bytes of the answer's body as the origin sent it, or of the tunnel to the bay.
    pub received: u64,
    #[serde(skip)]
    pub took: Duration,
}

/// The daemon's side. Methods that are not `async` must not block: the gateway calls them while it serves packets.
#[async_trait]
pub trait Decider: Send + Sync + 'static {
    /// Finds out who opened a connection. The gateway calls this once for each connection, except those to DNS,
    /// before it reads anything.
    fn attribute(&self, peer: SocketAddr, local: SocketAddr) -> Known;

    /// The answer to a look-up of this name.
    fn look_up(&self, name: &Host) -> LookUp;

    /// Records a look-up. If `new`, the name has just received its address, and the address must be stored before
    /// this returns. `false` means that this failed and the bay must not get the address.
    fn looked_up(&self, peer: SocketAddr, name: &str, kind: &str, answer: LookUp, new: bool) -> bool;

    /// How to serve a connection to this destination. The gateway asks before it reads anything of the connection,
    /// and for a tunnel through the proxy also before it opens that.
    fn route(&self, host: &Host, port: u16) -> Route;

    /// Decides on a request and records the decision. Nothing of the request has been sent yet. The exception is a push
    /// over SSH, which is decided on twice: before the second decision its command has been sent, and none of its
    /// changes. This may wait for a person. If the bay disconnects meanwhile, the gateway may drop the future, and then
    /// reports no end.
    async fn decide(&self, caller: &Caller, request: &CanonicalRequest, sight: &mut Sight<'_>) -> Ruling;

    /// Decides once more on a request under way, after [`Gateway::policy_changed`](crate::Gateway::policy_changed).
    /// `id` belongs to the ruling that allowed the request.
    fn review(&self, id: &RecordId, request: &CanonicalRequest) -> Decision;

    /// The current secrets of the bay. The gateway searches HTTP requests for their sentinels.
    fn secrets(&self) -> Arc<Secrets> {
        Arc::new(Secrets::none())
    }

    /// Returns the values of secrets, by name and incarnation, for a request that this ruling allowed. When this
    /// returns, everything that the ruling recorded is on disk.
    ///
    /// # Errors
    /// The reason, for the client of the request.
    async fn attach(
        &self,
        id: &RecordId,
        wanted: &[(String, u64)],
    ) -> Result<Vec<Arc<SecretString>>, String> {
        let _ = (id, wanted);
        Err("there are no secrets here".to_owned())
    }

    /// Records a refusal that is not a decision.
    async fn refused(&self, caller: &Caller, what: &Refused<'_>) -> RecordId;

    /// Records how a request ended. The gateway calls this exactly once for each ruling.
    fn ended(&self, id: &RecordId, ended: &Ended);
}
