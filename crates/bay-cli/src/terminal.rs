//! The caller's terminal: its size, and raw mode during a session.

use std::io;

use bay_types::exec::TtySize;
use rustix::termios::{OptionalActions, OutputModes, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

pub(crate) fn stdin_is_terminal() -> bool {
    isatty(io::stdin())
}

/// Whether standard input can never yield anything: closed, or `/dev/null`. Then it need not be attached.
pub(crate) fn stdin_is_nothing() -> bool {
    const NULL_DEVICE: (u32, u32) = (1, 3);
    match rustix::fs::fstat(io::stdin()) {
        Ok(stat) => {
            let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device();
            is_device && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == NULL_DEVICE
        }
        Err(_) => true,
    }
}

/// The size of the first of our streams that is a terminal.
pub(crate) fn size() -> Option<TtySize> {
    let sizes = [tcgetwinsize(io::stdout()), tcgetwinsize(io::stdin()), tcgetwinsize(io::stderr())];
    sizes
        .into_iter()
        .flatten()
        .map(|s| TtySize { cols: s.ws_col, rows: s.ws_row })
        .find(|s| s.cols > 0 && s.rows > 0)
}

/// Whether standard input is a terminal that does not translate newlines.
pub(crate) fn is_raw() -> bool {
    tcgetattr(io::stdin()).is_ok_and(|modes| !modes.output_modes.contains(OutputModes::OPOST))
}

/// Raw mode of standard input until dropped, also by an unwinding panic.
#[derive(Debug)]
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// `None` if standard input is no terminal.
    pub(crate) fn enter() -> Option<Self> {
        let before = tcgetattr(io::stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}
