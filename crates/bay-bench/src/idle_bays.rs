//! Many idle bays: the memory of each, and whether the last one is created as fast as the first.

use bay_client::bay_path;
use bay_types::ApiError;
use bay_types::bay::{BayView, Health};

use crate::peers::timed;
use crate::scoring::{Bar, Scored, Series, Unit, score};
use crate::setup::Setup;
use crate::throughput::{resident_mib, status_mib};

const CROWD: usize = 100;
/// How many of the first and last bays are compared: a single one would be noise.
const EACH_END: usize = 5;

pub(crate) async fn idle_bays(setup: &mut Setup) -> Result<Scored, ApiError> {
    let origin = setup.origin_of("repo").await?;
    let daemon: Health = setup.client.get("/v1/health").await?;
    let mut first = Series::new("creating the first five", None);
    let mut last = Series::new("creating the last five of a hundred", Some((2.0, "creating the first five")));
    let mut guest = Series::of("guest (its proportional share)", Unit::Mebibytes, &[]);
    let mut share = Series::of("growth of the daemon per bay", Unit::Mebibytes, &[]);
    let mut whole = Series::of("one idle bay", Unit::Mebibytes, &[Bar::Is(6.0)]);
    let before = resident_mib(daemon.pid);
    let mut names = Vec::new();
    let mut made = Ok(());
    for count in 0..CROWD {
        match setup.create_and_keep(&origin).await {
            Ok((name, took)) => {
                names.push(name);
                if count < EACH_END {
                    first.took(took);
                } else if count >= CROWD - EACH_END {
                    last.took(took);
                }
            }
            Err(error) => {
                made = Err(error);
                break;
            }
        }
    }
    if made.is_ok() {
        #[allow(clippy::cast_precision_loss, reason = "a hundred")]
        let growth = (resident_mib(daemon.pid) - before) / CROWD as f64;
        share.was(growth);
        for name in &names {
            let view: BayView = setup.client.get(&bay_path(name, "")).await?;
            let pid = view.host_pid.unwrap_or_default();
            let held = status_mib(&format!("/proc/{pid}/smaps_rollup"), "Pss:");
            guest.was(held);
            whole.was(held + growth);
        }
    }
    for name in &names {
        timed(&mut setup.bay(&["rm", "--yes", name]))?;
    }
    made?;
    Ok(score(&format!("{CROWD} idle bays"), &[first, last, guest, share, whole], vec![]))
}
