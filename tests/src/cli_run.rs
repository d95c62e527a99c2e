//! What a command printed and how it ended.

use std::process::Output;

use bay_types::{ApiError, ErrorCode};
use serde_json::Value;

/// A finished run of the CLI.
#[derive(Debug, Clone)]
pub struct CliRun {
    /// The arguments, for messages.
    pub line: String,
    /// Exit code, or 128 + signal.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl CliRun {
    #[must_use]
    pub fn new(line: String, output: Output) -> Self {
        use std::os::unix::process::ExitStatusExt;
        let code = output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0));
        Self { line, code, stdout: output.stdout, stderr: output.stderr }
    }

    /// Asserts exit code 0.
    ///
    /// # Panics
    /// If the command failed. The message shows all of its output.
    #[track_caller]
    #[must_use]
    pub fn ok(self) -> Self {
        self.exits(0)
    }

    /// Asserts the exit code.
    #[track_caller]
    #[must_use]
    pub fn exits(self, code: i32) -> Self {
        assert!(self.code == code, "wanted exit code {code}:\n{self}");
        self
    }

    /// Standard output as text, without the last line break.
    #[must_use]
    pub fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.stdout);
        text.strip_suffix('\n').unwrap_or(&text).to_owned()
    }

    #[must_use]
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Standard output as one JSON value.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.stdout) {
            Ok(value) => value,
            Err(error) => panic!("not JSON ({error}):\n{self}"),
        }
    }

    /// Asserts a failure as a person sees it: the code's exit code, and on standard error exactly two lines, the
    /// first with the code and what happened, the second with what to do next.
    #[track_caller]
    pub fn fails_with(&self, code: ErrorCode) -> (String, String) {
        self.fails_as(code, i32::from(code.exit_code()))
    }

    /// Asserts a failure as [`Self::fails_with`] does, for verbs whose exit code for our failures differs from that of the
    /// error.
    #[track_caller]
    pub fn fails_as(&self, code: ErrorCode, exit: i32) -> (String, String) {
        assert!(self.code == exit, "wanted {code} with exit code {exit}:\n{self}");
        let text = self.errors();
        // Lines of progress are not part of the error.
        let said = |line: &&str| !line.trim().is_empty() && !line.ends_with('…');
        let lines: Vec<&str> = text.lines().filter(said).collect();
        let [what, next] = lines[..] else { panic!("wanted two lines for {code}:\n{self}") };
        assert!(what.contains(code.as_str()), "the first line does not name {code}:\n{self}");
        assert!(
            next.trim().trim_start_matches("next:").trim().len() > 8,
            "nothing says what to do next:\n{self}"
        );
        (what.to_owned(), next.trim().to_owned())
    }

    /// The error as a program sees it (`--json`).
    #[track_caller]
    #[must_use]
    pub fn api_error(&self) -> ApiError {
        let parse = |bytes: &[u8]| serde_json::from_slice::<ApiError>(bytes).ok();
        match parse(&self.stderr).or_else(|| parse(&self.stdout)) {
            Some(error) => error,
            None => panic!("no error in JSON:\n{self}"),
        }
    }
}

impl std::fmt::Display for CliRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        /// A failed assertion shows at most so many bytes of each stream.
        const SHOWN: usize = 4000;
        let clip = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]).into_owned();
        writeln!(f, "$ bay {}  -> {}", self.line, self.code)?;
        writeln!(f, "--- stdout\n{}", clip(&self.stdout))?;
        write!(f, "--- stderr\n{}", clip(&self.stderr))
    }
}
