use bay_client::bay_path;
use bay_types::timeline::{EndOfTimeline, TimelineEnd, TimelineLine, TimelineNews};
use clap::Args;

use super::record::{self, Days, Lines, Reader, understood};
use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::output::rows::indented;
use crate::output::{colours, columns, data, talk};
use crate::removed_bay;
use bay_text::clip;
use bay_text::escape::visible;
use bay_text::percent::path_value;

/// Width of the column for a checkpoint's name.
const CHECKPOINT: usize = 8;
/// Columns before the description.
const WHAT_AT: usize = 24;

/// Show the events of a bay in order: lifecycle, commands, changed files, checkpoints.
///
/// The first column is the line's number. The third is the newest checkpoint before that point, from which a fork can
/// begin (`-`: none). Runs of like events are one line with a count, unless --all is given; `bay story` sums it up on
/// one page. A bay that was removed is found by its last name.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay timeline web\n  bay timeline web --follow\n  bay timeline web --failed\n  bay timeline web --exec 3\n  bay timeline web --kind exec,service --since 10m\n  bay timeline web --since 2h\n  bay timeline web --since 1041 --json | jq -r 'select(.kind == \"exec.end\").what'\n\nWith --json every line is an object: {\"seq\", \"at\", \"kind\", \"what\", \"exec\", \"checkpoint\", \"details\"}; docs/timeline.md has the kinds."
)]
pub(crate) struct Timeline {
    /// Name or id of the bay.
    name: String,
    #[command(flatten)]
    lines: Lines,
    /// Only these kinds of events, or areas of kinds: exec.end, service. May be repeated.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<String>,
    /// Only what failed or was refused.
    #[arg(long)]
    failed: bool,
    /// Only this command, by its number or id, and what it sent.
    #[arg(long, value_name = "EXEC")]
    exec: Option<String>,
    /// Leave out what the bay sent and tried to send.
    #[arg(long)]
    no_egress: bool,
    /// Show every event in a line of its own; --json always does.
    #[arg(short, long)]
    all: bool,
}

/// What was shown so far.
struct Shown {
    last: Option<u64>,
    days: Days,
    json: bool,
}

impl Timeline {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        removed_bay::or_newest(global, bay, async |bay| self.read(global, bay).await).await
    }

    async fn read(&self, global: &GlobalOptions, bay: &str) -> Outcome {
        let mut shown = Shown { last: None, days: Days::default(), json: global.json };
        let path = bay_path(bay, &format!("/timeline?{}", self.shape(global.json)));
        let end = record::read(global, &path, &self.lines, &mut shown).await?;
        Ok(self.ended(&end, &shown))
    }

    /// The part of the query that selects lines. It ends where the query of the range is appended.
    fn shape(&self, json: bool) -> String {
        let mut query = String::new();
        if !self.kind.is_empty() {
            query.push_str(&format!("kind={}&", path_value(self.kind.join(",").as_bytes())));
        }
        if let Some(exec) = &self.exec {
            query.push_str(&format!("exec={}&", path_value(exec.as_bytes())));
        }
        for (key, given) in
            [("failed", self.failed), ("no_egress", self.no_egress), ("folded", !self.all && !json)]
        {
            if given {
                query.push_str(&format!("{key}=true&"));
            }
        }
        query
    }

    fn ended(&self, end: &TimelineEnd, shown: &Shown) -> u8 {
        if shown.json {
            return 0;
        }
        if end.older {
            talk("older lines are left out: --limit 0 shows all");
        }
        if shown.last.is_none() {
            talk("no event of that time matches");
        }
        if end.end == EndOfTimeline::BayRemoved && self.lines.follow {
            talk("the bay was removed; this is the end of its timeline");
        }
        0
    }
}

impl Reader for Shown {
    fn line(&mut self, line: &[u8]) -> Result<Option<TimelineEnd>, Failure> {
        match understood(line)? {
            TimelineNews::Line(line) => self.show(&line).map(|()| None),
            TimelineNews::End(end) => Ok(Some(end)),
        }
    }

    fn last(&self) -> Option<u64> {
        self.last
    }
}

impl Shown {
    fn show(&mut self, line: &TimelineLine) -> Result<(), Failure> {
        self.last = Some(line.seq);
        if self.json {
            return crate::output::json_line(line);
        }
        let at = self.days.at(line.at)?;
        let checkpoint = line.checkpoint.as_deref().map_or_else(|| "-".to_owned(), visible);
        let checkpoint = clip(&checkpoint, CHECKPOINT);
        let (dim, plain) = if colours() { ("\u{1b}[2m", "\u{1b}[0m") } else { ("", "") };
        data(&format!(
            "{dim}{:>6}  {}  {checkpoint:<4}{plain}  {}",
            line.seq,
            at.strftime("%H:%M:%S"),
            indented(WHAT_AT, &visible(&line.what), columns())
        ))
    }
}
