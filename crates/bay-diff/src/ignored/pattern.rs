//! One pattern of a `.gitignore` file, read and matched as git does it.
//!
//! Git's own matcher goes back and tries again, which a hostile pattern can make very slow. This one follows all
//! possibilities at once: its time is at most the length of the pattern times the length of the path.

use super::Work;

/// A set of bytes.
type Class = [u64; 4];

#[derive(Debug, Clone)]
enum Token {
    Byte(u8),
    /// `?`
    NotSlash,
    /// `[a-z]`: one byte of the set, never a slash.
    Class(Box<Class>),
    /// `*`: any bytes but slashes.
    Star,
    /// `**` at the end of a pattern: any bytes.
    Everything,
    /// Begins `**/`: the next token may be left out.
    Optional,
    /// The directories of `**/`: any bytes, then a slash.
    Directories,
}

/// A pattern that can match something.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    pub(super) negated: bool,
    directories_only: bool,
    /// The pattern has a slash, so it matches paths. Otherwise it matches names at any depth.
    anchored: bool,
    /// Bytes before the first special one.
    prefix: Vec<u8>,
    rest: Vec<Token>,
}

impl Pattern {
    /// Reads one line without its line break. `None` for an empty line, for a comment, and for a pattern that matches
    /// nothing.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.first() == Some(&b'#') {
            return None;
        }
        // Git keeps lines as C strings, which end at the first NUL.
        let line = without_trailing_spaces(line.split(|byte| *byte == 0).next().unwrap_or_default());
        let (negated, line) = match line.strip_prefix(b"!") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (directories_only, line) = match line.strip_suffix(b"/") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let anchored = line.contains(&b'/');
        let line = line.strip_prefix(b"/").unwrap_or(line);
        if line.is_empty() {
            return None;
        }
        let plain = line.iter().position(|byte| b"*?[\\".contains(byte)).unwrap_or(line.len());
        let (prefix, rest) = line.split_at(plain);
        let rest = tokens(rest, prefix.last().is_none_or(|byte| *byte == b'/'), anchored)?;
        Some(Self { negated, directories_only, anchored, prefix: prefix.to_vec(), rest })
    }

    /// Whether it matches. `path` is relative to the directory of the file of rules.
    pub(super) fn matches(&self, path: &[u8], is_directory: bool, work: &mut Work) -> bool {
        work.spend(1);
        if self.directories_only && !is_directory {
            return false;
        }
        let text = match memchr::memrchr(b'/', path).filter(|_| !self.anchored) {
            Some(slash) => &path[slash + 1..],
            None => path,
        };
        match text.strip_prefix(self.prefix.as_slice()) {
            Some(text) if self.rest.is_empty() => text.is_empty(),
            Some(text) => self.rest_matches(text, work),
            None => false,
        }
    }

    fn rest_matches(&self, text: &[u8], work: &mut Work) -> bool {
        let end = self.rest.len();
        let (mut now, mut next) = (std::mem::take(&mut work.now), std::mem::take(&mut work.next));
        now.clear();
        now.resize(end + 1, false);
        now[0] = true;
        self.skip(&mut now);
        for byte in text {
            work.spend(end as u64 + 1);
            next.clear();
            next.resize(end + 1, false);
            let mut alive = false;
            for (at, token) in self.rest.iter().enumerate().filter(|(at, _)| now[*at]) {
                let (stays, moves) = match token {
                    Token::Byte(wanted) => (false, byte == wanted),
                    Token::NotSlash => (false, *byte != b'/'),
                    Token::Class(class) => (false, *byte != b'/' && has(class, *byte)),
                    Token::Star => (*byte != b'/', false),
                    Token::Everything => (true, false),
                    Token::Optional => (false, false),
                    Token::Directories => (true, *byte == b'/'),
                };
                next[at] |= stays;
                next[at + 1] |= moves;
                alive |= stays || moves;
            }
            std::mem::swap(&mut now, &mut next);
            if !alive {
                now[end] = false;
                break;
            }
            self.skip(&mut now);
        }
        let matched = now[end];
        (work.now, work.next) = (now, next);
        matched
    }

    /// Adds the positions that are reached without reading a byte.
    fn skip(&self, reached: &mut [bool]) {
        for (at, token) in self.rest.iter().enumerate() {
            if !reached[at] {
                continue;
            }
            match token {
                Token::Star | Token::Everything => reached[at + 1] = true,
                Token::Optional => {
                    reached[at + 1] = true;
                    reached[at + 2] = true;
                }
                _ => {}
            }
        }
    }
}

/// Removes spaces at the end, but not one after a backslash.
fn without_trailing_spaces(line: &[u8]) -> &[u8] {
    let (mut end, mut at) = (0, 0);
    while let Some(byte) = line.get(at) {
        match byte {
            b' ' => {}
            b'\\' if at + 1 == line.len() => return line,
            b'\\' => {
                at += 1;
                end = at + 1;
            }
            _ => end = at + 1,
        }
        at += 1;
    }
    &line[..end]
}

/// Reads what follows the plain prefix. `None` if it can match nothing. `after_slash` says whether it begins a name.
fn tokens(text: &[u8], after_slash: bool, anchored: bool) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'*' => {
                let stars = text[at..].iter().take_while(|byte| **byte == b'*').count();
                let begins_name = if at == 0 { after_slash } else { text[at - 1] == b'/' };
                at += stars;
                match text.get(at) {
                    None if stars > 1 && anchored && begins_name => tokens.push(Token::Everything),
                    Some(b'/') if stars > 1 && anchored && begins_name => {
                        tokens.extend([Token::Optional, Token::Directories]);
                        at += 1;
                    }
                    _ => tokens.push(Token::Star),
                }
            }
            b'?' => {
                tokens.push(Token::NotSlash);
                at += 1;
            }
            b'[' => {
                let (class, end) = class(text, at + 1)?;
                tokens.push(Token::Class(Box::new(class)));
                at = end;
            }
            b'\\' => {
                tokens.push(Token::Byte(*text.get(at + 1)?));
                at += 2;
            }
            byte => {
                tokens.push(Token::Byte(*byte));
                at += 1;
            }
        }
    }
    Some(tokens)
}

fn has(class: &Class, byte: u8) -> bool {
    class[usize::from(byte >> 6)] & (1 << (byte & 63)) != 0
}

fn add(class: &mut Class, bytes: std::ops::RangeInclusive<u8>) {
    for byte in bytes {
        class[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }
}

/// Reads a set from after its `[`. Returns it with the position after its `]`; `None` if it does not end, or has an
/// unknown name.
fn class(text: &[u8], mut at: usize) -> Option<(Class, usize)> {
    let mut set = [0; 4];
    let negated = matches!(text.get(at)?, b'!' | b'^');
    at += usize::from(negated);
    // The low end of a range, if a `-` follows.
    let mut low: Option<u8> = None;
    // A `]` right at the beginning is a member.
    let first = at;
    loop {
        let byte = *text.get(at)?;
        let rest = &text[at + 1..];
        match (byte, low) {
            (b']', _) if at > first => break,
            (b'-', Some(from)) if rest.first().is_some_and(|byte| *byte != b']') => {
                let (to, taken) = match rest {
                    [b'\\', to, ..] => (*to, 2),
                    [b'\\'] => return None,
                    _ => (rest[0], 1),
                };
                add(&mut set, from..=to);
                low = None;
                at += 1 + taken;
            }
            (b'\\', _) => {
                let escaped = *rest.first()?;
                add(&mut set, escaped..=escaped);
                low = Some(escaped);
                at += 2;
            }
            (b'[', _) if rest.first() == Some(&b':') => {
                let end = memchr::memchr(b']', rest)?;
                // `[:` without `:]` is two members of the set.
                match rest[1..end].strip_suffix(b":") {
                    Some(name) => {
                        add_named(&mut set, name)?;
                        low = None;
                        at += end + 2;
                    }
                    None => {
                        add(&mut set, b'['..=b'[');
                        low = Some(b'[');
                        at += 1;
                    }
                }
            }
            (byte, _) => {
                add(&mut set, byte..=byte);
                low = Some(byte);
                at += 1;
            }
        }
    }
    if negated {
        set = set.map(|part: u64| !part);
    }
    Some((set, at + 1))
}

/// Adds the members of `[:name:]`.
fn add_named(set: &mut Class, name: &[u8]) -> Option<()> {
    let is: fn(&u8) -> bool = match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |byte| matches!(byte, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |byte| byte.is_ascii_graphic() || *byte == b' ',
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'),
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    };
    (0..=u8::MAX).filter(is).for_each(|byte| add(set, byte..=byte));
    Some(())
}
