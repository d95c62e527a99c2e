//! The contests and their bars.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bay_types::ApiError;
use bay_types::bay::Health;
use bay_types::exec::ExecSpec;

use crate::peers::timed;
use crate::scoring::{Scored, Series, score};
use crate::setup::Setup;
use crate::throughput;

/// To copy gigabytes twenty times shows nothing that five times do not.
pub(crate) const IMPORT_ROUNDS: usize = 5;
/// An idle machine enters deeper sleep states, and a person's next command comes after a pause, not in a loop.
const IDLE: Duration = Duration::from_secs(1);

pub(crate) fn sample(
    series: &mut Series,
    measured: Option<Result<Duration, ApiError>>,
) -> Result<(), ApiError> {
    if let Some(took) = measured {
        series.took(took?);
    }
    Ok(())
}

pub(crate) fn present(series: Vec<Series>) -> Vec<Series> {
    series.into_iter().filter(|one| !one.is_empty()).collect()
}

pub(crate) async fn first_command(setup: &mut Setup, rounds: usize) -> Result<Scored, ApiError> {
    let mut bay = Series::new("bay up … -- echo", Some((1.5, "runc run")));
    let mut runc = Series::new("runc run", None);
    let mut docker = Series::new("docker run --rm --network none", None);
    let mut runsc = Series::new("runsc do", None);
    let mut bwrap = Series::new("bwrap", None);
    // The first one fetches the repository. The bar applies to a cached one.
    setup.up_and_echo("repo")?;
    for _ in 0..rounds {
        bay.took(setup.up_and_echo("repo")?);
        let measured = setup.peers.runc_run();
        sample(&mut runc, measured)?;
        sample(&mut docker, setup.peers.docker_run())?;
        sample(&mut runsc, setup.peers.runsc())?;
        sample(&mut bwrap, setup.peers.bwrap())?;
    }
    Ok(score(
        "new bay on a cached repository → first output, through the CLI",
        &present(vec![bay, runc, docker, runsc, bwrap]),
        setup.peers.absent.clone(),
    ))
}

pub(crate) async fn exec(setup: &mut Setup, rounds: usize) -> Result<Scored, ApiError> {
    let mut api = Series::new("API, warm connection", Some((1.0 / 20.0, "docker exec")));
    let mut api_idle = Series::new("API, after 1 s of idleness", Some((1.0 / 20.0, "docker exec")));
    let mut cli = Series::new("bay exec", Some((1.0 / 5.0, "docker exec")));
    let mut cli_idle = Series::new("bay exec, after 1 s of idleness", Some((1.0 / 5.0, "docker exec")));
    let mut docker = Series::new("docker exec", None);
    let mut docker_idle = Series::new("docker exec, after 1 s of idleness", None);
    let name = setup.up()?;
    let measured = async {
        exec_over_api(setup, &name, Duration::ZERO).await?;
        for _ in 0..rounds {
            api.took(exec_over_api(setup, &name, Duration::ZERO).await?);
            cli.took(timed(&mut setup.bay(&["exec", &name, "--", "/bin/true"]))?);
            sample(&mut docker, setup.peers.docker_exec())?;
            api_idle.took(exec_over_api(setup, &name, IDLE).await?);
            tokio::time::sleep(IDLE).await;
            cli_idle.took(timed(&mut setup.bay(&["exec", &name, "--", "/bin/true"]))?);
            tokio::time::sleep(IDLE).await;
            sample(&mut docker_idle, setup.peers.docker_exec())?;
        }
        Ok::<_, ApiError>(())
    }
    .await;
    timed(&mut setup.bay(&["rm", "--yes", &name]))?;
    measured?;
    let series = present(vec![api, api_idle, cli, cli_idle, docker, docker_idle]);
    Ok(score("true in a running bay", &series, setup.peers.absent.clone()))
}

/// One request on a connection that was opened before.
async fn exec_over_api(setup: &mut Setup, name: &str, idle: Duration) -> Result<Duration, ApiError> {
    let spec = ExecSpec::new(["/bin/true"]);
    let _: Health = setup.client.get("/v1/health").await?;
    tokio::time::sleep(idle).await;
    throughput::run(&mut setup.client, name, &spec).await.map(|(took, _)| took)
}

pub(crate) async fn workspace(setup: &mut Setup, rounds: usize) -> Result<Scored, ApiError> {
    let large = setup.large_repository()?;
    let mut api = Series::new("API: bay with that workspace", Some((1.0 / 20.0, "git clone --local")));
    let mut cli = Series::new("bay up … -- echo", None);
    let mut clone = Series::new("git clone --local", None);
    let origin = setup.origin_of("large").await?;
    // Keep each clone until the end: after a mass deletion the filesystem may take twenty times as long for the next
    // one.
    let clone_to = |target: &Path| {
        timed(Command::new("git").args(["clone", "--quiet", "--local"]).arg(&large).arg(target))
    };
    clone_to(&setup.work.join("clone-warm"))?;
    for round in 0..rounds {
        api.took(setup.create_over_api(&origin).await?);
        cli.took(setup.up_and_echo("large")?);
        clone.took(clone_to(&setup.work.join(format!("clone-{round}")))?);
    }
    Ok(score(
        "workspace of a cached repository of many files",
        &[api, cli, clone],
        vec![
            "both bays' times include starting them; the second also git's look for uncommitted changes"
                .to_owned(),
        ],
    ))
}

pub(crate) async fn import(setup: &mut Setup, tree: &Path, rounds: usize) -> Result<Scored, ApiError> {
    let mut bay = Series::new("bay images import", Some((1.3, "cp -a")));
    let mut copy = Series::new("cp -a", None);
    // An image needs a shell, which most trees do not have.
    let image = setup.work.join("import-tree");
    timed(Command::new("cp").arg("-a").arg(tree).arg(&image))?;
    let shell = "mkdir -p \"$0/bin\" && { [ -e \"$0/bin/sh\" ] || cp /bin/sh \"$0/bin/sh\"; }";
    timed(Command::new("sh").args(["-c", shell]).arg(&image))?;
    let source = format!("dir:{}", image.display());
    for round in 0..rounds {
        let name = format!("bench-import-{round}");
        bay.took(timed(&mut setup.bay(&["images", "import", &source, "--name", &name, "--force"]))?);
        timed(&mut setup.bay(&["images", "rm", &name]))?;
        // Copy onto the same filesystem, and flush as the import does.
        let target = setup.pool.join(format!("bench-copy-{}", std::process::id()));
        let script = "cp -a \"$0\" \"$1\" && sync -f \"$1\"";
        let copied = timed(Command::new("sh").args(["-c", script]).arg(&image).arg(&target));
        let _ = std::fs::remove_dir_all(&target);
        copy.took(copied?);
    }
    Ok(score(&format!("import of {}", tree.display()), &[bay, copy], vec![]))
}
