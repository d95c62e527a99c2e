//! What one request costs inside the daemon, part by part: policy decision, attribution to an exec, event record.

use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bay_policy::bench::{Spread, policy, requests};
use bay_policy::decide;
use bay_runtime::sockets::Callers;
use bay_store::{Draft, Store};
use bay_types::bay::BayView;
use bay_types::egress::{Process, Transport, Who};
use bay_types::event::egress::{self, EgressDecided};
use bay_types::runtime::RuntimeRecord;
use bay_types::traffic::EgressRule;
use bay_types::{ApiError, ErrorCode, ExecId};
use jiff::Timestamp;
use tokio::task::JoinSet;

use super::lab::Lab;
use super::load::{Told, Work};
use super::origin::SHORT;
use crate::scoring::{Bar, Scored, Series, Unit, score};

const RULES: usize = 1_000;
const DECIDE_ROUNDS: usize = 200;
const ATTRIBUTIONS: usize = 5_000;
/// Events of one round.
const EVENTS: u64 = 40_000;
/// Concurrent callers. In the durable series each waits until its event is on the disk.
const CALLERS: usize = 512;

/// One decision with a thousand rules.
pub(super) fn decisions() -> Scored {
    let mut all = Vec::new();
    for spread in Spread::ALL {
        let (policy, requests) = (policy(RULES, spread), requests(RULES, spread));
        let mut one = Series::of(format!("{spread:?}"), Unit::Microseconds, &[Bar::Is(5.0)]);
        let now = Timestamp::now();
        for _ in 0..DECIDE_ROUNDS {
            for request in &requests {
                let begin = Instant::now();
                black_box(decide(black_box(&policy), black_box(request), now));
                one.was(begin.elapsed().as_secs_f64() * 1e6);
            }
        }
        all.push(one);
    }
    score(&format!("decide() with {RULES} rules"), &all, vec![])
}

/// The attribution of a connection of a running bay.
pub(super) fn attribution(lab: &Lab, bay: &BayView) -> Result<Scored, ApiError> {
    let mut child = lab
        .inside(&bay.name.to_string(), SHORT, Work::Hold)?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| ApiError::internal(&error))?;
    let mut line = String::new();
    if let Some(output) = &mut child.stdout {
        BufReader::new(output).read_line(&mut line).map_err(|error| ApiError::internal(&error))?;
    }
    let measured = measure_attribution(&line, bay);
    // The helper in the bay exits when its standard input closes.
    drop(child.stdin.take());
    let _ = child.wait();
    measured
}

/// Attributes the connection that the helper reported in `line`, again and again.
fn measure_attribution(line: &str, bay: &BayView) -> Result<Scored, ApiError> {
    let unfit = |why: &str| ApiError::new(ErrorCode::HostUnfit, why, "");
    let told: Told = serde_json::from_str(line).map_err(|error| ApiError::internal(&error))?;
    let (bay_end, gateway_end) =
        told.ends.ok_or_else(|| unfit("the helper in the bay opened no connection"))?;
    let pid = bay.host_pid.ok_or_else(|| unfit("the bay does not run"))?;
    let internal = |error: std::io::Error| ApiError::internal(&error);
    let record = RuntimeRecord {
        pid,
        start_ticks: bay_runtime::process_start_ticks(pid).map_err(internal)?,
        boot_id: String::new(),
    };
    let groups = bay_runtime::Hierarchies::mounted()
        .ok()
        .flatten()
        .ok_or_else(|| unfit("this host has no cgroups"))?;
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).map_err(internal)?;
    let id = bay.id.to_string();
    let own = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    // The bay's own cgroup: the path up to and including the bay's id.
    let own: PathBuf = own
        .split_inclusive('/')
        .scan(false, |found, part| {
            let go_on = !*found;
            *found |= part.trim_end_matches('/') == id;
            go_on.then_some(part)
        })
        .collect();
    let callers = Callers::of(&record, groups.v2.join(own)).map_err(internal)?;
    let mut took = Series::of("exec behind a connection", Unit::Microseconds, &[Bar::Is(50.0)]);
    let mut process = Series::of(
        "process behind a connection (looked up during the TLS handshake)",
        Unit::Microseconds,
        &[],
    );
    for round in 0..ATTRIBUTIONS {
        let begin = Instant::now();
        let who = callers.who(bay_end, gateway_end, Transport::Tcp);
        took.was(begin.elapsed().as_secs_f64() * 1e6);
        if who.exec.is_none() {
            return Err(unfit("the exec behind a connection was not found"));
        }
        if round % 10 == 0 {
            let begin = Instant::now();
            black_box(callers.process(bay_end, gateway_end, Transport::Tcp));
            process.was(begin.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok(score("attribution of a connection", &[took, process], vec![]))
}

/// Appends events like those of requests, once waiting until each is on the disk and once without waiting.
pub(super) fn appends(lab: &Lab, rounds: usize) -> Result<Scored, ApiError> {
    let path = lab.dir.join("appends.sqlite");
    // On several threads, as in the daemon.
    let measured = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.map_err(|error| ApiError::internal(&error))?.block_on(append_rounds(&path, rounds))
    });
    measured.join().unwrap_or_else(|_| Err(bay_client::broken("the measurement of event appends panicked")))
}

async fn append_rounds(path: &Path, rounds: usize) -> Result<Scored, ApiError> {
    let store = Store::open(path).await.map_err(|error| ApiError::internal(&error))?;
    let mut durable = Series::of("appended and on the disk", Unit::PerSecond, &[Bar::Is(20_000.0)]);
    let mut committed = Series::of("appended", Unit::PerSecond, &[]);
    for _ in 0..rounds {
        durable.was(append(&store, true).await?);
        committed.was(append(&store, false).await?);
    }
    store.close().await;
    let title = format!("{EVENTS} events of requests, {CALLERS} callers");
    Ok(score(&title, &[durable, committed], vec![]))
}

/// The most common event of a request.
fn decided() -> EgressDecided {
    let process = Process {
        pid: 17,
        host_pid: 1017,
        exe: "/bin/bay".to_owned(),
        argv: vec!["/bin/bay".to_owned(), "__load".to_owned()],
    };
    EgressDecided {
        request: "GET https://origin.test:40000/open/short".to_owned(),
        host: "origin.test".to_owned(),
        port: 40000,
        outcome: egress::Outcome::Allow.into(),
        rule: Some(EgressRule { id: "origin".to_owned(), origin: "policy.toml:1".to_owned() }),
        by: Some(Who {
            exec: Some(ExecId::generate()),
            uid: Some(0),
            process: Some(process),
            ..Who::default()
        }),
        secrets: Vec::new(),
        approval: None,
        asked: false,
        explanation: None,
        left_out: None,
    }
}

async fn append(store: &Store, durable: bool) -> Result<f64, ApiError> {
    let left = Arc::new(AtomicU64::new(EVENTS));
    let mut callers = JoinSet::new();
    let begin = Instant::now();
    for _ in 0..CALLERS {
        let (store, left) = (store.clone(), left.clone());
        callers.spawn(async move {
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            {
                let seq = store.event_append(None, &Draft::of(decided())).await?;
                if durable {
                    store.event_durable(seq).await?;
                }
            }
            Ok::<_, bay_store::StoreError>(())
        });
    }
    while let Some(done) = callers.join_next().await {
        done.map_err(|error| ApiError::internal(&error))?.map_err(|error| ApiError::internal(&error))?;
    }
    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    Ok(EVENTS as f64 / begin.elapsed().as_secs_f64())
}
