//! One module per noun: what the verbs do, whichever API they come through.

pub(crate) mod bays;
pub(crate) mod create;
pub(crate) mod execs;
pub(crate) mod fetch;
pub(crate) mod images;
pub(crate) mod repos;
pub(crate) mod services;
pub(crate) mod settings;
pub(crate) mod timeline;
pub(crate) mod workspaces;

/// Who asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    /// User id whose rights apply to paths the caller names.
    pub(crate) uid: u32,
    /// Whether the caller proved itself by the token rather than by the kernel's word.
    pub(crate) by_token: bool,
}

impl Caller {
    /// For events.
    pub(crate) fn by(self) -> String {
        if self.by_token { "token".to_owned() } else { format!("uid {}", self.uid) }
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
