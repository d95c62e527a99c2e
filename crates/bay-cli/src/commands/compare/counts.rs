//! Test counts, parsed from the summaries that test runners print.
//!
//! The output comes from a command in a bay. It may claim anything, and the counts repeat what it claims. It is parsed
//! as it arrives, line by line, in constant memory. A line that is too long to be a summary is skipped.

use serde::Serialize;

/// Longest line that can be a summary, including its colours.
const MAX_LINE: usize = 4096;

/// What the counts refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Of {
    Tests,
    /// `go test` without `-v` names packages only.
    Packages,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct TestCounts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) of: Of,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
    found: bool,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.passed = self.passed.saturating_add(other.passed);
        self.failed = self.failed.saturating_add(other.failed);
        self.skipped = self.skipped.saturating_add(other.skipped);
        self.found |= other.found;
    }

    fn counts(self, of: Of) -> Option<TestCounts> {
        let Self { passed, failed, skipped, found } = self;
        found.then_some(TestCounts { passed, failed, skipped, of })
    }
}

/// Which of the two streams of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// Parses the output of one command.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    out: Lines,
    err: Lines,
    tests: Tally,
    go_tests: Tally,
    /// `-v` also names passed tests, so the named tests are all tests.
    go_names_all: bool,
    go_packages: Tally,
    /// The count in `Ran 3 tests` of Python's own runner; the result is on the next line.
    ran: Option<u64>,
}

impl Reader {
    pub(crate) fn feed(&mut self, stream: Stream, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let lines = match stream {
                Stream::Out => &mut self.out,
                Stream::Err => &mut self.err,
            };
            if let Some(line) = lines.push(piece) {
                self.line(&line);
            }
        }
    }

    /// The sum of all summaries.
    pub(crate) fn finish(mut self) -> Option<TestCounts> {
        for rest in [self.out.rest(), self.err.rest()] {
            self.line(&rest);
        }
        if self.go_names_all {
            self.tests.add(self.go_tests);
        }
        self.tests.counts(Of::Tests).or_else(|| self.go_packages.counts(Of::Packages))
    }

    fn line(&mut self, line: &str) {
        self.go(line);
        let line = line.trim();
        let one = cargo(line)
            .or_else(|| nextest(line))
            .or_else(|| pytest(line))
            .or_else(|| jest(line))
            .or_else(|| mocha(line))
            .or_else(|| node(line))
            .or_else(|| self.unittest(line));
        if let Some(one) = one {
            self.tests.add(one);
        }
    }

    fn go(&mut self, line: &str) {
        if let Some(rest) = line.trim_start().strip_prefix("--- ") {
            let one = match rest.split(':').next() {
                Some("PASS") => Tally { passed: 1, found: true, ..Tally::default() },
                Some("FAIL") => Tally { failed: 1, found: true, ..Tally::default() },
                Some("SKIP") => Tally { skipped: 1, found: true, ..Tally::default() },
                _ => return,
            };
            self.go_names_all |= one.failed == 0;
            self.go_tests.add(one);
        }
        self.go_names_all |= line.trim_start().starts_with("=== RUN ");
        let of_package = |word: &str| {
            let rest = line.strip_prefix(word)?.trim_start_matches(' ').strip_prefix('\t')?;
            (!rest.trim().is_empty()).then_some(())
        };
        if of_package("ok").is_some() {
            self.go_packages.add(Tally { passed: 1, found: true, ..Tally::default() });
        } else if of_package("FAIL").is_some() {
            self.go_packages.add(Tally { failed: 1, found: true, ..Tally::default() });
        }
    }

    /// `Ran 5 tests in 0.01s`, then `OK (skipped=1)` or `FAILED (failures=1, errors=1)`.
    fn unittest(&mut self, line: &str) -> Option<Tally> {
        if let Some(rest) = line.strip_prefix("Ran ") {
            let (number, rest) = rest.split_once(' ')?;
            if rest.starts_with("test in ") || rest.starts_with("tests in ") {
                self.ran = number.parse().ok();
            }
            return None;
        }
        let details = match line.strip_prefix("OK").or_else(|| line.strip_prefix("FAILED")) {
            Some("") => "",
            Some(rest) => rest.strip_prefix(" (")?.strip_suffix(')')?,
            None => return None,
        };
        let ran = self.ran.take()?;
        let mut one = Tally { found: true, ..Tally::default() };
        for (name, number) in details.split(", ").filter_map(|part| part.split_once('=')) {
            let Ok(number) = number.parse::<u64>() else { continue };
            match name {
                "failures" | "errors" | "unexpected successes" => {
                    one.failed = one.failed.saturating_add(number);
                }
                "skipped" => one.skipped = one.skipped.saturating_add(number),
                _ => {}
            }
        }
        one.passed = ran.saturating_sub(one.failed).saturating_sub(one.skipped);
        Some(one)
    }
}

/// A list of `N WORD`: the sum of the known words. `None` unless every part is a number and a word, and one word is
/// known.
fn list<'a>(parts: impl Iterator<Item = &'a str>) -> Option<Tally> {
    let mut one = Tally::default();
    for part in parts {
        let (number, word) = part.trim().split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        let counter = match word.trim() {
            "passed" | "passing" | "xpassed" | "pass" => &mut one.passed,
            "failed" | "failing" | "error" | "errors" | "fail" | "exec failed" | "timed out" => {
                &mut one.failed
            }
            "skipped" | "pending" | "ignored" | "todo" | "xfailed" | "disabled" => &mut one.skipped,
            "total" | "warning" | "warnings" | "deselected" | "rerun" | "reruns" | "measured"
            | "filtered out" | "subtests passed" => continue,
            _ => return None,
        };
        *counter = counter.saturating_add(number);
        one.found = true;
    }
    one.found.then_some(one)
}

/// `test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`
fn cargo(line: &str) -> Option<Tally> {
    let (_, rest) = line.strip_prefix("test result: ")?.split_once(". ")?;
    list(rest.split(';').filter(|part| !part.trim().is_empty() && !part.trim().starts_with("finished in ")))
}

/// `Summary [   0.123s] 25 tests run: 24 passed (1 slow), 1 failed, 3 skipped`
fn nextest(line: &str) -> Option<Tally> {
    let (_, rest) = line.strip_prefix("Summary [")?.split_once(']')?;
    let (what, rest) = rest.split_once(" run:")?;
    if !what.ends_with("test") && !what.ends_with("tests") {
        return None;
    }
    let mut depth = 0_usize;
    let without_remarks: String = rest
        .chars()
        .filter(|c| match c {
            '(' => {
                depth += 1;
                false
            }
            ')' => {
                depth = depth.saturating_sub(1);
                false
            }
            _ => depth == 0,
        })
        .collect();
    list(without_remarks.split(','))
}

/// `==== 1 failed, 3 passed, 1 warning in 0.12s ====`, with or without the `=` characters around it.
fn pytest(line: &str) -> Option<Tally> {
    let (what, time) = line.trim_matches(['=', ' ']).rsplit_once(" in ")?;
    let seconds = time.split(' ').next()?.strip_suffix('s')?;
    seconds.parse::<f64>().ok()?;
    if what == "no tests ran" {
        return Some(Tally { found: true, ..Tally::default() });
    }
    list(what.split(", "))
}

/// jest: `Tests:  1 failed, 3 passed, 4 total`; vitest: `Tests  1 failed | 3 passed (4)`.
fn jest(line: &str) -> Option<Tally> {
    let rest = line.strip_prefix("Tests")?;
    if let Some(rest) = rest.strip_prefix(':') {
        return list(rest.split(','));
    }
    let rest = rest.strip_prefix(' ')?.trim();
    let rest =
        rest.rsplit_once(" (").filter(|(_, total)| total.ends_with(')')).map_or(rest, |(rest, _)| rest);
    list(rest.split('|'))
}

/// `5 passing (12ms)`, `1 failing`, `2 pending`: each on a line of its own.
fn mocha(line: &str) -> Option<Tally> {
    let rest = line.split_once(" (").filter(|(_, time)| time.ends_with(')')).map_or(line, |(rest, _)| rest);
    let word = rest.split_once(' ')?.1;
    matches!(word, "passing" | "failing" | "pending").then(|| list(std::iter::once(rest)))?
}

/// Node's own runner: `# pass 3` or `ℹ pass 3`, one line for each count.
fn node(line: &str) -> Option<Tally> {
    let (word, number) = line.strip_prefix("# ").or_else(|| line.strip_prefix("ℹ "))?.split_once(' ')?;
    let number: u64 = number.parse().ok()?;
    let mut one = Tally { found: true, ..Tally::default() };
    match word {
        "pass" => one.passed = number,
        "fail" | "cancelled" => one.failed = number,
        "skipped" | "todo" => one.skipped = number,
        _ => return None,
    }
    Some(one)
}

/// A stream cut into lines of bounded length.
#[derive(Debug, Default)]
struct Lines {
    begun: Vec<u8>,
    too_long: bool,
}

impl Lines {
    /// Returns the line if this piece ends one that is not too long.
    fn push(&mut self, piece: &[u8]) -> Option<String> {
        let ends = matches!(piece.last(), Some(b'\n' | b'\r'));
        let text = if ends { &piece[..piece.len() - 1] } else { piece };
        if self.begun.len() + text.len() > MAX_LINE {
            self.too_long = true;
            self.begun.clear();
        }
        if !self.too_long {
            self.begun.extend_from_slice(text);
        }
        if !ends {
            return None;
        }
        let whole = !std::mem::take(&mut self.too_long);
        let line = std::mem::take(&mut self.begun);
        (whole && !line.is_empty()).then(|| plain(&line))
    }

    fn rest(&mut self) -> String {
        plain(&std::mem::take(&mut self.begun))
    }
}

/// The text without colour sequences.
fn plain(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('[') => while chars.next().is_some_and(|c| !('@'..='~').contains(&c)) {},
            Some(']') => while chars.next().is_some_and(|c| c != '\u{7}' && c != '\u{1b}') {},
            _ => {}
        }
    }
    out
}

#[cfg(test)]
#[path = "counts_tests.rs"]
mod tests;
