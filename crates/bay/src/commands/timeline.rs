use std::time::{Duration, Instant};

use bay_types::ErrorCode;
use bay_types::timeline::{EndOfTimeline, TimelineEnd, TimelineLine, TimelineNews};
use bytes::BytesMut;
use clap::Args;
use http_body_util::BodyExt;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::cli::Global;
use crate::client::{bay_path, broken};
use crate::failure::{Failure, Outcome};
use crate::output::escape::{clip, visible};
use crate::output::{colours, data, talk};

/// Lines that are shown when nothing else is asked for.
const LINES: u32 = 200;
/// Longest line of the stream: the largest event there is, with every byte escaped, and its words.
const MAX_LINE: usize = 256 << 10;
/// How long a daemon may be away before it is no longer waited for.
const AWAY_FOR: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(100);
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

#[derive(Debug, Clone, Copy, PartialEq)]
enum Since {
    Seq(u64),
    Ago(SignedDuration),
}

fn since(text: &str) -> Result<Since, String> {
    if let Ok(seq) = text.parse() {
        return Ok(Since::Seq(seq));
    }
    match text.parse::<SignedDuration>() {
        Ok(ago) if !ago.is_negative() => Ok(Since::Ago(ago)),
        _ => match text.strip_suffix('d').and_then(|days| days.parse::<i64>().ok()) {
            Some(days @ 0..=36_500) => Ok(Since::Ago(SignedDuration::from_hours(24 * days))),
            _ => Err("give the number of a line, or a time such as 90s, 10m, 2h, 3d".to_owned()),
        },
    }
}

/// How one answer ended.
enum End {
    Said(TimelineEnd),
    Cut,
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
        let begin = self.begin(Timestamp::now());
        let mut shown = Shown { last: None, day: None, json: global.json };
        let mut away_since: Option<Instant> = None;
        loop {
            let before = shown.last;
            match self.read(global, &begin, &mut shown, away_since.is_none()).await {
                Ok(End::Said(end)) => return Ok(self.ended(&end, &shown)),
                Ok(End::Cut) if !self.follow => return Err(broken("the timeline ended in the middle").into()),
                Ok(End::Cut) => {}
                Err(Failure::Api { error, .. })
                    if self.follow
                        && (away_since.is_some() || before.is_some())
                        && matches!(error.code, ErrorCode::DaemonUnreachable | ErrorCode::Interrupted) => {}
                Err(failure) => return Err(failure),
            }
            if shown.last != before {
                away_since = None;
            }
            if away_since.is_none() && !global.json {
                talk("bay: the daemon is away; waiting for it");
            }
            if away_since.get_or_insert_with(Instant::now).elapsed() > AWAY_FOR {
                return Err(broken("the daemon did not come back").into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The query for the first answer.
    fn begin(&self, now: Timestamp) -> String {
        let mut query = String::new();
        match self.since {
            None => {}
            Some(Since::Seq(seq)) => query.push_str(&format!("&since={seq}")),
            Some(Since::Ago(ago)) => {
                let from = now.checked_sub(ago).unwrap_or(Timestamp::MIN);
                query.push_str(&format!("&from={from}"));
            }
        }
        match (self.limit, self.since) {
            (Some(0), _) | (None, Some(_)) => {}
            (Some(limit), _) => query.push_str(&format!("&limit={limit}")),
            (None, None) => query.push_str(&format!("&limit={LINES}")),
        }
        query
    }

    async fn read(
        &self,
        global: &Global,
        begin: &str,
        shown: &mut Shown,
        may_start: bool,
    ) -> Result<End, Failure> {
        // After the first line its number says where to go on: nothing is shown twice, nothing is left out.
        let from = shown.last.map_or_else(|| begin.to_owned(), |last| format!("&since={last}"));
        let path = bay_path(&self.name, &format!("/timeline?follow={}{from}", self.follow));
        let client = global.client();
        let mut client = if may_start { client } else { client.another_without_starting() };
        let mut body = client.download(&path).await?;
        let mut lines = BytesMut::new();
        // How much of the buffer is known to hold no end of line.
        let mut searched = 0;
        while let Some(Ok(piece)) = body.frame().await {
            let Some(bytes) = piece.data_ref() else { continue };
            lines.extend_from_slice(bytes);
            while let Some(end) = lines[searched..].iter().position(|byte| *byte == b'\n') {
                let line = lines.split_to(searched + end + 1);
                searched = 0;
                let news: TimelineNews = serde_json::from_slice(&line)
                    .map_err(|e| broken(&format!("a line is not understood: {e}")))?;
                match news {
                    TimelineNews::Line(line) => shown.show(&line)?,
                    TimelineNews::End(end) => return Ok(End::Said(end)),
                }
            }
            searched = lines.len();
            if lines.len() > MAX_LINE {
                return Err(broken("a line has no end").into());
            }
        }
        Ok(End::Cut)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(since: Option<Since>, limit: Option<u32>) -> Timeline {
        Timeline { name: "web".to_owned(), follow: false, since, limit }
    }

    #[test]
    fn a_beginning_is_a_number_or_a_time() {
        assert_eq!(since("1041"), Ok(Since::Seq(1041)));
        assert_eq!(since("90s"), Ok(Since::Ago(SignedDuration::from_secs(90))));
        assert_eq!(since("2h30m"), Ok(Since::Ago(SignedDuration::from_mins(150))));
        assert_eq!(since("3d"), Ok(Since::Ago(SignedDuration::from_hours(72))));
        for odd in ["", "-5", "-5m", "yesterday", "1.5", "99999999999d"] {
            assert!(since(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn without_a_wish_the_last_lines_are_asked_for() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        assert_eq!(timeline(None, None).begin(now), "&limit=200");
        assert_eq!(timeline(None, Some(0)).begin(now), "");
        assert_eq!(timeline(Some(Since::Seq(7)), None).begin(now), "&since=7");
        let ago = Some(Since::Ago(SignedDuration::from_hours(24)));
        assert_eq!(timeline(ago, Some(5)).begin(now), "&from=2026-01-01T00:00:00Z&limit=5");
    }
}
