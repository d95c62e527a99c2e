//! What a git push changes, parsed from the beginning of the data sent to `git-receive-pack`, over HTTP or over SSH.
//!
//! The bay writes that data. If it is not what git is known to send, it is not parsed. The refs that change are then
//! unknown, and rules by branch assume the worst.

use crate::stars::fits;

/// Most refs of a push. The refs of a larger push are unknown.
pub const MAX_REFS: usize = 100;
/// Longest name of a ref.
const MAX_REF_BYTES: usize = 512;
/// Most push options of a push. The refs of a push with more are unknown.
pub const MAX_OPTIONS: usize = 32;
/// Longest push option.
const MAX_OPTION_BYTES: usize = 1024;
/// The capability by which a client announces push options.
const OPTIONS_CAPABILITY: &[u8] = b"push-options";
/// Number of bytes that give a packet's length.
const LENGTH: usize = 4;

/// One ref that a push changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefUpdate {
    pub name: String,
    /// `None` if the ref is new.
    pub old: Option<String>,
    /// `None` if the push deletes the ref.
    pub new: Option<String>,
}

/// The commands of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commands {
    pub updates: Vec<RefUpdate>,
    /// Requests to the server besides the refs: `git push -o`. A forge may merge, skip checks or set variables for
    /// them.
    pub options: Vec<String>,
    /// The offset in the body where the commands end. The pack may begin there.
    pub end: usize,
}

/// The prefix of a line that says where the history of a shallow clone ends.
const SHALLOW: &str = "shallow ";

/// Why the commands could not be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandsError {
    /// The data is incomplete so far.
    Incomplete,
    /// The data is not what git sends, or exceeds a limit.
    Unexpected,
}

/// Parses the commands. `None` if they are incomplete or not what git sends.
#[must_use]
pub fn commands(body: &[u8]) -> Option<Commands> {
    read_commands(body).ok()
}

/// Parses the commands. The error says whether more data could help.
pub fn read_commands(body: &[u8]) -> Result<Commands, CommandsError> {
    let (mut updates, mut options) = (Vec::new(), Vec::new());
    let (mut at, mut announced) = (0, false);
    while let Packet::Line { text, next } = packet(body, at)? {
        at = next;
        let (text, capabilities) = match text.iter().position(|byte| *byte == 0) {
            Some(nul) if updates.is_empty() && !text.starts_with(SHALLOW.as_bytes()) => {
                (&text[..nul], &text[nul + 1..])
            }
            Some(_) => return Err(CommandsError::Unexpected),
            None => (text, &b""[..]),
        };
        announced |= announces_options(capabilities)?;
        let line = std::str::from_utf8(text).map_err(|_| CommandsError::Unexpected)?;
        let line = line.strip_suffix('\n').unwrap_or(line);
        if let Some(id) = line.strip_prefix(SHALLOW) {
            object_id(id).ok_or(CommandsError::Unexpected)?;
            continue;
        }
        if updates.len() == MAX_REFS {
            return Err(CommandsError::Unexpected);
        }
        updates.push(update(line).ok_or(CommandsError::Unexpected)?);
    }
    at += LENGTH;
    if announced {
        while let Packet::Line { text, next } = packet(body, at)? {
            if options.len() == MAX_OPTIONS {
                return Err(CommandsError::Unexpected);
            }
            options.push(option(text).ok_or(CommandsError::Unexpected)?);
            at = next;
        }
        at += LENGTH;
    }
    Ok(Commands { updates, options, end: at })
}

/// Whether the capabilities of a push announce push options. Git accepts any white space before the name and a `=`
/// after it, and other servers may parse it in other ways. So only one spelling is accepted.
fn announces_options(capabilities: &[u8]) -> Result<bool, CommandsError> {
    let capabilities = capabilities.strip_suffix(b"\n").unwrap_or(capabilities);
    if capabilities.iter().any(u8::is_ascii_control) {
        return Err(CommandsError::Unexpected);
    }
    let names_it = |word: &&[u8]| {
        word.windows(OPTIONS_CAPABILITY.len()).any(|part| part.eq_ignore_ascii_case(OPTIONS_CAPABILITY))
    };
    let mut named = capabilities.split(|byte| *byte == b' ').filter(names_it);
    match (named.next(), named.next()) {
        (None, _) => Ok(false),
        (Some(OPTIONS_CAPABILITY), None) => Ok(true),
        _ => Err(CommandsError::Unexpected),
    }
}

/// One push option. Git accepts no line break within one.
fn option(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let fits = (1..=MAX_OPTION_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
}

enum Packet<'a> {
    Line { text: &'a [u8], next: usize },
    Flush,
}

fn packet(body: &[u8], at: usize) -> Result<Packet<'_>, CommandsError> {
    let digits = body.get(at..at + LENGTH).ok_or(CommandsError::Incomplete)?;
    let digits = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
    let length =
        digits.and_then(|digits| usize::from_str_radix(digits, 16).ok()).ok_or(CommandsError::Unexpected)?;
    match length {
        0 => Ok(Packet::Flush),
        1..=LENGTH => Err(CommandsError::Unexpected),
        length => {
            let text = body.get(at + LENGTH..at + length).ok_or(CommandsError::Incomplete)?;
            Ok(Packet::Line { text, next: at + length })
        }
    }
}

fn update(line: &str) -> Option<RefUpdate> {
    let mut words = line.splitn(3, ' ');
    let (old, new, name) = (words.next()?, words.next()?, words.next()?);
    let ids = (object_id(old)?, object_id(new)?);
    (old.len() == new.len() && is_ref(name)).then(|| RefUpdate {
        name: name.to_owned(),
        old: ids.0,
        new: ids.1,
    })
}

/// An object id. The id of only zeroes means that there is no object.
fn object_id(text: &str) -> Option<Option<String>> {
    let digits =
        matches!(text.len(), 40 | 64) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    digits.then(|| (!text.bytes().all(|byte| byte == b'0')).then(|| text.to_owned()))
}

/// Whether this is a name that git accepts for a ref and that servers are expected to read in the same way.
#[must_use]
pub fn is_ref(name: &str) -> bool {
    let odd = |byte: u8| !(b'!'..=b'~').contains(&byte) || b"~^:?*[\\,".contains(&byte);
    let segment = |segment: &str| {
        !segment.is_empty()
            && !segment.starts_with('.')
            && !segment.ends_with('.')
            && !segment.ends_with(".lock")
    };
    name.len() <= MAX_REF_BYTES
        && name.starts_with("refs/")
        && !name.bytes().any(odd)
        && !name.contains("..")
        && !name.contains("@{")
        && name.split('/').all(segment)
}

/// A pattern for names of refs: `main`, `agent/*`, `refs/tags/**`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct RefPattern(String);

impl RefPattern {
    /// Parses a pattern. A name without `refs/` is that of a branch. `*` matches a part of one segment, and `/**` at
    /// the end matches all segments that follow.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let whole = if text.starts_with("refs/") { text.to_owned() } else { format!("refs/heads/{text}") };
        let base = whole.strip_suffix("/**").unwrap_or(&whole);
        let fits = base == "refs" || (!base.contains("**") && is_ref(&base.replace('*', "x")));
        fits.then_some(Self(whole))
    }

    /// The pattern that matches exactly this ref.
    #[must_use]
    pub fn exactly(name: &str) -> Option<Self> {
        is_ref(name).then(|| Self(name.to_owned()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn segments(&self) -> (Vec<&str>, bool) {
        match self.0.strip_suffix("/**") {
            Some(base) => (base.split('/').collect(), true),
            None => (self.0.split('/').collect(), false),
        }
    }

    /// Whether the pattern matches the ref. Servers on some filesystems ignore case.
    pub(crate) fn matches(&self, name: &str, forgiving: bool) -> bool {
        let lower = |text: &str| if forgiving { text.to_ascii_lowercase() } else { text.to_owned() };
        let (own, open) = self.segments();
        let names: Vec<&str> = name.split('/').collect();
        let long_enough = if open { names.len() > own.len() } else { names.len() == own.len() };
        long_enough
            && own.iter().zip(&names).all(|(own, name)| fits(lower(own).as_bytes(), lower(name).as_bytes()))
    }

    pub(crate) fn covers(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        let (own, open) = self.segments();
        let (theirs, theirs_open) = other.segments();
        if theirs_open && !open {
            return false;
        }
        let long_enough = if open {
            theirs.len() > own.len() || (theirs_open && theirs.len() == own.len())
        } else {
            theirs.len() == own.len()
        };
        // A star in the other pattern is covered only by a segment that is a single star or the same text.
        long_enough
            && own.iter().zip(&theirs).all(|(own, their)| {
                own == their
                    || *own == "*"
                    || (!their.contains('*') && fits(own.as_bytes(), their.as_bytes()))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "1111111111111111111111111111111111111111";
    const NEW: &str = "2222222222222222222222222222222222222222";
    const ZERO: &str = "0000000000000000000000000000000000000000";

    fn line(text: &str) -> String {
        format!("{:04x}{text}", text.len() + LENGTH)
    }

    #[test]
    fn the_refs_of_a_push_are_parsed_from_what_git_sends() {
        let body = [
            line(&format!("{OLD} {NEW} refs/heads/main\0 report-status side-band-64k push-options\n")),
            line(&format!("{ZERO} {NEW} refs/tags/v1")),
            line(&format!("{OLD} {ZERO} refs/heads/old\n")),
            "0000".to_owned(),
            line("option"),
            "0000".to_owned(),
        ]
        .concat();
        let read = commands(format!("{body}PACK").as_bytes()).unwrap();
        assert_eq!(read.end, body.len());
        let names: Vec<&str> = read.updates.iter().map(|update| update.name.as_str()).collect();
        assert_eq!(names, ["refs/heads/main", "refs/tags/v1", "refs/heads/old"]);
        assert_eq!(read.options, ["option"]);
        assert_eq!((&read.updates[1].old, &read.updates[2].new), (&None, &None));
        assert_eq!(commands(b"0000"), Some(Commands { updates: Vec::new(), options: Vec::new(), end: 4 }));
    }

    #[test]
    fn stars_stand_for_any_text_and_many_of_them_cost_little() {
        for (pattern, text, matches) in [
            ("*", "", true),
            ("a*", "a", true),
            ("*a", "ba", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("**", "x", true),
            ("", "x", false),
            ("ab", "a", false),
            ("*ab", "aab", true),
        ] {
            assert_eq!(fits(pattern.as_bytes(), text.as_bytes()), matches, "{pattern:?} {text:?}");
        }
        // Trying each star again would take longer than anybody waits.
        assert!(!fits("*a".repeat(100).as_bytes(), format!("{}b", "a".repeat(500)).as_bytes()));
    }

    #[test]
    fn data_that_git_would_not_send_is_not_parsed() {
        let good = line(&format!("{OLD} {NEW} refs/heads/main\0 report-status\n"));
        for odd in [
            String::new(),
            good.clone(),
            format!("{good}zzzz"),
            format!("{good}0003"),
            format!("{good}{}0000", line(&format!("{OLD} {NEW} refs/heads/a\0b"))),
            format!("{}0000", line(&format!("{OLD} {NEW} refs/heads/../main"))),
            format!("{}0000", line(&format!("{OLD} {NEW} main"))),
            format!("{}0000", line(&format!("{OLD} {NEW} refs/heads/a b"))),
            format!("{}0000", line("push-cert\0 report-status")),
            format!("{}0000", line(&good).repeat(MAX_REFS + 1)),
        ] {
            assert_eq!(commands(odd.as_bytes()), None, "{odd}");
        }
        // Data that is only the beginning of what git sends may still become complete.
        let whole = format!("{good}0000");
        for end in 0..whole.len() {
            assert_eq!(read_commands(&whole.as_bytes()[..end]), Err(CommandsError::Incomplete), "{end}");
        }
        assert_eq!(read_commands(b"zzzz"), Err(CommandsError::Unexpected));
    }

    #[test]
    fn unless_all_git_push_options_are_parsed_the_refs_are_unknown() {
        let announced =
            |capabilities: &str| line(&format!("{OLD} {NEW} refs/heads/a\0{capabilities}\n")) + "0000";
        let options = |text: &str| commands(text.as_bytes()).map(|read| read.options);
        let one = line("ci.variable=EVIL=1");
        let whole = announced(" report-status push-options agent=git/2.47.0") + &one + &line("x\n") + "0000";
        assert_eq!(options(&whole), Some(vec!["ci.variable=EVIL=1".to_owned(), "x".to_owned()]));
        assert_eq!(options(&(announced("push-options") + "0000")), Some(Vec::new()));
        // Nothing announces push options, so the data that follows is the pack.
        assert_eq!(options(&(announced(" report-status") + &one)), Some(Vec::new()));
        for end in 0..whole.len() {
            assert_eq!(read_commands(&whole.as_bytes()[..end]), Err(CommandsError::Incomplete), "{end}");
        }
        for odd in [
            announced("\tpush-options") + &one + "0000",
            announced(" push-options=1") + &one + "0000",
            announced(" Push-Options") + &one + "0000",
            announced(" push-options push-options") + &one + "0000",
            announced(" push-options\0") + &one + "0000",
            line(&format!("shallow {OLD}\0 push-options")) + &announced("") + &one + "0000",
            announced(" push-options") + &line("a\nb") + "0000",
            announced(" push-options") + &line("a\0b") + "0000",
            announced(" push-options") + &line(&"x".repeat(MAX_OPTION_BYTES + 1)) + "0000",
            announced(" push-options") + &one.repeat(MAX_OPTIONS + 1) + "0000",
            announced(" push-options") + "PACK",
        ] {
            assert_eq!(read_commands(odd.as_bytes()), Err(CommandsError::Unexpected), "{odd}");
        }
    }

    #[test]
    fn a_pattern_without_refs_prefix_matches_branches() {
        let pattern = |text| RefPattern::parse(text).unwrap();
        assert!(pattern("main").matches("refs/heads/main", false));
        assert!(!pattern("main").matches("refs/tags/main", false));
        assert!(
            !pattern("main").matches("refs/heads/Main", false)
                && pattern("main").matches("refs/heads/Main", true)
        );
        assert!(pattern("agent/*").matches("refs/heads/agent/a", false));
        assert!(!pattern("agent/*").matches("refs/heads/agent/a/b", false));
        assert!(pattern("agent/**").matches("refs/heads/agent/a/b", false));
        assert!(!pattern("agent/**").matches("refs/heads/agent", false));
        assert!(pattern("refs/**").covers(&pattern("main")) && !pattern("main").covers(&pattern("refs/**")));
        assert!(
            pattern("**").matches("refs/heads/a/b", false) && !pattern("**").matches("refs/tags/a", false)
        );
        assert!(pattern("agent/**").covers(&pattern("agent/*")) && pattern("a*").covers(&pattern("abc")));
        for odd in ["", "a b", "../x", "refs/", "a/**/b"] {
            assert!(RefPattern::parse(odd).is_none(), "{odd}");
        }
    }
}
