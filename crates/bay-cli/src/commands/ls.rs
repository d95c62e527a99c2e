use bay_types::bay::{BayRemoved, BayView};
use clap::Args;
use comfy_table::Cell;
use jiff::Timestamp;
use serde::Serialize;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::age::since;
use crate::output::table;
use bay_text::clip;
use bay_text::escape::visible;

/// Most characters of a reason in the table. `bay show` prints it whole.
const REASON: usize = 60;

/// List the bays with their states, since when, and why.
#[derive(Debug, Args)]
#[command(
    visible_alias = "list",
    after_help = "Examples:\n  bay ls\n  bay ls --removed\n  bay ls --json | jq -r '.[] | select(.state == \"running\").name'"
)]
pub(crate) struct Ls {
    /// Print names only.
    #[arg(short, long)]
    quiet: bool,
    /// List the bays that were removed, newest first and at most 1000, with their last names.
    #[arg(long)]
    removed: bool,
}

impl Ls {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        if self.removed {
            let bays: Vec<BayRemoved> = client.get("/v1/removed-bays").await?;
            return self.print(global, &bays, |bay| bay.name.as_str(), "no bay was removed", render_removed);
        }
        let bays: Vec<BayView> = client.get("/v1/bays").await?;
        let none = "no bays yet: `bay up .` makes one for this directory";
        self.print(global, &bays, |bay| bay.name.as_str(), none, render)
    }

    fn print<T: Serialize>(
        &self,
        global: &GlobalOptions,
        bays: &[T],
        name: impl Fn(&T) -> &str,
        none: &str,
        table: impl Fn(&[T], Timestamp) -> String,
    ) -> Outcome {
        if global.json {
            crate::output::json(&bays)?;
        } else if self.quiet {
            for bay in bays {
                crate::output::data(name(bay))?;
            }
        } else if bays.is_empty() {
            crate::output::talk(none);
        } else {
            crate::output::data(&table(bays, Timestamp::now()))?;
        }
        Ok(0)
    }
}

fn render_removed(bays: &[BayRemoved], now: Timestamp) -> String {
    let mut table = table::table(&["NAME", "REMOVED", "BY", "WORKSPACE", "ID"]);
    for bay in bays {
        let kept = bay.kept_workspace.as_deref().map_or_else(|| "-".into(), |path| path.to_string_lossy());
        table.add_row([
            bay.name.to_string(),
            format!("{} ago", since(bay.removed_at, now)),
            visible(bay.by.as_deref().unwrap_or("-")),
            visible(&kept),
            bay.id.to_string(),
        ]);
    }
    table.trim_fmt()
}

fn render(bays: &[BayView], now: Timestamp) -> String {
    let mut table = table::table(&["NAME", "STATE", "SINCE", "IMAGE", "SOURCE", "REASON"]);
    for bay in bays {
        table.add_row([
            Cell::new(bay.name.as_str()),
            table::state(bay.state),
            Cell::new(format!("{} ago", since(bay.since, now))),
            Cell::new(visible(&bay.image)),
            Cell::new(source(bay)),
            Cell::new(clip(&visible(&bay.reason), REASON)),
        ]);
    }
    table.trim_fmt()
}

/// The origin of a bay's workspace, in a few words.
pub(super) fn source(bay: &BayView) -> String {
    let Some(origin) = &bay.origin else {
        return "-".to_owned();
    };
    let location = origin.location.trim_end_matches('/');
    let short = location.rsplit(['/', ':']).next().unwrap_or(location);
    let at = origin.branch.as_deref().unwrap_or_else(|| origin.commit.get(..8).unwrap_or(&origin.commit));
    visible(&format!("{short}@{at}"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::commands) fn bay(reason: &str) -> BayView {
        let value = serde_json::json!({
            "id": "bay_0190000000007000800000000000abcd", "name": "web", "state": "running", "reason": reason,
            "since": "2026-01-01T00:00:00Z", "desired": "running", "created_at": "2026-01-01T00:00:00Z",
            "image": "host", "image_id": "img_0190000000007000800000000000abcd",
            "origin": {"repo": "repo_0190000000007000800000000000abcd", "location": "/home/me/web",
                       "commit": "8e26231d14f4c0f7e7537b92e10e461205b4ea95", "branch": "main"},
            "limits": {"memory_mib": 512}, "reach": [5432], "mounts": [{"source": "/opt/data", "target": "/data"}],
            "isolation": {"backend": "local", "grade": "shared-kernel", "detail": "namespaces"},
            "capabilities": {
                "isolation": "shared-kernel", "memory_checkpoints": {"support": "no", "reason": "CRIU is missing"},
                "files_checkpoint": "snapshot", "live_limits": {"support": "yes"}, "egress": "gateway",
                "attribution": "bay", "nested_containers": {"support": "yes"}, "quota": {"support": "yes"},
            },
            "workspace": "/workspace", "execs_running": 1, "host_pid": 77
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_reason_from_a_bay_cannot_reach_the_terminal() {
        let text = render(&[bay("up \u{1b}]0;title\u{7}")], "2026-01-01T01:00:00Z".parse().unwrap());
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(text.contains("60m ago") || text.contains("1h ago"), "{text}");
        assert!(text.contains("web@main"));
    }
}
