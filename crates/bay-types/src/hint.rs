//! What to do after an error, without the words of any front.
//!
//! Below the fronts an error carries a [`Hint`]: text, and in it the [`Action`]s of the product that it points at. A front
//! has a table of words for its actions (a command line, the name of a tool) and makes the sentence with it.

use std::borrow::Cow;

use crate::id::{ApprovalId, BayName, CheckpointName, ServiceName};
use crate::package_manager::PackageManager;

/// The bay that an action is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HintBay {
    /// The bay that the request was about. Its name is known to the front alone.
    OfRequest,
    Named(String),
}

impl From<&BayName> for HintBay {
    fn from(name: &BayName) -> Self {
        Self::Named(name.to_string())
    }
}

impl From<&str> for HintBay {
    fn from(name: &str) -> Self {
        Self::Named(name.to_owned())
    }
}

/// Something that the product can do, for a hint to point at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// What the host lacks.
    Doctor,

    ListBays,
    MakeBay,
    MakeNamedBay,
    /// A bay with the commits of a local repository.
    MakeBayFromPath,
    ShowBay(HintBay),
    StartBay(HintBay),
    StopBay(HintBay),
    PauseBay(HintBay),
    PauseBayToDisk(HintBay),
    ResumeBay(HintBay),
    ReplaceBay(HintBay),
    RemoveAnyBay,
    RemoveBays(Vec<String>),
    /// A larger disk.
    SetDiskLimit(HintBay),
    /// An example of a limit.
    SetMemoryLimit(HintBay),
    /// More memory.
    RaiseMemoryLimit(HintBay),
    /// More processes.
    SetPidsLimit(HintBay),
    Timeline(HintBay),

    /// Checks the repository in the workspace.
    CheckRepository(HintBay),
    ListExecs(HintBay),
    /// One exec, by its number.
    ShowExec(HintBay, u64),
    /// Installs a package inside a bay.
    InstallPackage {
        bay: HintBay,
        manager: PackageManager,
        /// Absent if nobody knows which package it is.
        package: Option<String>,
        /// Commands of the bay run as another user.
        as_root: bool,
    },

    ListServices(HintBay),
    /// The output of a service.
    ServiceLogs(HintBay, ServiceName),

    ListPorts(HintBay),

    ListCheckpoints(HintBay),
    RemoveCheckpoints(HintBay),
    RestoreAny,
    Restore {
        bay: HintBay,
        checkpoint: CheckpointName,
        files_only: bool,
    },
    /// The option of a request by which memory is left out.
    FilesOnly,
    /// The option that compares a bay with one of its checkpoints.
    CompareWithCheckpoint,

    ListImages,
    ImportImage,
    /// An image with this host's own tools.
    ImportHostImage,
    RemoveImage,
    /// Removes the images that no bay uses.
    PruneImages,
    /// Where the disk of the pool goes.
    ShowDisk,
    /// What a pool leaves free on the host's disk.
    SetDiskReserve,
    ListRepos,
    SyncRepos,
    RemoveRepo,
    ListWorkspaces,

    ListApprovals,
    /// Those that were answered too.
    ListAllApprovals,
    ShowApproval(ApprovalId),
    /// By the short form of its id.
    DenyApproval(String),

    EditPolicy,
    ShowPolicy(HintBay),
    /// Gives one bay a policy of its own.
    SetPolicy(HintBay),
    /// Gives one bay a policy that comes with the product.
    SetPreset(HintBay, &'static str),
    /// Why a request was refused, by the number of the decision, and what would allow it.
    ExplainDecision(HintBay, u64),
    ListGrants(HintBay),
    /// Takes back some grant of a bay.
    RemoveGrant(HintBay),
    RemoveAnyGrant,
    /// What a bay sent, and how it was decided.
    ListEgress(HintBay),

    ListSecrets,
    RemoveSecret,
    SetSecret(String),
    RotateSecret(String),

    ListWebhooks,
    RemoveWebhook,

    VerifyAudit,
}

impl Action {
    fn bay_mut(&mut self) -> Option<&mut HintBay> {
        match self {
            Self::ShowBay(bay)
            | Self::StartBay(bay)
            | Self::StopBay(bay)
            | Self::PauseBay(bay)
            | Self::PauseBayToDisk(bay)
            | Self::ResumeBay(bay)
            | Self::ReplaceBay(bay)
            | Self::SetDiskLimit(bay)
            | Self::SetMemoryLimit(bay)
            | Self::RaiseMemoryLimit(bay)
            | Self::SetPidsLimit(bay)
            | Self::Timeline(bay)
            | Self::CheckRepository(bay)
            | Self::ListExecs(bay)
            | Self::ShowExec(bay, _)
            | Self::InstallPackage { bay, .. }
            | Self::ListServices(bay)
            | Self::ServiceLogs(bay, _)
            | Self::ListCheckpoints(bay)
            | Self::RemoveCheckpoints(bay)
            | Self::Restore { bay, .. }
            | Self::ShowPolicy(bay)
            | Self::SetPolicy(bay)
            | Self::SetPreset(bay, _)
            | Self::ExplainDecision(bay, _)
            | Self::ListGrants(bay)
            | Self::RemoveGrant(bay)
            | Self::ListEgress(bay) => Some(bay),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Cow<'static, str>),
    Action(Action),
}

/// What to do next, in a sentence or two. A front makes text of it with [`Hint::worded`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hint(Vec<Part>);

impl Hint {
    /// A sentence with actions: each `{}` stands for the next one.
    #[must_use]
    pub fn new<const N: usize>(sentence: &'static str, actions: [Action; N]) -> Self {
        debug_assert_eq!(sentence.matches("{}").count(), N, "{sentence}");
        let mut actions = actions.into_iter();
        let mut parts = Vec::with_capacity(2 * N + 1);
        for text in sentence.split("{}") {
            if !text.is_empty() {
                parts.push(Part::Text(Cow::Borrowed(text)));
            }
            parts.extend(actions.next().map(Part::Action));
        }
        Self(parts)
    }

    /// For a bay that has used up its disk.
    #[must_use]
    pub fn disk_limit() -> Self {
        Self::new(
            "delete something in the bay, or give it more with {}; {} tells the limit",
            [Action::SetDiskLimit(HintBay::OfRequest), Action::ShowBay(HintBay::OfRequest)],
        )
    }

    /// More to do. The two are divided by a semicolon.
    #[must_use]
    pub fn and(mut self, more: impl Into<Self>) -> Self {
        let more = more.into();
        if !self.is_empty() && !more.is_empty() {
            self.0.push(Part::Text(Cow::Borrowed("; ")));
        }
        self.0.extend(more.0);
        self
    }

    /// What goes on in the same sentence, or begins the next one.
    #[must_use]
    pub fn then(mut self, more: impl Into<Self>) -> Self {
        self.0.extend(more.into().0);
        self
    }

    /// The hint for use outside of the request that it was made for: `bay` takes the place of [`HintBay::OfRequest`].
    #[must_use]
    pub fn about(mut self, bay: &BayName) -> Self {
        for part in &mut self.0 {
            if let Part::Action(action) = part
                && let Some(of @ HintBay::OfRequest) = action.bay_mut()
            {
                *of = bay.into();
            }
        }
        self
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The hint in the words of a front. If it points at an action that the front has no words for, nothing is left of it:
    /// half a sentence helps nobody.
    #[must_use]
    pub fn worded(&self, words: impl Fn(&Action) -> Option<String>) -> String {
        let worded: Option<Vec<Cow<'_, str>>> = self
            .0
            .iter()
            .map(|part| match part {
                Part::Text(text) => Some(Cow::Borrowed(text.as_ref())),
                Part::Action(action) => words(action).map(Cow::Owned),
            })
            .collect();
        worded.map(|parts| parts.concat()).unwrap_or_default()
    }
}

impl From<&'static str> for Hint {
    fn from(text: &'static str) -> Self {
        Cow::Borrowed(text).into()
    }
}

impl From<String> for Hint {
    fn from(text: String) -> Self {
        Cow::<'static, str>::Owned(text).into()
    }
}

impl From<Cow<'static, str>> for Hint {
    fn from(text: Cow<'static, str>) -> Self {
        if text.is_empty() { Self::default() } else { Self(vec![Part::Text(text)]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shout(action: &Action) -> Option<String> {
        match action {
            Action::Doctor => Some("DOCTOR".to_owned()),
            Action::ShowBay(HintBay::Named(bay)) => Some(format!("SHOW {bay}")),
            _ => None,
        }
    }

    #[test]
    fn each_action_stands_where_its_braces_are() {
        let hint = Hint::new("{} and {} help", [Action::Doctor, Action::ShowBay("a".into())]);
        assert_eq!(hint.worded(shout), "DOCTOR and SHOW a help");
        let hint = Hint::from("wait".to_owned()).and(Hint::new("{}", [Action::Doctor])).and("");
        assert_eq!(hint.worded(shout), "wait; DOCTOR");
    }

    #[test]
    fn a_hint_that_leaves_its_request_names_its_bay() {
        let hint = Hint::new("{} or {}", [Action::ShowBay(HintBay::OfRequest), Action::ShowBay("a".into())]);
        assert_eq!(hint.about(&BayName::slug("web")).worded(shout), "SHOW web or SHOW a");
    }

    #[test]
    fn braces_in_text_that_somebody_gave_stand_for_nothing() {
        assert_eq!(Hint::from("write {}".to_owned()).worded(shout), "write {}");
    }

    #[test]
    fn a_front_without_words_for_an_action_gives_no_hint() {
        assert_eq!(Hint::new("{} or {}", [Action::Doctor, Action::ListBays]).worded(shout), "");
        assert!(Hint::default().and(Hint::from("")).is_empty());
    }
}
