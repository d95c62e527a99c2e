mod background;

use bay_client::bay_path;
use bay_types::egress::Who;
use bay_types::timeline::{EndOfTimeline, TimelineEnd};
use bay_types::traffic::{EgressEntry, EgressNews, EgressOutcome, EgressState};
use clap::Args;

use super::record::{self, Days, Lines, Reader, understood};
use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::output::rows::indented;
use crate::output::{colours, columns, count, data, size, talk};
use crate::removed_bay;
use bay_text::clip;
use bay_text::escape::visible;
use bay_text::shell::command;

use background::{Background, Told};

/// Most characters of a request, or of a list of names, in a line.
const REQUEST: usize = 300;
/// Most characters of a reason in a line.
const REASON: usize = 200;
/// Most characters of a command, or of the name of a rule, a secret, a service or a container, in a line.
const COMMAND: usize = 80;
/// Columns before the request.
const WORDS_AT: usize = 27;
/// The sender of a request, if its socket was closed before the kernel could be asked.
const UNKNOWN: &str = "by an unknown process";
/// The mark of background calls.
const BROWSER: &str = "browser";

/// Show what a bay sent and tried to send: one line per request or connection, with the process behind it.
///
/// The first column is the number for `bay policy explain`. A permitted request appears when it ends, or as `open`
/// while it is under way. A refused request appears immediately. Calls that a browser makes by itself, for updates and
/// reports, are counted in one line, which appears when another line follows or the output ends; --all shows each. A
/// bay that was removed is found by its last name.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay egress web\n  bay egress web --follow --denied\n  bay egress web --since 10m --json | jq -r 'select(.outcome == \"denied\").request'\n  bay policy explain web 1041\n\nWith --json every line is an object; docs/egress.md has its fields."
)]
pub(crate) struct Egress {
    /// Name or id of the bay.
    name: String,
    /// Only refused requests.
    #[arg(long)]
    denied: bool,
    /// Include DNS lookups.
    #[arg(long)]
    lookups: bool,
    /// Show each background call of a browser in a line of its own; --json always does.
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    lines: Lines,
}

/// What was shown so far.
struct Shown {
    last: Option<u64>,
    days: Days,
    json: bool,
    /// The background calls that wait for their line. `None` if each has its own.
    background: Option<Background>,
}

impl Egress {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        removed_bay::or_newest(global, bay, async |bay| self.read(global, bay).await).await
    }

    async fn read(&self, global: &GlobalOptions, bay: &str) -> Outcome {
        let background = (!self.all && !global.json).then(Background::default);
        let mut shown = Shown { last: None, days: Days::default(), json: global.json, background };
        let query = format!("/egress/entries?denied={}&lookups={}&", self.denied, self.lookups);
        let end = record::read(global, &bay_path(bay, &query), &self.lines, &mut shown).await?;
        if !global.json {
            self.ended(global, &end, &shown).await;
        }
        Ok(0)
    }

    async fn ended(&self, global: &GlobalOptions, end: &TimelineEnd, shown: &Shown) {
        if end.older {
            talk("older lines are left out: --limit 0 shows all");
        }
        if shown.last.is_none() {
            talk(if self.denied { "no refused requests in that time" } else { "no requests in that time" });
        }
        if end.end == EndOfTimeline::BayRemoved {
            return;
        }
        // If there is no answer, the count of dropped packets is omitted.
        let state: Option<EgressState> = global.client().get(&bay_path(&self.name, "/egress")).await.ok();
        if let Some(line) = state.and_then(|state| dropped(&state)) {
            talk(&line);
        }
    }
}

/// Counts of dropped packets, which have no lines of their own, or that the egress is closed.
fn dropped(state: &EgressState) -> Option<String> {
    if !state.open {
        return Some("the bay's egress is closed: nothing can leave it now".to_owned());
    }
    let counts = [
        (state.dropped.udp, "UDP packet"),
        (state.dropped.icmp, "ping"),
        (state.dropped.other, "packet of another protocol"),
        (state.dropped.dns, "DNS query that was not answered"),
    ];
    let told = counts.into_iter().filter(|(number, _)| *number > 0).map(|(number, noun)| match noun {
        "packet of another protocol" if number > 1 => format!("{number} packets of other protocols"),
        "DNS query that was not answered" if number > 1 => {
            format!("{number} DNS queries that were not answered")
        }
        noun => count(number, noun),
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| format!("dropped since the bay started: {}", told.join(", ")))
}

impl Reader for Shown {
    fn line(&mut self, line: &[u8]) -> Result<Option<TimelineEnd>, Failure> {
        match understood(line)? {
            EgressNews::Entry(entry) => self.show(&entry).map(|()| None),
            EgressNews::End(end) => self.end_run().map(|()| Some(end)),
        }
    }

    fn last(&self) -> Option<u64> {
        self.last
    }
}

impl Shown {
    fn show(&mut self, entry: &EgressEntry) -> Result<(), Failure> {
        // A request under way may have a lower number than one that was reported before.
        self.last = self.last.max(Some(entry.seq));
        if self.json {
            return crate::output::json_line(entry);
        }
        if self.background.as_mut().is_some_and(|background| background.takes(entry)) {
            return Ok(());
        }
        self.end_run()?;
        self.line_of(entry)
    }

    /// Shows the background calls that wait, if there are any.
    fn end_run(&mut self) -> Result<(), Failure> {
        match self.background.as_mut().and_then(Background::end) {
            None => Ok(()),
            Some(Told::Entry(entry)) => self.line_of(&entry),
            Some(Told::Line(at, line)) => {
                let at = self.days.at(at)?;
                let (dim, plain) = if colours() { ("\u{1b}[2m", "\u{1b}[0m") } else { ("", "") };
                data(&format!(
                    "{dim}{:>6}  {}  {:<7}  {}{plain}",
                    "",
                    at.strftime("%H:%M:%S"),
                    BROWSER,
                    indented(WORDS_AT, &line, columns())
                ))
            }
        }
    }

    fn line_of(&mut self, entry: &EgressEntry) -> Result<(), Failure> {
        let at = self.days.at(entry.at)?;
        let (dim, colour, plain) = match colours() {
            true => ("\u{1b}[2m", colour(entry), "\u{1b}[0m"),
            false => ("", "", ""),
        };
        let id = if entry.outcome == EgressOutcome::Repeated { String::new() } else { entry.id.to_string() };
        data(&format!(
            "{dim}{id:>6}  {}{plain}  {colour}{:<7}{plain}  {}",
            at.strftime("%H:%M:%S"),
            mark(entry),
            indented(WORDS_AT, &words(entry), columns())
        ))
    }
}

fn refused_after_all(entry: &EgressEntry) -> bool {
    entry.ending.as_deref() == Some("revoked") || entry.failure.as_deref() == Some("address")
}

fn colour(entry: &EgressEntry) -> &'static str {
    const GREEN: &str = "\u{1b}[32m";
    const RED: &str = "\u{1b}[31m";
    const YELLOW: &str = "\u{1b}[33m";
    match entry.outcome {
        EgressOutcome::Denied | EgressOutcome::Refused | EgressOutcome::Repeated => RED,
        EgressOutcome::Ended if refused_after_all(entry) => RED,
        EgressOutcome::Ended if entry.failure.is_none() => GREEN,
        EgressOutcome::Ended | EgressOutcome::Ask | EgressOutcome::EndUnknown => YELLOW,
        EgressOutcome::UnderWay | EgressOutcome::LookedUp => "",
    }
}

/// A mark of at most seven letters.
fn mark(entry: &EgressEntry) -> String {
    match (entry.outcome, entry.status, entry.ending.as_deref()) {
        (EgressOutcome::Ended, Some(status), _) => status.to_string(),
        (EgressOutcome::Ended, None, Some("failed")) => "failed".to_owned(),
        (EgressOutcome::Ended, None, Some("abandoned")) => "gone".to_owned(),
        (EgressOutcome::Ended, None, Some("revoked")) => "revoked".to_owned(),
        (EgressOutcome::Ended, None, _) => "closed".to_owned(),
        (EgressOutcome::UnderWay, ..) => "open".to_owned(),
        (EgressOutcome::EndUnknown, ..) => "lost".to_owned(),
        (EgressOutcome::Denied, ..) => "deny".to_owned(),
        (EgressOutcome::Ask, ..) => "ask".to_owned(),
        (EgressOutcome::Refused, ..) => "refused".to_owned(),
        (EgressOutcome::LookedUp, ..) => "name".to_owned(),
        (EgressOutcome::Repeated, ..) => "more".to_owned(),
    }
}

/// Everything after the mark, safe for a terminal.
fn words(entry: &EgressEntry) -> String {
    let request = clip(&visible(&entry.request), REQUEST);
    if entry.outcome == EgressOutcome::Repeated {
        let (count, within) = (entry.count.unwrap_or(0), entry.within_s.unwrap_or(0));
        if let Some(distinct) = entry.distinct {
            let names = clip(&visible(&entry.sample.join(", ")), REQUEST);
            return format!("and {count} more of {distinct} different names, within {within} s: {names}");
        }
        return match entry.id {
            0 => format!("and {count} more within {within} s: {request}"),
            id => format!("and {count} more like #{id} within {within} s: {request}"),
        };
    }
    let mut parts = vec![request];
    if let Some(failure) = &entry.failure {
        parts.push(clip(&visible(failure), REASON));
    }
    if entry.outcome == EgressOutcome::EndUnknown {
        parts.push("how it ended is not on record".to_owned());
    }
    let bytes = [(entry.sent, "sent"), (entry.received, "received")];
    for (bytes, word) in bytes {
        if let Some(bytes) = bytes.filter(|bytes| *bytes > 0) {
            parts.push(format!("{} {word}", size(bytes)));
        }
    }
    parts
        .extend(entry.ms.map(|ms| if ms < 10_000 { format!("{ms} ms") } else { format!("{} s", ms / 1000) }));
    parts.extend(entry.reason.as_ref().map(|reason| clip(&visible(reason), REASON)));
    parts.extend(entry.rule.as_ref().map(|rule| format!("rule {}", clip(&visible(&rule.id), COMMAND))));
    parts.extend(entry.secrets.iter().map(|name| format!("secret {}", clip(&visible(name), COMMAND))));
    parts.extend(match &entry.by {
        Some(who) => behind(entry, who),
        None => Some(UNKNOWN.to_owned()),
    });
    parts.join(" · ")
}

/// The sender: exec, service or container, and the process if it could be identified.
fn behind(entry: &EgressEntry, who: &Who) -> Option<String> {
    let argv = |argv: &[String]| clip(&command(argv), COMMAND);
    // The name of the program is not a word to quote: `node (as claude)`.
    let program_line = |words: &[String]| {
        let (program, rest) = words.split_first().map_or(("", words), |(first, rest)| (first, rest));
        clip(format!("{} {}", visible(program), command(rest)).trim(), COMMAND)
    };
    let process =
        who.process.as_ref().map(|process| format!("{} ({})", program_line(&process.words()), process.pid));
    let who = match (who.exec, &who.service, &who.nested) {
        (Some(exec), ..) => Some(match entry.exec_number {
            Some(number) => format!("exec {number}"),
            None => exec.to_string(),
        }),
        (None, Some(service), _) => Some(format!("service {}", clip(&visible(service), COMMAND))),
        (None, None, Some(nested)) => Some(format!("container {}", clip(&visible(nested), COMMAND))),
        (None, None, None) if who.guest => Some("the bay's guest".to_owned()),
        (None, None, None) => None,
    };
    let command = (process.is_none() && !entry.exec_argv.is_empty()).then(|| argv(&entry.exec_argv));
    match (who, process.or(command)) {
        (Some(who), Some(process)) => Some(format!("{who}: {process}")),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use bay_types::egress::Process;
    use bay_types::traffic::{DroppedPackets, EgressRule};

    use super::*;

    fn entry(outcome: EgressOutcome) -> EgressEntry {
        serde_json::from_value(serde_json::json!({
            "seq": 9, "id": 7, "at": "2026-01-01T00:00:00Z", "outcome": outcome, "request": "GET https://a.example/x",
        }))
        .unwrap()
    }

    #[test]
    fn a_request_is_shown_with_its_status_its_size_and_its_sender() {
        let mut one = entry(EgressOutcome::Ended);
        (one.ending, one.status, one.received, one.ms) =
            (Some("answered".to_owned()), Some(200), Some(2048), Some(35));
        one.rule = Some(EgressRule { id: "registries".to_owned(), origin: String::new() });
        one.secrets = vec!["TOKEN".to_owned()];
        let argv = vec!["curl".to_owned(), "-s".to_owned()];
        let process = Process { pid: 12, host_pid: 99, exe: "/usr/bin/curl".to_owned(), argv };
        one.by =
            Some(Who { exec: Some(bay_types::ExecId::generate()), process: Some(process), ..Who::default() });
        one.exec_number = Some(3);
        assert_eq!(mark(&one), "200");
        assert_eq!(
            words(&one),
            "GET https://a.example/x · 2.0 KiB received · 35 ms · rule registries · secret TOKEN · exec 3: curl -s (12)"
        );
    }

    #[test]
    fn a_flood_is_one_line() {
        let mut one = entry(EgressOutcome::Repeated);
        (one.count, one.within_s, one.request) = (Some(980), Some(10), "a.example:443".to_owned());
        assert_eq!(words(&one), "and 980 more like #7 within 10 s: a.example:443");
        (one.distinct, one.sample) =
            (Some(300), vec!["b.example:443".to_owned(), "c.example:443".to_owned()]);
        assert_eq!(
            words(&one),
            "and 980 more of 300 different names, within 10 s: b.example:443, c.example:443"
        );
    }

    #[test]
    fn an_unknown_sender_is_shown_as_unknown() {
        let mut one = entry(EgressOutcome::Ended);
        one.ending = Some("abandoned".to_owned());
        assert_eq!(mark(&one), "gone");
        assert_eq!(words(&one), "GET https://a.example/x · by an unknown process");
    }

    #[test]
    fn a_terminal_obeys_no_text_of_a_bay() {
        let evil = "a\u{1b}]52;c;aGk=\u{7}\r\n\u{9b}2J\u{202e}b".to_owned();
        let process = Process { pid: 1, host_pid: 1, exe: evil.clone(), argv: vec![evil.clone()] };
        for outcome in [
            EgressOutcome::Ended,
            EgressOutcome::Denied,
            EgressOutcome::Refused,
            EgressOutcome::LookedUp,
            EgressOutcome::Repeated,
            EgressOutcome::EndUnknown,
        ] {
            let mut one = entry(outcome);
            one.request.clone_from(&evil);
            one.reason = Some(evil.clone());
            one.failure = Some(evil.clone());
            one.ending = Some(evil.clone());
            one.rule = Some(EgressRule { id: evil.clone(), origin: evil.clone() });
            one.exec_argv = vec![evil.clone()];
            one.by =
                Some(Who { service: Some(evil.clone()), process: Some(process.clone()), ..Who::default() });
            let line = format!("{}{}", mark(&one), words(&one));
            assert!(!line.chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
            one.by = Some(Who { nested: Some(evil.clone()), ..Who::default() });
            let line = words(&one);
            assert!(!line.chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
        }
    }

    #[test]
    fn dropped_packets_are_counted_by_kind() {
        let told = |udp, icmp, other, dns| {
            dropped(&EgressState { open: true, dropped: DroppedPackets { udp, icmp, other, dns } })
        };
        assert_eq!(told(0, 0, 0, 0), None);
        assert_eq!(
            told(2, 1, 1, 0).unwrap(),
            "dropped since the bay started: 2 UDP packets, 1 ping, 1 packet of another protocol"
        );
        assert!(dropped(&EgressState::default()).unwrap().contains("closed"));
    }
}
