//! One module per noun: what the verbs do, whichever API they come through.

pub(crate) mod approvals;
pub(crate) mod bays;
pub(crate) mod checkpoints;
pub(crate) mod create;
pub(crate) mod diff;
pub(crate) mod execs;
pub(crate) mod fetch;
pub(crate) mod forks;
pub(crate) mod gate;
pub(crate) mod images;
pub(crate) mod inside;
pub(crate) mod memory;
pub(crate) mod policy;
pub(crate) mod repos;
pub(crate) mod services;
pub(crate) mod settings;
mod thinning;
pub(crate) mod timeline;
pub(crate) mod traffic;
pub(crate) mod workspaces;

/// Nobody's user id.
const NOBODY: u32 = 65534;

/// What events and checkpoints say of [`Via::Inside`] and [`Via::Approval`].
pub(crate) const INSIDE: &str = "inside";
pub(crate) const APPROVAL: &str = "approval";

/// Who asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    /// User id whose rights apply to paths the caller names.
    pub(crate) uid: u32,
    pub(crate) via: Via,
}

/// How it is known who asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// By the kernel's word.
    Socket,
    /// The caller has the token.
    Token,
    /// A bay asks for itself, through its guest.
    Inside,
    /// The daemon acts because a rule has it ask a person about something that happens in the bay.
    Approval,
}

impl Caller {
    /// For events.
    pub(crate) fn by(self) -> String {
        match self.via {
            Via::Socket => format!("uid {}", self.uid),
            Via::Token => "token".to_owned(),
            Via::Inside => INSIDE.to_owned(),
            Via::Approval => APPROVAL.to_owned(),
        }
    }

    /// A bay, which has nobody's rights out here.
    pub(crate) fn inside() -> Self {
        Self { uid: NOBODY, via: Via::Inside }
    }

    /// The daemon, before it asks a person.
    pub(crate) fn approval() -> Self {
        Self { uid: NOBODY, via: Via::Approval }
    }
}

/// Digits of the end of an id that may stand for it. Lists show eight.
const SUFFIX_DIGITS: std::ops::RangeInclusive<usize> = 6..=32;

/// Whether what a person typed is the end of this id.
pub(crate) fn ends_id(id: &impl ToString, given: &str) -> bool {
    SUFFIX_DIGITS.contains(&given.len())
        && given.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        && id.to_string().ends_with(given)
}
