//! The end of a story: sums in the order in which a person reads them.

use std::collections::BTreeMap;

use bay_types::BayId;
use bay_types::service::ServiceState;
use bay_types::story::{
    AgentCommand, Asked, Asker, Changed, CommandGroup, Few, Now, ServiceStory, Story, StoryCost,
};
use jiff::Timestamp;

use super::{NAME, Situation, TEXT, Teller, changes, few};
use crate::span::{Span, What, shares};
use crate::text::safe;

impl Teller {
    /// The story, as of `made_at`.
    #[must_use]
    pub fn finish(
        mut self,
        bay: &str,
        id: BayId,
        made_at: Timestamp,
        older_left_out: bool,
        situation: Situation,
    ) -> Story {
        self.close_spans(made_at);
        let from = self.from.map_or(0, |at| at.as_millisecond());
        let to = if self.from.is_some() { made_at.as_millisecond() } else { from };
        let time = shares(&self.spans, from, to);
        let traffic = self.traffic.totals();
        let cost = StoryCost {
            core_s: situation.cost.map(|cost| cost.core_s),
            memory_gib_s: situation.cost.map(|cost| cost.memory_gib_s),
            disk_bytes: situation.cost.and_then(|cost| cost.disk_bytes),
            sent_bytes: traffic.sent,
            received_bytes: traffic.received,
            requests: traffic.requests,
        };
        let now = self.now(&situation);
        let changed = match situation.changes {
            Some(changes) => changes.story(),
            None => self.changed_by_record(situation.not_compared.as_deref()),
        };
        Story {
            bay: safe(bay, NAME),
            id,
            made_at,
            from: self.from,
            to: self.to,
            events: self.events,
            older_left_out,
            now,
            changed,
            refused: self.traffic.refused(),
            uploads: self.traffic.uploads(),
            failed: self.failures.few(),
            approvals: newest(self.approvals, self.more_approvals),
            tried: tried(self.groups),
            services: services(self.services),
            checkpoints: newest(self.checkpoints, self.more_checkpoints),
            left: newest(self.left, self.more_left),
            asked: Asked {
                origin: self.origin,
                commands: self.commands,
                by: askers(self.by),
                first: if self.agents.is_empty() { self.first } else { None },
                agents: self.agents,
                with_tool_call: self.with_tool_call,
                tool_calls: self.tool_calls,
                traces: few(situation.traces.iter().map(|trace| safe(trace, NAME)).collect()),
            },
            time,
            cost,
        }
    }

    /// What has no end yet goes on until now.
    fn close_spans(&mut self, made_at: Timestamp) {
        let now = made_at.as_millisecond();
        let open: Vec<Span> = self
            .execs
            .values()
            .filter(|exec| !exec.over)
            .map(|exec| Span { from: exec.began.as_millisecond(), to: now, what: What::Command(exec.work) })
            .collect();
        for span in open {
            self.span(span);
        }
        if let Some(since) = self.stopped_since {
            self.span(Span { from: since.as_millisecond(), to: now, what: What::Stopped });
        }
    }

    fn now(&self, situation: &Situation) -> Now {
        let mut running: Vec<AgentCommand> = self
            .execs
            .values()
            .filter(|exec| !exec.over)
            .map(|exec| AgentCommand { exec: exec.number, command: exec.command.clone() })
            .collect();
        running.sort_by_key(|command| std::cmp::Reverse(command.exec));
        let untaken = self.last_change.filter(|(at, _)| self.taken_as_of.is_none_or(|taken| *at > taken));
        let is_up = |service: &&ServiceStory| service.state == ServiceState::Ready.as_str();
        let (up, down): (Vec<&ServiceStory>, Vec<&ServiceStory>) = self.services.values().partition(is_up);
        Now {
            state: safe(&situation.state, NAME),
            reason: safe(&situation.reason, TEXT),
            running: few(running),
            services_up: few(up.iter().map(|service| service.service.clone()).collect()),
            services_down: few(down
                .iter()
                .map(|service| format!("{} ({})", service.service, service.state))
                .collect()),
            approvals_open: self.approvals.iter().filter(|approval| approval.answer == "open").count() as u64,
            untaken_work: untaken.is_some(),
            untaken_since_exec: untaken.and_then(|(_, exec)| exec),
        }
    }

    fn changed_by_record(&self, why: Option<&str>) -> Changed {
        Changed {
            not_compared: Some(safe(why.unwrap_or("the workspace cannot be compared"), TEXT)),
            added: self.named_files.0,
            modified: self.named_files.1,
            directories: changes::directories(self.named.values().cloned().collect()),
            ..Changed::default()
        }
    }
}

/// The newest entries, newest first.
fn newest<T>(mut all: Vec<T>, more: u64) -> Few<T> {
    all.reverse();
    let mut few = few(all);
    few.more = few.more.saturating_add(more);
    few
}

fn tried(groups: BTreeMap<String, CommandGroup>) -> Few<CommandGroup> {
    let mut all: Vec<CommandGroup> = groups.into_values().collect();
    all.sort_by(|a, b| {
        b.seconds.total_cmp(&a.seconds).then(b.count.cmp(&a.count)).then_with(|| a.label.cmp(&b.label))
    });
    few(all)
}

/// Services that had trouble come first.
fn services(services: BTreeMap<String, ServiceStory>) -> Few<ServiceStory> {
    let mut all: Vec<ServiceStory> = services.into_values().collect();
    all.sort_by_key(|service| std::cmp::Reverse(service.deaths));
    few(all)
}

fn askers(by: BTreeMap<String, u64>) -> Few<Asker> {
    let mut all: Vec<Asker> =
        by.into_iter().map(|(by, commands)| Asker { by: safe(&by, NAME), commands }).collect();
    all.sort_by_key(|asker| std::cmp::Reverse(asker.commands));
    few(all)
}
