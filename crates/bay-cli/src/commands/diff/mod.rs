use std::ops::ControlFlow;

use bay_client::{Client, ShowProgress, bay_path, lines};
use bay_types::diff::{
    Content, DiffAsk, DiffEntry, DiffLine, DiffSummary, Moment, NodeKind, PackageChange, Part,
};
use clap::Args;

use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::output::progress::Meter;
use crate::output::{count, talk};
use bay_text::escape::visible;

mod git;
mod patch;
mod stat;

/// Longest line of the answer: the longest patch with every byte escaped.
const MAX_LINE: usize = 16 << 20;

/// Show what changed in a bay, as `git diff` would, without trusting anything in it.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay diff web                        since the checkpoint that it descends from\n  bay diff web --from base --stat     since the bay began, in numbers\n  bay diff web --from v1 --to v2\n  bay diff web --root                 packages and files outside the workspace\n\nA moment is `base` (what the bay began from), a checkpoint such as `v3`, or `now`. The content of `.git` is left out.\nWith --json every line is an object: {\"line\": \"begin\" | \"package\" | \"entry\" | \"done\", …}."
)]
pub(crate) struct Diff {
    /// Name or id of the bay.
    name: String,
    #[command(flatten)]
    what: What,
}

/// Which differences to show.
#[derive(Debug, Args)]
pub(crate) struct What {
    #[command(flatten)]
    span: Span,
    /// Show only the number of changed lines per file.
    #[arg(long)]
    stat: bool,
    /// Compare the system instead of the workspace: packages, and files outside of the workspace.
    #[arg(long)]
    root: bool,
}

impl What {
    pub(crate) fn ask(&self) -> DiffAsk {
        let part = if self.root { Part::Root } else { Part::Workspace };
        DiffAsk { from: self.span.from, to: self.span.to, part, patch: !self.stat }
    }
}

/// The two moments to compare.
#[derive(Debug, Args)]
pub(crate) struct Span {
    /// The older moment [default for `diff`: the checkpoint that the bay descends from; for `review`: `base`].
    #[arg(long, value_name = "CP|base", value_parser = moment)]
    pub(crate) from: Option<Moment>,
    /// The newer moment [default: now].
    #[arg(long, value_name = "CP|now", value_parser = moment)]
    pub(crate) to: Option<Moment>,
}

fn moment(given: &str) -> Result<Moment, String> {
    given.parse().map_err(|error: bay_types::id::ParseIdError| error.why.to_owned())
}

/// The query string of the API.
pub(crate) fn query(ask: &DiffAsk) -> String {
    let mut query = format!("?part={}&patch={}", ask.part, ask.patch);
    for (key, moment) in [("from", ask.from), ("to", ask.to)] {
        if let Some(moment) = moment {
            query.push_str(&format!("&{key}={moment}"));
        }
    }
    query
}

impl Diff {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let ask = self.what.ask();
        let mut client = global.client();
        let body = client.download(&bay_path(bay, &format!("/diff{}", query(&ask)))).await?;
        let mut shown = Shown::new(global.json, self.what.stat);
        lines(body, MAX_LINE, |line: DiffLine| shown.take(line)).await?;
        Ok(0)
    }
}

/// Shows all lines of a finished answer.
pub(crate) fn show(lines: Vec<DiffLine>, what: &What, json: bool) -> Result<(), Failure> {
    let mut shown = Shown::new(json, what.stat);
    for line in lines {
        if shown.take(line)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Only the summary of a comparison.
pub(crate) async fn summary(client: &mut Client, bay: &str, ask: &DiffAsk) -> Result<DiffSummary, Failure> {
    let body = client.download(&bay_path(bay, &format!("/diff{}", query(ask)))).await?;
    let mut found = None;
    lines::<_, Failure>(body, MAX_LINE, |line: DiffLine| match line {
        DiffLine::Failed { error } => Err(error.into()),
        DiffLine::Done(summary) => {
            found = Some(summary);
            Ok(ControlFlow::Break(()))
        }
        _ => Ok(ControlFlow::Continue(())),
    })
    .await?;
    found.ok_or_else(|| bay_client::broken("the comparison has no end").into())
}

/// The output so far, and its format.
struct Shown {
    json: bool,
    meter: Meter,
    colours: bool,
    stat: Option<stat::Stat>,
    packages: bool,
    part: Part,
    /// Entries that no patch can represent.
    left_out: u64,
}

impl Shown {
    fn new(json: bool, stat: bool) -> Self {
        let colours = crate::output::colours();
        Self {
            json,
            meter: Meter::new(json),
            colours,
            stat: stat.then(|| stat::Stat::new(colours)),
            packages: false,
            part: Part::default(),
            left_out: 0,
        }
    }

    fn take(&mut self, line: DiffLine) -> Result<ControlFlow<()>, Failure> {
        if let DiffLine::Progress(progress) = &line {
            self.meter.show(progress);
            return Ok(ControlFlow::Continue(()));
        }
        // Remove the progress line before anything is printed.
        self.meter.clear();
        if let DiffLine::Failed { error } = line {
            return Err(error.into());
        }
        if self.json {
            crate::output::json_line(&line)?;
            let last = matches!(line, DiffLine::Done(_));
            return Ok(if last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) });
        }
        match line {
            DiffLine::Package(change) => {
                if !std::mem::replace(&mut self.packages, true) {
                    crate::output::data("packages:")?;
                }
                crate::output::data(&package(&change, self.colours))?;
            }
            DiffLine::Entry(entry) => {
                if std::mem::take(&mut self.packages) {
                    crate::output::data("")?;
                }
                self.entry(&entry)?;
            }
            DiffLine::Done(summary) => {
                if let Some(stat) = &mut self.stat {
                    stat.flush()?;
                    crate::output::data(&stat::summed(&summary))?;
                } else if summary.changed() == 0 && summary.directories == 0 {
                    talk("nothing changed");
                }
                if self.left_out > 0 {
                    let what = match self.left_out {
                        1 => "1 directory or special file that git cannot carry is".to_owned(),
                        n => format!("{n} directories or special files that git cannot carry are"),
                    };
                    talk(&format!("{what} not in this patch: --stat lists them"));
                }
                remarks(&summary);
                return Ok(ControlFlow::Break(()));
            }
            DiffLine::Begin { from, to, part, .. } => {
                self.part = part;
                if crate::output::watched() {
                    talk(&format!("{} from {from} to {to}", part_named(part)));
                }
            }
            DiffLine::Progress(_) | DiffLine::Failed { .. } => {}
        }
        Ok(ControlFlow::Continue(()))
    }

    fn entry(&mut self, entry: &DiffEntry) -> Result<(), Failure> {
        if implied(entry) {
            return Ok(());
        }
        match &mut self.stat {
            Some(stat) => stat.add(entry),
            None if self.part == Part::Root => crate::output::data(&patch::render(entry, self.colours)),
            None => match git::render(entry, self.colours) {
                Some(text) => crate::output::data(&text),
                None => {
                    self.left_out += 1;
                    Ok(())
                }
            },
        }
    }
}

fn part_named(part: Part) -> &'static str {
    match part {
        Part::Workspace => "the workspace",
        Part::Root => "the system",
    }
}

/// Whether the entries inside a directory already imply that it appeared, disappeared or moved.
fn implied(entry: &DiffEntry) -> bool {
    let filled = |node: &bay_types::diff::Node| node.kind == NodeKind::Directory && node.size > 0;
    match (&entry.before, &entry.after) {
        (Some(node), None) | (None, Some(node)) => filled(node) && entry.content == Content::Same,
        (Some(before), Some(after)) => entry.from_path.is_some() && filled(before) && filled(after),
        (None, None) => false,
    }
}

/// What a person must know to interpret the rest correctly.
fn remarks(summary: &DiffSummary) {
    if summary.unread > 0 {
        talk(&format!("{} could not be compared; they are listed", count(summary.unread, "path")));
    }
    if summary.renames_incomplete {
        talk("so much changed that some renames are shown as deleted and added");
    }
}

fn package(change: &PackageChange, colours: bool) -> String {
    let name = visible(&change.name);
    let (colour, text) = match (change.before.as_deref().map(visible), change.after.as_deref().map(visible)) {
        (None, Some(after)) => (patch::ADDED, format!("+ {name} {after}")),
        (Some(before), None) => (patch::REMOVED, format!("- {name} {before}")),
        (before, after) => (
            patch::PLACE,
            format!("~ {name} {} -> {}", before.unwrap_or_default(), after.unwrap_or_default()),
        ),
    };
    format!("  {}", patch::painted(&text, colour, colours))
}

/// The printed name of an entry: percent-encoded if its bytes are not text.
pub(super) fn named(path: &str, escaped: Option<&str>) -> String {
    visible(escaped.unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_what_was_asked_for() {
        let ask = DiffAsk { from: Some(Moment::Base), to: None, part: Part::Root, patch: false };
        assert_eq!(query(&ask), "?part=root&patch=false&from=base");
    }

    #[test]
    fn packages_are_shown_with_their_versions() {
        let change = |before: Option<&str>, after: Option<&str>| PackageChange {
            name: "bash".to_owned(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
        };
        assert_eq!(package(&change(None, Some("1")), false), "  + bash 1");
        assert_eq!(package(&change(Some("1"), Some("2")), false), "  ~ bash 1 -> 2");
        assert_eq!(package(&change(Some("1"), None), true), "  \u{1b}[31m- bash 1\u{1b}[0m");
    }
}
