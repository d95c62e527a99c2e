//! Waits until a service reaches a state, and reports its progress.

use std::time::Duration;

use bay_client::Client;
use bay_types::service::{ServiceState, ServiceView};
use bay_types::{ApiError, ErrorCode};

use super::Target;
use crate::failure::Failure;
use crate::output::progress::Meter;
use bay_text::escape::one_line;

/// Interval between requests to the guest.
const POLL: Duration = Duration::from_millis(100);

/// Waits until the service is ready or done. It is an error if the service is unhealthy, or cannot become ready until
/// somebody intervenes.
pub(super) async fn until_ready(client: &mut Client, one: &Target) -> Result<ServiceView, Failure> {
    watch(client, one, async |client, view| match view.state {
        ServiceState::Ready | ServiceState::Done => Ok(true),
        ServiceState::Unhealthy => Err(failed(one, view)),
        state if state.is_stuck() => Err(failed(one, view)),
        ServiceState::Waiting => match stuck_need(client, one, view).await? {
            true => Err(failed(one, view)),
            false => Ok(false),
        },
        _ => Ok(false),
    })
    .await
}

/// Waits until no process of the service is ending any more.
pub(super) async fn until_stopped(client: &mut Client, one: &Target) -> Result<ServiceView, Failure> {
    watch(client, one, async |_, view| Ok(view.state != ServiceState::Stopping)).await
}

async fn watch(
    client: &mut Client,
    one: &Target,
    mut there: impl AsyncFnMut(&mut Client, &ServiceView) -> Result<bool, Failure>,
) -> Result<ServiceView, Failure> {
    let path = one.path("");
    let mut meter = Meter::new(one.json);
    loop {
        let view: ServiceView = client.get(&path).await?;
        if there(client, &view).await? {
            return Ok(view);
        }
        meter.stage(&format!("{} is {}: {}", view.name, view.state, one_line(&view.reason)));
        tokio::time::sleep(POLL).await;
    }
}

/// Whether the service needs another one that will not become ready by itself.
async fn stuck_need(client: &mut Client, one: &Target, view: &ServiceView) -> Result<bool, Failure> {
    let all: Vec<ServiceView> = client.get(&one.base).await?;
    let needs = view.spec.as_ref().map(|spec| spec.needs.as_slice()).unwrap_or_default();
    Ok(needs
        .iter()
        .any(|need| all.iter().find(|other| other.name == *need).is_none_or(|other| other.state.is_stuck())))
}

fn failed(one: &Target, view: &ServiceView) -> Failure {
    let next = format!("`{}` shows its output; the service is still defined", one.logs);
    let message = format!("the service {} is {}: {}", view.name, view.state, view.reason);
    ApiError::new(ErrorCode::ServiceFailed, message, next).into()
}
