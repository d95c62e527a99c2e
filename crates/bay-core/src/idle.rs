//! Stopping an idle bay, if its settings say so.
//!
//! Idleness is measured on the whole bay. From the host, the daemon sees processor time, disks, outside
//! connections with traffic and attached clients. The guest reports a terminal in which somebody types and a lease
//! taken inside. That nobody calls the API says nothing: a build may take hours.
//!
//! Idle time is the sum of the pauses between measurements in which nothing happened, by a clock that stops while the
//! host sleeps. If a pause is longer than planned (a delayed daemon, a stopped machine), only the planned pause
//! counts. So neither a suspended host nor a clock that jumps adds idle time.

use std::sync::Arc;
use std::time::Duration;

use bay_backend::NetworkUse;
use bay_store::{BayRow, Draft, Store};
use bay_types::bay::{Desired, State};
use bay_types::event::bay::BayIdleStop;
use bay_types::{CoreError, ErrorCode};
use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use serde::Deserialize;
use tokio::time::Instant;

use crate::registry::BayHandle;

/// How many measurements are made in the time after which a bay is stopped, if the shortest and longest pause
/// allow that. Each makes the guest answer a request, which must not keep the bay busy.
const LOOKS: u32 = 4;
/// Shortest pause between two measurements.
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause between two measurements.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A bay that uses more than this part of one processor is busy. Databases and watchers at rest stay below.
const BUSY_CPU: f64 = 0.02;
/// A bay that moves more bytes per second to and from disks is busy: a program may wait for disks and compute
/// nothing.
const BUSY_IO_PER_SECOND: f64 = 64.0 * 1024.0;
const GUEST_ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// What a bay did until one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Look {
    cpu_us: Option<u64>,
    io_bytes: Option<u64>,
    network: NetworkUse,
    client_attached: bool,
    /// How many commands began and clients attached since the daemon started.
    uses: u64,
    activity: Activity,
}

/// The guest's answer to `GET /v1/activity`. Empty if the guest is too old to know it, or does not answer in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
struct Activity {
    #[serde(default)]
    hold_until: Option<Timestamp>,
    #[serde(default)]
    last_input_at: Option<Timestamp>,
}

/// How long nothing has happened.
#[derive(Debug, Default)]
struct Idleness {
    last: Option<Look>,
    idle_for: Duration,
}

impl Idleness {
    /// Adds one measurement. Returns for how long the bay has been idle.
    fn note(&mut self, look: Look, since_last: Duration, pause: Duration, now: Timestamp) -> Duration {
        let busy = self.last.is_none_or(|last| is_busy(&last, &look, since_last, now));
        self.idle_for = if busy { Duration::ZERO } else { self.idle_for + since_last.min(pause) };
        self.last = Some(look);
        self.idle_for
    }
}

fn is_busy(last: &Look, look: &Look, since_last: Duration, now: Timestamp) -> bool {
    let seconds = since_last.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "compared with a rough bound")]
    let grew = |before: Option<u64>, after: Option<u64>, bound: f64| match (before, after) {
        (Some(before), Some(after)) => after.saturating_sub(before) as f64 > bound * seconds,
        _ => false,
    };
    let traffic =
        look.network.external_connections > 0 && look.network.external_bytes != last.network.external_bytes;
    // Without its processor time nobody knows what a bay does, so it counts as busy.
    look.cpu_us.is_none()
        || grew(last.cpu_us, look.cpu_us, BUSY_CPU * 1e6)
        || grew(last.io_bytes, look.io_bytes, BUSY_IO_PER_SECOND)
        || traffic
        || look.client_attached
        || look.uses != last.uses
        || look.activity.last_input_at != last.activity.last_input_at
        || look.activity.hold_until.is_some_and(|until| until > now)
}

/// Watches a running bay, requests its stop when it has been idle for so long, and returns. If dropped before that,
/// it requests nothing.
pub(crate) async fn watch(store: Store, handle: Arc<BayHandle>, idle_stop_s: u64) {
    let limit = Duration::from_secs(idle_stop_s);
    let pause = (limit / LOOKS).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    let mut idleness = Idleness::default();
    let mut looked_at = Instant::now();
    loop {
        let look = measure(&handle).await;
        let now = Instant::now();
        let idle_for = idleness.note(look, now - looked_at, pause, Timestamp::now());
        looked_at = now;
        if idle_for >= limit {
            match stop(&store, &handle, idle_stop_s).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(bay = %handle.name, message = %error.message, "an idle bay could not be asked to stop");
                    idleness = Idleness::default();
                }
            }
        }
        tokio::time::sleep(pause).await;
    }
}

async fn measure(handle: &BayHandle) -> Look {
    let Some(record) = handle.row().runtime else { return Look::default() };
    let stats = handle.backend.stats(handle.id, &record).await;
    let asked =
        handle.guest.json::<Activity>(Method::GET, "/v1/activity", Bytes::new(), GUEST_ANSWERS_WITHIN);
    Look {
        cpu_us: stats.cpu_us,
        io_bytes: stats.io.map(|io| io.read_bytes.saturating_add(io.write_bytes)),
        network: handle.backend.network(&record).await,
        client_attached: handle.clients_attached() > 0,
        uses: handle.uses(),
        activity: asked.await.unwrap_or_default(),
    }
}

async fn stop(store: &Store, handle: &BayHandle, idle_stop_s: u64) -> Result<(), CoreError> {
    let why = format!("idle for {}", readable_duration(idle_stop_s));
    let fits = |row: &BayRow| match (row.desired, row.state) {
        (Desired::Running, State::Running) if row.replace_with.is_none() => Ok(()),
        _ => Err(CoreError::new(
            ErrorCode::BayState,
            "the bay got another request meanwhile",
            "repeat the command",
        )),
    };
    let draft = Draft::of(BayIdleStop { idle_s: idle_stop_s });
    handle
        .ask(store, fits, draft, |row| {
            row.desired = Desired::Stopped;
            row.stop_why = Some(why);
        })
        .await
        .map(drop)
}

/// Formats seconds as `30 min`, `2 h` or `45 s`.
fn readable_duration(seconds: u64) -> String {
    match seconds {
        s if s % 3600 == 0 => format!("{} h", s / 3600),
        s if s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(10);

    fn quiet() -> Look {
        Look { cpu_us: Some(1000), io_bytes: Some(0), ..Look::default() }
    }

    fn after(change: impl FnOnce(&mut Look)) -> Duration {
        let mut idleness = Idleness::default();
        let now = Timestamp::UNIX_EPOCH;
        let first = quiet();
        assert_eq!(idleness.note(first, Duration::ZERO, PAUSE, now), Duration::ZERO);
        assert_eq!(idleness.note(first, PAUSE, PAUSE, now), PAUSE);
        let mut next = first;
        change(&mut next);
        idleness.note(next, PAUSE, PAUSE, now)
    }

    #[test]
    fn a_bay_at_rest_grows_idle() {
        assert_eq!(after(|_| ()), PAUSE * 2);
        // A database that wakes now and then is idle.
        assert_eq!(after(|look| look.cpu_us = Some(1000 + 100_000)), PAUSE * 2);
        // So is a server whose clients send nothing.
        assert_eq!(after(|look| look.network.external_connections = 3), PAUSE * 2);
    }

    #[test]
    fn any_activity_ends_idleness() {
        let later: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(after(|look| look.cpu_us = Some(1000 + 300_000)), Duration::ZERO);
        assert_eq!(after(|look| look.io_bytes = Some(1 << 20)), Duration::ZERO);
        assert_eq!(after(|look| look.client_attached = true), Duration::ZERO);
        assert_eq!(after(|look| look.uses = 1), Duration::ZERO);
        assert_eq!(after(|look| look.activity.last_input_at = Some(later)), Duration::ZERO);
        assert_eq!(after(|look| look.activity.hold_until = Some(later)), Duration::ZERO);
        let talks = |look: &mut Look| {
            look.network = NetworkUse { external_connections: 1, external_bytes: 5 };
        };
        assert_eq!(after(talks), Duration::ZERO);
        // Without its processor time, nobody knows what it does.
        assert_eq!(after(|look| look.cpu_us = None), Duration::ZERO);
    }

    /// Measures a bay for a day, in which `happens` changes each measurement. Returns the longest idle time.
    fn longest_idle_in_a_day(happens: impl Fn(&mut Look, u64)) -> Duration {
        let mut idleness = Idleness::default();
        let mut now = Timestamp::UNIX_EPOCH;
        let mut longest = Duration::ZERO;
        for number in 0..8640 {
            let mut look = quiet();
            happens(&mut look, number);
            longest = longest.max(idleness.note(look, PAUSE, PAUSE, now));
            now += PAUSE;
        }
        longest
    }

    #[test]
    fn a_busy_a_watched_and_a_held_bay_are_never_idle_in_a_day() {
        let busy = |look: &mut Look, number: u64| look.cpu_us = Some(number * 300_000);
        assert_eq!(longest_idle_in_a_day(busy), Duration::ZERO);
        assert_eq!(longest_idle_in_a_day(|look, _| look.client_attached = true), Duration::ZERO);
        let tomorrow = Timestamp::from_second(24 * 3600 + 1).unwrap();
        let held = |look: &mut Look, _| look.activity.hold_until = Some(tomorrow);
        assert_eq!(longest_idle_in_a_day(held), Duration::ZERO);
        // A bay at rest is idle for all of the day but the first measurement.
        assert_eq!(longest_idle_in_a_day(|_, _| ()), PAUSE * 8639);
    }

    #[test]
    fn traffic_without_a_connection_is_the_kernels_own() {
        assert_eq!(after(|look| look.network.external_bytes = 300), PAUSE * 2);
    }

    #[test]
    fn an_expired_hold_has_no_effect() {
        let before = Timestamp::from_second(-1).unwrap();
        assert_eq!(after(|look| look.activity.hold_until = Some(before)), PAUSE * 2);
    }

    #[test]
    fn a_host_that_slept_between_two_looks_counts_one_pause() {
        let mut idleness = Idleness::default();
        let now = Timestamp::UNIX_EPOCH;
        let _first = idleness.note(quiet(), Duration::ZERO, PAUSE, now);
        assert_eq!(idleness.note(quiet(), Duration::from_secs(3600), PAUSE, now), PAUSE);
    }

    #[test]
    fn times_are_shown_in_their_own_unit() {
        assert_eq!([45, 90, 1800, 7200].map(readable_duration), ["45 s", "90 s", "30 min", "2 h"]);
    }
}
