//! How long a request is held in silence before its client is told to come again.
//!
//! Nothing can be said to a client that waits: answers such as `102 Processing` break some of them. Who comes again by
//! itself after a 503 is told to soon; who does not, and waits for as long as it takes, is held for longer.

use std::time::Duration;

/// Shorter than what every client waits for an answer (pip: 15 s).
pub(super) const HOLD: Duration = Duration::from_secs(10);
/// For clients that have no such bound, or one of many minutes, and would not come again or only a few times.
pub(super) const PATIENT_HOLD: Duration = Duration::from_secs(300);
/// When a client is to come again. It is held again then, so this is only the time in which nobody is there to go on.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(3);

/// What patient clients call themselves, at the beginning and in small letters.
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

/// Clients that come again a few times only, and wait 30 s for an answer: with the usual hold a person would have half the time.
const WAITS_HALF_A_MINUTE: &[&str] = &["cargo/", "cargo ", "uv/"];

/// How long a client is held that calls itself this.
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
    fn who_does_not_come_again_is_held_for_longer() {
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
        // What docs/approvals.md says.
        assert_eq!((HOLD, PATIENT_HOLD), (Duration::from_secs(10), Duration::from_secs(300)));
    }
}
