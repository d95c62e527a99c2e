//! Standard output and standard error for bytes that a bay wrote.
//!
//! A terminal gets them through a [`Filter`]. A pipe or a file gets them unchanged.

use std::borrow::Cow;
use std::io::{self, Write};

use bay_text::terminal::Filter;
use rustix::termios::isatty;

/// Both streams of this program, each with the state of its filter.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    out: Option<Filter>,
    err: Option<Filter>,
}

impl Streams {
    /// With `raw`, terminals get the bytes unchanged too.
    pub(crate) fn new(raw: bool) -> Self {
        let filter = |terminal: bool| (terminal && !raw).then(Filter::default);
        Self { out: filter(isatty(io::stdout())), err: filter(isatty(io::stderr())) }
    }

    /// Whether one of the streams is a terminal with a filter.
    pub(crate) fn filtered(&self) -> bool {
        self.out.is_some() || self.err.is_some()
    }

    /// The bytes to write for a piece.
    pub(crate) fn pass<'a>(&mut self, stderr: bool, bytes: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
        match if stderr { &mut self.err } else { &mut self.out } {
            Some(filter) => Cow::Owned(filter.push(&bytes)),
            None => bytes,
        }
    }

    /// The bytes to write at the end, standard error first.
    pub(crate) fn finish(&mut self) -> [(bool, Vec<u8>); 2] {
        let end = |filter: &mut Option<Filter>| filter.as_mut().map(Filter::finish).unwrap_or_default();
        [(true, end(&mut self.err)), (false, end(&mut self.out))]
    }

    /// Writes a piece. A closed standard error is no failure.
    pub(crate) fn write(&mut self, stderr: bool, bytes: &[u8]) -> io::Result<()> {
        write(stderr, &self.pass(stderr, Cow::Borrowed(bytes)))
    }

    /// Resets colours and ends the current line, so that a message of this program begins on its own line.
    pub(crate) fn interrupt(&mut self) -> io::Result<()> {
        let end = |filter: &mut Option<Filter>| filter.as_mut().map(Filter::interrupt).unwrap_or_default();
        let (err, out) = (end(&mut self.err), end(&mut self.out));
        write(true, &err)?;
        write(false, &out)
    }

    /// Writes buffered bytes, and resets colours.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.finish().iter().try_for_each(|(stderr, bytes)| write(*stderr, bytes))
    }
}

fn write(stderr: bool, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    if stderr {
        let _ = io::stderr().lock().write_all(bytes);
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}
