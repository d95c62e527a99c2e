use bay_text::escape::visible;
use bay_types::disk::{BaySpace, DiskUsage, Space};
use clap::Args;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::{count, size, table};

/// Show where the disk of the pool goes: images, repositories, bays and their checkpoints, and what removing each frees.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay df\n  bay df --checkpoints\n  bay df --json | jq .bays")]
pub(crate) struct Df {
    /// Also list the parts and checkpoints of each bay.
    #[arg(long)]
    checkpoints: bool,
}

impl Df {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let usage: DiskUsage = global.client().get("/v1/disk").await?;
        if global.json {
            crate::output::json(&usage)?;
        } else {
            crate::output::data(&render(&usage, self.checkpoints))?;
        }
        Ok(0)
    }
}

fn render(usage: &DiskUsage, with_parts: bool) -> String {
    let mut table = table::table(&["WHAT", "NAME", "FREED BY REMOVAL", "SHARED", "REMOVED WITH"]);
    let mut row = |what: &str, name: &str, space: Space, with: String| {
        table.add_row([
            what.to_owned(),
            visible(name),
            size(space.own_bytes),
            size(space.shared_bytes),
            visible(&with),
        ]);
    };
    for image in &usage.images {
        let with = match image.bays {
            0 => format!("bay images rm {}", image.id.short()),
            bays => format!("(used by {})", count(bays, "bay")),
        };
        row("image", &image.name, image.space, with);
    }
    for repo in &usage.repos {
        let space =
            Space { own_bytes: repo.git_bytes.saturating_add(repo.checkouts.own_bytes), ..repo.checkouts };
        let with = match repo.bays {
            0 => format!("bay repos rm {}", repo.id.short()),
            bays => format!("(used by {})", count(bays, "bay")),
        };
        row("repository", &repo.location, space, with);
    }
    for bay in &usage.bays {
        let name = if bay.name.is_empty() { bay.id.short() } else { bay.name.clone() };
        row("bay", &name, bay.space, format!("bay rm {name}"));
        if with_parts {
            parts(&mut row, bay, &name);
        }
    }
    for kept in &usage.workspaces {
        row("kept workspace", &kept.name, kept.space, format!("bay workspaces rm {}", kept.name));
    }
    let mut lines = vec![table.trim_fmt(), String::new()];
    let used = usage.total_bytes.saturating_sub(usage.free_bytes);
    lines.push(format!(
        "pool {}: {} of {} in use, {} free",
        visible(&usage.pool.display().to_string()),
        size(used),
        size(usage.total_bytes),
        size(usage.free_bytes)
    ));
    let others = match usage.other_daemons {
        0 => String::new(),
        n => format!(", and what {} hold", count(n, "other daemon")),
    };
    lines
        .push(format!("in use and not listed: {} (metadata and its copies{others})", size(usage.rest_bytes)));
    if let Some(file) = &usage.file {
        lines.push(format!(
            "disk below the pool: {} free of {}; the pool may take {} of that, {} stay reserved for the host (bay serve --disk-reserve-mib)",
            size(file.host_free_bytes),
            size(file.host_total_bytes),
            size(file.may_grow_bytes),
            size(file.reserve_bytes)
        ));
    }
    if !usage.complete {
        lines.push("not everything was counted: numbers may be too small, and what is shared may appear as freed by a removal".to_owned());
    }
    lines.join("\n")
}

fn parts(row: &mut impl FnMut(&str, &str, Space, String), bay: &BaySpace, name: &str) {
    for (what, space) in [("root", bay.root), ("workspace", bay.workspace), ("state", bay.state)] {
        row("  part", &format!("{name}/{what}"), space, String::new());
    }
    for checkpoint in &bay.checkpoints {
        let space = Space {
            own_bytes: checkpoint.files.own_bytes.saturating_add(checkpoint.memory_bytes),
            ..checkpoint.files
        };
        let with = format!("bay checkpoints rm {name} {}", checkpoint.name);
        row("  checkpoint", &format!("{name}/{}", checkpoint.name), space, with);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bay_types::disk::{CheckpointSpace, ImageSpace, PoolFile};
    use bay_types::{BayId, ImageId};

    #[test]
    fn each_line_names_the_command_that_frees_it() {
        let space = |own_bytes, shared_bytes| Space { own_bytes, shared_bytes };
        let usage = DiskUsage {
            pool: "/p/mnt".into(),
            total_bytes: 8 << 30,
            free_bytes: 5 << 30,
            file: Some(PoolFile {
                first_bytes: 8 << 30,
                may_grow_bytes: 0,
                host_total_bytes: 100 << 30,
                host_free_bytes: 4 << 30,
                reserve_bytes: 5 << 30,
            }),
            images: vec![ImageSpace {
                id: ImageId::generate(),
                name: "host".into(),
                bays: 1,
                space: space(1 << 30, 0),
            }],
            repos: vec![],
            bays: vec![BaySpace {
                id: BayId::generate(),
                name: "web".into(),
                space: space(3 << 20, 0),
                root: space(1 << 20, 0),
                workspace: space(0, 1 << 20),
                state: space(0, 0),
                checkpoints: vec![CheckpointSpace {
                    name: "v1".parse().unwrap(),
                    files: space(0, 1 << 20),
                    memory_bytes: 1 << 20,
                }],
            }],
            workspaces: vec![],
            other_daemons: 0,
            rest_bytes: 5 << 20,
            complete: false,
        };
        let short = render(&usage, false);
        assert!(short.contains("(used by 1 bay)") && short.contains("bay rm web"), "{short}");
        assert!(short.contains("5.0 GiB stay reserved for the host"), "{short}");
        assert!(short.contains("not everything was counted") && !short.contains("v1"), "{short}");
        let long = render(&usage, true);
        assert!(long.contains("bay checkpoints rm web v1"), "{long}");
    }
}
