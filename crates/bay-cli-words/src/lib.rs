//! How the CLI names the actions in hints. Below the fronts a hint is a typed action; here it becomes a command or a
//! flag.
//!
//! The REST front uses these words too, because most of its clients are people and scripts at the CLI. So does a daemon
//! that cannot start.
#![forbid(unsafe_code)]

use bay_types::blame::PackageManager;
use bay_types::{Action, ApiError, CoreError, Hint, HintBay};

/// The words for one request.
#[derive(Debug, Clone, Default)]
pub struct Words {
    /// The bay that the request is about.
    bay: Option<String>,
}

impl Words {
    #[must_use]
    pub fn new(bay: Option<String>) -> Self {
        Self { bay }
    }

    /// An error as the CLI shows it.
    #[must_use]
    pub fn error(&self, error: CoreError) -> ApiError {
        error.worded(|action| Some(format!("`{}`", self.command(action))))
    }

    /// A hint as the CLI shows it.
    #[must_use]
    pub fn hint(&self, hint: &Hint) -> String {
        hint.worded(|action| Some(format!("`{}`", self.command(action))))
    }

    fn bay<'a>(&'a self, bay: &'a HintBay) -> &'a str {
        match bay {
            HintBay::Named(name) => name,
            HintBay::OfRequest => self.bay.as_deref().unwrap_or("NAME"),
        }
    }

    fn command(&self, action: &Action) -> String {
        let on = |command: &str, bay: &HintBay| format!("bay {command} {}", self.bay(bay));
        let plain = match action {
            Action::ShowBay(bay) => return on("show", bay),
            Action::StartBay(bay) => return on("start", bay),
            Action::StopBay(bay) => return on("stop", bay),
            Action::PauseBay(bay) => return on("pause", bay),
            Action::PauseBayToDisk(bay) => return format!("{} --to-disk", on("pause", bay)),
            Action::ResumeBay(bay) => return on("resume", bay),
            Action::ReplaceBay(bay) => return on("replace", bay),
            Action::RemoveBays(bays) => return format!("bay rm {}", bays.join(" ")),
            Action::SetDiskLimit(bay) => return format!("{} --disk-mib N", on("set", bay)),
            Action::SetMemoryLimit(bay) => return format!("{} --memory-mib 2048", on("set", bay)),
            Action::RaiseMemoryLimit(bay) => return format!("{} --memory-mib N", on("set", bay)),
            Action::SetPidsLimit(bay) => return format!("{} --pids N", on("set", bay)),
            Action::Timeline(bay) => return format!("{} --json", on("timeline", bay)),
            Action::CheckRepository(bay) => return format!("{} -- git fsck --strict", on("exec", bay)),
            Action::ListExecs(bay) => return on("execs ls", bay),
            Action::ListPorts(bay) => return on("ports", bay),
            Action::ShowExec(bay, number) => return format!("{} {number}", on("execs show", bay)),
            Action::InstallPackage { bay, manager, package, as_root } => {
                let user = if *as_root { " --user root" } else { "" };
                return format!("{}{user} -- {}", on("exec", bay), install(*manager, package.as_deref()));
            }
            Action::ListServices(bay) => return on("services ls", bay),
            Action::ServiceLogs(bay, service) => return format!("{} {service}", on("services logs", bay)),
            Action::ListCheckpoints(bay) => return on("checkpoints ls", bay),
            Action::RemoveCheckpoints(bay) => return format!("{} v1 v2 …", on("checkpoints rm", bay)),
            Action::Restore { bay, checkpoint, files_only } => {
                let files_only = if *files_only { " --files-only" } else { "" };
                return format!("{} {checkpoint}{files_only}", on("restore", bay));
            }
            Action::ShowApproval(id) => return format!("bay approvals show {id}"),
            Action::DenyApproval(id) => return format!("bay approvals deny {id}"),
            Action::ShowPolicy(bay) => return on("policy show", bay),
            Action::SetPolicy(bay) => return format!("{} FILE", on("policy set", bay)),
            Action::SetPreset(bay, preset) => return format!("{} {preset}", on("policy set", bay)),
            Action::ExplainDecision(bay, decision) => {
                return format!("{} {decision}", on("policy explain", bay));
            }
            Action::ListGrants(bay) => return on("grants ls", bay),
            Action::RemoveGrant(bay) => return format!("{} ID", on("grants rm", bay)),
            Action::ListEgress(bay) => return on("egress", bay),
            Action::SetSecret(secret) => return format!("bay secret set {secret}"),
            Action::RotateSecret(secret) => return format!("bay secret rotate {secret}"),
            Action::Doctor => "bay doctor",
            Action::ListBays => "bay ls",
            Action::MakeBay => "bay up",
            Action::MakeNamedBay => "bay up --name NAME",
            Action::MakeBayFromPath => "bay up PATH",
            Action::RemoveAnyBay => "bay rm",
            Action::RestoreAny => "bay restore",
            Action::FilesOnly => "--files-only",
            Action::CompareWithCheckpoint => "--from v1",
            Action::ListImages => "bay images ls",
            Action::ImportImage => "bay images import",
            Action::ImportHostImage => "bay images import host",
            Action::RemoveImage => "bay images rm",
            Action::PruneImages => "bay images prune",
            Action::ShowDisk => "bay df",
            Action::SetDiskReserve => "bay serve --disk-reserve-mib N",
            Action::ListRepos => "bay repos ls",
            Action::SyncRepos => "bay repos sync",
            Action::RemoveRepo => "bay repos rm",
            Action::ListWorkspaces => "bay workspaces ls",
            Action::ListApprovals => "bay approvals",
            Action::ListAllApprovals => "bay approvals --all",
            Action::EditPolicy => "bay policy",
            Action::RemoveAnyGrant => "bay grants rm",
            Action::ListSecrets => "bay secret ls",
            Action::RemoveSecret => "bay secret rm NAME",
            Action::ListWebhooks => "bay notify ls",
            Action::RemoveWebhook => "bay notify rm ID",
            Action::VerifyAudit => "bay audit verify",
        };
        plain.to_owned()
    }
}

/// The command that installs a package. If apt knows no package, it may lack its lists, so the command fetches them
/// first.
fn install(manager: PackageManager, package: Option<&str>) -> String {
    match (manager, package) {
        (PackageManager::Apt, Some(package)) => format!("apt-get install -y {package}"),
        (PackageManager::Apt, None) => "sh -c 'apt-get update && apt-get install -y PACKAGE'".to_owned(),
        (PackageManager::Apk, package) => format!("apk add {}", package.unwrap_or("PACKAGE")),
    }
}
