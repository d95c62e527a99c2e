//! Lines for work that left a bay, and for the secrets that it has.

use bay_types::event::SecretEvent;
use bay_types::event::work::WorkLeft;
use bay_types::work::WorkRoute;

use super::event_lines::{after, after_some, by, list, text};

/// How many characters of a commit's id are shown.
const COMMIT: usize = 8;

pub(super) fn work_left(left: &WorkLeft) -> String {
    let branch = text(&left.branch);
    let to = after_some("", left.place.as_ref());
    let what = match left.route.get() {
        Some(WorkRoute::Branch) => format!("work taken out as branch {branch} of {to}"),
        Some(WorkRoute::Push) => format!("work pushed as branch {branch} to {to}"),
        Some(WorkRoute::Bundle) => format!("work taken out as a bundle with the branch {branch}"),
        None => format!("work taken out as {branch}"),
    };
    let commit: String = left.commit.chars().take(COMMIT).collect();
    let plural = |n: u64, noun: &str| if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") };
    let uncommitted = if left.uncommitted { ", with uncommitted changes" } else { "" };
    format!(
        "{what}{}: {}, {} changed{uncommitted}{}",
        after(" at ", &commit),
        plural(left.commits, "commit"),
        plural(left.files, "file"),
        by(&left.by)
    )
}

pub(super) fn secret(event: &SecretEvent) -> String {
    match event {
        SecretEvent::Set(set) => {
            let uses = if set.uses.is_empty() {
                String::new()
            } else {
                format!(" for {}", list(set.uses.iter().cloned()))
            };
            format!("secret {} set{uses}{}", text(&set.name), by(&set.by))
        }
        SecretEvent::Rotated(rotated) => {
            format!("secret {} has a new value{}", text(&rotated.name), by(&rotated.by))
        }
        SecretEvent::Removed(removed) => {
            format!("secret {} removed{}", text(&removed.name), by(&removed.by))
        }
        SecretEvent::Stale(stale) => {
            let why = after(": ", &stale.why);
            format!("secret {} got no new value from its command{why}", text(&stale.name))
        }
    }
}
