//! The backend `gvisor`, compared with `runsc` alone and with Docker using it.

use bay_types::ApiError;

use crate::cases::{present, sample};
use crate::peers::{RUNSC_RUNTIME, timed};
use crate::place::Place;
use crate::scoring::{Bar, Scored, Series, score};
use crate::setup::Setup;
use crate::work::{Chores, directory};

const BACKEND: &str = "gvisor";
const RUNSC: &str = "runsc do";
/// The threshold: a bay may take at most this many times as long as `runsc` alone.
const OF_RUNSC: f64 = 1.1;
const BAY: &str = "bay, gvisor";

pub(crate) async fn gvisor(
    setup: &mut Setup,
    rounds: usize,
    slow_rounds: usize,
) -> Result<Vec<Scored>, ApiError> {
    let mut scored = vec![first_command(setup, rounds)?];
    scored.extend(work(setup, slow_rounds).await?);
    Ok(scored)
}

fn first_command(setup: &mut Setup, rounds: usize) -> Result<Scored, ApiError> {
    let mut bay = Series::new("bay up --backend gvisor … -- echo", Some((OF_RUNSC, RUNSC)));
    let mut local = Series::new("bay up --backend local … -- echo", None);
    let mut runsc = Series::new(RUNSC, None);
    let mut docker = Series::new("docker run --runtime=runsc", None);
    let mut notes = setup.peers.absent.clone();
    // The first bay fetches the repository. The threshold applies to bays of a cached repository, so this bay is not
    // measured.
    setup.up_and_echo_on("repo", BACKEND)?;
    let with_docker = match setup.peers.docker_run_runsc() {
        Some(Err(why)) => {
            notes.push(format!("docker with runsc is left out: {}", why.message));
            false
        }
        tried => tried.is_some(),
    };
    for _ in 0..rounds {
        bay.took(setup.up_and_echo_on("repo", BACKEND)?);
        local.took(setup.up_and_echo("repo")?);
        sample(&mut runsc, setup.peers.runsc())?;
        if with_docker {
            sample(&mut docker, setup.peers.docker_run_runsc())?;
        }
    }
    let series = present(vec![bay, local, runsc, docker]);
    Ok(score("gVisor: new bay on a cached repository → first output, through the CLI", &series, notes))
}

async fn work(setup: &mut Setup, rounds: usize) -> Result<Vec<Scored>, ApiError> {
    let mut chores =
        Chores::prepare(setup, |title| ["cargo", "npm"].iter().any(|tool| title.contains(tool)))?;
    let mut places = vec![
        (Place::Bay(setup.up_host(chores.mounts(), Some(BACKEND)).await?), BAY),
        (Place::Bay(setup.up_host(chores.mounts(), None).await?), "bay, local"),
        (Place::Runsc(directory(setup, "runsc")?), RUNSC),
    ];
    let options: Vec<String> =
        RUNSC_RUNTIME.iter().map(|&word| word.to_owned()).chain(chores.docker_mounts()).collect();
    match setup.peers.docker_container(&options) {
        Ok(container) => places.push((Place::Docker(container), "docker, runsc")),
        Err(why) => chores.notes.push(format!("docker with runsc is left out: {}", why.message)),
    }
    let probe = timed(&mut places[2].0.sh(setup, "touch probe", false));
    let bars = |name: &str| if name == BAY { vec![Bar::Of(OF_RUNSC, RUNSC)] } else { Vec::new() };
    let mut scored = match probe {
        Ok(_) => chores.measure_and_remove(setup, &places, rounds, bars)?,
        Err(why) => {
            chores.notes.push(format!("runsc is left out: {}", why.message));
            places.remove(2);
            chores.measure_and_remove(setup, &places, rounds, |_| Vec::new())?
        }
    };
    for table in &mut scored {
        table.title.insert_str(0, "gVisor: ");
    }
    if let Some(last) = scored.last_mut() {
        last.notes.append(&mut chores.notes);
    }
    Ok(scored)
}
