//! Coming back to a bay that was paused under somebody who follows something in it.

use std::time::{Duration, Instant};

use bay_types::bay::{BayView, State};
use bay_types::{ApiError, ErrorCode};

use super::{Client, bay_path};

/// How often a paused bay is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long the daemon may be away meanwhile.
const AWAY_FOR: Duration = Duration::from_secs(60);

/// Waits for as long as the bay is paused, which is said once. What it is then; nothing when it was not paused.
pub(crate) async fn wait(
    client: &Client,
    bay: &str,
    say: impl FnOnce(&str),
) -> Result<Option<BayView>, ApiError> {
    let mut say = Some(say);
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
            // It is on its way.
            Ok(view) if view.state == State::Starting && say.is_none() => away_since = None,
            Ok(view) => return Ok(say.is_none().then_some(view)),
            Err(error) if error.code == ErrorCode::DaemonUnreachable && say.is_none() => {
                if away_since.get_or_insert_with(Instant::now).elapsed() > AWAY_FOR {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn said(view: &BayView) -> String {
    let reason = crate::output::escape::one_line(&view.reason);
    format!("the bay {0} is paused ({reason}); this goes on after `bay resume {0}`", view.name)
}
