use bay_client::bay_path;
use bay_types::backend::{AttributionGrain, Capabilities, EgressControl, FilesCheckpoint, Support};
use bay_types::bay::{BayRemoved, BayView, Limits};
use bay_types::policy::PolicyView;
use bay_types::reach::HOST_NAME;
use bay_types::stats::BayCost;
use bay_types::top::{BayUse, Top};
use bay_types::traffic::EgressState;
use bay_types::{ApiError, ErrorCode};
use clap::Args;
use jiff::Timestamp;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::age::{since, span};
use crate::output::size;
use crate::output::table::section;
use crate::removed_bay;
use bay_text::escape::visible;
use bay_text::percent::segment;

/// Show a bay: its state and the reason, its origin, limits, use, egress, isolation and cost.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bay show web")]
pub(crate) struct Show {
    /// Name or id of the bay.
    name: String,
}

impl Show {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let mut client = global.client();
        let view: BayView = match client.get(&bay_path(bay, "")).await {
            Ok(view) => view,
            Err(error) if error.code == ErrorCode::BayNotFound => {
                return match removed_bay::newest(global, bay).await? {
                    Some(removed) => Err(removed_error(&removed).into()),
                    None => Err(error.into()),
                };
            }
            Err(error) => return Err(error.into()),
        };
        if global.json {
            crate::output::json(&view)?;
        } else {
            // If there is no answer, the line about usage is omitted.
            let top: Option<Top> = client.get(&format!("/v1/top?bay={}", segment(bay))).await.ok();
            let present = top.and_then(|top| top.bays.into_iter().next());
            let policy: Option<PolicyView> = client.get(&bay_path(bay, "/policy")).await.ok();
            let egress: Option<EgressState> = client.get(&bay_path(bay, "/egress")).await.ok();
            let egress_rows = egress_lines(policy.as_ref(), egress.as_ref());
            crate::output::data(&render(&view, present.as_ref(), &egress_rows, Timestamp::now()))?;
        }
        Ok(0)
    }
}

/// The error for a bay that was removed. It stays an error: scripts ask this verb whether a bay exists.
fn removed_error(bay: &BayRemoved) -> ApiError {
    let mut message = format!(
        "no bay is called {} now; the last one was {}",
        bay.name,
        removed_bay::how(bay, Timestamp::now())
    );
    if let Some(path) = &bay.kept_workspace {
        message.push_str(&format!("; its workspace is kept at {}", visible(&path.to_string_lossy())));
    }
    let next = format!(
        "`bay story {0}`, `bay timeline {0}` and `bay execs ls {0}` show what is on record; `bay ls --removed` lists removed bays",
        bay.id
    );
    ApiError::new(ErrorCode::BayNotFound, message, next)
}

/// What may leave the bay, and whether its gateway is open.
fn egress_lines(policy: Option<&PolicyView>, egress: Option<&EgressState>) -> Vec<(&'static str, String)> {
    let names = |policy: &PolicyView| {
        let names =
            policy.layers.iter().map(|layer| format!("{} ({})", visible(&layer.name), visible(&layer.layer)));
        names.collect::<Vec<_>>().join(", ")
    };
    let state = |egress: &EgressState| if egress.open { "open" } else { "closed: nothing can leave it now" };
    vec![
        ("policy", policy.map_or_else(|| "-".to_owned(), names)),
        ("gateway", egress.map_or_else(|| "-".to_owned(), |egress| state(egress).to_owned())),
    ]
}

fn render(
    bay: &BayView,
    present: Option<&BayUse>,
    egress_lines: &[(&'static str, String)],
    now: Timestamp,
) -> String {
    let mut state = vec![
        ("state", format!("{}, for {}", bay.state, since(bay.since, now))),
        ("reason", visible(&bay.reason)),
        ("wanted", bay.desired.to_string()),
        ("execs", format!("{} running", bay.execs_running)),
    ];
    if let Some(pid) = bay.host_pid {
        state.push(("host pid", pid.to_string()));
    }
    let mut made = vec![
        ("id", bay.id.to_string()),
        ("created", format!("{} ago ({})", since(bay.created_at, now), bay.created_at)),
        ("image", format!("{} ({})", visible(&bay.image), bay.image_id)),
    ];
    match &bay.origin {
        Some(origin) => {
            made.push(("source", visible(&origin.location)));
            made.push(("commit", visible(&origin.commit)));
            made.push(("branch", visible(origin.branch.as_deref().unwrap_or("(none: detached)"))));
        }
        None => made.push(("source", "(no repository)".to_owned())),
    }
    if let Some(from) = &bay.forked_from {
        made.push(("forked", format!("from {} of {}", from.checkpoint, from.name)));
    }
    if let Some(of) = &bay.environment {
        made.push(("environment", format!("of {} at {}", of.name, of.checkpoint)));
    }
    if let Some(checkpoint) = bay.checkpoint {
        made.push(("checkpoint", format!("{checkpoint}, and changes since")));
    }
    made.push(("workspace", visible(&bay.workspace)));
    if let Some(user) = &bay.user {
        let sudo = if user.sudo { ", with sudo" } else { "" };
        made.push(("user", format!("{}{sudo}", visible(&user.name))));
    }
    let mut limits = limit_lines(bay);
    for mount in &bay.mounts {
        let text = format!("{} at {}, read-only", mount.source.display(), mount.target.display());
        limits.push(("mount", visible(&text)));
    }
    let mut egress = egress_lines.to_vec();
    egress.extend(reach_line(&bay.reach));
    let isolation = vec![
        ("grade", visible(&bay.isolation.grade)),
        ("backend", visible(bay.backend.as_str())),
        ("means", visible(&bay.isolation.detail)),
    ];
    let can = bay.capabilities.as_ref().map(capability_lines).unwrap_or_default();
    let cost = bay.cost.as_ref().map(cost_lines).unwrap_or_default();
    let mut parts = vec![
        section(bay.name.as_str(), &state),
        section("made from", &made),
        section("limits", &limits),
        section("uses now", &use_lines(present)),
        section("egress", &egress),
        section("isolation", &isolation),
    ];
    if !can.is_empty() {
        parts.push(section("backend", &can));
    }
    if !cost.is_empty() {
        parts.push(section("cost", &cost));
    }
    parts.join("\n\n")
}

/// The capabilities of the bay's backend on this host.
pub(super) fn capability_lines(can: &Capabilities) -> Vec<(&'static str, String)> {
    let support = |support: &Support| match support {
        Support::Yes => "yes".to_owned(),
        Support::No { reason } => format!("no: {}", visible(reason)),
    };
    let files = match can.files_checkpoint {
        FilesCheckpoint::Snapshot => "a snapshot, whatever the bay's size",
        FilesCheckpoint::Copy => "a copy of everything the bay holds",
    };
    let egress = match can.egress {
        EgressControl::Gateway => "the bay's gateway decides on every request",
        EgressControl::Backend => "the backend decides; the policy is only passed on to it",
    };
    let attribution = match can.attribution {
        AttributionGrain::Exec => "to the exec that opened a connection",
        AttributionGrain::Bay => "to the bay only",
    };
    vec![
        ("memory checkpoints", support(&can.memory_checkpoints)),
        ("files checkpoints", files.to_owned()),
        ("live limits", support(&can.live_limits)),
        ("disk limit", support(&can.quota)),
        ("egress control", egress.to_owned()),
        ("attribution", attribution.to_owned()),
        ("nested containers", support(&can.nested_containers)),
    ]
}

/// The cost that the host measured, over all runtimes of the bay.
fn cost_lines(cost: &BayCost) -> Vec<(&'static str, String)> {
    let held = cost.disk_bytes.map_or_else(
        || "its disk use is not counted yet".to_owned(),
        |bytes| format!("{} of its own now", size(bytes)),
    );
    vec![
        ("processor", format!("{:.2} core-seconds", cost.core_s)),
        ("memory", format!("{:.2} GiB-seconds", cost.memory_gib_s)),
        ("disk", format!("{:.2} GiB-seconds; {held}", cost.disk_gib_s)),
    ]
}

fn use_lines(present: Option<&BayUse>) -> Vec<(&'static str, String)> {
    let stats = present.map(|present| present.stats).unwrap_or_default();
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    vec![
        ("cpu time", or_none(stats.cpu_us.map(|us| format!("{}.{} s", us / 1_000_000, us / 100_000 % 10)))),
        ("memory", or_none(stats.memory_bytes.map(size))),
        ("disk", or_none(present.and_then(|present| present.disk).map(|disk| size(disk.own_bytes)))),
        ("pids", or_none(stats.pids.map(|pids| pids.to_string()))),
    ]
}

/// The services of the host that the bay may use, if there are any.
pub(super) fn reach_line(ports: &[u16]) -> Option<(&'static str, String)> {
    let named: Vec<String> = ports.iter().map(|port| format!("{HOST_NAME}:{port}")).collect();
    (!named.is_empty()).then(|| ("reach", named.join(", ")))
}

/// What a relaxed bay gives up.
const RELAXED: &str = "relaxed: flushes return at once, and a power cut of this host loses what was written in the last seconds";

pub(super) fn limit_lines(bay: &BayView) -> Vec<(&'static str, String)> {
    let limits = &bay.limits;
    let or_host = |value: Option<String>| value.unwrap_or_else(|| "the host's".to_owned());
    let speed = |value: Option<u64>| or_host(value.map(|n| format!("{n} MiB/s")));
    let mut lines = vec![
        ("cpus", or_host(limits.cpus.map(|n| n.to_string()))),
        ("memory", or_host(limits.memory_mib.map(|n| format!("{n} MiB")))),
        ("disk", or_host(limits.disk_mib.map(|n| format!("{n} MiB")))),
        ("pids", limits.pids.unwrap_or(Limits::DEFAULT_PIDS).to_string()),
    ];
    if let Some(shares) = limits.cpu_shares {
        lines.push(("cpu shares", format!("{shares} (default: {})", Limits::EQUAL_CPU_SHARES)));
    }
    if limits.io_read_mibps.is_some() || limits.io_write_mibps.is_some() {
        lines.push(("reading", speed(limits.io_read_mibps)));
        lines.push(("writing", speed(limits.io_write_mibps)));
    }
    if !bay.durability.is_strict() {
        lines.push(("durability", RELAXED.to_owned()));
    }
    if let Some(seconds) = bay.idle_stop_s {
        lines.push(("idle stop", format!("after {}", span(i64::try_from(seconds).unwrap_or(i64::MAX)))));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::ls::tests::bay;

    #[test]
    fn a_bay_is_shown_with_its_reason_and_its_isolation_grade() {
        let egress_rows = egress_lines(None, Some(&EgressState { open: true, ..EgressState::default() }));
        let now = "2026-01-01T00:05:00Z".parse().unwrap();
        let text = render(&bay("the guest \u{1b}[2J answers"), None, &egress_rows, now);
        for part in [
            "running, for 5m",
            "\\x1b[2J",
            "shared-kernel",
            "512 MiB",
            "/opt/data at /data",
            "main",
            "no: CRIU is missing",
            "to the bay only",
            "host.bay.internal:5432",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
    }
}
