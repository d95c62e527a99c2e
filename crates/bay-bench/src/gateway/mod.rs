//! What the gateway adds to a request, and its throughput: one load generator, one origin, and between them nothing,
//! the gateway of a bay, or another proxy that decrypts TLS.
//!
//! "Direct" is the load generator on the host, to the origin on loopback. The other path leads through a bay's pair of
//! network devices to the gateway, and from there over loopback to the same origin.

pub(crate) mod approvals;
mod daemon_costs;
mod lab;
pub(crate) mod load;
mod origin;
mod secret;

use std::process::{Child, Stdio};
use std::time::Duration;

use bay_types::ApiError;

use crate::scoring::{Bar, Scored, Series, Unit, score};
use crate::talk::talk;
use crate::throughput::{FLAT_MIB, resident_mib};
use lab::{Lab, Mitmproxy, SHUT, told};
use load::{Told, Work};
use origin::SHORT;

const WARM_REQUESTS: usize = 2_000;
const FRESH_REQUESTS: usize = 300;
const DOWNLOAD: &str = "/bytes/1000000000";
/// More bytes than can pass in the time of a share.
const ENDLESS: &str = "/bytes/100000000000";
const SHARE: Work = Work::Share { streams: 100, seconds: 6.0 };
const CROWD: Work = Work::Rate { connections: 64, seconds: 4.0, per_second: None };
const REFUSED_PER_SECOND: f64 = 10_000.0;
const FLOOD: Work = Work::Rate { connections: 64, seconds: 7.0, per_second: Some(REFUSED_PER_SECOND) };
/// How long a flood runs before the measurement begins.
const FLOOD_GROWS: Duration = Duration::from_millis(1_500);
const NEIGHBOUR: Work = Work::Rate { connections: 1, seconds: 4.0, per_second: None };
const LOOK_EVERY: Duration = Duration::from_millis(20);

const DIRECT: &str = "direct";
const PROXY: &str = "mitmproxy";
const QUIET: &str = "p99, quiet";

pub(super) async fn gateway(rounds: usize) -> Result<Vec<Scored>, ApiError> {
    let mut lab = Lab::open().await?;
    let scored = measure(&mut lab, rounds).await;
    lab.close().await;
    scored
}

/// The part of the contest about long responses.
pub(super) async fn downloads(rounds: usize) -> Result<Vec<Scored>, ApiError> {
    let mut lab = Lab::open().await?;
    let scored = match lab.bay("mine").await {
        Ok(_) => long_answers(&lab, rounds).await,
        Err(error) => Err(error),
    };
    lab.close().await;
    scored
}

async fn long_answers(lab: &Lab, rounds: usize) -> Result<Vec<Scored>, ApiError> {
    talk("downloads");
    Ok(vec![secret::scrubbed(lab, rounds)?, download(lab, rounds).await?, fairness(lab, rounds)?])
}

async fn measure(lab: &mut Lab, rounds: usize) -> Result<Vec<Scored>, ApiError> {
    let bay = lab.bay("mine").await?;
    lab.bay("hostile").await?;
    talk("the parts by themselves");
    let mut scored = vec![
        daemon_costs::decisions(),
        daemon_costs::attribution(lab, &bay)?,
        daemon_costs::appends(lab, rounds)?,
    ];
    talk("beside mitmproxy");
    let (proxy, absent) = match Mitmproxy::start(lab).await {
        Ok(proxy) => (Some(proxy), vec![]),
        Err(error) => (None, vec![format!("{PROXY} is left out: {}", error.message)]),
    };
    let beside = (|| {
        scored.push(added(lab, proxy.as_ref(), rounds, &absent)?);
        scored.push(crowd(lab, proxy.as_ref(), rounds, &absent)?);
        Ok::<_, ApiError>(())
    })();
    if let Some(proxy) = proxy {
        proxy.stop().await;
    }
    beside?;
    talk("a secret");
    scored.push(secret::with_secret(lab, rounds)?);
    scored.extend(long_answers(lab, rounds).await?);
    talk("a flood of refusals");
    scored.push(flood(lab, rounds).await?);
    Ok(scored)
}

/// Returns the result if all responses had this status.
fn all(status: u16, told: Told) -> Result<Told, ApiError> {
    if told.statuses.keys().all(|seen| *seen == status) {
        return Ok(told);
    }
    Err(bay_client::broken(&format!("answers had other statuses than {status}: {:?}", told.statuses)))
}

/// The latency that is added to a request.
fn added(lab: &Lab, proxy: Option<&Mitmproxy>, rounds: usize, absent: &[String]) -> Result<Scored, ApiError> {
    let works = [
        ("warm", Work::Warm { requests: WARM_REQUESTS }, [Some(1.0), Some(5.0)]),
        ("new connection", Work::Fresh { requests: FRESH_REQUESTS }, [Some(3.0), None]),
    ];
    let mut series = Vec::new();
    for (name, work, bars) in works {
        let one = |what: &str, bar: Option<f64>| {
            let bars: Vec<Bar> = bar.into_iter().map(Bar::Is).collect();
            Series::of(format!("{name}: {what}"), Unit::Milliseconds, &bars)
        };
        let mut direct = [one("direct, p50", None), one("direct, p99", None)];
        let mut inspected = [one("inspected, p50", None), one("inspected, p99", None)];
        let mut more = [one("added, p50", bars[0]), one("added, p99", bars[1])];
        let mut other = [one("added by mitmproxy, p50", None), one("added by mitmproxy, p99", None)];
        for _ in 0..rounds {
            let straight = all(200, told(&mut lab.direct(SHORT, work)?)?)?;
            let through = all(200, told(&mut lab.inside("mine", SHORT, work)?)?)?;
            let (straight, through) = ([straight.p50, straight.p99], [through.p50, through.p99]);
            for at in 0..2 {
                direct[at].was(straight[at] / 1000.0);
                inspected[at].was(through[at] / 1000.0);
                more[at].was((through[at] - straight[at]) / 1000.0);
            }
            if let Some(proxy) = proxy {
                let beside = all(200, told(&mut lab.through(proxy, SHORT, work)?)?)?;
                other[0].was((beside.p50 - straight[0]) / 1000.0);
                other[1].was((beside.p99 - straight[1]) / 1000.0);
            }
        }
        for group in [direct, inspected, more, other] {
            series.extend(group.into_iter().filter(|one| !one.is_empty()));
        }
    }
    let title =
        format!("an inspected GET, {WARM_REQUESTS} on one connection and {FRESH_REQUESTS} on new ones");
    Ok(score(&title, &series, absent.to_vec()))
}

/// Requests per second.
fn crowd(lab: &Lab, proxy: Option<&Mitmproxy>, rounds: usize, absent: &[String]) -> Result<Scored, ApiError> {
    let mut inspected = Series::of("inspected", Unit::PerSecond, &[Bar::Of(10.0, PROXY)]);
    let mut other = Series::of(PROXY, Unit::PerSecond, &[]);
    let mut direct = Series::of(DIRECT, Unit::PerSecond, &[]);
    for _ in 0..rounds {
        inspected.was(per_second(&all(200, told(&mut lab.inside("mine", SHORT, CROWD)?)?)?));
        if let Some(proxy) = proxy {
            other.was(per_second(&all(200, told(&mut lab.through(proxy, SHORT, CROWD)?)?)?));
        }
        direct.was(per_second(&all(200, told(&mut lab.direct(SHORT, CROWD)?)?)?));
    }
    let series: Vec<Series> = [inspected, other, direct].into_iter().filter(|one| !one.is_empty()).collect();
    Ok(score("requests a second over 64 connections of one bay", &series, absent.to_vec()))
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn per_second(told: &Told) -> f64 {
    told.requests() as f64 / told.seconds
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn megabytes(told: &Told) -> f64 {
    told.bytes as f64 / 1e6 / told.seconds
}

/// A gigabyte, and the daemon's memory meanwhile.
async fn download(lab: &Lab, rounds: usize) -> Result<Scored, ApiError> {
    let mut inspected = Series::of("inspected", Unit::MegabytesPerSecond, &[Bar::Of(0.6, DIRECT)]);
    let mut direct = Series::of(DIRECT, Unit::MegabytesPerSecond, &[]);
    let mut busy = Series::of("processor time of the daemon, for 1 GB", Unit::Milliseconds, &[]);
    // The gateway does the work of both ends again, on the same processors.
    let mut ends = Series::of("processor time of both ends, direct", Unit::Milliseconds, &[]);
    let mut growth = Series::of("growth of the daemon, at most", Unit::Mebibytes, &[Bar::Is(FLAT_MIB)]);
    // Memory that an allocator keeps from earlier work is not growth.
    told(&mut lab.inside("mine", DOWNLOAD, Work::Download)?)?;
    for _ in 0..rounds {
        let ends_before = processor_ms(std::process::id(), OWN_AND_CHILDREN);
        direct.was(megabytes(&all(200, told(&mut lab.direct(DOWNLOAD, Work::Download)?)?)?));
        ends.was(processor_ms(std::process::id(), OWN_AND_CHILDREN) - ends_before);
        let (before, busy_before) = (resident_mib(lab.daemon()), processor_ms(lab.daemon(), OWN));
        let mut child = spawned(lab, "mine", DOWNLOAD, Work::Download)?;
        let mut most = before;
        while matches!(child.try_wait(), Ok(None)) {
            most = most.max(resident_mib(lab.daemon()));
            tokio::time::sleep(LOOK_EVERY).await;
        }
        inspected.was(megabytes(&all(200, finished(child)?)?));
        growth.was(most - before);
        busy.was(processor_ms(lab.daemon(), OWN) - busy_before);
    }
    Ok(score("a download of 1 GB over TLS", &[inspected, direct, growth, busy, ends], vec![]))
}

/// Number of leading fields with the process's own times: user and system.
const OWN: usize = 2;
/// Number of leading fields if those of ended children are included.
const OWN_AND_CHILDREN: usize = 4;

/// Processor time of a process so far, which the kernel reports in hundredths of a second.
fn processor_ms(pid: u32, which: usize) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields).split_ascii_whitespace();
    // User time is the 14th of all fields.
    fields.skip(11).take(which).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() * 10.0
}

/// A hundred concurrent downloads.
fn fairness(lab: &Lab, rounds: usize) -> Result<Scored, ApiError> {
    let mut inspected = Series::of("inspected: most of all streams over least", Unit::Times, &[Bar::Is(2.0)]);
    let mut direct = Series::of("direct: the same", Unit::Times, &[]);
    let mut speed = Series::of("inspected, all together", Unit::MegabytesPerSecond, &[]);
    for _ in 0..rounds {
        let through = told(&mut lab.inside("mine", ENDLESS, SHARE)?)?;
        inspected.was(spread(&through));
        speed.was(megabytes(&through));
        direct.was(spread(&told(&mut lab.direct(ENDLESS, SHARE)?)?));
    }
    Ok(score("100 parallel downloads: who gets how much in 6 s", &[inspected, direct, speed], vec![]))
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn spread(told: &Told) -> f64 {
    let (most, least) = (told.shares.iter().max(), told.shares.iter().min());
    most.copied().unwrap_or(0) as f64 / least.copied().unwrap_or(0) as f64
}

/// Requests of one bay while another one floods the gateway with requests that it refuses.
async fn flood(lab: &Lab, rounds: usize) -> Result<Scored, ApiError> {
    let mut quiet = Series::of(QUIET, Unit::Milliseconds, &[]);
    let mut during = Series::of("p99, beside the flood", Unit::Milliseconds, &[Bar::Of(2.0, QUIET)]);
    let mut medians = [Series::new("p50, quiet", None), Series::new("p50, beside the flood", None)];
    let mut rate = Series::of("refusals that were answered", Unit::PerSecond, &[]);
    for _ in 0..rounds {
        let alone = all(200, told(&mut lab.inside("mine", SHORT, NEIGHBOUR)?)?)?;
        let hostile = spawned(lab, "hostile", SHUT, FLOOD)?;
        tokio::time::sleep(FLOOD_GROWS).await;
        let beside = told(&mut lab.inside("mine", SHORT, NEIGHBOUR)?);
        rate.was(per_second(&all(403, finished(hostile)?)?));
        let beside = all(200, beside?)?;
        quiet.was(alone.p99 / 1000.0);
        during.was(beside.p99 / 1000.0);
        medians[0].was(alone.p50 / 1000.0);
        medians[1].was(beside.p50 / 1000.0);
    }
    let [quiet_p50, during_p50] = medians;
    let title = "requests of one bay while another would be refused 10,000 times a second";
    let note = "the flood comes over 64 connections and waits for its answers, which the gateway gives at its own pace: the last line is what was refused";
    Ok(score(title, &[quiet, during, quiet_p50, during_p50, rate], vec![note.to_owned()]))
}

fn spawned(lab: &Lab, bay: &str, path: &str, work: Work) -> Result<Child, ApiError> {
    let mut command = lab.inside(bay, path, work)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| ApiError::internal(&error))
}

fn finished(child: Child) -> Result<Told, ApiError> {
    let output = child.wait_with_output().map_err(|error| ApiError::internal(&error))?;
    if !output.status.success() {
        return Err(bay_client::broken(String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| ApiError::internal(&error))
}
