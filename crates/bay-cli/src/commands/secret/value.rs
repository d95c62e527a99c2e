//! The value of a secret from standard input, a variable or a file. It is read here, with the caller's rights, and not by
//! the daemon. (A command of `--from-command` is run by the daemon.)

use std::io::Read;

use bay_client::{invalid, local};
use bay_types::secret::{MAX_SECRET_BYTES, SecretText};
use bay_types::{ApiError, ErrorCode};
use clap::Args;

#[derive(Debug, Args)]
pub(super) struct Given {
    /// `-` reads the value from standard input, or on a terminal asks for it without echo.
    #[arg(value_name = "-", group = "source")]
    stdin: Option<String>,
    /// An environment variable of this command that contains the value.
    #[arg(long, value_name = "VARIABLE", group = "source")]
    from_env: Option<String>,
    /// A file that contains the value and nothing else.
    #[arg(long, value_name = "FILE", group = "source")]
    from_file: Option<String>,
}

impl Given {
    /// The value. `None` if there is none of the flags.
    pub(super) fn read(&self) -> Result<Option<SecretText>, ApiError> {
        if let Some(name) = &self.from_env {
            let value = std::env::var(name).map_err(|_| {
                invalid(
                    format!("the variable {name} is not set, or is not text"),
                    "export it, or give the value on standard input (-)",
                )
            })?;
            return Ok(Some(SecretText::new(value)));
        }
        if let Some(path) = &self.from_file {
            let file = std::fs::File::open(path).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => ApiError::new(
                    ErrorCode::PathNotFound,
                    format!("there is no file {path:?}"),
                    "give the path of a file that has the value",
                ),
                _ => local(&format!("reading {path}"), &error),
            })?;
            return bounded(file, path).map(Some);
        }
        match self.stdin.as_deref() {
            // The error does not repeat the argument, which may be the value.
            Some(other) if other != "-" => Err(invalid(
                "a value is not taken from the command line, where others can read it",
                "give it on standard input (-), with --from-env or with --from-file",
            )),
            Some(_) if rustix::termios::isatty(std::io::stdin()) => typed().map(Some),
            Some(_) => bounded(std::io::stdin(), "standard input").map(Some),
            None => Ok(None),
        }
    }
}

/// Reads one line from the terminal without echo.
fn typed() -> Result<SecretText, ApiError> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let terminal = std::io::stdin();
    let failed = |error: rustix::io::Errno| local("asking for the value", &error.into());
    let before = tcgetattr(&terminal).map_err(failed)?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    crate::output::ask("value (not shown): ");
    tcsetattr(&terminal, OptionalActions::Flush, &silent).map_err(failed)?;
    let mut line = String::with_capacity(MAX_SECRET_BYTES + 3);
    let read = terminal.read_line(&mut line);
    let shown = tcsetattr(&terminal, OptionalActions::Flush, &before);
    crate::output::ask("\n");
    shown.map_err(failed)?;
    read.map_err(|error| local("reading the value", &error))?;
    Ok(SecretText::new(line))
}

fn bounded(from: impl Read, what: &str) -> Result<SecretText, ApiError> {
    // Allocate the full size first: a growing string leaves copies in memory.
    let mut text = String::with_capacity(MAX_SECRET_BYTES + 3);
    let read = from.take(MAX_SECRET_BYTES as u64 + 3).read_to_string(&mut text);
    read.map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => {
            invalid(format!("{what} is not text"), "a value must be printable ASCII")
        }
        _ => local(&format!("reading {what}"), &error),
    })?;
    Ok(SecretText::new(text))
}
