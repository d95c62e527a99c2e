use std::fs::File;
use std::io::{self, Write};

use bay_client::{bay_path, invalid};
use bay_types::ApiError;
use bay_types::bay::BayView;
use bay_types::work::WorkRoute;
use clap::Args;
use rustix::termios::isatty;

use crate::failure::{Failure, Outcome};
use crate::git::bring_out::report::{Arrival, report};
use crate::git::bring_out::review::{Leaving, review};
use crate::git::bring_out::{Interrupts, Kind, Wanted, Work, bring_out, short};
use crate::global_options::GlobalOptions;
use crate::output::progress::Meter;

/// Write the work in a bay to standard output as a git bundle.
///
/// The bundle has one branch with the bay's name: the commits made since the bay began, and one more commit with all
/// uncommitted changes. It builds on the commit that the bay began from, so fetch it into a repository that has that
/// commit. If the bay began without a commit, the bundle contains the bay's whole history. The agent's index, HEAD and
/// files stay unchanged. Git runs on the agent's tree only inside the bay; its output is checked and rewritten before
/// you get it. The content is not reviewed: `bay review` does that.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay bundle web > web.bundle\n  git fetch web.bundle web:from-web     then, in the repository that receives it\n  bay bundle web --committed-only | ssh host 'cat > web.bundle'"
)]
pub(crate) struct Bundle {
    /// Name or id of the bay.
    name: String,
    #[command(flatten)]
    what: What,
}

/// The options that `bundle` and `branch` share.
#[derive(Debug, Args)]
pub(super) struct What {
    /// Leave out uncommitted changes.
    #[arg(long)]
    pub(super) committed_only: bool,
    /// Message of the commit with the uncommitted changes [default: Uncommitted work in bay NAME].
    #[arg(short, long, value_name = "TEXT", conflicts_with = "committed_only")]
    pub(super) message: Option<String>,
}

impl What {
    pub(super) fn message(&self, bay: &BayView) -> Result<String, Failure> {
        match &self.message {
            None => Ok(format!("Uncommitted work in bay {}", bay.name)),
            Some(text) if text.trim().is_empty() || text.contains('\0') => {
                Err(invalid("the message is empty or contains a NUL byte", "write -m 'What was done'").into())
            }
            Some(text) => Ok(text.clone()),
        }
    }
}

impl Bundle {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        if isatty(io::stdout()) {
            return Err(invalid(
                "a bundle is binary and cannot be written to a terminal",
                format!("redirect it to a file: `bay bundle {bay} > {bay}.bundle`"),
            )
            .into());
        }
        let mut client = global.client();
        let view: BayView = client.get(&bay_path(bay, "")).await?;
        let mut meter = Meter::new(global.json);
        let mut interrupts = Interrupts::listen()?;
        let message = self.what.message(&view)?;
        let wanted = Wanted { bay: &view, committed_only: self.what.committed_only, message: &message };
        let work = bring_out(&mut client, &wanted, &mut meter, &mut interrupts).await?;
        let leaving = interrupts
            .or_incomplete(write(&view, &work), "discard the bundle, and run the command again")
            .await?;
        let arrival = Arrival { route: WorkRoute::Bundle, branch: view.name.as_str(), place: None };
        report(&mut client, &view, &work, &leaving, &arrival).await;
        tell(&view, &work, &leaving, global.json);
        Ok(0)
    }
}

async fn write(view: &BayView, work: &Work) -> Result<Leaving, Failure> {
    let leaving = review(work).await?;
    let bundle = work.clean.bundle(&work.tip, view.name.as_str(), work.base.as_deref()).await?;
    // A separate thread: the reader of the bundle may be slow, and Ctrl-C must still work.
    let copied = tokio::task::spawn_blocking(move || {
        let mut out = io::stdout().lock();
        io::copy(&mut File::open(bundle)?, &mut out)?;
        out.flush()
    });
    crate::output::written(copied.await.map_err(|e| ApiError::internal(&e))?)?;
    Ok(leaving)
}

fn tell(view: &BayView, work: &Work, leaving: &Leaving, json: bool) {
    let name = &view.name;
    if json {
        let summary = serde_json::json!({
            "bay": name, "branch": name, "commit": work.tip, "base": work.base,
            "commits": leaving.commits, "files": leaving.files, "uncommitted": work.kind != Kind::Committed,
        });
        return crate::output::talk(&summary.to_string());
    }
    for note in notes(work, leaving) {
        crate::output::talk(&format!("note: {note}"));
    }
    let on = match &work.base {
        Some(base) => format!(" on top of {}", short(base)),
        None => String::new(),
    };
    crate::output::talk(&format!(
        "{name} at {}: {}{on}; `git fetch FILE {name}:BRANCH` fetches it",
        short(&work.tip),
        leaving.told()
    ));
}

/// What a person should know about the work besides its size.
pub(super) fn notes(work: &Work, leaving: &Leaving) -> Vec<String> {
    let mut notes = Vec::new();
    match work.kind {
        Kind::Committed => {}
        Kind::Uncommitted => {
            notes.push("the last commit contains the uncommitted changes".to_owned());
        }
        Kind::Whole => {
            notes.push("the workspace is not a git repository: one commit contains all its files".to_owned());
        }
    }
    if leaving.repositories > 0 {
        notes.push(format!(
            "{} inside the workspace: the bundle or branch records only the commit id, without files",
            match leaving.repositories {
                1 => "1 repository".to_owned(),
                n => format!("{n} repositories"),
            }
        ));
    }
    notes
}
