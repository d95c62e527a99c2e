//! The terminal during `bay top`: alternate screen, no cursor, no echo. All of it is restored when the screen is
//! dropped, and at a panic.

use std::io::{self, Write};

use crate::terminal::RawMode;

const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";

#[derive(Debug)]
pub(super) struct Screen {
    _raw: RawMode,
}

impl Screen {
    /// `None` if standard input or output is no terminal.
    pub(super) fn enter() -> Option<Self> {
        if !rustix::termios::isatty(io::stdout()) {
            return None;
        }
        let raw = RawMode::enter()?;
        // The message of a panic belongs on the normal screen.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let _ = write_all(LEAVE);
            before(panic);
        }));
        let screen = Self { _raw: raw };
        let _ = write_all(ENTER);
        Some(screen)
    }

    /// Replaces the shown lines. One write, so that nothing flickers.
    pub(super) fn show(&self, lines: &[String]) -> io::Result<()> {
        let mut text = String::from("\u{1b}[H");
        for (i, line) in lines.iter().enumerate() {
            if i > 0 {
                text.push_str("\r\n");
            }
            text.push_str(line);
            text.push_str("\u{1b}[K");
        }
        text.push_str("\u{1b}[J");
        write_all(text.as_bytes())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = write_all(LEAVE);
    }
}

fn write_all(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
