//! Who may do what: a pure table of the kinds of principals and the verbs, for verbs to check first. A bay may use
//! its verbs on itself only.

use std::fmt;

use bay_types::principal::{Kind, Principal, Who};
use bay_types::{BayId, CoreError, ErrorCode};

macro_rules! verbs {
    ($( $(#[$doc:meta])* $verb:ident = $text:literal, )*) => {
        /// Everything that a principal can ask the daemon for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum Verb { $( $(#[$doc])* $verb, )* }

        impl Verb {
            /// Every verb, for the test over the whole table.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[ $( Self::$verb, )* ];
        }

        /// Completes the sentence "… may not".
        impl fmt::Display for Verb {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $( Self::$verb => $text, )* })
            }
        }
    };
}

verbs! {
    HealthShow = "see the daemon's health",
    BackendList = "list the daemon's backends",
    MetricsRead = "read the daemon's metrics",
    TopShow = "see what all bays use",
    EventList = "list events",
    EventVerify = "verify the ledger",
    AuditRead = "read the ledger's key, heads and proofs",
    BayList = "list bays",
    BayCreate = "create a bay",
    BayShow = "see a bay",
    BayDelete = "delete a bay",
    BayStart = "start a bay",
    BayStop = "stop a bay",
    BayPause = "pause a bay",
    BayResume = "resume a bay",
    BayReplace = "replace a bay's root",
    BaySet = "change a bay's settings",
    /// Open ports of the host's loopback to a bay, or close them.
    ReachSet = "open ports of the host to a bay",
    BayFork = "fork a bay",
    BayPromote = "promote a bay",
    BayRestore = "restore a bay",
    CheckpointList = "list a bay's checkpoints",
    CheckpointCreate = "create a checkpoint",
    CheckpointDelete = "delete a checkpoint",
    BayDiff = "compare two points of a bay",
    BayReview = "review a bay's work",
    TimelineRead = "read a bay's timeline",
    StoryTell = "read a bay's story",
    /// Record that a client took work out of a bay.
    WorkReport = "report work that left a bay",
    ExecList = "list a bay's commands",
    ExecShow = "see a command",
    ExecStart = "run a command",
    ExecAttach = "attach to a command",
    ExecOutput = "read a command's output",
    ExecSignal = "signal a command",
    ServiceList = "list a bay's services",
    ServiceShow = "see a service",
    ServiceDefine = "define a service",
    /// Learn whether the rules let the bay's own guest define a service.
    ServicePropose = "propose a service",
    ServiceControl = "start, stop or restart a service",
    ServiceDelete = "delete a service",
    ServiceOutput = "read a service's log",
    FileRead = "read a bay's files",
    FileWrite = "write a bay's files",
    FileWatch = "watch a bay's files",
    PortList = "list a bay's ports",
    ForwardOpen = "forward a bay's ports",
    ForwardConnect = "connect to a bay's ports",
    /// Record what the bay's own processes changed.
    ChangeReport = "report its own changes",
    EgressShow = "see a bay's egress",
    /// The rules in force, without where they come from.
    EgressRules = "see the rules of its own egress",
    PolicyShow = "see a bay's policy",
    PolicySet = "set a bay's policy",
    PolicyUnset = "unset a bay's policy",
    HostPolicyShow = "see the host's policy",
    HostPolicySet = "set the host's policy",
    HostPolicyUnset = "unset the host's policy",
    ProjectPolicyShow = "see a project's policy",
    ProjectPolicySet = "set a project's policy",
    ProjectPolicyUnset = "unset a project's policy",
    PolicyCheck = "check a request against a policy",
    PolicyExplain = "have a decision explained",
    PolicyLint = "check a policy for mistakes",
    PolicyDiff = "compare policies",
    PolicyLearn = "have a policy proposed",
    GrantList = "list grants",
    GrantAdd = "add a grant",
    GrantDelete = "delete a grant",
    ApprovalList = "list approvals",
    ApprovalShow = "see an approval",
    ApprovalWatch = "watch approvals",
    ApprovalAllow = "allow a request",
    ApprovalDeny = "deny a request",
    ApprovalRevoke = "revoke an allow",
    SecretList = "list secrets",
    SecretShow = "see a secret",
    SecretSet = "set a secret",
    /// Name a command on the host that yields a secret's value.
    SecretCommandSet = "set a secret by a command on the host",
    SecretRotate = "rotate a secret",
    SecretDelete = "delete a secret",
    WebhookList = "list webhooks",
    WebhookAdd = "add a webhook",
    WebhookDelete = "delete a webhook",
    WebhookTest = "test a webhook",
    ImageList = "list images",
    ImageImport = "import an image",
    ImageDelete = "delete an image",
    ImagePrune = "delete images that no bay uses",
    DiskShow = "see where the disk goes",
    /// Remove what daemons that are gone left in the pool.
    PoolPrune = "prune the pool",
    RepoList = "list repositories",
    RepoOffer = "offer a repository",
    RepoUpload = "upload a repository",
    RepoSync = "fetch a repository",
    RepoDelete = "delete a repository",
    WorkspaceList = "list workspaces",
    WorkspaceShow = "see a workspace",
    WorkspaceDelete = "delete a workspace",
}

/// Why a verb is refused to a principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The verb is not for principals of this kind.
    Kind { kind: Kind, verb: Verb },
    /// A bay used the verb on something other than itself.
    OtherBay { verb: Verb },
}

impl From<Refusal> for CoreError {
    fn from(refusal: Refusal) -> Self {
        let message = match refusal {
            Refusal::Kind { kind, verb } => format!("{kind} may not {verb}"),
            Refusal::OtherBay { verb } => format!("a bay may {verb} for itself only"),
        };
        CoreError::new(ErrorCode::NotPermitted, message, "ask the operator to do it")
    }
}

/// Whether principals of this kind may use this verb at all.
pub(crate) fn authorize(kind: Kind, verb: Verb) -> Result<(), Refusal> {
    let may = match kind {
        Kind::Operator => true,
        // A caller with the token may be anywhere, and is no user of this host.
        Kind::Token => verb != Verb::SecretCommandSet,
        Kind::Bay => matches!(
            verb,
            Verb::CheckpointList
                | Verb::CheckpointCreate
                | Verb::BayRestore
                | Verb::BayDiff
                | Verb::EgressRules
                | Verb::ServicePropose
                | Verb::ChangeReport
        ),
        // The daemon makes this checkpoint before it asks a person.
        Kind::Approval => verb == Verb::CheckpointCreate,
        Kind::Task => false,
    };
    if may { Ok(()) } else { Err(Refusal::Kind { kind, verb }) }
}

/// Whether this principal may use this verb on this bay. `None` is a bay that does not exist: a bay that names
/// another bay must not learn which bays exist.
pub(crate) fn authorize_on(who: &Principal, verb: Verb, bay: Option<BayId>) -> Result<(), Refusal> {
    authorize(who.kind(), verb)?;
    match who.who {
        Who::Bay(own) if bay != Some(own) => Err(Refusal::OtherBay { verb }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YES: bool = true;
    const NO: bool = false;

    /// Every cell: operator, token, bay, approval, task.
    #[rustfmt::skip]
    const TABLE: &[(Verb, [bool; Kind::ALL.len()])] = &[
        (Verb::HealthShow,         [YES, YES,  NO,  NO,  NO]),
        (Verb::BackendList,        [YES, YES,  NO,  NO,  NO]),
        (Verb::MetricsRead,        [YES, YES,  NO,  NO,  NO]),
        (Verb::TopShow,            [YES, YES,  NO,  NO,  NO]),
        (Verb::EventList,          [YES, YES,  NO,  NO,  NO]),
        (Verb::EventVerify,        [YES, YES,  NO,  NO,  NO]),
        (Verb::AuditRead,          [YES, YES,  NO,  NO,  NO]),
        (Verb::BayList,            [YES, YES,  NO,  NO,  NO]),
        (Verb::BayCreate,          [YES, YES,  NO,  NO,  NO]),
        (Verb::BayShow,            [YES, YES,  NO,  NO,  NO]),
        (Verb::BayDelete,          [YES, YES,  NO,  NO,  NO]),
        (Verb::BayStart,           [YES, YES,  NO,  NO,  NO]),
        (Verb::BayStop,            [YES, YES,  NO,  NO,  NO]),
        (Verb::BayPause,           [YES, YES,  NO,  NO,  NO]),
        (Verb::BayResume,          [YES, YES,  NO,  NO,  NO]),
        (Verb::BayReplace,         [YES, YES,  NO,  NO,  NO]),
        (Verb::BaySet,             [YES, YES,  NO,  NO,  NO]),
        (Verb::ReachSet,           [YES, YES,  NO,  NO,  NO]),
        (Verb::BayFork,            [YES, YES,  NO,  NO,  NO]),
        (Verb::BayPromote,         [YES, YES,  NO,  NO,  NO]),
        (Verb::BayRestore,         [YES, YES, YES,  NO,  NO]),
        (Verb::CheckpointList,     [YES, YES, YES,  NO,  NO]),
        (Verb::CheckpointCreate,   [YES, YES, YES, YES,  NO]),
        (Verb::CheckpointDelete,   [YES, YES,  NO,  NO,  NO]),
        (Verb::BayDiff,            [YES, YES, YES,  NO,  NO]),
        (Verb::BayReview,          [YES, YES,  NO,  NO,  NO]),
        (Verb::TimelineRead,       [YES, YES,  NO,  NO,  NO]),
        (Verb::StoryTell,          [YES, YES,  NO,  NO,  NO]),
        (Verb::WorkReport,         [YES, YES,  NO,  NO,  NO]),
        (Verb::ExecList,           [YES, YES,  NO,  NO,  NO]),
        (Verb::ExecShow,           [YES, YES,  NO,  NO,  NO]),
        (Verb::ExecStart,          [YES, YES,  NO,  NO,  NO]),
        (Verb::ExecAttach,         [YES, YES,  NO,  NO,  NO]),
        (Verb::ExecOutput,         [YES, YES,  NO,  NO,  NO]),
        (Verb::ExecSignal,         [YES, YES,  NO,  NO,  NO]),
        (Verb::ServiceList,        [YES, YES,  NO,  NO,  NO]),
        (Verb::ServiceShow,        [YES, YES,  NO,  NO,  NO]),
        (Verb::ServiceDefine,      [YES, YES,  NO,  NO,  NO]),
        (Verb::ServicePropose,     [YES, YES, YES,  NO,  NO]),
        (Verb::ServiceControl,     [YES, YES,  NO,  NO,  NO]),
        (Verb::ServiceDelete,      [YES, YES,  NO,  NO,  NO]),
        (Verb::ServiceOutput,      [YES, YES,  NO,  NO,  NO]),
        (Verb::FileRead,           [YES, YES,  NO,  NO,  NO]),
        (Verb::FileWrite,          [YES, YES,  NO,  NO,  NO]),
        (Verb::FileWatch,          [YES, YES,  NO,  NO,  NO]),
        (Verb::PortList,           [YES, YES,  NO,  NO,  NO]),
        (Verb::ForwardOpen,        [YES, YES,  NO,  NO,  NO]),
        (Verb::ForwardConnect,     [YES, YES,  NO,  NO,  NO]),
        (Verb::ChangeReport,       [YES, YES, YES,  NO,  NO]),
        (Verb::EgressShow,         [YES, YES,  NO,  NO,  NO]),
        (Verb::EgressRules,        [YES, YES, YES,  NO,  NO]),
        (Verb::PolicyShow,         [YES, YES,  NO,  NO,  NO]),
        (Verb::PolicySet,          [YES, YES,  NO,  NO,  NO]),
        (Verb::PolicyUnset,        [YES, YES,  NO,  NO,  NO]),
        (Verb::HostPolicyShow,     [YES, YES,  NO,  NO,  NO]),
        (Verb::HostPolicySet,      [YES, YES,  NO,  NO,  NO]),
        (Verb::HostPolicyUnset,    [YES, YES,  NO,  NO,  NO]),
        (Verb::ProjectPolicyShow,  [YES, YES,  NO,  NO,  NO]),
        (Verb::ProjectPolicySet,   [YES, YES,  NO,  NO,  NO]),
        (Verb::ProjectPolicyUnset, [YES, YES,  NO,  NO,  NO]),
        (Verb::PolicyCheck,        [YES, YES,  NO,  NO,  NO]),
        (Verb::PolicyExplain,      [YES, YES,  NO,  NO,  NO]),
        (Verb::PolicyLint,         [YES, YES,  NO,  NO,  NO]),
        (Verb::PolicyDiff,         [YES, YES,  NO,  NO,  NO]),
        (Verb::PolicyLearn,        [YES, YES,  NO,  NO,  NO]),
        (Verb::GrantList,          [YES, YES,  NO,  NO,  NO]),
        (Verb::GrantAdd,           [YES, YES,  NO,  NO,  NO]),
        (Verb::GrantDelete,        [YES, YES,  NO,  NO,  NO]),
        (Verb::ApprovalList,       [YES, YES,  NO,  NO,  NO]),
        (Verb::ApprovalShow,       [YES, YES,  NO,  NO,  NO]),
        (Verb::ApprovalWatch,      [YES, YES,  NO,  NO,  NO]),
        (Verb::ApprovalAllow,      [YES, YES,  NO,  NO,  NO]),
        (Verb::ApprovalDeny,       [YES, YES,  NO,  NO,  NO]),
        (Verb::ApprovalRevoke,     [YES, YES,  NO,  NO,  NO]),
        (Verb::SecretList,         [YES, YES,  NO,  NO,  NO]),
        (Verb::SecretShow,         [YES, YES,  NO,  NO,  NO]),
        (Verb::SecretSet,          [YES, YES,  NO,  NO,  NO]),
        (Verb::SecretCommandSet,   [YES,  NO,  NO,  NO,  NO]),
        (Verb::SecretRotate,       [YES, YES,  NO,  NO,  NO]),
        (Verb::SecretDelete,       [YES, YES,  NO,  NO,  NO]),
        (Verb::WebhookList,        [YES, YES,  NO,  NO,  NO]),
        (Verb::WebhookAdd,         [YES, YES,  NO,  NO,  NO]),
        (Verb::WebhookDelete,      [YES, YES,  NO,  NO,  NO]),
        (Verb::WebhookTest,        [YES, YES,  NO,  NO,  NO]),
        (Verb::ImageList,          [YES, YES,  NO,  NO,  NO]),
        (Verb::ImageImport,        [YES, YES,  NO,  NO,  NO]),
        (Verb::ImageDelete,        [YES, YES,  NO,  NO,  NO]),
        (Verb::ImagePrune,         [YES, YES,  NO,  NO,  NO]),
        (Verb::DiskShow,           [YES, YES,  NO,  NO,  NO]),
        (Verb::PoolPrune,          [YES, YES,  NO,  NO,  NO]),
        (Verb::RepoList,           [YES, YES,  NO,  NO,  NO]),
        (Verb::RepoOffer,          [YES, YES,  NO,  NO,  NO]),
        (Verb::RepoUpload,         [YES, YES,  NO,  NO,  NO]),
        (Verb::RepoSync,           [YES, YES,  NO,  NO,  NO]),
        (Verb::RepoDelete,         [YES, YES,  NO,  NO,  NO]),
        (Verb::WorkspaceList,      [YES, YES,  NO,  NO,  NO]),
        (Verb::WorkspaceShow,      [YES, YES,  NO,  NO,  NO]),
        (Verb::WorkspaceDelete,    [YES, YES,  NO,  NO,  NO]),
    ];

    #[test]
    fn every_kind_of_principal_may_do_what_the_table_says_and_nothing_else() {
        let rows: Vec<Verb> = TABLE.iter().map(|(verb, _)| *verb).collect();
        assert_eq!(rows, Verb::ALL, "a verb has no row in the table, or not exactly one");
        for (verb, cells) in TABLE {
            for (kind, may) in Kind::ALL.into_iter().zip(*cells) {
                let expected = if may { Ok(()) } else { Err(Refusal::Kind { kind, verb: *verb }) };
                assert_eq!(authorize(kind, *verb), expected, "{kind:?} {verb:?}");
            }
        }
    }

    #[test]
    fn a_bay_may_do_nothing_to_another_bay() {
        let (own, other) = (BayId::generate(), BayId::generate());
        let who = Principal::bay(own);
        for verb in Verb::ALL {
            let for_itself = authorize_on(&who, *verb, Some(own));
            assert_eq!(for_itself, authorize(Kind::Bay, *verb), "{verb:?}");
            for bay in [Some(other), None] {
                assert!(authorize_on(&who, *verb, bay).is_err(), "{verb:?}");
            }
        }
    }

    #[test]
    fn an_operator_may_do_everything_to_every_bay() {
        for verb in Verb::ALL {
            assert_eq!(authorize_on(&Principal::operator(0), *verb, Some(BayId::generate())), Ok(()));
        }
    }

    #[test]
    fn a_refusal_names_the_principal_and_the_verb() {
        let error = CoreError::from(authorize(Kind::Bay, Verb::BayDelete).unwrap_err());
        assert_eq!(error.code, ErrorCode::NotPermitted);
        assert_eq!(error.message, "a bay may not delete a bay");
    }
}
