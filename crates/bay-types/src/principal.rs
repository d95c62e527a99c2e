//! Who makes a request, and by which door it arrived. Every verb of the API takes a [`Principal`], and the events of
//! what it asked for name it.

use std::fmt;

use crate::BayId;

/// The user id `nobody`: a bay and the daemon itself have no rights on paths of the host.
const NOBODY: u32 = 65534;

/// The text for [`Who::Bay`] in events and checkpoints.
pub const INSIDE: &str = "inside";
/// The text for [`Who::Approval`] in events and checkpoints.
pub const APPROVAL: &str = "approval";

/// Who makes a request, and by which door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Principal {
    pub who: Who,
    pub door: Door,
}

/// Who makes a request, with its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// A user of this host. The kernel reports the user id of the daemon's socket peer.
    Operator { uid: u32 },
    /// A holder of the daemon's token. It has the rights of the daemon's own user id.
    Token { uid: u32 },
    /// A bay, through its guest.
    Bay(BayId),
    /// The daemon itself, because a rule makes it ask a person about something in a bay.
    Approval,
    /// A task. Reserved: nothing makes one yet.
    Task,
}

/// The kind of a principal. Which verbs it may call depends on its kind alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Operator,
    Token,
    Bay,
    Approval,
    Task,
}

/// How a principal reached the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Door {
    /// The daemon's unix socket.
    Cli,
    /// The API over TCP.
    Rest,
    E2b,
    Mcp,
    Ssh,
    Web,
    /// The guest of a bay.
    Inside,
    Task,
}

impl Kind {
    pub const ALL: [Self; 5] = [Self::Operator, Self::Token, Self::Bay, Self::Approval, Self::Task];
}

impl Principal {
    /// A user of this host who connected to the daemon's socket.
    #[must_use]
    pub fn operator(uid: u32) -> Self {
        Self { who: Who::Operator { uid }, door: Door::Cli }
    }

    /// A holder of the daemon's token. `uid` is the daemon's own, because only that user can read the token.
    #[must_use]
    pub fn token(uid: u32) -> Self {
        Self { who: Who::Token { uid }, door: Door::Rest }
    }

    /// A bay, through its guest.
    #[must_use]
    pub fn bay(id: BayId) -> Self {
        Self { who: Who::Bay(id), door: Door::Inside }
    }

    /// The daemon, before it asks a person about something in a bay.
    #[must_use]
    pub fn approval() -> Self {
        Self { who: Who::Approval, door: Door::Inside }
    }

    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.who {
            Who::Operator { .. } => Kind::Operator,
            Who::Token { .. } => Kind::Token,
            Who::Bay(_) => Kind::Bay,
            Who::Approval => Kind::Approval,
            Who::Task => Kind::Task,
        }
    }

    /// The user id whose rights apply to paths of the host that the principal names.
    #[must_use]
    pub fn uid(&self) -> u32 {
        match self.who {
            Who::Operator { uid } | Who::Token { uid } => uid,
            Who::Bay(_) | Who::Approval | Who::Task => NOBODY,
        }
    }

    /// The principal's text in events. The texts are stored and never change.
    #[must_use]
    pub fn by(&self) -> String {
        match self.who {
            Who::Operator { uid } => format!("uid {uid}"),
            Who::Token { .. } => "token".to_owned(),
            Who::Bay(_) => INSIDE.to_owned(),
            Who::Approval => APPROVAL.to_owned(),
            Who::Task => "task".to_owned(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operator => "an operator",
            Self::Token => "a caller with the token",
            Self::Bay => "a bay",
            Self::Approval => "the daemon, before it asks a person,",
            Self::Task => "a task",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_name_each_principal_as_they_always_have() {
        assert_eq!(Principal::operator(1000).by(), "uid 1000");
        assert_eq!(Principal::token(0).by(), "token");
        assert_eq!(Principal::bay(BayId::generate()).by(), "inside");
        assert_eq!(Principal::approval().by(), "approval");
    }

    #[test]
    fn only_operators_and_holders_of_the_token_have_rights_on_paths_of_the_host() {
        assert_eq!(Principal::operator(1000).uid(), 1000);
        assert_eq!(Principal::token(7).uid(), 7);
        for principal in [Principal::bay(BayId::generate()), Principal::approval()] {
            assert_eq!(principal.uid(), NOBODY);
        }
    }
}
