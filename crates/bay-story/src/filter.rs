//! Which events of a timeline a reader wants.

use bay_types::ExecId;
use bay_types::event::egress::{Ending, Outcome};
use bay_types::event::{
    ApprovalEvent, BayEvent, CheckpointEvent, EgressEvent, EventBody, ExecEvent, Field, SecretEvent,
    ServiceEvent,
};
use bay_types::exec::EndReason;
use bay_types::service::ServiceState;

/// The first status of an answer that counts as a failure.
const FAILED_STATUS: u16 = 400;

/// The exec of which a reader wants the events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfExec {
    Id(ExecId),
    /// The number of an exec that no row has any more. The first event with the number has the id.
    Number(u64),
}

/// Which events are shown. The default shows all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Kinds, or areas of kinds: `exec.end`, `egress`. If there is none, all are shown.
    pub kinds: Vec<String>,
    /// Only what failed or was refused.
    pub failed: bool,
    /// Only events of this exec, and what it sent.
    pub exec: Option<OfExec>,
    /// No traffic.
    pub no_egress: bool,
}

impl Filter {
    /// Whether every event is shown.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a reader wants this event. `exec` is the exec that it is about, or that caused it.
    pub fn wants(&mut self, event: &EventBody, exec: Option<ExecId>) -> bool {
        let kind = event.kind();
        if !self.kinds.is_empty() && !self.kinds.iter().any(|wanted| covers(wanted, kind)) {
            return false;
        }
        if self.no_egress && matches!(event, EventBody::Egress(_)) {
            return false;
        }
        if let Some(OfExec::Number(number)) = self.exec
            && numbered(event) == Some(number)
            && let Some(id) = exec
        {
            self.exec = Some(OfExec::Id(id));
        }
        match &self.exec {
            Some(OfExec::Id(wanted)) if exec != Some(*wanted) => return false,
            Some(OfExec::Number(_)) => return false,
            _ => {}
        }
        !self.failed || failed(event)
    }
}

/// Whether a reader who wants `wanted` wants this kind: `exec` covers `exec.start`.
fn covers(wanted: &str, kind: &str) -> bool {
    kind == wanted || kind.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('.'))
}

/// Whether a text is a kind of events, or an area of kinds, that this release knows.
#[must_use]
pub fn is_kind(wanted: &str) -> bool {
    let mut kinds = EventBody::AREAS.iter().flat_map(|(_, _, kinds)| kinds.iter());
    !wanted.is_empty() && kinds.any(|kind| covers(wanted, kind.kind))
}

/// The areas of kinds that a reader can name, sorted.
#[must_use]
pub fn areas() -> Vec<&'static str> {
    let kinds = EventBody::AREAS.iter().flat_map(|(_, _, kinds)| kinds.iter());
    let mut areas: Vec<&str> = kinds.filter_map(|kind| kind.kind.split('.').next()).collect();
    areas.sort_unstable();
    areas.dedup();
    areas
}

fn numbered(event: &EventBody) -> Option<u64> {
    match event {
        EventBody::Exec(ExecEvent::Start(start)) => start.number,
        EventBody::Exec(ExecEvent::End(end)) => end.number,
        EventBody::Exec(ExecEvent::Files(files)) => Some(files.number),
        EventBody::Exec(ExecEvent::Signal(signal)) => Some(signal.number),
        _ => None,
    }
}

/// Whether something failed, was refused, or ended by itself although it should run.
#[must_use]
pub fn failed(event: &EventBody) -> bool {
    match event {
        EventBody::Exec(ExecEvent::End(end)) => end
            .exit
            .get()
            // A bay that is stopped on request ends its commands.
            .is_none_or(|exit| exit.reason != EndReason::Stopped && exit.shell_code() != 0),
        EventBody::Service(ServiceEvent::Reached(reached)) => matches!(
            reached.state,
            Field::Is(
                ServiceState::BackingOff
                    | ServiceState::CrashLoop
                    | ServiceState::Unhealthy
                    | ServiceState::Failed
            )
        ),
        EventBody::Bay(event) => {
            matches!(event, BayEvent::Failed(_) | BayEvent::Lost(_) | BayEvent::SetRefused(_))
        }
        EventBody::Checkpoint(CheckpointEvent::Failed(_)) | EventBody::Secret(SecretEvent::Stale(_)) => true,
        EventBody::Approval(event) => matches!(event, ApprovalEvent::Denied(_) | ApprovalEvent::Expired(_)),
        EventBody::Egress(event) => match event {
            EgressEvent::Decided(decided) => decided.outcome != Field::Is(Outcome::Allow),
            EgressEvent::Ended(ended) => {
                ended.status.is_some_and(|status| status >= FAILED_STATUS)
                    || matches!(ended.ending, Field::Is(Ending::Broken | Ending::Failed | Ending::Revoked))
            }
            EgressEvent::Refused(_) | EgressEvent::Closed(_) => true,
            // A sum of refusals. Look-ups and what was let out have no such sums in a timeline.
            EgressEvent::Repeated(_) => true,
            EgressEvent::LookedUp(_) | EgressEvent::Opened(_) => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wants(filter: &mut Filter, kind: &str, body: &Value) -> bool {
        let event = EventBody::read(kind, body);
        let exec = event.exec();
        filter.wants(&event, exec)
    }

    #[test]
    fn a_kind_covers_its_area_and_nothing_that_only_begins_alike() {
        let mut one = Filter { kinds: vec!["exec".to_owned()], ..Filter::default() };
        assert!(wants(&mut one, "exec.end", &json!({})) && !wants(&mut one, "executive.end", &json!({})));
        let mut one = Filter { kinds: vec!["exec.end".to_owned(), "bay".to_owned()], ..Filter::default() };
        assert!(wants(&mut one, "exec.end", &json!({})) && wants(&mut one, "bay.stop-asked", &json!({})));
        assert!(!wants(&mut one, "exec.start", &json!({})));
        assert!(
            is_kind("exec")
                && is_kind("service.reached")
                && !is_kind("exe")
                && !is_kind("")
                && !is_kind("exec.")
        );
        assert!(areas().contains(&"hold") && areas().contains(&"work"), "{:?}", areas());
    }

    #[test]
    fn failures_are_what_a_person_would_call_so() {
        let end = |reason: &str, code: Option<i32>| json!({ "exit": { "reason": reason, "code": code } });
        for (kind, body, is_failure) in [
            ("exec.end", end("exited", Some(0)), false),
            ("exec.end", end("exited", Some(3)), true),
            ("exec.end", end("timed-out", None), true),
            ("exec.end", end("lost", None), true),
            ("exec.end", end("stopped", None), false),
            ("exec.start", json!({}), false),
            ("service.reached", json!({ "state": "crash-loop" }), true),
            ("service.reached", json!({ "state": "ready" }), false),
            ("egress.decided", json!({ "outcome": "deny" }), true),
            ("egress.ended", json!({ "ending": "answered", "status": 200 }), false),
            ("egress.ended", json!({ "ending": "answered", "status": 503 }), true),
            ("egress.ended", json!({ "ending": "failed" }), true),
            ("approval.expired", json!({}), true),
            ("approval.allowed", json!({}), false),
            ("bay.lost", json!({}), true),
            ("secret.stale", json!({}), true),
            ("later.kind", json!({}), false),
        ] {
            assert_eq!(failed(&EventBody::read(kind, &body)), is_failure, "{kind} {body}");
        }
    }

    #[test]
    fn an_exec_has_its_events_and_its_traffic_also_if_only_its_number_is_known() {
        let id = ExecId::generate();
        let sent = json!({ "outcome": "deny", "by": { "exec": id } });
        let mut one = Filter { exec: Some(OfExec::Id(id)), ..Filter::default() };
        assert!(wants(&mut one, "egress.decided", &sent) && !wants(&mut one, "bay.running", &json!({})));
        one.no_egress = true;
        assert!(!wants(&mut one, "egress.decided", &sent));
        let mut one = Filter { exec: Some(OfExec::Number(3)), ..Filter::default() };
        assert!(!wants(&mut one, "egress.decided", &sent), "nothing says yet that it is exec 3");
        assert!(wants(&mut one, "exec.start", &json!({ "exec": id, "number": 3 })));
        assert!(wants(&mut one, "egress.decided", &sent));
    }
}
