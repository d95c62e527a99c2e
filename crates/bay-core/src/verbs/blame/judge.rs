//! From what was found to a list of findings: pure, bounded, the kinds of causes in a fixed order.

use bay_text::clip;
use bay_types::ExecId;
use bay_types::blame::{
    Blame, FailingService, MAX_BLAME, MAX_BLAME_TEXT, MissingCommand, RefusalFix, Refused,
};
use bay_types::event::egress::Outcome;
use bay_types::event::{EgressEvent, Event, EventBody, Field};
use bay_types::exec::LimitHit;
use bay_types::service::{ServiceState, ServiceView};

use crate::channel::plain_text;

/// What was found when an exec ended.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// Events that may be refusals of the exec, newest first.
    pub(super) refusals: Vec<Event>,
    /// Nobody set a policy that applies to the bay.
    pub(super) no_policy: bool,
    pub(super) services: Vec<ServiceView>,
    /// The bay's disk had no room.
    pub(super) disk_full: bool,
    pub(super) missing: Option<MissingCommand>,
}

/// The findings, those first that usually explain a failure better. Limits of the bay come before refusals of the
/// exec: if a compiler sent a report that was refused, and was killed for lack of memory, the memory explains it.
pub(super) fn judge(exec: ExecId, limits_hit: &[LimitHit], found: Evidence) -> Vec<Blame> {
    let mut blame = Vec::new();
    let hit = |limit| limits_hit.contains(&limit);
    blame.extend(hit(LimitHit::Memory).then_some(Blame::Memory));
    blame.extend((found.disk_full || hit(LimitHit::Disk)).then_some(Blame::Disk));
    blame.extend(hit(LimitHit::Pids).then_some(Blame::Pids));
    blame.extend(found.missing.map(Blame::MissingCommand));
    blame.extend(refusals(exec, &found.refusals, found.no_policy).into_iter().map(Blame::Refused));
    blame.extend(found.services.into_iter().filter(fails).map(|service| {
        Blame::Service(FailingService {
            name: service.name,
            state: service.state,
            reason: shown(&service.reason),
        })
    }));
    blame.truncate(MAX_BLAME);
    blame
}

fn shown(text: &str) -> String {
    clip(&plain_text(text), MAX_BLAME_TEXT)
}

/// Whether a service should work and does not. A stopped one is as its owner wants it.
fn fails(service: &ServiceView) -> bool {
    service.wanted
        && matches!(
            service.state,
            ServiceState::Unhealthy
                | ServiceState::BackingOff
                | ServiceState::CrashLoop
                | ServiceState::Failed
        )
}

/// The refusals of this exec, one for each host and port, newest first. The others with the same destination are
/// only counted.
fn refusals(exec: ExecId, events: &[Event], no_policy: bool) -> Vec<Refused> {
    let mut all: Vec<(String, Refused)> = Vec::new();
    for event in events {
        let EventBody::Egress(said) = event.read() else { continue };
        // The text of a request may contain the id of any exec. Only the kernel's word counts.
        if said.exec() != Some(exec) {
            continue;
        }
        let Some((destination, refused)) = refused(event.seq, &said, no_policy) else { continue };
        match all.iter_mut().find(|(known, _)| *known == destination) {
            Some((_, known)) => known.count += 1,
            None => all.push((destination, refused)),
        }
    }
    all.into_iter().map(|(_, refused)| refused).collect()
}

/// The refusal, with its destination, by which refusals are grouped.
fn refused(decision: u64, said: &EgressEvent, no_policy: bool) -> Option<(String, Refused)> {
    let (host, port, request, reason, asked) = match said {
        EgressEvent::Decided(decided) if decided.outcome == Field::Is(Outcome::Allow) => return None,
        EgressEvent::Decided(decided) => {
            let asked = decided.asked || decided.outcome == Field::Is(Outcome::Ask);
            (
                &decided.host,
                decided.port,
                decided.request.as_str(),
                decided.reason().unwrap_or_default(),
                asked,
            )
        }
        EgressEvent::Refused(refused) => (&refused.host, refused.port, "", refused.why.as_str(), false),
        _ => return None,
    };
    let destination = format!("{host}:{port}");
    let request =
        if request.is_empty() { format!("a connection to {destination}") } else { request.to_owned() };
    let reason = if reason.is_empty() { "the policy does not allow it" } else { reason };
    let fix = match (asked, no_policy) {
        (true, _) => RefusalFix::Approve,
        (false, true) => RefusalFix::SetPolicy,
        (false, false) => RefusalFix::ChangePolicy,
    };
    let refused = Refused { decision, request: shown(&request), reason: shown(reason), count: 1, fix };
    Some((destination, refused))
}

#[cfg(test)]
mod tests {
    use bay_types::blame::Reachable;
    use serde_json::{Value, json};

    use super::*;

    fn event(seq: u64, kind: &str, body: &Value) -> Event {
        serde_json::from_value(json!({
            "seq": seq, "at": "2026-01-01T00:00:00Z", "kind": kind, "body": body, "hash": "",
        }))
        .unwrap()
    }

    fn denied(seq: u64, exec: ExecId, host: &str, explanation: &Value) -> Event {
        let body = json!({
            "request": format!("GET https://{host}/{seq}"), "host": host, "port": 443, "outcome": "deny",
            "rule": null, "by": { "exec": exec }, "explanation": explanation,
        });
        event(seq, "egress.decided", &body)
    }

    fn service(name: &str, state: &str, wanted: bool) -> ServiceView {
        serde_json::from_value(json!({
            "name": name, "state": state, "reason": "it exited\u{1b}[2J with 1", "since": "2026-01-01T00:00:00Z",
            "wanted": wanted, "restarts": 5, "attempt": 5, "runs": [], "log_start": 0, "log_end": 0,
        }))
        .unwrap()
    }

    #[test]
    fn without_evidence_nothing_is_blamed() {
        assert!(judge(ExecId::generate(), &[], Evidence::default()).is_empty());
    }

    #[test]
    fn refusals_are_grouped_by_destination_and_those_of_other_execs_left_out() {
        let (exec, other) = (ExecId::generate(), ExecId::generate());
        let rule = json!({ "reason": "no rule covers it" });
        // Its text names the exec, but the kernel names another one.
        let mut forged = denied(9, other, "forged.test", &rule);
        forged.body["request"] = json!(format!("GET https://forged.test/{exec}"));
        let allowed = {
            let mut event = denied(8, exec, "fine.test", &rule);
            event.body["outcome"] = json!("allow");
            event
        };
        let refusals = vec![
            forged,
            allowed,
            denied(7, exec, "a.test", &rule),
            denied(6, exec, "b.test", &rule),
            denied(5, exec, "a.test", &rule),
        ];
        let found = judge(exec, &[], Evidence { refusals: refusals.clone(), ..Evidence::default() });
        let of = |decision: u64, host: &str, count, fix| {
            Blame::Refused(Refused {
                decision,
                request: format!("GET https://{host}/{decision}"),
                reason: "no rule covers it".to_owned(),
                count,
                fix,
            })
        };
        assert_eq!(
            found,
            [of(7, "a.test", 2, RefusalFix::ChangePolicy), of(6, "b.test", 1, RefusalFix::ChangePolicy)]
        );
        let found = judge(exec, &[], Evidence { refusals, no_policy: true, ..Evidence::default() });
        assert_eq!(found[0], of(7, "a.test", 2, RefusalFix::SetPolicy));
    }

    #[test]
    fn a_refused_connection_and_an_unanswered_question_are_refusals_too() {
        let exec = ExecId::generate();
        let connection = json!({
            "what": "connection", "host": "10.1.2.3", "port": 22, "why": "no rule allows it", "by": { "exec": exec },
        });
        let mut asked = denied(2, exec, "a.test", &Value::Null);
        asked.body["outcome"] = json!("ask");
        let refusals = vec![event(3, "egress.refused", &connection), asked];
        let found = judge(exec, &[], Evidence { refusals, ..Evidence::default() });
        let [Blame::Refused(connection), Blame::Refused(asked)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((connection.request.as_str(), connection.decision), ("a connection to 10.1.2.3:22", 3));
        assert_eq!(asked.fix, RefusalFix::Approve);
    }

    #[test]
    fn limits_come_before_refusals_and_refusals_before_services() {
        let exec = ExecId::generate();
        let missing = MissingCommand {
            command: "rg".to_owned(),
            packages: vec![],
            manager: None,
            reachable: Reachable::NoPolicy,
            as_root: false,
        };
        let evidence = Evidence {
            refusals: vec![denied(1, exec, "a.test", &Value::Null)],
            services: vec![
                service("db", "crash-loop", true),
                service("off", "stopped", false),
                service("fine", "ready", true),
                service("done", "failed", false),
            ],
            no_policy: true,
            disk_full: true,
            missing: Some(missing.clone()),
        };
        let found = judge(exec, &[LimitHit::Pids, LimitHit::Memory], evidence);
        assert_eq!(found[..4], [Blame::Memory, Blame::Disk, Blame::Pids, Blame::MissingCommand(missing)]);
        let [Blame::Refused(_), Blame::Service(service)] = &found[4..] else { panic!("{found:?}") };
        assert_eq!((service.name.as_str(), service.state), ("db", ServiceState::CrashLoop));
        assert!(!service.reason.contains('\u{1b}'), "{service:?}");
    }

    #[test]
    fn a_bay_that_is_refused_everywhere_fills_no_record() {
        let exec = ExecId::generate();
        let long = "x".repeat(5000);
        let refusals = (0..100).map(|n| denied(n, exec, &format!("{n}.{long}"), &Value::Null)).collect();
        let found = judge(exec, &[], Evidence { refusals, ..Evidence::default() });
        assert_eq!(found.len(), MAX_BLAME);
        assert!(serde_json::to_vec(&found).unwrap().len() < 16 << 10);
    }
}
