//! How long a request is held without an answer before its client is asked to retry.
//!
//! The daemon cannot send anything to a waiting client: answers such as `102 Processing` break some of them. So the
//! gateway soon answers 503, after which many clients retry by themselves. Clients that are known not to retry, and
//! to wait for long, are held for longer. They are recognized by their `User-Agent`.

use std::time::Duration;

/// Shorter than the deadline for an answer of the clients that were tested (pip: 15 s).
pub(super) const HOLD: Duration = Duration::from_secs(10);
/// For clients without such a deadline, or with one of many minutes, that would not retry or only a few times.
pub(super) const PATIENT_HOLD: Duration = Duration::from_secs(300);
/// When a client should retry. It is then held again if nobody has answered. If somebody answers in between, the
/// request continues with the retry.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(3);

/// The beginnings of the `User-Agent` of patient clients, in lower case.
const PATIENT: &[&str] = &[
    "git/",
    "curl/",
    "wget/",
    "github cli",
    "gh/",
    "npm/",
    "openai/",
    "anthropic/",
    "asyncopenai/",
    "asyncanthropic/",
];

/// Clients that retry only a few times, and wait 30 s for an answer. They are held 2.5 times as long as usual: 25 s
/// by default.
const WAITS_HALF_A_MINUTE: &[&str] = &["cargo/", "cargo ", "uv/"];

/// How long a client with this `User-Agent` is held.
pub(super) fn hold(user_agent: Option<&str>, usual: Duration) -> Duration {
    let name = user_agent.unwrap_or_default().to_ascii_lowercase();
    let is = |names: &[&str]| names.iter().any(|known| name.starts_with(known));
    if is(PATIENT) {
        PATIENT_HOLD.max(usual)
    } else if is(WAITS_HALF_A_MINUTE) {
        usual.saturating_mul(5) / 2
    } else {
        usual
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_does_not_retry_is_held_for_longer() {
        for patient in [
            "git/2.39.5",
            "curl/7.88.1",
            "Wget/1.21.3",
            "GitHub CLI 2.23.0",
            "npm/11.19.1 node/v20.20.2 linux x64 workspaces/false",
            "OpenAI/Python 3.49.0",
        ] {
            assert_eq!(hold(Some(patient), HOLD), PATIENT_HOLD, "{patient}");
        }
        for other in ["cargo/1.95.0 (f2d3ce0bd 2026-03-21)", "uv/0.13.7 {}"] {
            assert_eq!(hold(Some(other), HOLD), Duration::from_secs(25), "{other}");
        }
        for other in ["pip/23.0.1 {}", "my git/1"] {
            assert_eq!(hold(Some(other), HOLD), HOLD, "{other}");
        }
        assert_eq!(hold(None, HOLD), HOLD);
        // As documented in docs/approvals.md.
        assert_eq!((HOLD, PATIENT_HOLD), (Duration::from_secs(10), Duration::from_secs(300)));
    }
}
