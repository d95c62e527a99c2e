use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

use bay_client::{Client, broken, invalid, local};
use bay_ledger::{
    Flaw, Head, Header, MAX_LINE, MAX_NOTE, NoteError, PublicKey, Standing, Verified, Verifier,
};
use bay_types::event::{EventsVerified, LedgerKey};
use bay_types::{ApiError, ErrorCode};
use bytes::BytesMut;
use clap::Args;
use http_body_util::BodyExt;
use jiff::Timestamp;
use serde::Serialize;

use super::{known_heads, read};
use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::output::{count, data, json, talk};

/// Longest key file that is read.
const MAX_KEY: usize = 1024;

/// Verify the live record, or a bundle with only the public key.
///
/// Every hash is computed again here, from the events. The newest verified head is remembered in the caller's home
/// directory. If the record was truncated or forked since, the next check fails, even if the daemon signed it.
#[derive(Debug, Args)]
pub(super) struct Verify {
    /// A bundle of `bay audit export` or `bay audit proof`, `-` for standard input [default: the live record].
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The public key that `bay audit key` printed, or a file with it [default, live only: the daemon's own].
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// A file with an older head that `bay audit head` printed. The record must continue it.
    #[arg(long, value_name = "FILE")]
    head: Option<PathBuf>,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    log: String,
    /// Events that the signed head covers.
    size: u64,
    root: String,
    signed_at: Timestamp,
    /// The first and the last event that were checked.
    first: Option<u64>,
    last: Option<u64>,
    /// Older heads that the record was compared with.
    known: Vec<Known>,
}

#[derive(Debug, Serialize)]
struct Known {
    /// `remembered` or `given`.
    from: &'static str,
    size: u64,
    signed_at: Timestamp,
    standing: Standing,
}

/// Keeps the note of the first line, so that its head can be remembered.
struct Reading {
    verifier: Verifier,
    note: Option<String>,
}

impl Reading {
    fn line(&mut self, line: &[u8]) -> Result<(), Flaw> {
        self.verifier.line(line)?;
        if self.note.is_none() {
            self.note = serde_json::from_slice::<Header>(line).ok().map(|header| header.head);
        }
        Ok(())
    }
}

impl Verify {
    pub(super) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        let key = self.key(&mut client).await?;
        let place = known_heads::place(key.log());
        let remembered = match &place {
            Some(place) => known_heads::recall(place, &key)?,
            None => None,
        };
        let given = match &self.head {
            Some(path) => {
                Some(Head::open(&read(path, MAX_NOTE)?, &key).map_err(|e| flawed(&key, &e.into()))?)
            }
            None => None,
        };
        let known: Vec<(&'static str, Head)> = remembered
            .map(|head| ("remembered", head))
            .into_iter()
            .chain(given.map(|head| ("given", head)))
            .collect();
        let heads = known.iter().map(|(_, head)| head.clone()).collect();
        let mut reading = Reading { verifier: Verifier::new(key.clone(), heads), note: None };
        match &self.file {
            None => live(&mut client, &mut reading, &key).await?,
            Some(path) => file(path, &mut reading, &key)?,
        }
        let Reading { verifier, note } = reading;
        let verified = verifier.finish().map_err(|flaw| flawed(&key, &flaw))?;
        self.weigh(&verified, &known, &key)?;
        let continues = |from| {
            let at = known.iter().position(|(known, _)| *known == from)?;
            Some((known[at].1.size, verified.standing[at] == Standing::Continues))
        };
        let newer =
            continues("remembered").is_none_or(|(size, goes_on)| goes_on && size < verified.head.size);
        if let (Some(place), Some(note), true) = (place, note, newer) {
            known_heads::keep(&place, &note);
        }
        report(&verified, &known, global.json)
    }

    async fn key(&self, client: &mut Client) -> Result<PublicKey, Failure> {
        let text = match (&self.key, &self.file) {
            (Some(given), _) if given.contains('+') => given.clone(),
            (Some(given), _) => read(&PathBuf::from(given), MAX_KEY)?,
            (None, None) => client.get::<LedgerKey>("/v1/audit/key").await?.key,
            (None, Some(_)) => {
                return Err(invalid(
                    "a bundle is checked with the public key of the daemon it came from, and none was given",
                    "give --key KEY or --key FILE; `bay audit key` prints it where that daemon runs",
                )
                .into());
            }
        };
        PublicKey::parse(&text).map_err(|error| {
            invalid(format!("reading the public key: {error}"), "`bay audit key` prints it").into()
        })
    }

    /// Returns an error if the verified bundle proves less than the caller asked for.
    fn weigh(
        &self,
        verified: &Verified,
        known: &[(&'static str, Head)],
        key: &PublicKey,
    ) -> Result<(), Failure> {
        // A bundle may be older than a remembered head. The live record may not, and neither may a record that is
        // compared with a given head.
        let older =
            || known.iter().zip(&verified.standing).filter(|(_, standing)| **standing == Standing::Older);
        if let Some(((_, head), _)) = older().find(|((from, _), _)| self.file.is_none() || *from == "given") {
            let flaw = Flaw::Behind { size: verified.head.size, known: head.size, time: head.time };
            return Err(flawed(key, &flaw));
        }
        for ((_, head), _) in older() {
            talk(&format!(
                "bay: the bundle ends at {}; a head of {} was verified here before",
                count(verified.head.size, "event"),
                count(head.size, "event")
            ));
        }
        let proves_nothing = verified.events.is_none() && verified.head.size > 0;
        if proves_nothing && !verified.standing.contains(&Standing::Continues) {
            return Err(invalid(
                "the bundle proves that its head continues an older one, and that one is not known here",
                "give the older head with --head FILE",
            )
            .into());
        }
        Ok(())
    }
}

/// The daemon checks what only it can see. Every event is hashed again here.
async fn live(client: &mut Client, reading: &mut Reading, key: &PublicKey) -> Result<(), Failure> {
    let own: EventsVerified = client.get("/v1/events/verify").await?;
    if !own.ok {
        let why = own.why.unwrap_or_else(|| "it does not hold".to_owned());
        let what = own.first_bad.map_or(why.clone(), |seq| format!("event {seq}: {why}"));
        return Err(unsound(key, &what));
    }
    let mut body = client.download("/v1/audit/export").await?;
    let mut lines = BytesMut::new();
    // The length of the part of the buffer that is known to contain no line break.
    let mut searched = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(&format!("the record was cut short: {error}")))?;
        let Some(bytes) = frame.data_ref() else { continue };
        lines.extend_from_slice(bytes);
        while let Some(end) = lines[searched..].iter().position(|byte| *byte == b'\n') {
            let line = lines.split_to(searched + end + 1);
            searched = 0;
            reading.line(&line[..line.len() - 1]).map_err(|flaw| flawed(key, &flaw))?;
        }
        searched = lines.len();
        if searched > MAX_LINE {
            return Err(broken("a line of its answer is too long").into());
        }
    }
    if lines.is_empty() { Ok(()) } else { Err(broken("the record ended in the middle of a line").into()) }
}

fn file(path: &PathBuf, reading: &mut Reading, key: &PublicKey) -> Result<(), Failure> {
    let doing = format!("reading {}", path.display());
    let failed = |error: std::io::Error| Failure::from(local(&doing, &error));
    let input: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(path).map_err(failed)?),
    };
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        let got = input.by_ref().take(MAX_LINE as u64 + 2).read_until(b'\n', &mut line).map_err(failed)?;
        if got == 0 {
            return Ok(());
        }
        reading.line(line.strip_suffix(b"\n").unwrap_or(&line)).map_err(|flaw| flawed(key, &flaw))?;
    }
}

/// A finding: what is wrong, why, and what to do next.
fn flawed(key: &PublicKey, flaw: &Flaw) -> Failure {
    match flaw {
        Flaw::Malformed { .. } | Flaw::Head(NoteError::Malformed(_)) => invalid(
            format!("this cannot be checked: {flaw}"),
            "bundles come from `bay audit export` and `bay audit proof`, heads from `bay audit head`; one that was truncated or edited is not valid",
        )
        .into(),
        Flaw::Head(NoteError::OtherLog { .. }) => {
            invalid(format!("this cannot be checked: {flaw}"), "give the key of the daemon it came from").into()
        }
        flaw => unsound(key, &flaw.to_string()),
    }
}

fn unsound(key: &PublicKey, what: &str) -> Failure {
    let log = key.log();
    let what = what.strip_prefix(&format!("the ledger of {log} does not hold: ")).unwrap_or(what);
    ApiError::new(
        ErrorCode::LedgerBroken,
        format!("the ledger of {log} does not hold: {what}"),
        "keep this copy as evidence, compare with an earlier bundle or head; docs/audit.md describes each finding",
    )
    .into()
}

fn report(verified: &Verified, known: &[(&'static str, Head)], as_json: bool) -> Outcome {
    let head = &verified.head;
    let known: Vec<Known> = known
        .iter()
        .zip(&verified.standing)
        .map(|((from, head), standing)| Known {
            from,
            size: head.size,
            signed_at: head.time,
            standing: *standing,
        })
        .collect();
    if as_json {
        json(&Report {
            ok: true,
            log: head.log.clone(),
            size: head.size,
            root: head.root.to_string(),
            signed_at: head.time,
            first: verified.events.map(|(first, _)| first),
            last: verified.events.map(|(_, last)| last),
            known,
        })?;
        return Ok(0);
    }
    let held = match verified.events {
        None => "the head holds".to_owned(),
        Some((first, last)) if first == last => format!("event {first} is in the record"),
        Some((1, last)) if last == head.size => format!("all {last} events hold"),
        Some((first, last)) => format!("events {first} to {last} hold"),
    };
    data(&held)?;
    data(&format!("log     {}", head.log))?;
    data(&format!("head    {} signed {}", count(head.size, "event"), head.time))?;
    data(&format!("root    {}", head.root))?;
    for known in known {
        let standing = match known.standing {
            Standing::Continues if known.size == head.size => "is the same as",
            Standing::Continues => "continues",
            Standing::Older => "is older than",
            Standing::Unknown => "was not compared with",
        };
        let events = count(known.size, "event");
        data(&format!("known   {standing} the {} head of {events}, signed {}", known.from, known.signed_at))?;
    }
    Ok(0)
}
