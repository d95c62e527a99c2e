//! What `stop`, `start`, `pause`, `resume` and `replace` have in common.

use bay_types::bay::BayView;
use http::Method;

use crate::cli::Global;
use crate::client::{bay_path, empty};
use crate::failure::Outcome;
use crate::output::escape::one_line;
use crate::output::progress::Meter;

/// Asks for the change and waits until the daemon says that it is so.
pub(super) async fn change(global: &Global, bay: &str, verb: &str, doing: &str) -> Outcome {
    let bay = crate::naming::bay(bay)?;
    let mut client = global.client();
    let mut meter = Meter::new(global.json);
    if crate::output::watched() {
        meter.stage(&format!("{doing} {bay}"));
    }
    let view: Result<BayView, _> =
        client.upload(Method::POST, &bay_path(bay, &format!("/{verb}")), empty()).await;
    meter.clear();
    let view = view?;
    if global.json {
        crate::output::json(&view)?;
    } else {
        crate::output::data(&format!("{} is {}: {}", view.name, view.state, one_line(&view.reason)))?;
    }
    Ok(0)
}
