//! Checkpoints and forks: how long a bay is paused, and how soon a child answers.

use std::process::Command;

use bay_client::bay_path;
use bay_types::ApiError;
use bay_types::checkpoint::{CheckpointCreate, CheckpointKind, CheckpointView};

use crate::peers::timed;
use crate::scoring::{Bar, Scored, Series, Unit, score};
use crate::setup::Setup;

/// The data of the small bay, in MiB.
const LITTLE_MIB: u64 = 100;
/// Writes about 20 MB per second to the same forty files.
const WRITER: &str = "n=0; while :; do n=$(( (n + 1) % 40 )); \
    /bin/busybox head -c 2000000 /dev/urandom > /workspace/w$n; /bin/busybox sleep 0.1; done";

/// How long a writing bay is paused for a checkpoint of its files, with little and with much data.
pub(crate) async fn checkpoint(setup: &mut Setup, rounds: usize, much_mib: u64) -> Result<Scored, ApiError> {
    let mut little =
        Series::of(format!("pause with {LITTLE_MIB} MiB of data"), Unit::Milliseconds, &[Bar::Is(30.0)]);
    let mut much = Series::of(
        format!("pause with {much_mib} MiB of data"),
        Unit::Milliseconds,
        &[Bar::Is(30.0), Bar::Of(1.2, "pause with 100 MiB of data")],
    );
    let mut whole = Series::of("the whole verb, flush included", Unit::Milliseconds, &[]);
    let (small, large) = (setup.up()?, setup.up()?);
    let measured = async {
        for (bay, mib) in [(&small, LITTLE_MIB), (&large, much_mib)] {
            fill(setup, bay, mib)?;
            timed(&mut setup.bay(&["exec", bay, "-d", "--", "/bin/sh", "-c", WRITER]))?;
        }
        for _ in 0..rounds {
            for (bay, series) in [(&small, &mut little), (&large, &mut much)] {
                let began = std::time::Instant::now();
                let body = CheckpointCreate { message: None, kind: Some(CheckpointKind::Files) };
                let made: CheckpointView = setup.client.post(&bay_path(bay, "/checkpoints"), &body).await?;
                whole.took(began.elapsed());
                series.was(made.pause_ms);
                let path = bay_path(bay, &format!("/checkpoints/{}", made.name));
                let _: serde_json::Value = setup.client.delete(&path).await?;
            }
        }
        Ok::<_, ApiError>(())
    }
    .await;
    for bay in [&small, &large] {
        timed(&mut setup.bay(&["rm", "--yes", bay]))?;
    }
    measured?;
    let notes = vec![
        format!("p99: {:.1} ms and {:.1} ms (bar: ≤ 150 ms)", little.at(0.99), much.at(0.99)),
        "a pause counts from before the freeze was asked for until after the thaw; each bay writes 20 MB/s"
            .to_owned(),
    ];
    Ok(score("checkpoint of the files of a bay that writes", &[little, much, whole], notes))
}

/// A script that writes unique data in files of 16 MiB, so that no blocks are shared.
fn filling(mib: u64) -> String {
    format!(
        "/bin/busybox mkdir -p /workspace/data; n=0; while [ $n -lt {} ]; do \
         /bin/busybox dd if=/dev/urandom of=/workspace/data/f$n bs=1M count=16 2>/dev/null || exit 1; n=$((n+1)); done; \
         /bin/busybox sync",
        mib.div_ceil(16)
    )
}

fn fill(setup: &Setup, bay: &str, mib: u64) -> Result<(), ApiError> {
    timed(&mut setup.bay(&["exec", bay, "--", "/bin/sh", "-c", &filling(mib)])).map(drop)
}

/// From one bay to a child that answers, compared with a new bay and with a committed container.
pub(crate) async fn fork(setup: &mut Setup, rounds: usize) -> Result<Scored, ApiError> {
    const NEW: &str = "bay up, bay exec";
    const DOCKER: &str = "docker commit, docker run";
    let mut forks = Series::of(
        "bay fork --files-only, bay exec",
        Unit::Milliseconds,
        &[Bar::Of(1.5, NEW), Bar::Of(0.1, DOCKER)],
    );
    let mut news = Series::of(NEW, Unit::Milliseconds, &[]);
    let mut docker = Series::of(DOCKER, Unit::Milliseconds, &[]);
    let parent = setup.up()?;
    let measured = async {
        fill(setup, &parent, LITTLE_MIB)?;
        setup.peers.docker_sh(&filling(LITTLE_MIB))?;
        for round in 0..rounds {
            let prefix = format!("bench-child-{}-{round}", std::process::id());
            let child = format!("{prefix}-1");
            let fork = timed(&mut setup.bay(&["fork", &parent, "--files-only", "--name", &prefix]))?;
            let exec = timed(&mut setup.bay(&["exec", &child, "--", "/bin/echo", "hi"]))?;
            forks.took(fork + exec);
            timed(&mut setup.bay(&["rm", "--yes", &child]))?;
            let began = std::time::Instant::now();
            let name = setup.up()?;
            timed(&mut setup.bay(&["exec", &name, "--", "/bin/echo", "hi"]))?;
            news.took(began.elapsed());
            timed(&mut setup.bay(&["rm", "--yes", &name]))?;
            if let Some(took) = setup.peers.docker_commit_and_run() {
                docker.took(took?);
            }
        }
        Ok::<_, ApiError>(())
    }
    .await;
    timed(&mut setup.bay(&["rm", "--yes", &parent]))?;
    measured?;
    let series = [forks, news, docker].into_iter().filter(|one| !one.is_empty()).collect::<Vec<_>>();
    let mut notes = vec![format!("the bay and the container have changed {LITTLE_MIB} MiB each")];
    notes.extend(setup.peers.absent.iter().cloned());
    Ok(score("a fork of files → first command in the child, through the CLI", &series, notes))
}

/// The disk usage of many checkpoints of a bay that changes a gigabyte in total.
pub(crate) async fn many(setup: &mut Setup) -> Result<Scored, ApiError> {
    const CHECKPOINTS: u64 = 50;
    const CHANGED_MIB: u64 = 1024;
    let used = |setup: &Setup| -> Result<f64, ApiError> {
        // A commit of the filesystem, so that all written data is counted.
        timed(Command::new("sync").arg("-f").arg(&setup.pool))?;
        let space = rustix::fs::statvfs(&setup.pool)
            .map_err(|e| bay_client::local("measuring the pool", &e.into()))?;
        #[allow(clippy::cast_precision_loss, reason = "a disk in MiB")]
        let mib = (space.f_blocks - space.f_bfree) as f64 * space.f_frsize as f64 / f64::from(1 << 20);
        Ok(mib)
    };
    let mut disk = Series::of("disk beyond what was there before", Unit::Mebibytes, &[Bar::Is(1126.0)]);
    let bay = setup.up()?;
    let measured = async {
        fill(setup, &bay, CHANGED_MIB)?;
        let before = used(setup)?;
        // Before each checkpoint a fiftieth of the files is rewritten; in the end all of them are.
        let files = CHANGED_MIB.div_ceil(16);
        for number in 0..CHECKPOINTS {
            let (from, to) = (number * files / CHECKPOINTS, (number + 1) * files / CHECKPOINTS);
            let script = format!(
                "n={from}; while [ $n -lt {to} ]; do /bin/busybox dd if=/dev/urandom of=/workspace/data/f$n bs=1M count=16 conv=notrunc 2>/dev/null || exit 1; n=$((n+1)); done"
            );
            timed(&mut setup.bay(&["exec", &bay, "--", "/bin/sh", "-c", &script]))?;
            timed(&mut setup.bay(&["checkpoint", &bay, "--files-only"]))?;
        }
        disk.was(used(setup)? - before);
        Ok::<_, ApiError>(())
    }
    .await;
    timed(&mut setup.bay(&["rm", "--yes", &bay]))?;
    measured?;
    Ok(score(&format!("{CHECKPOINTS} checkpoints of a bay that changes 1 GiB in all"), &[disk], vec![]))
}
