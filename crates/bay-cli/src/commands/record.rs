//! Reads a part of a bay's record from the daemon, line by line. If it follows the record, it continues when the daemon
//! restarts.

use std::time::{Duration, Instant};

use bay_client::broken;
use bay_types::ErrorCode;
use bay_types::timeline::TimelineEnd;
use bytes::BytesMut;
use clap::Args;
use http_body_util::BodyExt;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};

use crate::failure::Failure;
use crate::global_options::GlobalOptions;
use crate::output::{data, talk};

/// The default number of lines.
const LINES: u32 = 200;
/// Longest line of the stream: the largest event, with every byte escaped, and its text.
const MAX_LINE: usize = 256 << 10;
/// How long after the loss of the daemon a reader tries to continue, before it gives up.
pub(super) const AWAY_FOR: Duration = Duration::from_secs(600);
/// Pause before the next attempt to connect.
pub(super) const POLL: Duration = Duration::from_millis(100);

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Since {
    Seq(u64),
    Ago(SignedDuration),
}

pub(super) fn since(text: &str) -> Result<Since, String> {
    if let Ok(seq) = text.parse() {
        return Ok(Since::Seq(seq));
    }
    ago(text)
        .map(Since::Ago)
        .map_err(|_| "give the number of a line, or a time such as 90s, 10m, 2h, 3d".to_owned())
}

/// A length of time before now.
pub(super) fn ago(text: &str) -> Result<SignedDuration, String> {
    match text.parse::<SignedDuration>() {
        Ok(ago) if !ago.is_negative() => Ok(ago),
        _ => match text.strip_suffix('d').and_then(|days| days.parse::<i64>().ok()) {
            Some(days @ 0..=36_500) => Ok(SignedDuration::from_hours(24 * days)),
            _ => Err("give a time such as 90s, 10m, 2h, 3d".to_owned()),
        },
    }
}

/// Which lines of a record to show.
#[derive(Debug, Args)]
pub(super) struct Lines {
    /// Continue with new lines, until Ctrl-C or the bay's removal.
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Only lines after this number, or not older than a time such as 90s, 10m, 2h, 3d.
    #[arg(long, value_name = "SEQ|TIME", value_parser = since)]
    since: Option<Since>,
    /// Only the last N lines; 0 for all [default: 200, or all with --since].
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    limit: Option<u32>,
}

impl Lines {
    /// The query of the first request.
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
}

/// Prints the date before the first line of each day.
#[derive(Debug, Default)]
pub(super) struct Days(Option<Date>);

impl Days {
    /// The time in the local time zone.
    pub(super) fn at(&mut self, at: Timestamp) -> Result<Zoned, Failure> {
        let at = at.to_zoned(TimeZone::system());
        if self.0 != Some(at.date()) {
            self.0 = Some(at.date());
            data(&at.date().to_string())?;
        }
        Ok(at)
    }
}

/// The consumer of the lines.
pub(super) trait Reader {
    /// Shows a line, or returns the end of the stream.
    fn line(&mut self, line: &[u8]) -> Result<Option<TimelineEnd>, Failure>;
    /// The number of the last line, from which to continue.
    fn last(&self) -> Option<u64>;
}

/// Parses a line.
pub(super) fn understood<T: serde::de::DeserializeOwned>(line: &[u8]) -> Result<T, Failure> {
    Ok(serde_json::from_slice(line).map_err(|e| broken(&format!("a line cannot be parsed: {e}")))?)
}

/// Reads the available lines, or follows until the end. `path` ends at the point where the query of the lines is
/// appended.
pub(super) async fn read(
    global: &GlobalOptions,
    path: &str,
    wanted: &Lines,
    reader: &mut impl Reader,
) -> Result<TimelineEnd, Failure> {
    let follow = wanted.follow;
    let (path, begin) = (format!("{path}follow={follow}"), wanted.begin(Timestamp::now()));
    let mut away_since: Option<Instant> = None;
    loop {
        let before = reader.last();
        // Continue after the number of the last line, so that no line is shown twice or left out.
        let from = before.map_or_else(|| begin.clone(), |last| format!("&since={last}"));
        match answer(global, &format!("{path}{from}"), reader, away_since.is_none()).await {
            Ok(Some(end)) => return Ok(end),
            Ok(None) if !follow => return Err(broken("the answer ended in the middle").into()),
            // It was reachable: a further outage has its own time.
            Ok(None) => away_since = None,
            Err(Failure::Api { error, .. })
                if follow
                    && (away_since.is_some() || before.is_some())
                    && matches!(error.code, ErrorCode::DaemonUnreachable | ErrorCode::Interrupted) => {}
            Err(failure) => return Err(failure),
        }
        if reader.last() != before {
            away_since = None;
        }
        if away_since.is_none() && !global.json {
            talk("bay: the daemon is unreachable; waiting for it");
        }
        if away_since.get_or_insert_with(Instant::now).elapsed() > AWAY_FOR {
            return Err(broken("the daemon did not answer in time").into());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Reads one response. `None` if it was cut off.
async fn answer(
    global: &GlobalOptions,
    path: &str,
    reader: &mut impl Reader,
    may_start: bool,
) -> Result<Option<TimelineEnd>, Failure> {
    let client = global.client();
    let mut client = if may_start { client } else { client.another_without_starting() };
    let mut body = client.download(path).await?;
    let mut lines = BytesMut::new();
    // The length of the part of the buffer that is known to contain no line break.
    let mut searched = 0;
    while let Some(Ok(piece)) = body.frame().await {
        let Some(bytes) = piece.data_ref() else { continue };
        lines.extend_from_slice(bytes);
        while let Some(end) = lines[searched..].iter().position(|byte| *byte == b'\n') {
            let line = lines.split_to(searched + end + 1);
            searched = 0;
            if let Some(end) = reader.line(&line)? {
                return Ok(Some(end));
            }
        }
        searched = lines.len();
        if lines.len() > MAX_LINE {
            return Err(broken("a line of its answer is too long").into());
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_number_or_a_time() {
        assert_eq!(since("1041"), Ok(Since::Seq(1041)));
        assert_eq!(since("90s"), Ok(Since::Ago(SignedDuration::from_secs(90))));
        assert_eq!(since("2h30m"), Ok(Since::Ago(SignedDuration::from_mins(150))));
        assert_eq!(since("3d"), Ok(Since::Ago(SignedDuration::from_hours(72))));
        for odd in ["", "-5", "-5m", "yesterday", "1.5", "99999999999d"] {
            assert!(since(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn the_default_is_to_request_the_last_lines() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let begin = |since, limit| Lines { follow: false, since, limit }.begin(now);
        assert_eq!(begin(None, None), "&limit=200");
        assert_eq!(begin(None, Some(0)), "");
        assert_eq!(begin(Some(Since::Seq(7)), None), "&since=7");
        let ago = Some(Since::Ago(SignedDuration::from_hours(24)));
        assert_eq!(begin(ago, Some(5)), "&from=2026-01-01T00:00:00Z&limit=5");
    }
}
