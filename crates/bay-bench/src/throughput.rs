//! Much output, and many commands: the throughput of the daemon, and whether its memory grows.

use std::time::{Duration, Instant};

use bay_client::{Client, bay_path, broken};
use bay_types::ApiError;
use bay_types::bay::Health;
use bay_types::exec::ExecSpec;
use bay_types::frame::Frame;
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use crate::peers::timed;
use crate::scoring::{Bar, Scored, Series, Unit, score};
use crate::setup::Setup;

/// Output of one exec: about a gigabyte.
const OUTPUT_MIB: u64 = 1024;
/// Growth of the daemon's memory that counts as none: an allocator's slack.
pub(crate) const FLAT_MIB: f64 = 16.0;
/// The bays of the storm.
const STORM_BAYS: usize = 20;
const STORM_PER_SECOND: u32 = 200;

/// Commands that are measured for each state of the neighbour.
const NEIGHBOUR_ROUNDS: usize = 500;
/// How long a bomb runs before the measurement begins.
const BOMB_GROWS: Duration = Duration::from_secs(3);
/// Each runs in a bay with limits on memory and processes, but none on processors.
const BOMBS: [(&str, &str); 4] = [
    // A shell that cannot fork gives up, so a plain fork bomb would end before it is measured. This one continues.
    (
        "storm of forks",
        "i=0; while [ $i -lt 200 ]; do (while :; do /bin/true; done) & i=$((i+1)); done; wait",
    ),
    (
        "memory bomb",
        "while :; do busybox dd if=/dev/zero of=/dev/null bs=200M count=1 & busybox usleep 10000; done",
    ),
    ("flood of output", "while :; do busybox dd if=/dev/zero bs=1M count=1000; done"),
    ("disk writes", "while :; do busybox dd if=/dev/zero of=/workspace/x bs=1M count=200 conv=fsync; done"),
];

pub(crate) async fn output(setup: &mut Setup, rounds: usize) -> Result<Scored, ApiError> {
    let mut speed = Series::of("API, reading client", Unit::MegabytesPerSecond, &[Bar::Is(400.0)]);
    let mut host = Series::of("pipe on the bare host", Unit::MegabytesPerSecond, &[]);
    let mut growth = Series::of("growth of the daemon", Unit::Mebibytes, &[Bar::Is(FLAT_MIB)]);
    let name = setup.up()?;
    let daemon: Health = setup.client.get("/v1/health").await?;
    let count = format!("count={OUTPUT_MIB}");
    let dd = ["/bin/busybox", "dd", "if=/dev/zero", "bs=1M", &count];
    let before = resident_mib(daemon.pid);
    let measured = async {
        for _ in 0..rounds {
            let (took, bytes) = run(&mut setup.client, &name, &ExecSpec::new(dd.iter().copied())).await?;
            speed.was(per_second(bytes, took));
            growth.was(resident_mib(daemon.pid) - before);
            let took = timed(std::process::Command::new(dd[0]).args(&dd[1..]))?;
            host.was(per_second(OUTPUT_MIB << 20, took));
        }
        Ok::<_, ApiError>(())
    }
    .await;
    timed(&mut setup.bay(&["rm", "--yes", &name]))?;
    measured?;
    Ok(score(&format!("{OUTPUT_MIB} MiB of output from one exec"), &[speed, host, growth], vec![]))
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn per_second(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / 1e6 / took.as_secs_f64()
}

/// Runs a command to its exit, and counts its output.
pub(crate) async fn run(
    client: &mut Client,
    bay: &str,
    spec: &ExecSpec,
) -> Result<(Duration, u64), ApiError> {
    let begin = Instant::now();
    let mut bytes = 0;
    let mut frames = client.attach(&bay_path(bay, "/execs/attach"), Some(spec), None).await?.frames;
    loop {
        match frames.next().map_err(|error| ApiError::internal(&error))? {
            Some(Frame::Exit(..)) => return Ok((begin.elapsed(), bytes)),
            Some(Frame::Error(error)) => return Err(error),
            Some(Frame::Stdout(data) | Frame::Stderr(data)) => bytes += data.len() as u64,
            Some(Frame::Gap(gap)) => bytes += gap.dropped,
            Some(_) => {}
            None => {
                let (stream, buffer) = frames.split();
                if stream.read_buf(buffer).await.map_err(|error| ApiError::internal(&error))? == 0 {
                    return Err(broken("the stream ended before the exit"));
                }
            }
        }
    }
}

/// Commands at a fixed rate, however long the responses take, in many bays.
pub(crate) async fn storm(setup: &mut Setup, seconds: u32) -> Result<Scored, ApiError> {
    let mut names = Vec::new();
    for _ in 0..STORM_BAYS {
        names.push(setup.up()?);
    }
    let daemon: Health = setup.client.get("/v1/health").await?;
    // The first commands fill caches.
    for name in &names {
        run(&mut setup.client.another(), name, &ExecSpec::new(["/bin/true"])).await?;
    }
    let before = resident_mib(daemon.pid);
    let mut took = Series::new("exec, p50 and p95", None);
    let mut errors = Vec::new();
    let mut running = JoinSet::new();
    let mut clock = tokio::time::interval(Duration::from_secs(1) / STORM_PER_SECOND);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let mut collect = |done: Result<Result<(Duration, u64), ApiError>, tokio::task::JoinError>| match done {
        Ok(Ok((duration, _))) => took.took(duration),
        Ok(Err(error)) => errors.push(error.message),
        Err(error) => errors.push(error.to_string()),
    };
    for count in 0..seconds * STORM_PER_SECOND {
        clock.tick().await;
        let mut client = setup.client.another();
        let name = names[count as usize % names.len()].clone();
        running.spawn(async move { run(&mut client, &name, &ExecSpec::new(["/bin/true"])).await });
        while let Some(done) = running.try_join_next() {
            collect(done);
        }
    }
    while let Some(done) = running.join_next().await {
        collect(done);
    }
    let growth = resident_mib(daemon.pid) - before;
    for name in &names {
        timed(&mut setup.bay(&["rm", "--yes", name]))?;
    }
    let mut spread = Series::of("p99, as a time", Unit::Milliseconds, &[Bar::Is(10.0 * took.median())]);
    spread.was(took.at(0.99));
    let mut grown = Series::of("growth of the daemon", Unit::Mebibytes, &[Bar::Is(FLAT_MIB)]);
    grown.was(growth);
    let mut notes = vec![format!("{} errors (bar: none)", errors.len())];
    notes.extend(errors.first().map(|error| format!("the first error: {error}")));
    let title = format!(
        "{STORM_PER_SECOND} commands a second over {STORM_BAYS} bays for {seconds} s (bar of p99: 10 × p50)"
    );
    Ok(score(&title, &[took, spread, grown], notes))
}

/// The effect of a bomb in one bay on the commands of another.
pub(crate) async fn neighbours(setup: &mut Setup) -> Result<Scored, ApiError> {
    let victim = setup.up()?;
    let mut quiet = Series::new("quiet", None);
    for _ in 0..NEIGHBOUR_ROUNDS {
        quiet.took(run(&mut setup.client, &victim, &ExecSpec::new(["/bin/true"])).await?.0);
    }
    let bar = [Bar::Is(3.0 * quiet.at(0.99))];
    let mut series = vec![];
    let mut series_p99 = vec![];
    for (name, script) in BOMBS {
        let bomb = setup.up_limited()?;
        timed(&mut setup.bay(&["exec", "-d", &bomb, "--", "/bin/sh", "-c", script]))?;
        // By now its bay is as full as it can become.
        tokio::time::sleep(BOMB_GROWS).await;
        let mut during = Series::new(name, None);
        for _ in 0..NEIGHBOUR_ROUNDS {
            during.took(run(&mut setup.client, &victim, &ExecSpec::new(["/bin/true"])).await?.0);
        }
        timed(&mut setup.bay(&["rm", "--yes", &bomb]))?;
        let mut p99 = Series::of(format!("{name}: p99"), Unit::Milliseconds, &bar);
        p99.was(during.at(0.99));
        series.push(during);
        series_p99.push(p99);
    }
    timed(&mut setup.bay(&["rm", "--yes", &victim]))?;
    let mut all = vec![quiet];
    all.append(&mut series);
    all.append(&mut series_p99);
    Ok(score("true in one bay while another explodes (bar of p99: 3 × quiet p99)", &all, vec![]))
}

/// The present resident memory of a process.
pub(crate) fn resident_mib(pid: u32) -> f64 {
    status_mib(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// The value of a line such as `VmRSS:     1234 kB` in MiB. NaN if it cannot be read.
pub(crate) fn status_mib(path: &str, key: &str) -> f64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| kib / 1024.0)
}
