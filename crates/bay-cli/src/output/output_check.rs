//! The warning about output of a command that may have been changed.

use bay_types::output::OutputCheck;

/// The warning about output that was just shown, if one is needed.
pub(crate) fn warning(check: OutputCheck) -> Option<String> {
    let what = match check {
        OutputCheck::Intact | OutputCheck::Partial => return None,
        OutputCheck::Changed { from, to } => format!(
            "this is not what the command wrote: bytes {from} to {to} differ from the hash that was recorded when it ended; \
             somebody in the bay has changed the kept output"
        ),
        OutputCheck::Missing { from, to } => format!(
            "bytes {from} to {to} were kept when the command ended and are not there any more; later output replaced them, or \
             somebody in the bay has removed them"
        ),
        OutputCheck::Unchecked { from, to } => format!(
            "bytes {from} to {to} cannot be checked, and anybody in the bay could have changed them: no hash of them was \
             recorded when the command ended"
        ),
    };
    Some(format!("warning: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_appears_only_for_output_that_may_have_been_changed() {
        assert_eq!(warning(OutputCheck::Intact), None);
        assert_eq!(warning(OutputCheck::Partial), None);
        let changed = warning(OutputCheck::Changed { from: 0, to: 15 }).unwrap();
        assert!(
            changed.starts_with("warning: this is not what the command wrote: bytes 0 to 15"),
            "{changed}"
        );
        let check = OutputCheck::Unchecked { from: 1, to: 2 };
        assert!(warning(check).unwrap().contains("cannot be checked"));
    }
}
