//! Prints an error: its message and the next step, a line each, for people; one JSON object for programs.

use bay_text::escape::{self, message};
use bay_types::ApiError;

use super::talk;
use crate::failure::{EXIT_BROKEN_PIPE, Failure};

/// Prints a failure on standard error and returns the exit code.
pub(crate) fn report(failure: &Failure, json: bool) -> u8 {
    match failure {
        Failure::Api { error, exit } => {
            let text = if json {
                escape::json(serde_json::to_string(error).unwrap_or_default())
            } else {
                two_lines(error)
            };
            talk(&text);
            *exit
        }
        Failure::BrokenPipe => EXIT_BROKEN_PIPE,
    }
}

fn two_lines(error: &ApiError) -> String {
    let mut text = format!("error[{}]: {}", error.code, message(&error.message));
    if !error.next.is_empty() {
        text.push_str("\nnext: ");
        text.push_str(&message(&error.next));
    }
    text
}

#[cfg(test)]
mod tests {
    use bay_types::ErrorCode;

    use super::*;

    #[test]
    fn an_error_is_two_lines_whatever_the_message_contains() {
        let error = ApiError::new(ErrorCode::RepoFetch, "fatal:\nno \u{1b}[31mway", "try\r\nagain");
        assert_eq!(two_lines(&error), "error[repo-fetch]: fatal: no \\x1b[31mway\nnext: try again");
    }
}
