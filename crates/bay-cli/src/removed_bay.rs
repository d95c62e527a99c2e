//! Removed bays by their last names, for verbs that read what the record still has, and for errors that
//! say what became of a bay.

use bay_types::ErrorCode;
use bay_types::bay::BayRemoved;
use jiff::Timestamp;

use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::output::age::since;
use crate::output::talk;
use bay_text::percent::path_value;

/// The bay of this name that was removed last.
pub(crate) async fn newest(global: &GlobalOptions, name: &str) -> Result<Option<BayRemoved>, Failure> {
    // The daemon knows removed bays by their ids, so what it answered about an id stands.
    if name.parse::<bay_types::BayId>().is_ok() {
        return Ok(None);
    }
    let path = format!("/v1/removed-bays?name={}", path_value(name.as_bytes()));
    let all: Vec<BayRemoved> = global.client().get(&path).await?;
    Ok(all.into_iter().next())
}

/// Who removed it and when, as a part of a sentence.
pub(crate) fn how(bay: &BayRemoved, now: Timestamp) -> String {
    let by =
        bay.by.as_deref().map(|by| format!(" by {}", bay_text::escape::one_line(by))).unwrap_or_default();
    format!("removed {} ago{by}", since(bay.removed_at, now))
}

/// Reads about the bay with `work`. If no bay has the name, reads about the one that had it last, and says so.
pub(crate) async fn or_newest(
    global: &GlobalOptions,
    name: &str,
    work: impl AsyncFn(&str) -> Outcome,
) -> Outcome {
    let unknown = match work(name).await {
        Err(Failure::Api { error, exit }) if error.code == ErrorCode::BayNotFound => {
            Failure::Api { error, exit }
        }
        other => return other,
    };
    let Some(bay) = newest(global, name).await? else { return Err(unknown) };
    talk(&format!("bay: no bay is called {name} now; this is {}, {}", bay.id, how(&bay, Timestamp::now())));
    work(&bay.id.to_string()).await
}
