//! Policies and grants in the API. `bay-policy` defines their meaning.
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
//! | `GET /v1/bays/{bay}/grants`               | → a list of [`GrantView`]            |
//! | `POST /v1/bays/{bay}/grants`              | [`GrantAdd`] → [`GrantView`]         |
//! | `DELETE /v1/bays/{bay}/grants/{id}`       | → [`GrantView`]                      |

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Longest file of a policy.
pub const MAX_POLICY_BYTES: usize = 1 << 20;
/// Most places of one kind in a policy.
pub const MAX_PLACES: usize = 1024;
/// Longest displayed name of a policy.
pub const MAX_NAME_BYTES: usize = 256;
/// Longest request in a policy check.
pub const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Most grants of one bay.
pub const MAX_GRANTS: usize = 1000;
/// Longest duration of a grant. A permanent permission is a rule.
pub const MAX_GRANT_S: u64 = 30 * 24 * 3600;

/// A policy to set: the name of a preset, or the text of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySet {
    /// Without text, the preset's name; with text, the file's name for messages.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default)]
    pub places: FoundPlaces,
}

/// The places that `@registries` and similar names stand for, as found when the policy was set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FoundPlaces {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub registries: Vec<FoundPlace>,
    /// Where the bay's repository can be fetched, if that differs from its origin.
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
    /// The setting where it was found.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// Private addresses that its name resolved to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
}

/// One layer; `set` is absent if none was set.
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
    /// Problems of the text. A layer with problems denies everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// The policy in force for a bay, each rule with its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyView {
    pub bay: String,
    /// Whether the bay's ports can be reached from outside.
    pub ingress: bool,
    /// Ports of the host's loopback that an operator opened to the bay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reach: Vec<u16>,
    /// The host's layer first. A later layer can only narrow.
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
    /// Its outcome for requests that none of its rules covers.
    pub otherwise: String,
    /// Absent for a default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Why it cannot be parsed any more. Such a layer denies everything.
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
    /// What it covers, on one line.
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
    /// What it allows, on one line.
    pub what: String,
    pub toml: String,
    pub expires: Timestamp,
    pub active: bool,
    /// Absent for a grant in the bay's policy file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
}

/// A permission for one request and a limited time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantAdd {
    /// `METHOD URL`, `tcp://HOST:PORT` or `tls://HOST`.
    pub request: String,
    pub for_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// If present, only for requests with exactly these secrets attached; if absent, with any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
}

/// A policy check of one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// `METHOD URL`, `tcp://HOST:PORT` or `tls://HOST`.
    pub request: String,
}

/// The explanation of a decision, made by `bay-policy` or read from the record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explained {
    pub request: String,
    /// `allow`, `ask`, `deny`, or `refused` for a request without a canonical form.
    pub outcome: String,
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleName>,
    pub layers: Vec<LayerWord>,
    /// All changes that together would allow it.
    pub would_allow: Vec<Remedy>,
    /// Rules for the same host that do not match this request.
    pub near_misses: Vec<NearMiss>,
    pub warnings: Vec<HostWarning>,
    /// Whether the gateway may attach credentials.
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

/// The outcome of one layer; absent if the layer leaves the decision to others.
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
    /// This rule denies it and must change.
    ChangeRule { rule: String, origin: Origin },
    /// A person must approve it, now or by a grant.
    Approve { rule: Option<String> },
    /// There is no policy; set one.
    SetPolicy,
    /// An operator must open this port of the host to the bay.
    Reach { port: u16 },
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

/// A warning about a host name.
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

/// A recorded decision, and the decision under the present policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recalled {
    pub id: u64,
    pub at: Timestamp,
    /// As recorded: a request, or the host and port of a connection.
    pub request: String,
    pub outcome: String,
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<String>,
    /// The recorded explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Explained>,
    /// The decision on the same request under the present policy; absent if no request is on record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<Explained>,
}

/// One finding in a policy.
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

/// What would change for a bay with another policy of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChange {
    pub added: Vec<RuleView>,
    pub removed: Vec<RuleView>,
    pub changed: Vec<RuleChange>,
    /// Changed outcomes of layers for requests that no rule covers.
    pub otherwise: Vec<OtherwiseChange>,
    /// Before and after, if changed.
    pub ingress: Option<(bool, bool)>,
    /// Examples of either policy and recorded requests whose decision would change.
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

/// The narrowest rules that would allow the refused requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lesson {
    /// Text for a policy file.
    pub toml: String,
    pub rules: u64,
    /// How many recorded refusals were used.
    pub refusals: u64,
    /// Requests that no added rule can allow, and why.
    pub not_learned: Vec<NotLearned>,
    /// How many more refusals there are.
    pub left_out: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotLearned {
    pub request: String,
    pub why: String,
}
