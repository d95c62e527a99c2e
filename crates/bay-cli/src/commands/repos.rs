use bay_types::repo::{RepoSync, RepoView};
use clap::{Args, Subcommand};
use jiff::Timestamp;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::age::since;
use crate::output::progress::Meter;
use crate::output::{count, size, table};
use bay_text::escape::visible;
use bay_text::percent::segment;

/// Manage the cached repositories that workspaces are made from.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay repos ls\n  bay repos sync https://example.org/project.git\n  bay repos rm project"
)]
pub(crate) struct Repos {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the repositories.
    ///
    /// CHECKOUTS is the number of cached checkouts, one for each recently used commit. Workspaces are made from them.
    Ls,
    /// Fetch new commits from the repository's origin. A URL that is not cached yet is cloned.
    ///
    /// To update a repository from a local path, use `bay up PATH`.
    Sync {
        /// Id, URL, or an unambiguous part of the location.
        repo: String,
    },
    /// Remove a repository from the cache. If an existing bay was made from it, the command fails.
    Rm {
        /// Id, or an unambiguous part of the location.
        repo: String,
    },
}

impl Repos {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        match self.verb {
            Verb::Ls => {
                let repos: Vec<RepoView> = client.get("/v1/repos").await?;
                if global.json {
                    crate::output::json(&repos)?;
                } else if repos.is_empty() {
                    crate::output::talk("no repositories in the cache: `bay up` adds them");
                } else {
                    crate::output::data(&render(&repos))?;
                }
            }
            Verb::Sync { repo } => {
                let mut meter = Meter::new(global.json);
                let view: RepoView = client.work("/v1/repos/sync", &RepoSync { repo }, &mut meter).await?;
                if global.json {
                    crate::output::json(&view)?;
                } else {
                    crate::output::data(&format!(
                        "{} is up to date ({})",
                        visible(&view.location),
                        size(view.bytes)
                    ))?;
                }
            }
            Verb::Rm { repo } => {
                let _: serde_json::Value = client.delete(&format!("/v1/repos/{}", segment(&repo))).await?;
                if global.json {
                    crate::output::json(&serde_json::json!({ "removed": repo }))?;
                } else {
                    crate::output::data(&format!("{} is no longer cached", visible(&repo)))?;
                }
            }
        }
        Ok(0)
    }
}

fn render(repos: &[RepoView]) -> String {
    let now = Timestamp::now();
    let mut table = table::table(&["REPO", "SYNCED", "SIZE", "CHECKOUTS", "USED BY", "LOCATION"]);
    for repo in repos {
        table.add_row([
            repo.id.short(),
            format!("{} ago", since(repo.synced_at, now)),
            size(repo.bytes),
            repo.checkouts.to_string(),
            count(repo.bays, "bay"),
            visible(&repo.location),
        ]);
    }
    table.trim_fmt()
}
