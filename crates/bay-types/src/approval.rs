//! Questions that wait for a person: what is asked, who asks, and what was answered.
//!
//! | request                              | body → answer                                            |
//! |--------------------------------------|----------------------------------------------------------|
//! | `GET /v1/approvals?all=true&bay=B`   | → a list of [`Approval`]; without `all` the open ones    |
//! | `GET /v1/approvals/watch`            | → lines of [`Approval`], each whenever it changes        |
//! | `GET /v1/approvals/{id}`             | → [`Approval`]                                           |
//! | `POST /v1/approvals/{id}/allow`      | [`Allow`] → [`Approval`]                                 |
//! | `POST /v1/approvals/{id}/deny`       | [`Deny`] → [`Approval`]                                  |
//! | `POST /v1/approvals/{id}/revoke`     | → [`Approval`]; an allow that could still be used ends   |

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bay::text_enum;
use crate::checkpoint::CheckpointName;
use crate::egress::Who;
use crate::id::{ApprovalId, BayId};
use crate::policy::Origin;

/// Longest word of whoever denies.
pub const MAX_WHY_BYTES: usize = 1024;
/// The longest time for which something is allowed by an answer.
pub const MAX_ALLOW_S: u64 = 24 * 3600;

/// How a question stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalState {
    Open,
    Allowed,
    Denied,
    /// Nobody answered in time, which is a denial.
    Expired,
    /// What it was about is gone: its bay was stopped, or the same was asked in another form.
    Dropped,
    /// An approver took an allow back before it was used up.
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
    /// The same request of the same exec, any number of times while that exec runs.
    Exec,
    /// The same request of any process in the bay, for a limited time.
    For,
    /// A rule in the bay's policy. Rules cannot depend on bodies, so this needs [`Allow::any_body`].
    Save,
}

text_enum!(Reach { Once = "once", Exec = "exec", For = "for", Save = "save" });

/// A question, as a person sees it. Fields may be added; none is taken away. Much of it was said by the bay: texts have no
/// control characters, and are never more than texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    pub id: ApprovalId,
    pub bay: BayId,
    pub bay_name: String,
    pub state: ApprovalState,
    pub asked_at: Timestamp,
    /// While it is open: until when an answer is waited for.
    pub expires: Timestamp,
    pub asked: Asked,
    /// Who in the bay is behind it, as the host's kernel tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<Who>,
    /// The exec as people know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_number: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exec_argv: Vec<String>,
    /// The tool call that the exec was run for, in the words of whoever ran it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call: Option<String>,
    /// The rule that asks; absent where a layer asks about what no rule speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<AskingRule>,
    /// Names of the secrets that would be attached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// What is odd about the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The rule as it would be if it were saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_as: Option<String>,
    /// SHA-256 over exactly what is held, in hexadecimal digits.
    pub digest: String,
    /// An earlier request to the same place that this one is not, although it looks like it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<Differs>,
    /// The state of the bay's files from before it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointName>,
    /// How many wait for the answer at this moment. None may: then the answer is for the next one like it.
    pub held: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// How a request differs from an earlier one with the same method, URL and secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Differs {
    /// The question about the earlier request.
    pub from: ApprovalId,
    /// The state of that question when this one was asked.
    pub state: ApprovalState,
    /// One line for each difference, safe to show.
    pub how: Vec<String>,
}

/// What is asked.
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
    /// In its canonical form: what is sent.
    pub request: String,
    /// In full, as it is connected to.
    pub host: String,
    pub port: u16,
    /// Names of the headers that go with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<BodySeen>,
    /// What a git push would change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push: Option<Push>,
    /// As whom a login to a database is, and to which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// Headers that are not named above, because there are too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_headers: u64,
    /// `NAME: VALUE` of every header that could carry something: all but short values of headers that each client sends.
    /// Long values are cut, and credentials are only counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub header_values: Vec<String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// As much of a body as was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BodySeen {
    /// Its beginning, with everything a terminal would obey written out.
    pub preview: String,
    /// Bytes that the preview stands for.
    pub previewed: u64,
    /// How long all of it is, as far as that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// Whether all of it was looked at, and so is in the digest.
    pub whole: bool,
}

/// What a git push would change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Push {
    pub refs: Vec<RefChange>,
    /// What the push asks of the server beside the refs (`git push -o`), with everything a terminal would obey written out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Commits that the push brings along, as far as they could be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commits: Vec<PushedCommit>,
    /// Objects that the push brings along, as it says itself.
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
    /// The service that runs it, whenever that wants to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The variables it is started with: `NAME=VALUE` if the bay itself asks, and only `NAME` if somebody outside does, because
    /// questions are kept and an operator's values may be secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// How the service runs it, a line for each setting.
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

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Who answered; `timeout`, or why it was dropped, where nobody did.
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
    /// Until when an allow holds that was not used yet.
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
    /// The digest on the card that the approver looked at. If it is not that of the question, nothing is allowed.
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
    /// Told to whoever is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether the bay goes back to the checkpoint from before the question.
    pub rollback: bool,
}
