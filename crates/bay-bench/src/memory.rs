//! Memory checkpoints, forks and restores of a bay with a server and two databases.

use std::process::Command;
use std::time::{Duration, Instant};

use bay_client::bay_path;
use bay_types::bay::BayView;
use bay_types::checkpoint::Forked;
use bay_types::{ApiError, CheckpointName, ErrorCode};

use crate::container::Container;
use crate::durable::postgres_programs;
use crate::live_processes::{ASK_GAP, Scripts, number, scripts};
use crate::peers::{installed, output_of, timed};
use crate::scoring::{Bar, Scored, Series, Unit, score};
use crate::setup::Setup;

/// Minimum memory of all processes together, in MiB. Pages that several of them share count once.
const RESIDENT_MIB: f64 = 300.0;
/// Programs that the host must have, because the bay uses the host's programs.
const PROGRAMS: [(&str, &str); 4] =
    [("redis-server", "redis-server"), ("redis-cli", "redis-tools"), ("node", "nodejs"), ("curl", "curl")];
/// The name prefix of forked bays of this benchmark; the process id follows it.
const CHILD: &str = "bench-live";

const RESIDENT: &str =
    "cat /proc/[0-9]*/smaps_rollup 2>/dev/null | awk '/^Pss:/ { sum += $2 } END { print sum / 1024 }'";

struct Measures {
    /// How long the daemon paused the parent for a fork.
    pause: Series,
    /// The longest time in which the server in the parent did not run.
    pause_inside: Series,
    /// From a fork that captures the memory until its child has answered.
    first: Series,
    /// From a fork of the same capture until its child has answered.
    further: Series,
    /// From a restore of the parent until it has answered.
    restore: Series,
}

pub(crate) async fn memory(setup: &mut Setup, rounds: usize) -> Result<Scored, ApiError> {
    let postgres = postgres_programs()?;
    let lacking: Vec<&str> =
        PROGRAMS.iter().filter(|(program, _)| !installed(program)).map(|(_, package)| *package).collect();
    if !lacking.is_empty() {
        return Err(ApiError::new(
            ErrorCode::HostUnfit,
            format!("the benchmark needs these packages on the host: {}", lacking.join(", ")),
            format!("apt-get install {}", lacking.join(" ")),
        ));
    }
    let ms = |name: &str, bar: f64| Series::of(name, Unit::Milliseconds, &[Bar::Is(bar)]);
    let mut measures = Measures {
        pause: ms("pause of the parent", 600.0),
        pause_inside: ms("the same, seen by a process inside", 600.0),
        first: ms("fork → the first child has answered", 1000.0),
        further: ms("each further child of the same capture", 400.0),
        restore: ms("restore in place → it has answered", 1000.0),
    };
    let scripts = scripts(Some(&postgres));
    let parent = setup.up_host(vec![], None).await?;
    let view: BayView = setup.client.get(&bay_path(&parent, "")).await?;
    let mut containers = Container::all(setup, view.image_id).await;
    let measured = measure(setup, &parent, &scripts, &mut containers, &mut measures, rounds);
    let mut notes = Vec::new();
    for container in &mut containers {
        notes.append(&mut container.notes);
        container.remove();
    }
    timed(&mut setup.bay(&["rm", "--yes", &parent]))?;
    let resident = measured?;
    notes.insert(
        0,
        format!(
            "redis, a Node server and PostgreSQL with {resident:.0} MiB resident; each answer is of all three"
        ),
    );
    notes.extend(setup.peers.absent.iter().cloned());
    let mut series =
        vec![measures.pause, measures.pause_inside, measures.first, measures.further, measures.restore];
    series.extend(containers.into_iter().flat_map(Container::into_series));
    series.retain(|one| !one.is_empty());
    Ok(score("memory of a bay kept, forked and brought back, through the CLI", &series, notes))
}

fn measure(
    setup: &Setup,
    parent: &str,
    scripts: &Scripts,
    containers: &mut [Container],
    measures: &mut Measures,
    rounds: usize,
) -> Result<f64, ApiError> {
    let sh = |bay: &str, script: &str| setup.bay(&["exec", bay, "--", "/bin/sh", "-c", script]);
    timed(&mut sh(parent, &scripts.start))?;
    timed(&mut sh(parent, &scripts.ask))?;
    let resident = number(&output_of(&mut sh(parent, RESIDENT))?)?;
    if resident < RESIDENT_MIB {
        let message =
            format!("the bay has {resident:.0} MiB resident, less than the required {RESIDENT_MIB:.0} MiB");
        return Err(ApiError::new(ErrorCode::Internal, message, "this is a defect of the bench"));
    }
    // The first round only warms the caches. It is not measured.
    for round in 0..=rounds {
        output_of(&mut sh(parent, ASK_GAP))?;
        let forked = |from: Option<CheckpointName>| -> Result<(Forked, String, Duration), ApiError> {
            let prefix = format!("{CHILD}-{}-{round}-{}", std::process::id(), u8::from(from.is_some()));
            let name = from.map(|from| from.to_string());
            let mut words = vec!["--json", "fork", parent, "--name", &prefix];
            words.extend(name.iter().flat_map(|name| ["--from", name]));
            let began = Instant::now();
            let text = output_of(&mut setup.bay(&words))?;
            let forked: Forked = serde_json::from_str(&text).map_err(|error| ApiError::internal(&error))?;
            let child = forked.bays.first().map(|bay| bay.name.to_string()).unwrap_or_default();
            let answered = timed(&mut sh(&child, &scripts.ask));
            let took = began.elapsed();
            answered.map(|_| (forked, child, took))
        };
        let (first, child, to_first) = forked(None)?;
        let pause_inside = number(&output_of(&mut sh(parent, ASK_GAP))?)?;
        timed(&mut setup.bay(&["rm", "--yes", &child]))?;
        let (_, child, to_further) = forked(Some(first.checkpoint.name))?;
        timed(&mut setup.bay(&["rm", "--yes", &child]))?;
        let point = first.checkpoint.name.to_string();
        let began = Instant::now();
        timed(&mut setup.bay(&["restore", parent, &point]))?;
        timed(&mut sh(parent, &scripts.ask))?;
        let to_restored = began.elapsed();
        if round > 0 {
            measures.pause.was(first.checkpoint.pause_ms);
            measures.pause_inside.was(pause_inside);
            measures.first.took(to_first);
            measures.further.took(to_further);
            measures.restore.took(to_restored);
        }
        timed(&mut setup.bay(&["checkpoints", "rm", parent, &point]))?;
        for container in containers.iter_mut() {
            container.round(round > 0);
        }
        // Flush everything, so that the next round does not wait for it.
        timed(Command::new("sync").arg("-f").arg(&setup.pool))?;
    }
    Ok(resident)
}
