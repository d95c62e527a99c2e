//! One module per noun: what the verbs do, whichever API they come through.

pub(crate) mod bays;
pub(crate) mod create;
pub(crate) mod execs;
pub(crate) mod images;
pub(crate) mod repos;

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
