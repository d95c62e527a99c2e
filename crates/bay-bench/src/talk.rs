//! What is measured now, for the person who waits.

use std::io::Write;

/// Prints a line on standard error.
pub(crate) fn talk(text: &str) {
    // Nobody listening is no failure.
    let _ = writeln!(std::io::stderr(), "{text}");
}
