//! Approvals: requests and commands that wait for a person's decision, and the decisions.
//!
//! | request                              | body → answer                                            |
//! |--------------------------------------|----------------------------------------------------------|
//! | `GET /v1/approvals?all=true&bay=B`   | → a list of [`Approval`]; without `all` the open ones    |
//! | `GET /v1/approvals/watch`            | → lines of [`Approval`]: the open ones, then each change |
//! | `GET /v1/approvals/{id}`             | → [`Approval`]                                           |
//! | `POST /v1/approvals/{id}/allow`      | [`Allow`] → [`Approval`]                                 |
//! | `POST /v1/approvals/{id}/deny`       | [`Deny`] → [`Approval`]                                  |
//! | `POST /v1/approvals/{id}/revoke`     | → [`Approval`]; an allow that could still be used ends   |

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::egress::Who;
use crate::id::CheckpointName;
use crate::id::{ApprovalId, BayId};
use crate::policy::Origin;
use crate::text_enum::text_enum;

/// Longest reason of a denial.
pub const MAX_WHY_BYTES: usize = 1024;
/// Longest time of an allow that is given for a time, or for an exec. A saved rule has no such limit.
pub const MAX_ALLOW_S: u64 = 24 * 3600;

/// The state of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalState {
    Open,
    Allowed,
    Denied,
    /// Nobody answered in time, which is a denial.
    Expired,
    /// Nothing waits for the answer any more: the bay was stopped or restored, or the same was asked again with other
    /// headers or another body.
    Dropped,
    /// An approver revoked an allow before it was used up.
    Revoked,
}

text_enum!(ApprovalState {
    Open = "open",
    Allowed = "allowed",
    Denied = "denied",
    Expired = "expired",
    Dropped = "dropped",
    Revoked = "revoked",
});

/// How far an allow reaches. Each covers only requests with the digest on the card, unless [`Allow::any_body`] is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// One request: the held one, or the same one when its client sends it again.
    #[default]
    Once,
    /// The same request of the same exec, any number of times while that exec runs, for at most [`MAX_ALLOW_S`].
    Exec,
    /// The same request of any process in the bay, for a limited time.
    For,
    /// A rule in the bay's policy. Rules cannot depend on bodies, so this needs [`Allow::any_body`].
    Save,
}

text_enum!(Reach { Once = "once", Exec = "exec", For = "for", Save = "save" });

/// An approval as a person sees it. New releases may add fields and remove none. The bay controls many of these
/// texts: they have no control characters, and a front must show them as plain text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    pub id: ApprovalId,
    pub bay: BayId,
    pub bay_name: String,
    pub state: ApprovalState,
    pub asked_at: Timestamp,
    /// When it expires if nobody answers. A denial covers the same request until then.
    pub expires: Timestamp,
    pub asked: Asked,
    /// The process in the bay behind it, as the host's kernel reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<Who>,
    /// The number of the exec in its bay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_number: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exec_argv: Vec<String>,
    /// The tool call that the exec belongs to, as the exec's caller named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call: Option<String>,
    /// The rule that asks; absent if a layer asks about everything that none of its rules covers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<AskingRule>,
    /// Names of the secrets that would be attached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Warnings about the host's name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The rule that [`Reach::Save`] would add.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_as: Option<String>,
    /// SHA-256 of exactly what is held, in hexadecimal digits.
    pub digest: String,
    /// An earlier request to the same place that looks like this one but differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<Differs>,
    /// A checkpoint of the bay from before the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointName>,
    /// How many requests are held at this moment. It may be zero: then the answer decides the next matching
    /// request.
    pub held: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// How a request differs from an earlier one with the same method, URL and secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Differs {
    /// The approval of the earlier request.
    pub from: ApprovalId,
    /// The state of that approval when this request came.
    pub state: ApprovalState,
    /// One line for each difference, safe to show.
    pub how: Vec<String>,
}

/// What needs the approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "what")]
pub enum Asked {
    /// May this request leave?
    Request(AskedRequest),
    /// May this command run?
    Exec(AskedExec),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedRequest {
    /// The request in its canonical form, which is what the gateway would send.
    pub request: String,
    /// The host that the gateway would connect to.
    pub host: String,
    pub port: u16,
    /// Names of its headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<BodySeen>,
    /// What a git push would change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push: Option<Push>,
    /// The user and database of a database login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// How many more headers there are than `headers` names.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_headers: u64,
    /// `NAME: VALUE` of every header that could carry data: all headers except short values of headers that every
    /// client sends. Long values are cut, and credentials are only counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub header_values: Vec<String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The part of a body that was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BodySeen {
    /// Its beginning, with control characters escaped.
    pub preview: String,
    /// How many bytes of the body the preview shows.
    pub previewed: u64,
    /// Length of the whole body, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// Whether the whole body was read and is part of the digest.
    pub whole: bool,
}

/// What a git push would change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Push {
    pub refs: Vec<RefChange>,
    /// The push options (`git push -o`), with control characters escaped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Commits in the push, as far as they could be parsed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commits: Vec<PushedCommit>,
    /// How many objects the push claims to contain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefChange {
    pub name: String,
    /// Absent where the ref is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// Absent where the ref is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushedCommit {
    pub id: String,
    pub author: String,
    pub subject: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedExec {
    pub argv: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The service that runs it on its own schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Its variables: `NAME=VALUE` if the bay itself asks, only `NAME` if a caller outside asks. Approvals are
    /// stored, and an operator's values may be secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// The service's settings, one per line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<String>,
    /// Who wants to run it.
    pub by: String,
}

/// The rule that asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskingRule {
    pub id: String,
    pub origin: Origin,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How an approval was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Who answered. If nobody did: `timeout`, or why it was dropped.
    pub by: String,
    pub at: Timestamp,
    /// How long it took.
    pub after_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reach: Option<Reach>,
    /// Whether the allow covers only requests with the digest on the card: always, unless `any_body` is set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bound: bool,
    /// Whether the approver allowed other bodies and headers than those on the card.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any_body: bool,
    /// When the allow ends at the latest. A saved rule remains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// `POST /v1/approvals/{id}/allow`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Allow {
    pub reach: Reach,
    /// For [`Reach::For`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u64>,
    /// The digest on the card that the approver saw. If it does not match the approval's digest, nothing is
    /// allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Also allow other bodies and headers than those on the card.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub any_body: bool,
}

/// `POST /v1/approvals/{id}/deny`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Deny {
    /// The reason, which the refused client gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether to restore the bay's files to the checkpoint from before the request. The memory is not restored.
    pub rollback: bool,
}
