//! The story of a bay, event by event.
//!
//! A [`Teller`] takes the events in order and keeps sums: its memory is bounded whatever the record's size. [`Situation`]
//! is what the record does not have: the bay's present state, and what differs in its workspace.

use std::collections::{BTreeMap, HashMap};

use bay_types::ExecId;
use bay_types::event::bay::BayEvent;
use bay_types::event::checkpoint::CheckpointEvent;
use bay_types::event::exec::{ExecEnd, ExecFiles, ExecStart};
use bay_types::event::work::WorkLeft;
use bay_types::event::{ApprovalEvent, Event, EventBody, ExecEvent, FileEvent, ServiceEvent, WorkEvent};
use bay_types::service::ServiceState;
use bay_types::stats::BayCost;
use bay_types::story::{
    AgentCommand, AnsweredApproval, ChangedDirectory, CheckpointStory, CommandGroup, Few, ServiceStory, Work,
    WorkThatLeft,
};
use jiff::Timestamp;

use crate::command::classify;
use crate::fold::packer_of;
use crate::span::{Span, What};
use crate::text::{command_line, safe};

mod changes;
mod failures;
mod finish;
mod traffic;

pub use changes::Changes;
use failures::{Failures, how, is_failure};
use traffic::Traffic;

/// The most entries of a list of a story.
pub const SHOWN: usize = 20;
/// The most different entries of one kind that are told apart. Further ones are counted at most.
const KNOWN: usize = 2000;
/// The most execs that are remembered.
const EXECS: usize = 20_000;
/// The most spans of time that are remembered.
const SPANS: usize = 60_000;
/// The most characters of a command line.
const COMMAND: usize = 100;
/// The most characters of an agent's command line.
const AGENT: usize = 240;
/// The most characters of a name.
const NAME: usize = 60;
/// The most characters of another text.
const TEXT: usize = 160;

/// What the record of a bay does not have.
#[derive(Debug, Clone, Default)]
pub struct Situation {
    pub state: String,
    pub reason: String,
    pub cost: Option<BayCost>,
    /// The traces of the commands whose rows still exist.
    pub traces: Vec<String>,
    /// What differs in the workspace now from its beginning, or why that is not known.
    pub changes: Option<Changes>,
    pub not_compared: Option<String>,
}

/// A story in the making.
#[derive(Debug, Default)]
pub struct Teller {
    events: u64,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    origin: Option<String>,
    execs: HashMap<ExecId, Exec>,
    /// Execs of `bay branch` and `bay bundle`, and when they began: they are no commands that somebody requested.
    packers: HashMap<ExecId, Timestamp>,
    commands: u64,
    by: BTreeMap<String, u64>,
    agents: Few<AgentCommand>,
    first: Option<String>,
    with_tool_call: u64,
    tool_calls: Few<String>,
    groups: BTreeMap<String, CommandGroup>,
    failures: Failures,
    traffic: Traffic,
    approvals: Vec<AnsweredApproval>,
    more_approvals: u64,
    services: BTreeMap<String, ServiceStory>,
    checkpoints: Vec<CheckpointStory>,
    more_checkpoints: u64,
    left: Vec<WorkThatLeft>,
    more_left: u64,
    /// Files that the record names, by directory: for a bay that cannot be compared.
    named: BTreeMap<String, ChangedDirectory>,
    named_files: (u64, u64),
    spans: Vec<Span>,
    stopped_since: Option<Timestamp>,
    /// The last command that began.
    last_exec: Option<u64>,
    /// When files last changed, as far as it is known, and by which command.
    last_change: Option<(Timestamp, Option<u64>)>,
    /// The state of the workspace at this time was taken out.
    taken_as_of: Option<Timestamp>,
}

/// A command of which the end is not known yet, or of which requests may follow.
#[derive(Debug)]
struct Exec {
    number: u64,
    label: String,
    work: Work,
    command: String,
    began: Timestamp,
    ended: Option<Timestamp>,
    over: bool,
}

impl Teller {
    /// Adds the next event of the bay.
    pub fn push(&mut self, event: &Event) {
        self.events += 1;
        self.from.get_or_insert(event.at);
        self.to = Some(event.at);
        match event.read() {
            EventBody::Exec(body) => self.exec(event.at, &body),
            EventBody::Egress(body) => {
                let execs = &self.execs;
                let groups = &mut self.groups;
                let sent = self.traffic.push(event, &body, |id| execs.get(&id).map(|exec| exec.number));
                if let Some(sent) = sent {
                    let of_exec = sent.exec.and_then(|id| execs.get(&id));
                    if let Some(group) = of_exec.and_then(|exec| groups.get_mut(&exec.label)) {
                        group.requests = group.requests.saturating_add(sent.requests);
                        if sent.refused {
                            group.refused = group.refused.saturating_add(sent.requests);
                        }
                        group.received_bytes = group.received_bytes.saturating_add(sent.received);
                    }
                    if let (Some(ms), true) = (sent.ms, of_exec.is_some()) {
                        let to = event.at.as_millisecond();
                        let from = to.saturating_sub(i64::try_from(ms).unwrap_or(i64::MAX));
                        self.span(Span { from, to, what: What::Request });
                    }
                }
            }
            EventBody::Service(ServiceEvent::Reached(reached)) => {
                if let (Some(name), Some(state)) = (reached.service.get(), reached.state.get()) {
                    self.service(name.as_str(), *state, &reached.reason);
                }
            }
            EventBody::Service(ServiceEvent::Remove(removed)) => {
                if let Some(name) = removed.service.get() {
                    self.services.remove(name.as_str());
                }
            }
            EventBody::Service(ServiceEvent::Define(defined)) => {
                if let Some(name) = defined.service.get() {
                    let story = ServiceStory {
                        service: safe(name.as_str(), NAME),
                        state: "defined".to_owned(),
                        reason: command_line(&defined.argv, COMMAND),
                        deaths: 0,
                        came_back: 0,
                        last_death: None,
                    };
                    if self.services.len() < KNOWN {
                        self.services.entry(name.to_string()).or_insert(story);
                    }
                }
            }
            EventBody::Bay(body) => self.bay(event.at, &body),
            EventBody::Checkpoint(body) => self.checkpoint(event.at, &body),
            EventBody::Approval(body) => self.approval(&body),
            EventBody::Work(WorkEvent::Left(left)) => self.work_left(event.at, &left),
            EventBody::File(FileEvent::Write(_)) => self.changed_at(event.at, None),
            _ => {}
        }
    }

    fn span(&mut self, span: Span) {
        if self.spans.len() < SPANS {
            self.spans.push(span);
        }
    }

    fn exec(&mut self, at: Timestamp, event: &ExecEvent) {
        match event {
            ExecEvent::Start(start) => self.exec_start(at, start),
            ExecEvent::End(end) => self.exec_end(at, end),
            ExecEvent::Files(files) => self.exec_files(at, files),
            ExecEvent::Revived(revived) => {
                for id in revived.execs.iter().filter_map(|id| id.get()) {
                    if let Some(exec) = self.execs.get_mut(id)
                        && exec.over
                    {
                        exec.over = false;
                        exec.began = at;
                        if let Some(group) = self.groups.get_mut(&exec.label) {
                            group.running += 1;
                        }
                    }
                }
            }
            ExecEvent::Approved(_) | ExecEvent::Signal(_) => {}
        }
    }

    fn exec_start(&mut self, at: Timestamp, start: &ExecStart) {
        let Some(id) = start.exec.get().copied() else { return };
        if let Some(packer) = packer_of(id, &start.argv) {
            // A pack is removed by another exec, which names the first one.
            if packer == id || self.packers.contains_key(&packer) {
                if self.packers.len() < KNOWN {
                    self.packers.insert(id, at);
                }
                return;
            }
        }
        let number = start.number.unwrap_or_default();
        let mut found = classify(&start.argv);
        if start.tty && found.work == Work::Other {
            found.work = Work::Shell;
        }
        let command = command_line(&start.argv, COMMAND);
        self.commands += 1;
        self.last_exec = Some(number);
        if self.by.len() < KNOWN || self.by.contains_key(&start.by) {
            *self.by.entry(start.by.clone()).or_default() += 1;
        }
        if found.work == Work::Agent {
            add(&mut self.agents, || AgentCommand {
                exec: number,
                command: command_line(&start.argv, AGENT),
            });
        }
        self.first.get_or_insert_with(|| command.clone());
        if let Some(call) = &start.tool_call {
            self.with_tool_call += 1;
            let call = safe(call, NAME);
            if !self.tool_calls.shown.contains(&call) {
                add(&mut self.tool_calls, || call);
            }
        }
        let label = if self.groups.len() < KNOWN || self.groups.contains_key(&found.label) {
            found.label
        } else {
            "other commands".to_owned()
        };
        let group = self.groups.entry(label.clone()).or_insert_with(|| CommandGroup {
            label: label.clone(),
            work: found.work,
            count: 0,
            failed: 0,
            running: 0,
            seconds: 0.0,
            requests: 0,
            refused: 0,
            received_bytes: 0,
            last_exec: 0,
        });
        group.count += 1;
        group.running += 1;
        group.last_exec = number;
        if self.execs.len() < EXECS {
            self.execs.insert(
                id,
                Exec { number, label, work: found.work, command, began: at, ended: None, over: false },
            );
        }
    }

    fn exec_end(&mut self, at: Timestamp, end: &ExecEnd) {
        let Some(exec) = end.exec.get().and_then(|id| self.execs.get_mut(id)) else { return };
        exec.over = true;
        exec.ended = Some(at);
        let (from, to) = (exec.began.as_millisecond(), at.as_millisecond());
        let what = What::Command(exec.work);
        let seconds = end.duration_s.filter(|s| s.is_finite() && *s >= 0.0).unwrap_or_default();
        if let Some(group) = self.groups.get_mut(&exec.label) {
            group.running = group.running.saturating_sub(1);
            group.seconds += seconds;
            group.failed += u64::from(is_failure(end));
        }
        let (command, number) = (exec.command.clone(), exec.number);
        if is_failure(end) {
            let how =
                end.exit.get().map_or_else(|| "an end that is not on record".to_owned(), |exit| how(*exit));
            let limits = end.limits_hit.iter().map(|limit| limit.as_str().to_owned()).collect();
            self.failures.add(command, how, number, limits);
        } else if end.exit.get().is_some_and(|exit| exit.shell_code() == 0) {
            self.failures.passed(&command, number);
        }
        self.span(Span { from, to, what });
    }

    fn exec_files(&mut self, at: Timestamp, files: &ExecFiles) {
        if files.exec.get().is_some_and(|id| self.packers.contains_key(id)) {
            return;
        }
        if files.created > 0 || files.changed > 0 {
            // This event is recorded a while after the end of the command.
            let ended = files.exec.get().and_then(|id| self.execs.get(id)).and_then(|exec| exec.ended);
            self.changed_at(ended.unwrap_or(at), Some(files.number).filter(|number| *number > 0));
        }
        self.named_files.0 = self.named_files.0.saturating_add(files.created);
        self.named_files.1 = self.named_files.1.saturating_add(files.changed);
        for name in files.names.iter().take(SHOWN) {
            changes::add(&mut self.named, name, KNOWN);
        }
    }

    fn changed_at(&mut self, at: Timestamp, exec: Option<u64>) {
        if self.last_change.is_none_or(|(before, _)| at >= before) {
            self.last_change = Some((at, exec));
        }
    }

    fn service(&mut self, name: &str, state: ServiceState, reason: &str) {
        if self.services.len() >= KNOWN && !self.services.contains_key(name) {
            return;
        }
        let reason = safe(reason, TEXT);
        let story = self.services.entry(name.to_owned()).or_insert_with(|| ServiceStory {
            service: safe(name, NAME),
            state: String::new(),
            reason: String::new(),
            deaths: 0,
            came_back: 0,
            last_death: None,
        });
        match state {
            ServiceState::BackingOff
            | ServiceState::CrashLoop
            | ServiceState::Failed
            | ServiceState::Unhealthy => {
                story.deaths += 1;
                story.last_death = Some(reason.clone());
            }
            ServiceState::Ready if story.deaths > 0 && story.state != ServiceState::Ready.as_str() => {
                story.came_back += 1;
            }
            _ => {}
        }
        story.state = state.to_string();
        story.reason = reason;
    }

    fn bay(&mut self, at: Timestamp, event: &BayEvent) {
        match event {
            BayEvent::Create(create) => {
                let origin = create.origin.as_ref().and_then(Option::as_ref).map(|origin| {
                    let branch =
                        origin.branch.as_ref().map(|b| format!(" at {}", safe(b, NAME))).unwrap_or_default();
                    let commit = short_commit(&origin.commit);
                    format!("{}{branch} ({})", safe(&origin.location, TEXT), commit)
                });
                let fork = create.forked_from.as_ref().map(|from| {
                    format!(
                        "a fork of {} from its checkpoint {}",
                        safe(from.name.as_str(), NAME),
                        from.checkpoint
                    )
                });
                self.origin = fork.or(origin);
                if let Some(of) = &create.environment {
                    let environment = format!(
                        "the environment of {} at its checkpoint {}",
                        safe(of.name.as_str(), NAME),
                        of.checkpoint
                    );
                    self.origin = Some(match self.origin.take() {
                        Some(origin) => format!("{origin}, in {environment}"),
                        None => environment,
                    });
                }
            }
            BayEvent::Stopped(_) | BayEvent::Paused(_) => {
                self.stopped_since.get_or_insert(at);
                if matches!(event, BayEvent::Stopped(_)) {
                    self.services_stopped();
                }
            }
            BayEvent::Running(_) | BayEvent::Resumed(_) => {
                if let Some(since) = self.stopped_since.take() {
                    let span =
                        Span { from: since.as_millisecond(), to: at.as_millisecond(), what: What::Stopped };
                    self.span(span);
                }
            }
            BayEvent::Restored(restored) => {
                if let Some(name) = restored.checkpoint.get()
                    && restored.of.is_none()
                {
                    let name = name.to_string();
                    for checkpoint in &mut self.checkpoints {
                        checkpoint.restored |= checkpoint.name == name;
                    }
                }
            }
            _ => {}
        }
    }

    /// A stopped bay has no running services. What happened to them stays.
    fn services_stopped(&mut self) {
        for service in self.services.values_mut() {
            service.state = ServiceState::Stopped.to_string();
            service.reason = "its bay was stopped".to_owned();
        }
    }

    fn checkpoint(&mut self, at: Timestamp, event: &CheckpointEvent) {
        match event {
            CheckpointEvent::Made(made) => {
                let Some(name) = made.name.get() else { return };
                if self.checkpoints.len() >= KNOWN {
                    self.checkpoints.remove(0);
                    self.more_checkpoints += 1;
                }
                let after = made.after_exec.and_then(|id| self.execs.get(&id)).map(|exec| exec.number);
                self.checkpoints.push(CheckpointStory {
                    name: name.to_string(),
                    at,
                    message: made.message.as_deref().map(|text| safe(text, TEXT)),
                    automatic: made
                        .made_by_itself()
                        .map(|why| why.map_or_else(|| "automatic".to_owned(), |why| safe(&why, TEXT))),
                    after_exec: after.or(self.last_exec).filter(|number| *number > 0),
                    restored: false,
                });
            }
            CheckpointEvent::Removed(removed) => {
                if let Some(name) = removed.name.get() {
                    let name = name.to_string();
                    self.checkpoints.retain(|checkpoint| checkpoint.name != name);
                }
            }
            CheckpointEvent::Asked(_) | CheckpointEvent::Failed(_) => {}
        }
    }

    fn approval(&mut self, event: &ApprovalEvent) {
        let (id, answer, by, why) = match event {
            ApprovalEvent::Asked(asked) => {
                let Some(id) = asked.approval.get() else { return };
                if self.approvals.len() >= KNOWN {
                    self.approvals.remove(0);
                    self.more_approvals += 1;
                }
                self.approvals.push(AnsweredApproval {
                    id: id.to_string(),
                    request: safe(&asked.request, COMMAND),
                    answer: "open".to_owned(),
                    by: None,
                    why: None,
                });
                return;
            }
            ApprovalEvent::Allowed(allowed) => {
                (allowed.approval.get(), "allowed", Some(&allowed.by), &allowed.why)
            }
            ApprovalEvent::Denied(denied) => (denied.approval.get(), "denied", Some(&denied.by), &denied.why),
            ApprovalEvent::Expired(expired) => (expired.approval.get(), "expired", None, &expired.why),
            ApprovalEvent::Revoked(revoked) => (revoked.approval.get(), "revoked", Some(&revoked.by), &None),
            ApprovalEvent::Dropped(dropped) => {
                for id in dropped.approvals.iter().filter_map(|id| id.get()).chain(&dropped.approval) {
                    self.answered(&id.to_string(), "dropped", None, None);
                }
                return;
            }
        };
        if let Some(id) = id {
            self.answered(&id.to_string(), answer, by, why.as_ref());
        }
    }

    fn answered(&mut self, id: &str, answer: &str, by: Option<&String>, why: Option<&String>) {
        if let Some(approval) = self.approvals.iter_mut().rev().find(|approval| approval.id == id) {
            approval.answer = answer.to_owned();
            approval.by = by.map(|by| safe(by, NAME));
            approval.why = why.map(|why| safe(why, TEXT));
        }
    }

    fn work_left(&mut self, at: Timestamp, left: &WorkLeft) {
        // What changed after the pack was begun may not be in it.
        let packed = left.execs.iter().filter_map(|id| self.packers.get(id.get()?)).min();
        self.taken_as_of = Some(packed.copied().unwrap_or(at));
        if self.left.len() >= KNOWN {
            self.left.remove(0);
            self.more_left += 1;
        }
        self.left.push(WorkThatLeft {
            at,
            route: left.route.get().map_or_else(|| "taken out".to_owned(), ToString::to_string),
            branch: safe(&left.branch, NAME),
            place: left.place.as_deref().map(|place| safe(place, TEXT)),
            commit: short_commit(&left.commit),
            commits: left.commits,
            files: left.files,
            by: safe(&left.by, NAME),
        });
    }
}

/// The beginning of a commit's id.
fn short_commit(id: &str) -> String {
    safe(&id.chars().take(8).collect::<String>(), 8)
}

/// Adds an entry, or counts it.
fn add<T>(few: &mut Few<T>, entry: impl FnOnce() -> T) {
    if few.shown.len() < SHOWN {
        few.shown.push(entry());
    } else {
        few.more = few.more.saturating_add(1);
    }
}

/// The first entries.
fn few<T>(mut all: Vec<T>) -> Few<T> {
    let more = all.len().saturating_sub(SHOWN) as u64;
    all.truncate(SHOWN);
    Few { shown: all, more }
}

#[cfg(test)]
mod tests;
