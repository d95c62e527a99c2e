//! The parts of a `multipart/form-data` body, one after the other, as they are read.

use std::io::{self, Read};

use memchr::memmem::Finder;

use super::fault::{Fault, Kind, Result};

/// Longest boundary that the standard allows.
const MAX_BOUNDARY: usize = 70;
/// Longest head of one part.
const MAX_HEAD: usize = 16 << 10;
/// Most bytes that are read at once.
const STEP: usize = 64 << 10;

/// The boundary in a content type.
pub(super) fn boundary(content_type: &str) -> Option<String> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parameter(parameters, "boundary")?;
    (1..=MAX_BOUNDARY).contains(&value.len()).then_some(value)
}

/// A parameter of a header, with or without quotes.
fn parameter(mut text: &str, wanted: &str) -> Option<String> {
    loop {
        text = text.trim_start_matches([';', ' ', '\t']);
        let (name, rest) = text.split_once('=')?;
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = rest.find(';').unwrap_or(rest.len());
                (rest[..end].trim().to_owned(), &rest[end..])
            }
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        text = rest;
    }
}

fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            // Only these two characters are escaped. Elsewhere a backslash is itself, as in a Windows path.
            '\\' if text[at + 1..].starts_with(['"', '\\']) => value.push(letters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

/// The head of a part.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) name: String,
    pub(super) filename: Option<String>,
}

/// Reads a body part by part.
pub(super) struct Parts<R> {
    from: R,
    buffer: Vec<u8>,
    delimiter: Finder<'static>,
    state: State,
    source_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first delimiter.
    Preamble,
    /// In the content of a part.
    Content,
    /// After a delimiter.
    Between,
    Over,
}

impl<R: Read> Parts<R> {
    pub(super) fn new(from: R, boundary: &str) -> Self {
        let delimiter = Finder::new(format!("\r\n--{boundary}").as_bytes()).into_owned();
        // The first delimiter may be at the very beginning; with this it looks like the others.
        let buffer = b"\r\n".to_vec();
        Self { from, buffer, delimiter, state: State::Preamble, source_over: false }
    }

    /// The head of the next part. Skips the rest of the part before. None after the last part.
    pub(super) fn next(&mut self) -> Result<Option<Head>> {
        while matches!(self.state, State::Preamble | State::Content) {
            self.chunk()?;
        }
        if self.state == State::Over {
            return Ok(None);
        }
        // After a delimiter: two dashes end the body; otherwise the line ends and a head follows.
        while self.buffer.len() < 2 {
            self.fill_or_fail()?;
        }
        if self.buffer.starts_with(b"--") {
            self.state = State::Over;
            return Ok(None);
        }
        loop {
            if let Some(end) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") {
                let head = parse_head(&self.buffer[..end])?;
                self.buffer.drain(..end + 4);
                self.state = State::Content;
                return Ok(Some(head));
            }
            if self.buffer.len() > MAX_HEAD {
                return Err(Fault::invalid(format!("the head of a part is longer than {MAX_HEAD} bytes")));
            }
            self.fill_or_fail()?;
        }
    }

    /// The next bytes of the current part; empty at its end.
    pub(super) fn chunk(&mut self) -> Result<Vec<u8>> {
        if matches!(self.state, State::Between | State::Over) {
            return Ok(Vec::new());
        }
        loop {
            if let Some(at) = self.delimiter.find(&self.buffer) {
                if at > 0 {
                    return Ok(self.buffer.drain(..at).collect());
                }
                self.buffer.drain(..self.delimiter.needle().len());
                self.state = State::Between;
                return Ok(Vec::new());
            }
            // The last bytes in the buffer may be the beginning of the delimiter.
            let sure = self.buffer.len().saturating_sub(self.delimiter.needle().len() - 1);
            if sure > 0 {
                return Ok(self.buffer.drain(..sure).collect());
            }
            self.fill_or_fail()?;
        }
    }

    fn fill_or_fail(&mut self) -> Result<()> {
        if !self.source_over {
            let before = self.buffer.len();
            self.buffer.resize(before + STEP, 0);
            let got = loop {
                match self.from.read(&mut self.buffer[before..]) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    other => break other,
                }
            };
            self.buffer.truncate(before + *got.as_ref().unwrap_or(&0));
            match got {
                Ok(0) => self.source_over = true,
                Ok(_) => return Ok(()),
                Err(e) => return Err(Fault::new(Kind::Canceled, format!("the upload broke off: {e}"))),
            }
        }
        Err(Fault::invalid("the upload ends within a part"))
    }
}

fn parse_head(head: &[u8]) -> Result<Head> {
    let text = std::str::from_utf8(head).map_err(|_| Fault::invalid("the head of a part is not UTF-8"))?;
    let disposition = text.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value.trim())
    });
    let (kind, parameters) = disposition
        .and_then(|value| value.split_once(';'))
        .ok_or_else(|| Fault::invalid("a part does not say what it is"))?;
    if !kind.trim().eq_ignore_ascii_case("form-data") {
        return Err(Fault::invalid("a part is not form data"));
    }
    Ok(Head {
        name: parameter(parameters, "name").unwrap_or_default(),
        filename: parameter(parameters, "filename"),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_content_survives_however_it_is_split(
            content in prop::collection::vec(prop::sample::select(b"\r\n-Xa\0".to_vec()), 0..200),
            piece in 1_usize..50,
        ) {
            prop_assume!(memchr::memmem::find(&content, b"\r\n--XX").is_none());
            let head = b"--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n";
            let body = [&head[..], &content, b"\r\n--XX--"].concat();
            let parts = all(&body, piece);
            prop_assert_eq!(parts.map(|p| p.into_iter().map(|(_, c)| c).collect::<Vec<_>>()), Ok(vec![content]));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(
            body in prop::collection::vec(prop::sample::select(b"\r\n-X:;=\"\\ form-data\xff".to_vec()), 0..300),
            piece in 1_usize..50,
        ) {
            let _ = all(&body, piece);
            let _ = all(&[b"--XX\r\nContent-Disposition: form-data;", &body[..]].concat(), piece);
            let _ = boundary(&String::from_utf8_lossy(&body));
        }
    }

    /// Returns its bytes in pieces of a given size.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let len = self.1.min(self.0.len()).min(to.len());
            to[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }

    fn all(body: &[u8], piece: usize) -> Result<Vec<(Head, Vec<u8>)>> {
        let mut parts = Parts::new(Pieces(body, piece), "XX");
        let mut out = Vec::new();
        while let Some(head) = parts.next()? {
            let mut content = Vec::new();
            loop {
                let chunk = parts.chunk()?;
                if chunk.is_empty() {
                    break;
                }
                content.extend(chunk);
            }
            out.push((head, content));
        }
        Ok(out)
    }

    #[test]
    fn parts_are_complete_however_the_body_is_split() {
        let body = b"ignored\r\n--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/a b/\\\"c.txt\"\r\n\
            Content-Type: text/plain\r\n\r\none\r\n--X\r\n\r\n--XX\r\ncontent-disposition:form-data;name=x\r\n\r\n\r\n--XX--\r\n";
        for piece in 1..body.len() {
            let parts = all(body, piece).unwrap();
            assert_eq!(parts.len(), 2, "{piece}");
            assert_eq!(parts[0].0, Head { name: "file".into(), filename: Some("/a b/\"c.txt".into()) });
            assert_eq!(parts[0].1, b"one\r\n--X\r\n");
            assert_eq!(parts[1], (Head { name: "x".into(), filename: None }, vec![]));
        }
    }

    #[test]
    fn a_part_that_is_not_read_is_skipped() {
        let body = b"--XX\r\nContent-Disposition: form-data; name=a\r\n\r\nlong\r\n--XX\r\nContent-Disposition: form-data; name=b\r\n\r\n\r\n--XX--";
        let mut parts = Parts::new(&body[..], "XX");
        assert_eq!(parts.next().unwrap().unwrap().name, "a");
        assert_eq!(parts.next().unwrap().unwrap().name, "b");
        assert_eq!(parts.next().unwrap(), None);
        assert_eq!(parts.next().unwrap(), None);
    }

    #[test]
    fn broken_bodies_are_refused() {
        for body in [
            &b""[..],
            b"no delimiter at all",
            b"--XX",
            b"--XX\r\nContent-Disposition: form-data; name=a\r\n\r\ncut",
            b"--XX\r\nno-head: x\r\n\r\n\r\n--XX--",
            b"--XX\r\nContent-Disposition: attachment; name=a\r\n\r\n\r\n--XX--",
            b"--XX\r\nContent-Disposition: form-data; name=\xff\r\n\r\n\r\n--XX--",
        ] {
            assert!(all(body, 3).is_err(), "{}", String::from_utf8_lossy(body));
        }
        let endless = [b"--XX\r\n".as_slice(), &vec![b'a'; 2 * MAX_HEAD]].concat();
        assert!(all(&endless, 4096).is_err());
    }

    #[test]
    fn a_boundary_is_found_in_the_content_type() {
        assert_eq!(boundary("multipart/form-data; boundary=abc").as_deref(), Some("abc"));
        assert_eq!(boundary("Multipart/Form-Data; a=\"x;y\"; Boundary=\"a b\"").as_deref(), Some("a b"));
        for odd in ["multipart/form-data", "multipart/mixed; boundary=a", "multipart/form-data; boundary="] {
            assert_eq!(boundary(odd), None, "{odd}");
        }
        assert_eq!(boundary(&format!("multipart/form-data; boundary={}", "x".repeat(71))), None);
    }
}
