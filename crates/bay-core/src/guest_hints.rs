//! What the daemon advises for errors of a guest. A guest knows no front and not its bay's name, so its own advice
//! names no commands. For some codes the daemon replaces that advice by its own.

use bay_types::blame::not_in_image;
use bay_types::{Action, ErrorCode, Hint, HintBay};

/// Guests of an earlier release wrote commands of the CLI, with this for the name of their bay.
const UNKNOWN_NAME: &str = " NAME";

/// The hint for an error of a guest, whose own advice is `said`, as plain text.
pub(crate) fn hint(code: ErrorCode, said: &str) -> Hint {
    let bay = || HintBay::OfRequest;
    match code {
        ErrorCode::ExecNotFound => Hint::new("{} lists them", [Action::ListExecs(bay())]),
        ErrorCode::ServiceNotFound => Hint::new("{} lists them", [Action::ListServices(bay())]),
        ErrorCode::PortClosed => {
            Hint::new("{} lists the ports on which it listens", [Action::ListPorts(bay())])
        }
        ErrorCode::CommandNotFound => not_in_image(bay()),
        ErrorCode::DiskLimit => Hint::disk_limit(),
        ErrorCode::PoolFull => Hint::new(
            "{} shows where the disk goes; remove images that no bay uses ({}), old checkpoints ({}) or bays ({}), or free \
             space on the host's disk",
            [Action::ShowDisk, Action::PruneImages, Action::RemoveCheckpoints(bay()), Action::RemoveAnyBay],
        ),
        _ if said.contains(UNKNOWN_NAME) => Hint::new("{} shows the bay", [Action::ShowBay(bay())]),
        _ => said.to_owned().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worded(hint: &Hint) -> String {
        hint.worded(|action| Some(format!("{action:?}")))
    }

    #[test]
    fn advice_that_the_daemon_has_nothing_to_add_to_is_passed_on() {
        assert_eq!(worded(&hint(ErrorCode::ExecStart, "check its first line")), "check its first line");
    }

    #[test]
    fn what_an_earlier_guest_called_its_bay_is_never_shown() {
        for code in [ErrorCode::ServiceNotFound, ErrorCode::InvalidInput] {
            let hint = worded(&hint(code, "`bay services ls NAME` lists them"));
            assert!(!hint.contains("NAME") && !hint.is_empty(), "{hint}");
        }
    }
}
