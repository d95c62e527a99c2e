use bay_client::bay_path;
use bay_types::timeline::{EndOfTimeline, TimelineEnd, TimelineLine, TimelineNews};
use clap::Args;

use super::record::{self, Days, Lines, Reader, understood};
use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::output::rows::indented;
use crate::output::{colours, columns, data, talk};
use bay_text::clip;
use bay_text::escape::visible;

/// Width of the column for a checkpoint's name.
const CHECKPOINT: usize = 8;
/// Columns before the description.
const WHAT_AT: usize = 24;

/// Show the events of a bay in order: lifecycle, commands, changed files, checkpoints.
///
/// The first column is the line's number. The third is the checkpoint to fork from to return to that point (`-`: none).
/// For a bay that was removed, use its id.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay timeline web\n  bay timeline web --follow\n  bay timeline web --since 2h\n  bay timeline web --since 1041 --json | jq -r 'select(.kind == \"exec.end\").what'\n\nWith --json every line is an object: {\"seq\", \"at\", \"kind\", \"what\", \"exec\", \"checkpoint\", \"details\"}; docs/timeline.md has the kinds."
)]
pub(crate) struct Timeline {
    /// Name or id of the bay.
    name: String,
    #[command(flatten)]
    lines: Lines,
}

/// What was shown so far.
struct Shown {
    last: Option<u64>,
    days: Days,
    json: bool,
}

impl Timeline {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        crate::naming::bay(&self.name)?;
        let mut shown = Shown { last: None, days: Days::default(), json: global.json };
        let end = record::read(global, &bay_path(&self.name, "/timeline?"), &self.lines, &mut shown).await?;
        Ok(self.ended(&end, &shown))
    }

    fn ended(&self, end: &TimelineEnd, shown: &Shown) -> u8 {
        if shown.json {
            return 0;
        }
        if end.older {
            talk("older lines are left out: --limit 0 shows all");
        }
        if shown.last.is_none() {
            talk("nothing happened in that time");
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
