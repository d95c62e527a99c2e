//! What may have made a command fail, as the daemon saw it: a refused request, a limit, a service that is down, a
//! program that is not installed.
//!
//! The daemon looks for it once, when a command ends without success, and keeps it with the exec. It is typed data; the
//! words of [`Blame::line`] and the actions of [`Blame::hint`] are for people. Much of its text comes from a bay, so it
//! is made harmless and bounded before it gets here.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hint::{Action, Hint, HintBay};
use crate::id::ServiceName;
pub use crate::package_manager::PackageManager;
use crate::service_state::ServiceState;

/// Most findings of one exec.
pub const MAX_BLAME: usize = 8;
/// Longest quoted text, in characters: a request, a reason, a command.
pub const MAX_BLAME_TEXT: usize = 300;

/// One finding. New releases may add causes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum Blame {
    /// The kernel killed a process because the bay's memory was used up. Counted for the whole bay.
    Memory,
    /// The bay's disk had no room when the command ended.
    Disk,
    /// The bay had its maximum of processes. Counted for the whole bay.
    Pids,
    /// A program is not installed in the bay.
    MissingCommand(MissingCommand),
    /// The gateway refused traffic of the exec.
    Refused(Refused),
    /// A service of the bay does not work.
    Service(FailingService),
    /// A finding of a later release.
    #[serde(other)]
    Unknown,
}

/// A program that a command needed and that is not in the bay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingCommand {
    pub command: String,
    /// Packages that have it, by the package lists of the image; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
    /// How the image gets packages; absent if packages cannot be installed in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager: Option<PackageManager>,
    /// Whether the gateway lets the package manager reach its servers.
    #[serde(default)]
    pub reachable: Reachable,
    /// Commands of the bay run as another user, who may not install packages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub as_root: bool,
}

/// Whether package servers can be reached from a bay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reachable {
    Allowed,
    /// A policy is in force, and it does not allow them.
    Refused,
    /// No policy is in force.
    #[default]
    NoPolicy,
}

/// Traffic of an exec to one destination that the gateway refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Number of the last such decision, for `bay policy explain`.
    pub decision: u64,
    /// The request in one line, or the destination.
    pub request: String,
    pub reason: String,
    /// How many requests to this destination are on record as refused, this one included. A flood is counted as one.
    pub count: u64,
    pub fix: RefusalFix,
}

/// What would let a refused request pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalFix {
    /// No policy is in force.
    SetPolicy,
    /// Another rule; the explanation of the decision has its text.
    ChangePolicy,
    /// A person has to allow it.
    Approve,
}

/// A service that does not work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingService {
    pub name: ServiceName,
    pub state: ServiceState,
    pub reason: String,
}

impl Blame {
    /// The finding in one line.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Memory => {
                "while it ran, the bay used up its memory and the kernel ended a process in it".to_owned()
            }
            Self::Disk => "the bay's disk is full".to_owned(),
            Self::Pids => {
                "while it ran, the bay had as many processes as it may have and could start no more"
                    .to_owned()
            }
            Self::MissingCommand(missing) => format!("{} is not installed in the bay", missing.command),
            Self::Refused(refused) => refused.to_string(),
            Self::Service(FailingService { name, state, reason }) => {
                format!("the service {name} of the bay does not work ({state}): {reason}")
            }
            Self::Unknown => "a later release recorded a cause that this one does not know".to_owned(),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Hint {
        let bay = || HintBay::OfRequest;
        match self {
            Self::Memory => {
                Hint::new("give the bay more with {}, or run less at once", [Action::RaiseMemoryLimit(bay())])
            }
            Self::Disk => Hint::disk_limit(),
            Self::Pids => Hint::new(
                "give the bay more with {}, or run less at once; {} shows what runs",
                [Action::SetPidsLimit(bay()), Action::ListExecs(bay())],
            ),
            Self::MissingCommand(missing) => missing.hint(),
            Self::Refused(refused) => refused.hint(),
            Self::Service(service) => {
                Hint::new("{} shows what it printed", [Action::ServiceLogs(bay(), service.name.clone())])
            }
            Self::Unknown => Hint::default(),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "while it ran, the gateway refused {}", self.request)?;
        if self.count > 1 {
            let more = self.count - 1;
            write!(f, " and {more} more request{}", if more == 1 { "" } else { "s" })?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl Refused {
    fn hint(&self) -> Hint {
        let bay = HintBay::OfRequest;
        let explain = Action::ExplainDecision(bay.clone(), self.decision);
        match self.fix {
            RefusalFix::SetPolicy => Hint::new(
                "{} opens package registries and the bay's repository; {} shows the rule that would allow this request",
                [Action::SetPreset(bay, CODING), explain],
            ),
            RefusalFix::ChangePolicy => Hint::new("{} shows the rule that would allow it", [explain]),
            RefusalFix::Approve => Hint::new(
                "{} shows what waits for a person; {} shows why it had to be asked",
                [Action::ListApprovals, explain],
            ),
        }
    }
}

/// The preset that lets packages and the bay's repository be read.
const CODING: &str = "coding";

/// How a program comes into a bay in which no package manager can install it. Names what works without a network too.
#[must_use]
pub fn not_in_image(bay: HintBay) -> Hint {
    Hint::new(
        "check the name; run in the bay what installs the project's own programs, such as `npm install`; {} brings back what \
         the bay's image has; for a program of this host, first {}, which copies a toolchain from a home directory with --add \
         (--add ~/.cargo --add ~/.rustup)",
        [Action::ReplaceBay(bay), Action::ImportHostImage],
    )
}

impl MissingCommand {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Hint {
        let bay = || HintBay::OfRequest;
        let Some(manager) = self.manager else {
            return not_in_image(bay());
        };
        let package = self.packages.first().cloned();
        let install = Action::InstallPackage { bay: bay(), manager, package, as_root: self.as_root };
        match self.reachable {
            Reachable::Allowed => Hint::new("check the name; or {} installs it", [install]),
            Reachable::NoPolicy => Hint::new(
                "check the name; or {} opens the package registries, then {} installs it",
                [Action::SetPreset(bay(), CODING), install],
            ),
            Reachable::Refused => Hint::new(
                "check the name; or {} installs it once the bay's policy allows the package servers: {} shows what it allows",
                [install, Action::ShowPolicy(bay())],
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn worded(hint: &Hint) -> String {
        hint.worded(|action| Some(format!("{action:?}")))
    }

    #[test]
    fn a_cause_of_a_later_release_is_read_as_unknown() {
        let read: Vec<Blame> = serde_json::from_value(json!([
            { "cause": "solar-flare", "strength": 9 },
            { "cause": "memory" },
        ]))
        .unwrap();
        assert_eq!(read, [Blame::Unknown, Blame::Memory]);
        assert!(Blame::Unknown.hint().is_empty());
    }

    #[test]
    fn a_refusal_names_the_request_how_often_why_and_the_command_that_explains_it() {
        let mut refused = Refused {
            decision: 41,
            request: "GET https://example.com/".to_owned(),
            reason: "no rule covers it".to_owned(),
            count: 1,
            fix: RefusalFix::ChangePolicy,
        };
        let line = |refused: &Refused| Blame::Refused(refused.clone()).line();
        assert_eq!(
            line(&refused),
            "while it ran, the gateway refused GET https://example.com/: no rule covers it"
        );
        assert!(worded(&refused.hint()).contains("41"));
        refused.count = 3;
        assert!(line(&refused).contains("GET https://example.com/ and 2 more requests: "));
        refused.fix = RefusalFix::SetPolicy;
        assert!(worded(&refused.hint()).contains("coding"));
    }

    #[test]
    fn the_advice_for_a_missing_program_follows_the_image_and_the_policy() {
        let mut missing = MissingCommand {
            command: "rg".to_owned(),
            packages: vec!["ripgrep".to_owned()],
            manager: Some(PackageManager::Apt),
            reachable: Reachable::Allowed,
            as_root: false,
        };
        let hint = worded(&missing.hint());
        assert!(hint.contains("ripgrep") && !hint.contains("SetPreset"), "{hint}");
        missing.reachable = Reachable::NoPolicy;
        assert!(worded(&missing.hint()).contains("SetPreset"));
        missing.reachable = Reachable::Refused;
        assert!(worded(&missing.hint()).contains("ShowPolicy"));
        missing.manager = None;
        let hint = worded(&missing.hint());
        assert!(hint.contains("ImportHostImage") && !hint.contains("ripgrep"), "{hint}");
    }
}
