//! Requests that wait for an approval: how soon they continue, and the cost of many.

use std::process::Child;
use std::time::{Duration, Instant};

use bay_client::broken;
use bay_types::ApiError;
use bay_types::approval::{Allow, Approval, Asked};

use super::lab::{ASK, Lab};
use super::load::Work;
use super::{finished, spawned};
use crate::scoring::{Bar, Scored, Series, Unit, score};
use crate::talk::talk;
use crate::throughput::resident_mib;

/// Requests that one bay holds: fewer than the limit of open approvals.
const EACH: usize = 10;
const BAYS: usize = 100;
/// Time limit of every step.
const WITHIN: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(crate) async fn approvals(rounds: usize) -> Result<Vec<Scored>, ApiError> {
    let mut lab = Lab::open().await?;
    let scored = measure(&mut lab, rounds).await;
    lab.close().await;
    scored
}

async fn measure(lab: &mut Lab, rounds: usize) -> Result<Vec<Scored>, ApiError> {
    talk("how soon a held request continues");
    let soon = soon(lab, rounds).await?;
    talk("a thousand held requests of a hundred bays, and a daemon that is killed meanwhile");
    Ok(vec![soon, many(lab).await?])
}

/// The time from the answer until the origin has the request.
async fn soon(lab: &mut Lab, rounds: usize) -> Result<Scored, ApiError> {
    let mut took = Series::of("allowed → the origin has it", Unit::Milliseconds, &[Bar::Is(20.0)]);
    for round in 0..rounds {
        // A new bay each round, because a bay may ask only so often in a minute.
        let bay = format!("soon-{round}");
        lab.bay(&bay).await?;
        let path = format!("{ASK}/{bay}");
        let child = spawned(lab, &bay, &path, Work::Held { requests: EACH })?;
        for card in held(lab, EACH).await? {
            let Asked::Request(asked) = &card.asked else { continue };
            let wanted = asked.request.rsplit_once(ASK).map(|(_, rest)| format!("{ASK}{rest}"));
            let wanted = wanted.ok_or_else(|| broken("a question is not about what was sent"))?;
            let begin = Instant::now();
            allow(lab, &card).await?;
            let end = arrived(lab, &wanted).await?;
            took.took(end.saturating_duration_since(begin));
        }
        all_answered(child, EACH)?;
    }
    Ok(score("a held request after a person said yes", &[took], vec![]))
}

async fn many(lab: &mut Lab) -> Result<Scored, ApiError> {
    let mut memory = Series::of("the daemon, with all of them held", Unit::Mebibytes, &[Bar::Is(200.0)]);
    let mut lost = Series::of("bays with requests that were lost", Unit::Times, &[Bar::Is(0.0)]);
    let mut children = Vec::new();
    for number in 0..BAYS {
        let name = format!("many-{number}");
        lab.bay(&name).await?;
        children.push(spawned(lab, &name, &format!("{ASK}/many"), Work::Held { requests: EACH })?);
    }
    held(lab, BAYS * EACH).await?;
    memory.was(resident_mib(lab.daemon()));
    lab.kill_and_start().await?;
    let open = held(lab, BAYS * EACH).await?;
    memory.was(resident_mib(lab.daemon()));
    for card in &open {
        allow(lab, card).await?;
    }
    let mut missing = 0.0;
    for child in children {
        missing += if all_answered(child, EACH).is_ok() { 0.0 } else { 1.0 };
    }
    lost.was(missing);
    Ok(score(&format!("{} held requests of {BAYS} bays", BAYS * EACH), &[memory, lost], vec![]))
}

async fn allow(lab: &mut Lab, card: &Approval) -> Result<Approval, ApiError> {
    lab.client.post(&format!("/v1/approvals/{}/allow", card.id), &Allow::default()).await
}

/// Waits until this many requests are held.
async fn held(lab: &mut Lab, wanted: usize) -> Result<Vec<Approval>, ApiError> {
    let begin = Instant::now();
    loop {
        let open: Vec<Approval> = lab.client.get("/v1/approvals").await?;
        if open.iter().filter(|card| card.held > 0).count() == wanted {
            return Ok(open);
        }
        if begin.elapsed() > WITHIN {
            return Err(broken(&format!("{} questions are open, not {wanted}", open.len())));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The time when the origin received the request.
async fn arrived(lab: &Lab, path: &str) -> Result<Instant, ApiError> {
    let begin = Instant::now();
    loop {
        if let Some(at) = lab.origin.arrived(path) {
            return Ok(at);
        }
        if begin.elapsed() > WITHIN {
            return Err(broken(&format!("{path} did not arrive")));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn all_answered(child: Child, wanted: usize) -> Result<(), ApiError> {
    let told = finished(child)?;
    if told.statuses.get(&200).copied() == Some(wanted as u64) {
        return Ok(());
    }
    Err(broken(&format!("answers had other statuses than 200: {:?}", told.statuses)))
}
