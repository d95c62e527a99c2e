//! Headers and fields that make a server serve another host, path or method than the request line says.
//!
//! Rules decide on the request line. If a request also names another request, it has two readings and is refused:
//!
//! | where | what is refused |
//! |---|---|
//! | header | every name of [`OVERRIDING_HEADERS`], whatever its value |
//! | query | a name of [`OVERRIDING_FIELDS`] with another value than the method |
//! | form | such a field in a body that servers read as a form ([`FormScan`]) |
//!
//! Names are compared as the most forgiving known server reads them. Case is ignored. In a header's name each sign
//! counts as `-`. A field's name is compared in the form that PHP gives it (`_method[]`, `.method`, ` _method`).

use bay_text::percent::decode_forgiving;

/// Headers that make some servers serve another host, path or method. `x-forwarded-for` is not among them: it names an address.
pub const OVERRIDING_HEADERS: &[&str] = &[
    "base-url",
    "forwarded",
    "x-base-url",
    "x-envoy-original-host",
    "x-envoy-original-path",
    "x-forwarded-host",
    "x-forwarded-method",
    "x-forwarded-path",
    "x-forwarded-prefix",
    "x-forwarded-server",
    "x-forwarded-uri",
    "x-forwarded-url",
    "x-host",
    "x-host-override",
    "x-http-destinationurl",
    "x-http-host-override",
    "x-http-method",
    "x-http-method-override",
    "x-http-path-override",
    "x-method",
    "x-method-override",
    "x-original-host",
    "x-original-method",
    "x-original-path",
    "x-original-uri",
    "x-original-url",
    "x-override-method",
    "x-override-path",
    "x-override-url",
    "x-proxy-host",
    "x-proxy-url",
    "x-request-uri",
    "x-rewrite-path",
    "x-rewrite-uri",
    "x-rewrite-url",
    "x-script-name",
];

/// Headers that describe the previous hops of a request: their scheme and port. The gateway is the only hop, so it
/// forwards none of these headers.
pub const DESCRIBING_HEADERS: &[&str] = &[
    "front-end-https",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-protocol",
    "x-forwarded-scheme",
    "x-forwarded-ssl",
    "x-original-port",
    "x-original-proto",
    "x-original-scheme",
    "x-url-scheme",
];

/// Fields of queries and forms that name another method, as [`normal`] writes them.
pub const OVERRIDING_FIELDS: &[&str] = &[
    "_http_method",
    "_httpmethod",
    "_method",
    "_method_override",
    "x_http_method",
    "x_http_method_override",
    "x_method_override",
];

/// Longest prefix of a field's name that is kept. It is longer than any of [`OVERRIDING_FIELDS`].
const MAX_NAME: usize = 32;
/// Longest header of a part that is kept, with its folded lines. A longer one is refused, because it cannot be checked.
pub const MAX_PART_HEADER: usize = 8 * 1024;

/// Whether a header of this name overrides the host, path or method.
#[must_use]
pub fn is_overriding_header(name: &str) -> bool {
    listed(OVERRIDING_HEADERS, name)
}

/// Whether a header of this name describes previous hops.
#[must_use]
pub fn is_describing_header(name: &str) -> bool {
    listed(DESCRIBING_HEADERS, name)
}

fn listed(list: &[&str], name: &str) -> bool {
    // Servers of the CGI family read every sign as an underscore.
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    list.contains(&name.as_str())
}

/// Whether a field of this decoded name overrides the method.
#[must_use]
pub fn is_overriding_field(name: &str) -> bool {
    OVERRIDING_FIELDS.contains(&normal(name.as_bytes()).as_str())
}

/// A field's name as the most forgiving server reads it: without leading blanks, cut at a bracket or a NUL, in lower
/// case, with an underscore for every sign.
fn normal(name: &[u8]) -> String {
    let begin = name.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(name.len());
    name[begin..]
        .iter()
        .take_while(|byte| !matches!(byte, b'[' | 0))
        .take(MAX_NAME)
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte.to_ascii_lowercase()) } else { '_' })
        .collect()
}

/// Whether a field's value, or the beginning of one, is the method of the request.
fn agrees(value: &[u8], method: &str) -> bool {
    method.len() >= value.len() && method.as_bytes()[..value.len()].eq_ignore_ascii_case(value)
}

/// Scans the body of a form as it passes, in pieces of any size, in constant memory.
///
/// It compares a value byte by byte. It refuses the piece with the first byte that makes the value differ from the
/// request's own method. It therefore does not need to know where the body ends.
#[derive(Debug, Clone)]
pub struct FormScan {
    method: String,
    form: Form,
}

#[derive(Debug, Clone)]
enum Form {
    Encoded(Encoded),
    Parts(Parts),
}

/// Why a form is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormOverride {
    /// It names another method.
    Method,
    /// The header of a part is too long to be read.
    PartHeader,
}

impl FormScan {
    /// The scanner for a body with these types (every `Content-Type` of the request), or `None` if it does not count
    /// as a form. A POST without a type counts as one, because some servers read it so.
    #[must_use]
    pub fn new(method: &str, types: &[&[u8]]) -> Option<Self> {
        let has = |word: &str| {
            types.iter().any(|given| {
                given.to_ascii_lowercase().windows(word.len()).any(|part| part == word.as_bytes())
            })
        };
        let form = if has("multipart/") {
            Form::Parts(Parts::default())
        } else if (types.is_empty() && method == "POST") || has("x-www-form-urlencoded") {
            Form::Encoded(Encoded::default())
        } else {
            return None;
        };
        Some(Self { method: method.to_owned(), form })
    }

    /// Scans the next piece.
    ///
    /// # Errors
    /// The reason why neither this piece nor anything after it may be passed on.
    pub fn read(&mut self, piece: &[u8]) -> Result<(), FormOverride> {
        let method = &self.method;
        match &mut self.form {
            Form::Encoded(form) => piece.iter().try_for_each(|byte| form.read(*byte, method)),
            Form::Parts(form) => piece.iter().try_for_each(|byte| form.read(*byte, method)),
        }
    }
}

/// `name=value&name=value`, or with `;` between them.
#[derive(Debug, Clone, Default)]
struct Encoded {
    /// Digits of the percent-encoded byte that is being decoded.
    escape: Option<Vec<u8>>,
    /// The name so far, or the value so far of a field that overrides.
    text: Vec<u8>,
    place: Place,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Name,
    /// The value of a field that overrides.
    Value,
    /// The value of any other field.
    Other,
}

impl Encoded {
    fn read(&mut self, byte: u8, method: &str) -> Result<(), FormOverride> {
        match (byte, self.place) {
            (b'&' | b';', _) => {
                self.text.clear();
                self.escape = None;
                self.place = Place::Name;
                Ok(())
            }
            (b'=', Place::Name) => {
                self.place = match OVERRIDING_FIELDS.contains(&normal(&self.text).as_str()) {
                    true => Place::Value,
                    false => Place::Other,
                };
                self.text.clear();
                self.escape = None;
                Ok(())
            }
            (_, Place::Other) => Ok(()),
            _ => {
                if let Some(byte) = self.decoded(byte) {
                    self.take(byte);
                }
                match self.place == Place::Value && !agrees(&self.text, method) {
                    true => Err(FormOverride::Method),
                    false => Ok(()),
                }
            }
        }
    }

    /// The byte that this byte completes, if it completes one.
    fn decoded(&mut self, byte: u8) -> Option<u8> {
        match &mut self.escape {
            Some(digits) if byte.is_ascii_hexdigit() => {
                digits.push(byte);
                if digits.len() < 2 {
                    return None;
                }
                let decoded =
                    std::str::from_utf8(digits).ok().and_then(|text| u8::from_str_radix(text, 16).ok());
                self.escape = None;
                decoded
            }
            _ if byte == b'%' => {
                self.escape = Some(Vec::with_capacity(2));
                None
            }
            _ => {
                self.escape = None;
                Some(if byte == b'+' { b' ' } else { byte })
            }
        }
    }

    fn take(&mut self, byte: u8) {
        let blank_before = self.place == Place::Name && self.text.is_empty() && byte.is_ascii_whitespace();
        // One byte more than the longest name, so that a longer name never equals it.
        if !blank_before && self.text.len() <= MAX_NAME {
            self.text.push(byte);
        }
    }
}

/// `multipart/form-data`. The scanner does not look for boundaries, because parsers differ in what they accept as one.
/// It treats every line that begins like the header that names a field as that header.
#[derive(Debug, Clone)]
struct Parts {
    state: Lines,
    /// The current line, or the header with its folded lines.
    text: Vec<u8>,
    /// Whether the current part has a name that overrides.
    overriding: bool,
}

impl Default for Parts {
    fn default() -> Self {
        Self { state: Lines::Begin, text: Vec::new(), overriding: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lines {
    /// At the beginning of a line that may still become the header.
    Begin,
    /// Within the header.
    Header,
    /// At the beginning of the line after the header, which may be a folded part of it.
    AfterHeader,
    /// Within another line.
    Other,
    /// Within the other headers of a part that overrides. The flag says whether the current line has content.
    Rest(bool),
    /// Within the value of a field that overrides.
    Value,
}

const DISPOSITION: &[u8] = b"content-disposition";

impl Parts {
    fn read(&mut self, byte: u8, method: &str) -> Result<(), FormOverride> {
        match self.state {
            Lines::Begin => self.begin(byte),
            Lines::Header => match byte {
                b'\n' => self.state = Lines::AfterHeader,
                _ if self.text.len() >= MAX_PART_HEADER => return Err(FormOverride::PartHeader),
                _ => self.text.push(byte),
            },
            Lines::AfterHeader => match byte {
                b' ' | b'\t' => {
                    self.text.push(b' ');
                    self.state = Lines::Header;
                }
                _ => {
                    self.overriding = names_an_override(&self.text);
                    self.text.clear();
                    self.state = if self.overriding { Lines::Rest(false) } else { Lines::Begin };
                    return self.read(byte, method);
                }
            },
            Lines::Other => {
                if byte == b'\n' {
                    self.state = Lines::Begin;
                }
            }
            Lines::Rest(something) => match byte {
                b'\r' => {}
                b'\n' if something => self.state = Lines::Rest(false),
                b'\n' => self.state = Lines::Value,
                _ => self.state = Lines::Rest(true),
            },
            Lines::Value => match byte {
                b'\r' | b'\n' => {
                    self.text.clear();
                    self.state = Lines::Begin;
                }
                _ => {
                    self.text.push(byte);
                    if !agrees(&self.text, method) {
                        return Err(FormOverride::Method);
                    }
                }
            },
        }
        Ok(())
    }

    fn begin(&mut self, byte: u8) {
        let blank_before = self.text.is_empty() && matches!(byte, b' ' | b'\t' | b'\r');
        match byte {
            b'\n' => self.text.clear(),
            _ if blank_before => {}
            b':' | b' ' | b'\t' if self.text == DISPOSITION => self.state = Lines::Header,
            _ => {
                self.text.push(byte.to_ascii_lowercase());
                if !DISPOSITION.starts_with(&self.text) {
                    self.text.clear();
                    self.state = Lines::Other;
                }
            }
        }
    }
}

/// Whether the header of a part gives it a name that overrides: `form-data; name="_method"`, in any spelling.
fn names_an_override(header: &[u8]) -> bool {
    let plain: Vec<u8> = decode_forgiving(header).into_iter().filter(|byte| *byte != b'\\').collect();
    let mut joined = Vec::new();
    let mut at = 0;
    while let Some(found) = find_name(&plain, at) {
        let value = &plain[found..];
        let (value, length) = match value.first() {
            Some(quote @ (b'"' | b'\'')) => {
                let inner = &value[1..];
                let length = inner.iter().position(|byte| byte == quote).unwrap_or(inner.len());
                (&inner[..length], length + 1)
            }
            _ => {
                let ends = |byte: &u8| matches!(byte, b';' | b'\r' | b'\n');
                let length = value.iter().position(ends).unwrap_or(value.len());
                (&value[..length], length)
            }
        };
        // `utf-8''_method` of RFC 5987.
        let last = value.iter().rposition(|byte| *byte == b'\'').map_or(value, |at| &value[at + 1..]);
        let trimmed = |text: &[u8]| normal(text.trim_ascii_end());
        if [value, last].iter().any(|value| OVERRIDING_FIELDS.contains(&trimmed(value).as_str())) {
            return true;
        }
        joined.extend_from_slice(last);
        at = found + length;
    }
    OVERRIDING_FIELDS.contains(&normal(&joined).as_str())
}

/// The index after the next parameter `name`, where its value begins; also for `name*` and `name*0*`.
fn find_name(header: &[u8], from: usize) -> Option<usize> {
    const NAME: &[u8] = b"name";
    (from..header.len()).find_map(|at| {
        let rest = header[at..].get(..NAME.len()).filter(|word| word.eq_ignore_ascii_case(NAME))?;
        let alone = at == 0 || !header[at - 1].is_ascii_alphanumeric();
        let mut value = at + rest.len();
        while header.get(value).is_some_and(|byte| matches!(byte, b'*' | b'0'..=b'9' | b' ' | b'\t')) {
            value += 1;
        }
        let equals = header.get(value) == Some(&b'=');
        let blanks =
            header[(value + 1).min(header.len())..].iter().take_while(|byte| matches!(byte, b' ' | b'\t'));
        (alone && equals).then(|| value + 1 + blanks.count())
    })
}

#[cfg(test)]
#[path = "overrides_tests.rs"]
mod tests;
