//! What the gateway asks, and what it tells. The daemon answers from a policy and writes the ledger.

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

/// Whatever the decider knows of who is behind a connection (an exec, a process); the gateway only hands it back.
pub type Known = Arc<dyn Any + Send + Sync>;

/// Who is asking: one connection from the bay.
#[derive(Clone)]
pub struct Caller {
    /// The bay's end.
    pub peer: SocketAddr,
    /// The end it connected to, which nobody but the gateway has.
    pub local: SocketAddr,
    pub known: Known,
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("peer", &self.peer).field("local", &self.local).finish_non_exhaustive()
    }
}

/// The number of an entry in the record.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct RecordId(pub String);

/// A decision that is on record.
#[derive(Debug, Clone)]
pub struct Ruling {
    pub id: RecordId,
    /// Only an allow is let through; an ask is one that nobody answered.
    pub decision: Decision,
    /// For whoever is refused.
    pub explanation: Option<Box<Explanation>>,
    /// Set where a person was asked and has not answered yet: the client is to come again.
    pub waiting: Option<Waiting>,
}

/// A question that is still open when its request cannot be held any longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// What the person sees it as.
    pub question: String,
    pub retry_after: Duration,
}

/// What is said to a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookUp {
    /// An address of the synthetic pool. Says nothing about what may be sent there.
    Answer,
    /// There is no such name, as far as the bay is concerned.
    NoSuchName,
    /// The question is refused.
    Refused,
    /// The bay has asked for too many new names; this one is refused. Only the gateway says so.
    TooManyNames,
}

/// Something that was refused before there was a request to decide on.
#[derive(Debug, Clone)]
pub enum Refused<'a> {
    /// Nothing on this connection can be allowed, and it sent nothing that could be answered.
    Connection { host: &'a Host, port: u16, decision: &'a Decision },
    /// An address of the pool that no name has.
    Nameless { destination: SocketAddr },
    /// A request that has no canonical form, or a connection whose names differ.
    Form { host: &'a Host, port: u16, refusal: &'a Refusal },
    /// What came is neither TLS nor HTTP as the gateway reads them.
    Protocol { host: &'a Host, port: u16, why: &'a str },
    /// The bay has as many connections, or requests under way, as it may have.
    TooMany { destination: SocketAddr },
    /// A change of protocol that is none, or not a valid one, to a WebSocket.
    Upgrade { host: &'a Host, port: u16, why: &'a str },
    /// A sentinel where no secret belongs, or a credential that is none of the bay's.
    Secret { host: &'a Host, port: u16, misuse: &'a Misuse },
}

/// How a recorded request ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "ending")]
pub enum Ending {
    /// The refusal was told to the bay.
    Refused,
    /// The origin answered, and all of the answer was passed on.
    Answered { status: u16 },
    /// The origin answered, and then something broke.
    Broken { status: u16, failure: Failure },
    /// There was no answer.
    Failed { failure: Failure },
    /// A tunnel that either end closed.
    Closed,
    /// The bay went away before the end.
    Abandoned,
    /// A change of policy ended it.
    Revoked,
}

/// Why an origin could not be used. The words are stable: they stand in the ledger and in answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// The name does not resolve.
    Name,
    NameTimeout,
    /// It leads to an address that the policy does not let it lead to.
    Address,
    Connect,
    ConnectTimeout,
    /// The certificate is not one for this name by an authority that is trusted.
    Certificate,
    /// The TLS handshake failed otherwise.
    Tls,
    /// The SSH server has a host key that the operator does not know.
    HostKey,
    /// There is no SSH key for the host, or it is not taken.
    Login,
    /// The connection broke before the answer.
    Broken,
    /// What came is not HTTP, or too large.
    BadAnswer,
    AnswerTimeout,
    /// The body stopped moving.
    Stalled,
    /// The body of the request broke off, on the bay's side.
    RequestBody,
    /// A secret that was to be put into the request could not be had.
    Secret,
    /// A sentinel was found in the body of the request.
    Sentinel,
    /// The body of the request is a form that asks for another method than the one decided on.
    Override,
    /// The answer had the value of a secret in it, or guesses of one, and was cut off there.
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

/// What became of a recorded request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ended {
    #[serde(flatten)]
    pub ending: Ending,
    /// Bytes of bodies and tunnels, from the bay and to it.
    pub sent: u64,
    pub received: u64,
    #[serde(skip)]
    pub took: Duration,
}

/// The daemon's side. What is not `async` is called on the path of packets and must not wait.
#[async_trait]
pub trait Decider: Send + Sync + 'static {
    /// Finds out who opened a connection. Called once for each, before anything is read from it.
    fn attribute(&self, peer: SocketAddr, local: SocketAddr) -> Known;

    /// What to say to a look-up of this name.
    fn look_up(&self, name: &Host) -> LookUp;

    /// Records a look-up. `new` is set where the name got its address just now, which has to be kept for the life of
    /// the bay before this returns; false where it could not be, and must not be told.
    fn looked_up(&self, peer: SocketAddr, name: &str, kind: &str, answer: LookUp, new: bool) -> bool;

    /// What a connection is, before anything was read.
    fn route(&self, host: &Host, port: u16) -> Route;

    /// Decides on a request and records that, before anything of it is sent. May wait for a person; the
    /// future is dropped where the bay goes away meanwhile, and then nothing was sent and no end is told.
    async fn decide(&self, caller: &Caller, request: &CanonicalRequest, sight: &mut Sight<'_>) -> Ruling;

    /// Decides on what is under way once more, after [`Gateway::policy_changed`](crate::Gateway::policy_changed). `id` is
    /// that of the ruling by which it was let out.
    fn review(&self, id: &RecordId, request: &CanonicalRequest) -> Decision;

    /// The secrets of the bay at this moment. What is sent is looked through for their sentinels.
    fn secrets(&self) -> Arc<Secrets> {
        Arc::new(Secrets::none())
    }

    /// Gives the values of secrets, by name and incarnation, for a request that was let out by this ruling. Whatever the ruling
    /// put on record is there for good when this returns.
    ///
    /// # Errors
    /// In words, for whoever sent the request, why there is none.
    async fn attach(
        &self,
        id: &RecordId,
        wanted: &[(String, u64)],
    ) -> Result<Vec<Arc<SecretString>>, String> {
        let _ = (id, wanted);
        Err("there are no secrets here".to_owned())
    }

    /// Records a refusal that no decision was needed for.
    async fn refused(&self, caller: &Caller, what: &Refused<'_>) -> RecordId;

    /// Records how a request ended. Called exactly once for each ruling.
    fn ended(&self, id: &RecordId, ended: &Ended);
}
