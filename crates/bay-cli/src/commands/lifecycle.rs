//! What the verbs share that take the names of several bays.

use bay_client::{Client, ShowProgress, bay_path, empty};
use bay_types::ApiError;
use bay_types::bay::BayView;
use http::Method;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::progress::Meter;
use bay_text::escape::one_line;

/// Resolves several names, each bay once. It resolves all before anything is done to the first: a typing error in the
/// third name must not cost the first two. A single name is only checked; the request for it finds the bay.
pub(super) async fn resolve(client: &mut Client, names: &[String]) -> Result<Vec<String>, ApiError> {
    let names = names.iter().map(|name| crate::naming::bay(name)).collect::<Result<Vec<_>, _>>()?;
    if let [only] = names[..] {
        return Ok(vec![only.to_owned()]);
    }
    let mut bays = Vec::new();
    for name in names {
        let view: BayView = client.get(&bay_path(name, "")).await?;
        let bay = view.name.to_string();
        if !bays.contains(&bay) {
            bays.push(bay);
        }
    }
    Ok(bays)
}

/// Requests the change of each bay and waits until the daemon reports that it is done.
pub(super) async fn change(global: &GlobalOptions, names: &[String], verb: &str, doing: &str) -> Outcome {
    let mut client = global.client();
    for bay in resolve(&mut client, names).await? {
        let mut meter = Meter::new(global.json);
        if crate::output::watched() {
            meter.stage(&format!("{doing} {bay}"));
        }
        let view: Result<BayView, _> =
            client.upload(Method::POST, &bay_path(&bay, &format!("/{verb}")), empty()).await;
        meter.clear();
        let view = view?;
        if global.json {
            crate::output::json(&view)?;
        } else {
            crate::output::data(&format!("{} is {}: {}", view.name, view.state, one_line(&view.reason)))?;
        }
    }
    Ok(0)
}
