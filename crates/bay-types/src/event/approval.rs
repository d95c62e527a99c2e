use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Field;
use super::area::area;
use crate::approval::{AskingRule, Differs, Reach};
use crate::egress::Who;
use crate::id::ApprovalId;
use crate::id::CheckpointName;

/// Facts about a request's body, without the body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedBody {
    /// The length of the whole body, if known.
    pub length: Option<u64>,
    /// Whether the whole body was read.
    pub whole: bool,
}

area! {
    /// Approvals by a person: requests for one, and the answers.
    Approval: ApprovalEvent;

    /// A request or command needs an approval.
    Asked(ApprovalAsked) = "approval.asked" {
        /// The approval.
        approval: Field<ApprovalId>,
        /// The request or the command, in one line.
        request: String,
        /// SHA-256 over exactly what is held, in hexadecimal digits.
        digest: String,
        /// The rule that asks. `null` if a layer asks about what no rule covers.
        rule: Option<AskingRule>,
        /// When the approval expires without an answer.
        expires: Field<Timestamp>,
        /// Who in the bay is behind it, as far as the host's kernel knows.
        by: Option<Who>,
        /// The secrets that would be attached.
        secrets: Vec<String>,
        /// The checkpoint of the bay from before the approval.
        checkpoint: Option<CheckpointName>,
        /// The part of the body that was read.
        body: Option<AskedBody>,
        /// What is unusual about the host.
        warnings: Vec<String>,
        /// An earlier, similar request to the same place, and how this one differs.
        differs: Option<Differs>,
        /// The last field that was emptied because the event was too long.
        #[serde(skip_serializing_if = "Option::is_none")]
        left_out: Option<String>,
    }

    /// A person allowed it.
    Allowed(ApprovalAllowed) = "approval.allowed" {
        /// The approval.
        approval: Field<ApprovalId>,
        /// The digest of the approval.
        digest: String,
        /// The request or the command, in one line.
        request: String,
        /// Who answered.
        by: String,
        /// When.
        at: Field<Timestamp>,
        /// How long it took.
        after_ms: u64,
        /// The reach of the allow.
        #[serde(skip_serializing_if = "Option::is_none")]
        reach: Option<Reach>,
        /// Whether it covers only requests with the digest.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        bound: bool,
        /// Whether it covers other bodies and headers than those that were shown.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        any_body: bool,
        /// Until when it can be used.
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// What the person wrote.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    }

    /// A person denied it.
    Denied(ApprovalDenied) = "approval.denied" {
        /// The approval.
        approval: Field<ApprovalId>,
        /// The digest of the approval.
        digest: String,
        /// The request or the command, in one line.
        request: String,
        /// Who answered.
        by: String,
        /// When.
        at: Field<Timestamp>,
        /// How long it took.
        after_ms: u64,
        /// What the person wrote.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    }

    /// Nobody answered in time, which is a denial.
    Expired(ApprovalExpired) = "approval.expired" {
        /// The approval.
        approval: Field<ApprovalId>,
        /// The digest of the approval.
        digest: String,
        /// The request or the command, in one line.
        request: String,
        /// `timeout`.
        by: String,
        /// When.
        at: Field<Timestamp>,
        /// How long it took.
        after_ms: u64,
        /// More about it.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    }

    /// Approvals whose request or bay no longer exists. Either one approval is named, or several of a stopped bay.
    Dropped(ApprovalDropped) = "approval.dropped" {
        /// The approvals of a stopped bay.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        approvals: Vec<Field<ApprovalId>>,
        /// The single approval.
        #[serde(skip_serializing_if = "Option::is_none")]
        approval: Option<ApprovalId>,
        /// The digest of the single approval.
        #[serde(skip_serializing_if = "Option::is_none")]
        digest: Option<String>,
        /// The request or the command of the single approval, in one line.
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<String>,
        /// Why the single approval was dropped.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// When.
        #[serde(skip_serializing_if = "Option::is_none")]
        at: Option<Timestamp>,
        /// How long the single approval was open.
        #[serde(skip_serializing_if = "Option::is_none")]
        after_ms: Option<u64>,
        /// Why.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    }

    /// A person revoked an allow before it was used up.
    Revoked(ApprovalRevoked) = "approval.revoked" {
        /// The approval.
        approval: Field<ApprovalId>,
        /// The digest of the approval.
        digest: String,
        /// The request or the command, in one line.
        request: String,
        /// Who revoked it.
        by: String,
    }
}
