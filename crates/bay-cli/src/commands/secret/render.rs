//! Secrets for a person.

use bay_types::secret::{SecretView, SourceView};
use jiff::Timestamp;

use crate::output::age::since;
use crate::output::table;
use bay_text::escape::visible;

fn list(all: &[String]) -> String {
    visible(&all.join(", "))
}

fn places(secret: &SecretView) -> String {
    let env = secret.env.iter().map(|name| format!("${name}"));
    let git = secret.git.iter().map(|host| format!("git {host}"));
    list(&env.chain(secret.files.iter().cloned()).chain(git).collect::<Vec<_>>())
}

fn bays(secret: &SecretView) -> String {
    if secret.bays.is_empty() { "all".to_owned() } else { list(&secret.bays) }
}

/// A problem of the secret or of its value.
fn problem(secret: &SecretView) -> Option<String> {
    let weak = secret.weak.then(|| "weak value".to_owned());
    let all: Vec<String> = weak.into_iter().chain(secret.problem.as_deref().map(visible)).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

pub(super) fn table(all: &[SecretView], now: Timestamp) -> String {
    let mut table =
        table::table(&["NAME", "FOR", "IN BAYS AS", "BAYS", "VALUE SINCE", "LAST USED", "PROBLEM"]);
    for secret in all {
        table.add_row([
            visible(&secret.name),
            list(&secret.uses),
            places(secret),
            bays(secret),
            since(secret.value_since, now),
            secret.last_used.map_or_else(|| "-".to_owned(), |at| since(at, now)),
            problem(secret).unwrap_or_default(),
        ]);
    }
    table.trim_fmt()
}

pub(super) fn whole(secret: &SecretView, now: Timestamp) -> String {
    let source = match secret.source {
        SourceView::Value => "given by hand".to_owned(),
        SourceView::Command { refresh_s, as_uid } => {
            format!("a command, run as user {as_uid} when a value is older than {refresh_s} s")
        }
    };
    let mut lines = vec![format!("secret     {}", visible(&secret.name))];
    lines.extend(secret.uses.iter().map(|one| format!("for        {}", visible(one))));
    lines.push(format!("in bays as {}", places(secret)));
    lines.push(format!("bays       {}", bays(secret)));
    lines.push(format!("value      {source}, {} old", since(secret.value_since, now)));
    if let Some(expires) = secret.expires {
        lines.push(format!("ends       {expires}"));
    }
    if secret.weak {
        lines.push("weak       its value is easy to guess: answers that contain it are cut off".to_owned());
    }
    let others = if secret.managed { "refused" } else { "left alone" };
    lines.push(format!("others     other credentials to its hosts are {others}"));
    if secret.literal_bodies {
        lines.push("bodies     to its hosts may have sentinels in them".to_owned());
    }
    lines.push(match secret.last_used {
        Some(at) => format!("last used  {} ago", since(at, now)),
        None => "last used  not since the daemon started".to_owned(),
    });
    if let Some(problem) = &secret.problem {
        lines.push(format!("problem    {}", visible(problem)));
    }
    lines.join("\n")
}
