//! The failure of a verb: an error for the reader and an exit code for the caller.

use bay_types::{ApiError, ErrorCode};

/// The exit code that shells report for a program ended by SIGPIPE.
pub(crate) const EXIT_BROKEN_PIPE: u8 = 141;
/// The exit code of `exec` for Workbay's own failures, distinct from the command's own codes.
pub(crate) const EXIT_EXEC_OURS: u8 = 125;
const EXIT_NOT_EXECUTABLE: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;

#[derive(Debug)]
pub(crate) enum Failure {
    Api {
        error: ApiError,
        exit: u8,
    },
    /// The reader of our output has closed it, so no message can reach it.
    BrokenPipe,
}

/// A verb's result: the exit code.
pub(crate) type Outcome = Result<u8, Failure>;

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let exit = error.code.exit_code();
        Failure::Api { error, exit }
    }
}

impl Failure {
    /// The failure with the exit codes of `exec`: 126 and 127 as shells use them, 125 for Workbay's own failures.
    pub(crate) fn in_exec(self) -> Self {
        match self {
            Failure::Api { error, .. } => {
                let exit = match error.code {
                    ErrorCode::CommandNotFound => EXIT_NOT_FOUND,
                    ErrorCode::ExecStart => EXIT_NOT_EXECUTABLE,
                    _ => EXIT_EXEC_OURS,
                };
                Failure::Api { error, exit }
            }
            Failure::BrokenPipe => Failure::BrokenPipe,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_distinguishes_our_failures_from_the_commands() {
        let exit = |code, message: &str| match Failure::from(ApiError::new(code, message, "")).in_exec() {
            Failure::Api { exit, .. } => exit,
            Failure::BrokenPipe => unreachable!(),
        };
        assert_eq!(exit(ErrorCode::BayNotFound, "no bay"), 125);
        assert_eq!(exit(ErrorCode::CommandNotFound, "\"nope\": command not found in the bay"), 127);
        assert_eq!(
            exit(
                ErrorCode::ExecStart,
                "the working directory \"/x\" cannot be entered: No such file or directory"
            ),
            126
        );
    }
}
