use bay_types::timeline::{EndOfTimeline, TimelineEnd, TimelineLine, TimelineNews};
use clap::Args;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::record::{self, Reader, Since, since, understood};
use crate::cli::Global;
use crate::client::bay_path;
use crate::failure::{Failure, Outcome};
use crate::output::escape::{clip, visible};
use crate::output::{colours, data, talk};

/// Characters of a checkpoint's name that have a column.
const CHECKPOINT: usize = 8;

/// Show a bay's life as one ordered stream: lifecycle, commands, changed files, checkpoints.
///
/// The first column is the line's number, the third the checkpoint to fork from for coming to that point (`-`: none).
/// The bay may be one that was removed, by its id.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay timeline web\n  bay timeline web --follow\n  bay timeline web --since 2h\n  bay timeline web --since 1041 --json | jq -r 'select(.kind == \"exec.end\").what'\n\nWith --json every line is an object: {\"seq\", \"at\", \"kind\", \"what\", \"exec\", \"checkpoint\", \"details\"}; docs/timeline.md has the kinds."
)]
pub(crate) struct Timeline {
    /// Name or id of the bay.
    name: String,
    /// Go on as things happen, until Ctrl-C or the bay's end.
    #[arg(short, long)]
    follow: bool,
    /// Only lines after this number, or not older than a time such as 90s, 10m, 2h, 3d.
    #[arg(long, value_name = "SEQ|TIME", value_parser = since)]
    since: Option<Since>,
    /// Only the last N of them; 0 for all [default: 200, or all with --since].
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    limit: Option<u32>,
}

/// What was shown so far.
struct Shown {
    last: Option<u64>,
    day: Option<Date>,
    json: bool,
}

impl Timeline {
    pub(crate) async fn run(self, global: &Global) -> Outcome {
        crate::naming::bay(&self.name)?;
        let mut shown = Shown { last: None, day: None, json: global.json };
        let path = bay_path(&self.name, &format!("/timeline?follow={}", self.follow));
        let begin = record::begin(self.since, self.limit, Timestamp::now());
        let end = record::read(global, &path, &begin, self.follow, &mut shown).await?;
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
        if end.end == EndOfTimeline::BayRemoved && self.follow {
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
        let at = line.at.to_zoned(TimeZone::system());
        if self.day != Some(at.date()) {
            self.day = Some(at.date());
            data(&at.date().to_string())?;
        }
        let checkpoint = line.checkpoint.as_deref().map_or_else(|| "-".to_owned(), visible);
        let checkpoint = clip(&checkpoint, CHECKPOINT);
        let (dim, plain) = if colours() { ("\u{1b}[2m", "\u{1b}[0m") } else { ("", "") };
        data(&format!(
            "{dim}{:>6}  {}  {checkpoint:<4}{plain}  {}",
            line.seq,
            at.strftime("%H:%M:%S"),
            visible(&line.what)
        ))
    }
}
