//! Waits for a paused bay, for clients that follow its output or changes.

use std::time::{Duration, Instant};

use bay_text::escape;
use bay_types::bay::{BayView, State};
use bay_types::{ApiError, ErrorCode};

use crate::{Client, bay_path};

/// Interval between requests for the state of a paused bay.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long the daemon may be unreachable, or the bay starting or stopping.
const AWAY_FOR: Duration = Duration::from_secs(60);

/// Waits while the bay is paused, and for at most [`AWAY_FOR`] while it starts or stops, as during a restore.
/// Reports a pause once through `say`. Returns the bay as it is then, or `None` if there was nothing to wait for.
pub async fn wait(client: &Client, bay: &str, say: impl FnOnce(&str)) -> Result<Option<BayView>, ApiError> {
    let mut say = Some(say);
    let mut waited = false;
    let mut away_since: Option<Instant> = None;
    loop {
        let found = client.another_without_starting().get::<BayView>(&bay_path(bay, "")).await;
        match found {
            Ok(view) if view.state == State::Paused => {
                away_since = None;
                if let Some(say) = say.take() {
                    say(&said(&view));
                }
            }
            Ok(view) => {
                let on_its_way = matches!(view.state, State::Starting | State::Stopping);
                if !on_its_way || away_since.get_or_insert_with(Instant::now).elapsed() > AWAY_FOR {
                    return Ok(waited.then_some(view));
                }
            }
            Err(error) if error.code == ErrorCode::DaemonUnreachable && waited => {
                if away_since.get_or_insert_with(Instant::now).elapsed() > AWAY_FOR {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        waited = true;
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn said(view: &BayView) -> String {
    let reason = escape::one_line(&view.reason);
    format!("the bay {0} is paused ({reason}); this continues after `bay resume {0}`", view.name)
}
