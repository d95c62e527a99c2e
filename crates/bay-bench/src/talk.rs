//! Progress messages for the person who waits.

use std::io::Write;

/// Prints a line on standard error.
pub(crate) fn talk(text: &str) {
    // A closed standard error is no failure.
    let _ = writeln!(std::io::stderr(), "{text}");
}
