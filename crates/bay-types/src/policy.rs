//! Policies and grants as the API takes and shows them. What they mean is in `bay-policy`.
//!
//! | request                                   | body → answer                        |
//! |-------------------------------------------|--------------------------------------|
//! | `GET /v1/bays/{bay}/policy`               | → [`PolicyView`], what holds for it  |
//! | `PUT`, `DELETE /v1/bays/{bay}/policy`     | [`PolicySet`] → [`PolicyView`]       |
//! | the same of `/v1/bays/{bay}/policy/project` | the layer of the bay's repository  |
//! | the same of `/v1/policy/host`             | [`PolicySet`] → [`LayerSet`]         |
//! | `POST /v1/bays/{bay}/policy/check`        | [`Check`] → [`Explained`]            |
//! | `POST /v1/bays/{bay}/policy/diff`         | [`PolicySet`] → [`PolicyChange`]     |
//! | `GET /v1/bays/{bay}/policy/explain/{id}`  | → [`Recalled`]                       |
//! | `GET /v1/bays/{bay}/policy/lint`          | → a list of [`Finding`]              |
//! | `GET /v1/bays/{bay}/policy/learn`         | → [`Lesson`]                         |
//! | `GET`, `POST /v1/bays/{bay}/grants`       | [`GrantAdd`] → [`GrantView`]         |
//! | `DELETE /v1/bays/{bay}/grants/{id}`       | → [`GrantView`]                      |

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Longest file of a policy.
pub const MAX_POLICY_BYTES: usize = 1 << 20;
/// Most places of one kind that come with a policy.
pub const MAX_PLACES: usize = 1024;
/// Longest name under which a policy is shown.
pub const MAX_NAME_BYTES: usize = 256;
/// Longest request that is asked about.
pub const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Most grants of one bay.
pub const MAX_GRANTS: usize = 1000;
/// The longest time for which something is granted: what is to last is a rule.
pub const MAX_GRANT_S: u64 = 30 * 24 * 3600;

/// A policy to set: a preset by its name, or a file with its text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySet {
    /// The preset's name where there is no text; else what the file is called in messages.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default)]
    pub places: FoundPlaces,
}

/// What `@registries` and its like stand for, as found when the policy was set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FoundPlaces {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub registries: Vec<FoundPlace>,
    /// Where the bay's repository can be fetched, when that is not where it came from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forge: Vec<FoundPlace>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub proposed: Vec<FoundPlace>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listed: Vec<FoundPlace>,
}

/// A place, without any credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FoundPlace {
    pub url: String,
    /// The setting that names it, for a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// Private addresses that its name led to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
}

/// One layer as it was set; `set` is absent where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSet {
    /// `host`, or `project:` and the repository.
    pub scope: String,
    pub set: Option<LayerText>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerText {
    pub name: String,
    pub text: String,
    pub sha256: String,
    pub places: FoundPlaces,
    pub set_at: Timestamp,
    /// What is wrong with it: then it denies everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// The policy that holds for a bay, every rule with its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyView {
    pub bay: String,
    /// Whether ports of the bay may be reached from outside.
    pub ingress: bool,
    /// Host first; a later one can only narrow.
    pub layers: Vec<LayerView>,
    pub grants: Vec<GrantView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerView {
    pub layer: String,
    /// The preset or file.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extends: Option<String>,
    /// What it says to requests that none of its rules speaks of.
    pub otherwise: String,
    /// Absent for what holds because nothing was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Why it cannot be read any more: then it denies everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    pub rules: Vec<RuleView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleView {
    pub id: String,
    pub origin: Origin,
    pub outcome: String,
    pub kind: String,
    /// What it speaks of, in one line.
    pub what: String,
    pub toml: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// `active`, `expired`, or `capped` by another layer.
    pub effect: String,
}

/// Where a rule is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    pub layer: String,
    pub file: String,
    pub line: u64,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{} ({} layer)", self.file, self.line, self.layer)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantView {
    pub id: String,
    /// What it allows, in one line.
    pub what: String,
    pub toml: String,
    pub expires: Timestamp,
    pub active: bool,
    /// Absent for one that stands in the bay's policy file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
}

/// A permission for one request and a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantAdd {
    /// `METHOD URL`, `tcp://HOST:PORT` or `tls://HOST`.
    pub request: String,
    pub for_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Only with exactly these secrets attached; with any where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
}

/// What would be decided on this request?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// `METHOD URL`, `tcp://HOST:PORT` or `tls://HOST`.
    pub request: String,
}

/// A decision in words: what `bay-policy` says of one, also as it was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explained {
    pub request: String,
    /// `allow`, `ask`, `deny`; `refused` for what has no form that could be decided on.
    pub outcome: String,
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleName>,
    pub layers: Vec<LayerWord>,
    /// What would have to be done for it to be allowed; all of it.
    pub would_allow: Vec<Remedy>,
    /// Rules that speak of the host and not of this request.
    pub near_misses: Vec<NearMiss>,
    pub warnings: Vec<HostWarning>,
    /// Whether the gateway may put credentials into it.
    pub credentials: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleName {
    pub id: String,
    pub origin: Origin,
    pub outcome: String,
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}

/// What one layer said; nothing where it leaves the word to the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerWord {
    pub layer: String,
    pub outcome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleName>,
}

/// One step towards an allow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "step")]
pub enum Remedy {
    /// Add this rule to the file of the layer.
    AddRule { layer: String, file: String, toml: String },
    /// Nothing allows it while this rule is there.
    ChangeRule { rule: String, origin: Origin },
    /// A person says yes, or has said so with a grant.
    Approve { rule: Option<String> },
    /// Set a policy at all.
    SetPolicy,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NearMiss {
    pub rule: String,
    pub origin: Origin,
    pub outcome: String,
    pub differs_in: String,
    pub why: String,
}

/// What is odd about a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "warning")]
pub enum HostWarning {
    Unicode { reads: String },
    MixedScripts { label: String },
    UnusualLetters { label: String },
    LooksLike { name: String },
}

impl std::fmt::Display for HostWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unicode { reads } => write!(f, "the name reads {reads}"),
            Self::MixedScripts { label } => write!(f, "{label} mixes letters of several scripts"),
            Self::UnusualLetters { label } => write!(f, "{label} has letters that are hardly used in names"),
            Self::LooksLike { name } => write!(f, "the name looks like {name}"),
        }
    }
}

/// A decision of the past: what is on record, and what would be decided now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recalled {
    pub id: u64,
    pub at: Timestamp,
    /// As recorded: a request, or what there was of a connection.
    pub request: String,
    pub outcome: String,
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<String>,
    /// The explanation that was recorded with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Explained>,
    /// The same request under the policy of this moment; absent where what is on record is no request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<Explained>,
}

/// One thing that is odd about a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub code: String,
    /// `warning` or `note`.
    pub severity: String,
    pub rule: Option<String>,
    pub origin: Origin,
    pub because_of: Option<String>,
    pub message: String,
    pub next: String,
}

/// What would change for a bay if its own layer were another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChange {
    pub added: Vec<RuleView>,
    pub removed: Vec<RuleView>,
    pub changed: Vec<RuleChange>,
    /// What layers say where none of their rules speaks.
    pub otherwise: Vec<OtherwiseChange>,
    /// Before and after, where it differs.
    pub ingress: Option<(bool, bool)>,
    /// Examples in either policy, and requests on record, that would be decided otherwise.
    pub decisions: Vec<DecisionChange>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleChange {
    pub layer: String,
    pub id: String,
    pub before: RuleView,
    pub after: RuleView,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherwiseChange {
    pub layer: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionChange {
    pub request: String,
    pub before: String,
    pub after: String,
}

/// The narrowest rules that would allow what was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lesson {
    /// To be put into a policy file.
    pub toml: String,
    pub rules: u64,
    /// Records of refusals that were looked at.
    pub refusals: u64,
    /// Requests that no added rule can allow, and why.
    pub not_learned: Vec<NotLearned>,
    /// Refusals beyond those that were looked at.
    pub left_out: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotLearned {
    pub request: String,
    pub why: String,
}
