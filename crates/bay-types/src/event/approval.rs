use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Field;
use super::area::area;
use crate::approval::{AskingRule, Differs, Reach};
use crate::egress::Who;
use crate::id::ApprovalId;
use crate::id::CheckpointName;

/// What was seen of a request's body, without the body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedBody {
    /// How long all of it is, as far as that is known.
    pub length: Option<u64>,
    /// Whether all of it was looked at.
    pub whole: bool,
}

area! {
    /// Questions to a person, and their answers.
    Approval: ApprovalEvent;

    /// A person is asked.
    Asked(ApprovalAsked) = "approval.asked" {
        /// The question.
        approval: Field<ApprovalId>,
        /// The request or the command, in one line.
        request: String,
        /// SHA-256 over exactly what is held, in hexadecimal digits.
        digest: String,
        /// The rule that asks. `null` if a layer asks about what no rule covers.
        rule: Option<AskingRule>,
        /// Until when an answer is waited for.
        expires: Field<Timestamp>,
        /// Who in the bay is behind it, as far as the host's kernel knows.
        by: Option<Who>,
        /// The secrets that would be attached.
        secrets: Vec<String>,
        /// The checkpoint of the bay from before the question.
        checkpoint: Option<CheckpointName>,
        /// What was seen of the body of the request.
        body: Option<AskedBody>,
        /// What is odd about the host.
        warnings: Vec<String>,
        /// An earlier request to the same place that this one is not, although it looks like it.
        differs: Option<Differs>,
        /// The last field that was emptied because the event was too long.
        #[serde(skip_serializing_if = "Option::is_none")]
        left_out: Option<String>,
    }

    /// A person allowed it.
    Allowed(ApprovalAllowed) = "approval.allowed" {
        /// The question.
        approval: Field<ApprovalId>,
        /// The digest of the question.
        digest: String,
        /// The request or the command, in one line.
        request: String,
        /// Who answered.
        by: String,
        /// When.
        at: Field<Timestamp>,
        /// How long it took.
        after_ms: u64,
        /// How far the allow reaches.
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
        /// The question.
        approval: Field<ApprovalId>,
        /// The digest of the question.
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
        /// The question.
        approval: Field<ApprovalId>,
        /// The digest of the question.
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

    /// What questions were about is gone. Either one question is named, or several of a bay that was stopped.
    Dropped(ApprovalDropped) = "approval.dropped" {
        /// The questions of a bay that was stopped.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        approvals: Vec<Field<ApprovalId>>,
        /// The one question.
        #[serde(skip_serializing_if = "Option::is_none")]
        approval: Option<ApprovalId>,
        /// The digest of the one question.
        #[serde(skip_serializing_if = "Option::is_none")]
        digest: Option<String>,
        /// The request or the command of the one question, in one line.
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<String>,
        /// Why the one question was dropped.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// When.
        #[serde(skip_serializing_if = "Option::is_none")]
        at: Option<Timestamp>,
        /// How long the one question was open.
        #[serde(skip_serializing_if = "Option::is_none")]
        after_ms: Option<u64>,
        /// Why.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    }

    /// A person took an allow back before it was used up.
    Revoked(ApprovalRevoked) = "approval.revoked" {
        /// The question.
        approval: Field<ApprovalId>,
        /// The digest of the question.
        digest: String,
        /// The request or the command, in one line.
        request: String,
        /// Who took it back.
        by: String,
    }
}
