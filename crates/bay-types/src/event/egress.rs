use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Field;
use super::area::area;
use crate::egress::Who;
use crate::id::{ApprovalId, ExecId};
use crate::text_enum::text_enum;
use crate::traffic::EgressRule;

/// The prefix of all kinds of traffic.
pub const KINDS: &str = "egress.";
/// The failure of a request whose name resolves to an address that no rule allows. Its end counts as a refusal.
pub const REFUSED_ADDRESS: &str = "address";

/// The decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Allow,
    /// Refused, because nobody approved it.
    Ask,
    Deny,
}

text_enum!(Outcome { Allow = "allow", Ask = "ask", Deny = "deny" });

/// Why something was refused before a request could be decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// No rule allows a connection there.
    Connection,
    /// The address was not obtained by a name lookup.
    Nameless,
    /// The request is ambiguous.
    Form,
    /// It is neither HTTP nor TLS.
    Protocol,
    /// The bay has as many connections or requests under way as it may have.
    TooMany,
    /// The client asked for an upgrade to a protocol that cannot be inspected.
    Upgrade,
    /// A sentinel or a credential was misused.
    Secret,
}

text_enum!(Refusal {
    Connection = "connection",
    Nameless = "nameless",
    Form = "form",
    Protocol = "protocol",
    TooMany = "too-many",
    Upgrade = "upgrade",
    Secret = "secret",
});

/// The answer to a look-up of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LookUpAnswer {
    Answered,
    NoSuchName,
    Refused,
    /// The bay has looked up as many names as it may.
    TooManyNames,
}

text_enum!(LookUpAnswer {
    Answered = "answered",
    NoSuchName = "no-such-name",
    Refused = "refused",
    TooManyNames = "too-many-names",
});

/// How allowed traffic ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The origin answered, and all of the answer was passed on.
    Answered,
    /// The origin began to answer, and then the connection broke.
    Broken,
    /// There was no answer.
    Failed,
    /// One side closed a tunnel.
    Closed,
    /// The bay closed the connection before the end.
    Abandoned,
    /// A change of policy ended it.
    Revoked,
}

text_enum!(Ending {
    Answered = "answered",
    Broken = "broken",
    Failed = "failed",
    Closed = "closed",
    Abandoned = "abandoned",
    Revoked = "revoked",
});

/// How a secret was misused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SecretMisuse {
    /// The secret.
    pub name: String,
    /// What was wrong.
    pub misuse: String,
    /// Where in the request.
    pub place: String,
}

area! {
    /// What a bay sent or tried to send.
    Egress: EgressEvent;

    /// A request, or a connection that is passed on, was decided on. If it was allowed, its end has an event of its own.
    Decided(EgressDecided) = "egress.decided" {
        /// The request in its canonical form. The middle of a long one is left out.
        request: String,
        /// The host it is for.
        host: String,
        /// The port it is for.
        port: u16,
        /// What was decided.
        outcome: Field<Outcome>,
        /// The rule that decided. `null` if no rule covers the request.
        rule: Option<EgressRule>,
        /// Who in the bay is behind it, as far as the host's kernel knows.
        by: Option<Who>,
        /// The secrets whose values are put into it.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        secrets: Vec<String>,
        /// The approval whose answer decided, or that is still open.
        #[serde(skip_serializing_if = "Option::is_none")]
        approval: Option<ApprovalId>,
        /// Whether the policy requires an approval and none was given.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        asked: bool,
        /// Why, as `bay policy explain --json` shows it. Absent if it was allowed.
        #[serde(skip_serializing_if = "Option::is_none")]
        explanation: Option<Value>,
        /// The last field that was emptied because the event was too long.
        #[serde(skip_serializing_if = "Option::is_none")]
        left_out: Option<String>,
    }

    /// A connection was refused before there was a request to decide on.
    Refused(EgressRefused) = "egress.refused" {
        /// What was wrong.
        what: Field<Refusal>,
        /// The host, or the address.
        host: String,
        /// The port.
        port: u16,
        /// Why, in a sentence.
        why: String,
        /// Who in the bay is behind it, as far as the host's kernel knows.
        by: Option<Who>,
        /// The secret that was misused. Absent unless `what` is `secret`.
        #[serde(skip_serializing_if = "Option::is_none")]
        secret: Option<SecretMisuse>,
        /// The last field that was emptied because the event was too long.
        #[serde(skip_serializing_if = "Option::is_none")]
        left_out: Option<String>,
    }

    /// A permitted request or connection ended.
    Ended(EgressEnded) = "egress.ended" {
        /// The number of the event that permitted it.
        of: Field<u64>,
        /// How it ended.
        ending: Field<Ending>,
        /// The status that the origin answered with. Absent if it did not answer.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        /// Why the origin could not be used. Absent if it could.
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
        /// Bytes of bodies and tunnels from the bay.
        sent: Field<u64>,
        /// Bytes of bodies and tunnels to the bay.
        received: Field<u64>,
        /// How many milliseconds it took.
        ms: Field<u64>,
    }

    /// A name was looked up.
    LookedUp(EgressLookedUp) = "egress.looked-up" {
        /// The name.
        name: String,
        /// The requested record type.
        r#type: String,
        /// The answer.
        answer: Field<LookUpAnswer>,
        /// The port in the bay that sent the query.
        port: u16,
        /// Who in the bay is behind it, as far as the host's kernel knows.
        by: Option<Who>,
    }

    /// There were more events like one that is on record.
    Repeated(EgressRepeated) = "egress.repeated" {
        /// What they have in common: an outcome, a reason for a refusal, or the answer to a look-up.
        what: String,
        /// Host and port, or the name. Empty if they were for several.
        of: String,
        /// The number of the last one that has an event of its own. If none has one, it is 0.
        like: u64,
        /// How many there were.
        count: Field<u64>,
        /// Within how many seconds.
        within_s: Field<u64>,
        /// How many different hosts and ports, or names, it is a sum of. Absent if `of` has the only one.
        #[serde(skip_serializing_if = "Option::is_none")]
        distinct: Option<u64>,
        /// The first of those.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        sample: Vec<String>,
    }

    /// The gateway of a bay was opened. Not written any more.
    Opened(EgressOpened) = "egress.opened" {}

    /// The gateway of a bay could not be opened: nothing leaves the bay.
    Closed(EgressClosed) = "egress.closed" {
        /// Why.
        why: String,
    }
}

/// The part of a bay's traffic to which an event belongs. The store has it in a column, because queries of traffic
/// and timelines filter on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrafficPart {
    /// A decision that allowed something.
    LetOut,
    /// The end of allowed traffic.
    Ended,
    /// An end that counts as a refusal: the policy changed, or no rule allows the address.
    EndedRefused,
    /// A look-up of a name, or a sum of them.
    LookUp,
    /// Anything else: refusals, their sums, and the gateway itself.
    Other,
}

text_enum!(TrafficPart {
    LetOut = "let-out",
    Ended = "ended",
    EndedRefused = "ended-refused",
    LookUp = "look-up",
    Other = "other",
});

impl EgressEvent {
    #[must_use]
    pub fn part(&self) -> TrafficPart {
        match self {
            Self::Decided(decided) if decided.outcome == Field::Is(Outcome::Allow) => TrafficPart::LetOut,
            Self::Ended(ended)
                if ended.ending == Field::Is(Ending::Revoked)
                    || ended.failure.as_deref() == Some(REFUSED_ADDRESS) =>
            {
                TrafficPart::EndedRefused
            }
            Self::Ended(_) => TrafficPart::Ended,
            Self::LookedUp(_) => TrafficPart::LookUp,
            Self::Repeated(sum) if sum.what.parse::<LookUpAnswer>().is_ok() => TrafficPart::LookUp,
            Self::Decided(_) | Self::Refused(_) | Self::Repeated(_) | Self::Opened(_) | Self::Closed(_) => {
                TrafficPart::Other
            }
        }
    }

    /// Who in the bay is behind it.
    #[must_use]
    pub fn who(&self) -> Option<&Who> {
        match self {
            Self::Decided(decided) => decided.by.as_ref(),
            Self::Refused(refused) => refused.by.as_ref(),
            Self::LookedUp(look_up) => look_up.by.as_ref(),
            Self::Ended(_) | Self::Repeated(_) | Self::Opened(_) | Self::Closed(_) => None,
        }
    }

    /// The exec that is behind it.
    #[must_use]
    pub fn exec(&self) -> Option<ExecId> {
        self.who()?.exec
    }
}

impl EgressDecided {
    /// The reason of the decision, in one sentence.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.explanation.as_ref()?.get("reason")?.as_str()
    }
}
