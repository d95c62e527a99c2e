//! Runs of like events as one line, for people.
//!
//! ```text
//!  events ──► a stretch (traffic, execs, one service, written files) ──► an event of another kind, or a flush
//!                                                                            ▼
//!                      lines ◄── packs of work wait for `work.left` ◄── groups of like events: one line each
//! ```
//!
//! Only neighbours are folded, and the commands by which a client takes work out. No other line moves past an event
//! of another kind. A failed command keeps its lines. Refused or failed requests of one sender, and the failures of
//! one service, are folded if they are many. The ledger and `--json` have every event.

use std::collections::{HashMap, HashSet, VecDeque};

use bay_types::ExecId;
use bay_types::event::egress::EgressDecided;
use bay_types::event::{EventBody, ExecEvent, Field, FileEvent, ServiceEvent, WorkEvent};
use bay_types::timeline::{Folded, TimelineLine};

use crate::command::classify;
use crate::text::{count, duration, safe};

mod traffic;

use traffic::Group;

/// Fewer like events keep their lines.
const LIKE: usize = 3;
/// The most events of one stretch. A longer run becomes several lines.
const STRETCH: usize = 512;
/// The most lines that wait for the report of a pack of work.
const HELD: usize = 64;
/// For how many execs the fold remembers what they are.
const REMEMBERED: usize = 4096;
/// The most characters of a service's name.
const NAME: usize = 40;
/// The most characters of a reason.
const REASON: usize = 120;
/// How many names of written files a line has.
const NAMES: usize = 3;
/// The directory in a bay in which `bay branch` and `bay bundle` pack the work. The id of the exec that packs follows.
pub const PACK_DIRECTORY: &str = "/tmp/.bay-leaving-";

/// A line with its event.
#[derive(Debug)]
pub struct Item<'a> {
    pub line: TimelineLine,
    pub event: &'a EventBody,
    /// For the end of a request: the decision that let it out.
    pub decided: Option<&'a EgressDecided>,
    /// Number and command of the exec, if they are known.
    pub number: Option<u64>,
    pub argv: &'a [String],
}

/// The fold of one reader.
#[derive(Debug, Default)]
pub struct Fold {
    stretch: Option<Stretch>,
    out: VecDeque<Out>,
    /// Execs that packed work or removed a pack, and the exec that packed.
    packers: HashMap<ExecId, ExecId>,
    /// Packs that have had their line.
    shown: HashSet<ExecId>,
}

#[derive(Debug)]
enum Stretch {
    Traffic { groups: Vec<Group>, events: usize },
    Execs(Vec<Run>),
    Service { name: String, lines: Vec<TimelineLine>, states: Vec<(String, u64)>, reason: String },
    Files { by: String, lines: Vec<TimelineLine>, names: Vec<String> },
}

/// The events of one exec in a stretch.
#[derive(Debug)]
struct Run {
    id: ExecId,
    number: Option<u64>,
    label: String,
    lines: Vec<TimelineLine>,
    began: bool,
    /// It ended with success.
    succeeded: bool,
    failed: bool,
    seconds: f64,
    files: u64,
}

#[derive(Debug)]
enum Out {
    Line(Box<TimelineLine>),
    /// The commands of a client that takes work out.
    Pack {
        packer: ExecId,
        lines: Vec<TimelineLine>,
        number: Option<u64>,
        failed: bool,
    },
}

impl Fold {
    /// Adds an event. Returns the lines that are certain now.
    pub fn push(&mut self, item: Item<'_>) -> Vec<TimelineLine> {
        if let EventBody::Work(WorkEvent::Left(left)) = item.event {
            self.close();
            let named: HashSet<ExecId> = left.execs.iter().filter_map(|exec| exec.get().copied()).collect();
            self.out.retain(|out| !matches!(out, Out::Pack { packer, .. } if named.contains(packer)));
            self.out.push_back(Out::Line(Box::new(item.line)));
        } else if let Some(packer) = self.packer(&item) {
            self.close();
            self.pack(packer, item);
        } else {
            self.add(item);
        }
        self.certain(HELD)
    }

    /// All remaining lines: the reader has everything that there is.
    pub fn flush(&mut self) -> Vec<TimelineLine> {
        self.close();
        self.certain(0)
    }

    /// Lines up to the first pack that waits for its report, if no more than `held` lines wait behind it.
    fn certain(&mut self, held: usize) -> Vec<TimelineLine> {
        let mut lines = Vec::new();
        while let Some(out) = self.out.pop_front() {
            match out {
                Out::Line(line) => lines.push(*line),
                pack @ Out::Pack { .. } if self.out.len() < held => {
                    self.out.push_front(pack);
                    break;
                }
                Out::Pack { packer, lines: of_pack, number, failed } => {
                    lines.extend(self.packed(packer, of_pack, number, failed));
                }
            }
        }
        lines
    }

    fn packed(
        &mut self,
        packer: ExecId,
        lines: Vec<TimelineLine>,
        number: Option<u64>,
        failed: bool,
    ) -> Vec<TimelineLine> {
        if failed {
            return lines;
        }
        if self.shown.len() >= REMEMBERED {
            self.shown.clear();
        }
        if !self.shown.insert(packer) {
            return Vec::new();
        }
        let by = number.map(|number| format!(", by exec {number}")).unwrap_or_default();
        let events = lines.len() as u64;
        folded(lines, events, format!("work packed to be taken out{by}")).into_iter().collect()
    }

    /// The exec that packed, if this event is about a command by which a client takes work out.
    fn packer(&mut self, item: &Item<'_>) -> Option<ExecId> {
        let EventBody::Exec(event) = item.event else { return None };
        let id = event.exec()?;
        if let Some(packer) = self.packers.get(&id) {
            return Some(*packer);
        }
        let argv = match event {
            ExecEvent::Start(start) if item.argv.is_empty() => start.argv.as_slice(),
            _ => item.argv,
        };
        let packer = packer_of(id, argv)?;
        if self.packers.len() >= REMEMBERED {
            self.packers.clear();
        }
        self.packers.insert(id, packer);
        Some(packer)
    }

    fn pack(&mut self, wanted: ExecId, item: Item<'_>) {
        let ended_badly = crate::filter::failed(item.event);
        let known = self.out.iter_mut().find_map(|out| match out {
            Out::Pack { packer, lines, number, failed } if *packer == wanted => Some((lines, number, failed)),
            _ => None,
        });
        match known {
            Some((lines, number, failed)) => {
                lines.push(item.line);
                if item.event.exec() == Some(wanted) {
                    *number = number.or(item.number);
                }
                *failed |= ended_badly;
            }
            None => self.out.push_back(Out::Pack {
                packer: wanted,
                number: item.number.filter(|_| item.event.exec() == Some(wanted)),
                lines: vec![item.line],
                failed: ended_badly,
            }),
        }
    }

    fn add(&mut self, item: Item<'_>) {
        match item.event {
            EventBody::Egress(event) => {
                let Some(group) = Group::of(&item, event) else { return self.alone(item.line) };
                if !matches!(&self.stretch, Some(Stretch::Traffic { events, .. }) if *events < STRETCH) {
                    self.close();
                    self.stretch = Some(Stretch::Traffic { groups: Vec::new(), events: 0 });
                }
                if let Some(Stretch::Traffic { groups, events }) = &mut self.stretch {
                    *events += 1;
                    match groups.iter_mut().find(|one| one.takes(&group)) {
                        Some(one) => one.merge(group),
                        None => groups.push(group),
                    }
                }
            }
            EventBody::Exec(event) => match event.exec() {
                Some(id) if !matches!(event, ExecEvent::Signal(_) | ExecEvent::Approved(_)) => {
                    self.add_exec(id, event, item.argv, item.number, item.line);
                }
                _ => self.alone(item.line),
            },
            EventBody::Service(ServiceEvent::Reached(reached)) => {
                let name = match &reached.service {
                    Field::Is(name) => safe(name.as_str(), NAME),
                    Field::Odd(_) => return self.alone(item.line),
                };
                let state = match &reached.state {
                    Field::Is(state) => state.to_string(),
                    Field::Odd(_) => return self.alone(item.line),
                };
                let same = matches!(&self.stretch, Some(Stretch::Service { name: before, lines, .. })
                    if *before == name && lines.len() < STRETCH);
                if !same {
                    self.close();
                    self.stretch = Some(Stretch::Service {
                        name,
                        lines: Vec::new(),
                        states: Vec::new(),
                        reason: String::new(),
                    });
                }
                if let Some(Stretch::Service { lines, states, reason, .. }) = &mut self.stretch {
                    lines.push(item.line);
                    *reason = safe(&reached.reason, REASON);
                    // The last state is the present one, so it stays last.
                    let at = states.iter().position(|(known, _)| *known == state);
                    let times = at.map_or(0, |at| states.remove(at).1);
                    states.push((state, times + 1));
                }
            }
            EventBody::File(FileEvent::Write(write)) => {
                let same = matches!(&self.stretch, Some(Stretch::Files { by, lines, .. })
                    if *by == write.by && lines.len() < STRETCH);
                if !same {
                    self.close();
                    self.stretch =
                        Some(Stretch::Files { by: write.by.clone(), lines: Vec::new(), names: Vec::new() });
                }
                if let Some(Stretch::Files { lines, names, .. }) = &mut self.stretch {
                    lines.push(item.line);
                    if names.len() < NAMES {
                        names.push(safe(&write.path, NAME));
                    }
                }
            }
            _ => self.alone(item.line),
        }
    }

    fn add_exec(
        &mut self,
        id: ExecId,
        event: &ExecEvent,
        argv: &[String],
        number: Option<u64>,
        line: TimelineLine,
    ) {
        let full = matches!(&self.stretch, Some(Stretch::Execs(runs)) if runs.iter().map(|run| run.lines.len()).sum::<usize>() >= STRETCH);
        if full || !matches!(&self.stretch, Some(Stretch::Execs(_))) {
            self.close();
            self.stretch = Some(Stretch::Execs(Vec::new()));
        }
        let Some(Stretch::Execs(runs)) = &mut self.stretch else { return };
        // The newest are at the end, and almost always meant.
        let at = runs.iter().rposition(|run| run.id == id).unwrap_or_else(|| {
            runs.push(Run::new(id, argv));
            runs.len() - 1
        });
        let run = &mut runs[at];
        run.lines.push(line);
        run.number = run.number.or(number);
        match event {
            ExecEvent::Start(start) => {
                run.number = start.number.or(run.number);
                // A terminal is a person's, and has its own lines.
                run.began = !start.tty;
                run.label = classify(&start.argv).label;
            }
            ExecEvent::End(end) => {
                run.number = end.number.or(run.number);
                run.succeeded = end.exit.get().is_some_and(|exit| exit.shell_code() == 0);
                run.failed = !run.succeeded;
                run.seconds = end.duration_s.unwrap_or_default();
            }
            ExecEvent::Files(files) => {
                run.number = Some(files.number).filter(|number| *number > 0).or(run.number);
                run.files = run.files.saturating_add(files.created).saturating_add(files.changed);
            }
            _ => {}
        }
    }

    /// Adds a line as it is, after the present stretch.
    fn alone(&mut self, line: TimelineLine) {
        self.close();
        self.out.push_back(Out::Line(Box::new(line)));
    }

    /// Makes lines of the present stretch.
    fn close(&mut self) {
        let mut lines = match self.stretch.take() {
            None => return,
            Some(Stretch::Traffic { groups, .. }) => groups.into_iter().flat_map(Group::lines).collect(),
            Some(Stretch::Execs(runs)) => exec_lines(runs),
            Some(Stretch::Service { name, lines, states, reason }) => {
                service_lines(&name, lines, &states, &reason)
            }
            Some(Stretch::Files { by, lines, names }) => file_lines(&by, lines, &names),
        };
        lines.sort_by_key(|line: &TimelineLine| line.seq);
        self.out.extend(lines.into_iter().map(|line| Out::Line(Box::new(line))));
    }
}

/// The exec that packed, if this is the command line of one that packs work, or that removes a pack.
pub(crate) fn packer_of(id: ExecId, argv: &[String]) -> Option<ExecId> {
    let words: Vec<&str> = argv.iter().take(5).map(String::as_str).collect();
    match words[..] {
        ["sh", "-s", "--", "pack", directory] => {
            let named: ExecId = directory.strip_prefix(PACK_DIRECTORY)?.parse().ok()?;
            // The directory has the name of its own exec.
            (named == id).then_some(id)
        }
        ["rm", "-rf", "--", directory] => directory.strip_prefix(PACK_DIRECTORY)?.parse().ok(),
        _ => None,
    }
}

/// One line for several, in the place of the last of them.
fn folded(mut lines: Vec<TimelineLine>, events: u64, what: String) -> Option<TimelineLine> {
    let first = lines.first()?.seq;
    let same_exec = lines.iter().all(|line| line.exec == lines[0].exec);
    let mut last = lines.pop()?;
    last.exec = last.exec.filter(|_| same_exec);
    last.what = what;
    last.folded = Some(Folded { first, events });
    last.details = Default::default();
    Some(last)
}

impl Run {
    fn new(id: ExecId, argv: &[String]) -> Self {
        Self {
            id,
            number: None,
            label: classify(argv).label,
            lines: Vec::new(),
            began: false,
            succeeded: false,
            failed: false,
            seconds: 0.0,
            files: 0,
        }
    }

    /// What it has in common with its neighbours, if it may be folded.
    fn key(&self) -> Option<(&str, bool)> {
        match (self.began, self.succeeded, self.failed) {
            (true, true, _) => Some((&self.label, true)),
            // Only the summary of its files, or of its end, is in this stretch.
            (false, _, false) => Some(("", false)),
            _ => None,
        }
    }
}

fn exec_lines(mut runs: Vec<Run>) -> Vec<TimelineLine> {
    let mut lines = Vec::new();
    while !runs.is_empty() {
        let like = match runs[0].key() {
            Some(key) => runs.iter().take_while(|run| run.key() == Some(key)).count(),
            None => 1,
        };
        let group: Vec<Run> = runs.drain(..like).collect();
        if like < LIKE {
            lines.extend(group.into_iter().flat_map(|run| run.lines));
            continue;
        }
        let whole = group[0].began;
        let what = exec_words(&group, whole);
        let mut of_group: Vec<TimelineLine> = group.into_iter().flat_map(|run| run.lines).collect();
        of_group.sort_by_key(|line| line.seq);
        let events = of_group.len() as u64;
        lines.extend(folded(of_group, events, what));
    }
    lines
}

/// `execs 3 to 14: 12 × git status, each ended with 0 · 400 ms in all · 3 files created or changed`
fn exec_words(group: &[Run], whole: bool) -> String {
    let numbers: Vec<u64> = group.iter().filter_map(|run| run.number).collect();
    let name = match (numbers.iter().min(), numbers.iter().max()) {
        (Some(first), Some(last)) => format!("execs {first} to {last}"),
        _ => count(group.len() as u64, "exec"),
    };
    let files = group.iter().fold(0_u64, |sum, run| sum.saturating_add(run.files));
    let changed = count(files, "file");
    if !whole {
        return format!("{name}: {changed} created or changed while {} of them ran", group.len());
    }
    let seconds: f64 = group.iter().map(|run| run.seconds).filter(|s| s.is_finite()).sum();
    let files = if files > 0 { format!(" · {changed} created or changed") } else { String::new() };
    format!(
        "{name}: {} × {}, each ended with 0 · {} in all{files}",
        group.len(),
        group[0].label,
        duration(seconds)
    )
}

fn service_lines(
    name: &str,
    lines: Vec<TimelineLine>,
    states: &[(String, u64)],
    reason: &str,
) -> Vec<TimelineLine> {
    if lines.len() < LIKE {
        return lines;
    }
    let told: Vec<String> = states
        .iter()
        .map(|(state, times)| if *times == 1 { state.clone() } else { format!("{state} {times} times") })
        .collect();
    let now = states.last().map(|(state, _)| state.as_str()).unwrap_or_default();
    let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let events = lines.len() as u64;
    let what = format!("service {name} is {now}{because} · {events} changes of state: {}", told.join(", "));
    folded(lines, events, what).into_iter().collect()
}

fn file_lines(by: &str, lines: Vec<TimelineLine>, names: &[String]) -> Vec<TimelineLine> {
    if lines.len() < LIKE {
        return lines;
    }
    let events = lines.len() as u64;
    let more = if lines.len() > names.len() { ", …" } else { "" };
    let by = if by.is_empty() { String::new() } else { format!(", by {}", safe(by, NAME)) };
    let what = format!("{} written: {}{more}{by}", count(events, "file"), names.join(", "));
    folded(lines, events, what).into_iter().collect()
}

#[cfg(test)]
mod tests;
