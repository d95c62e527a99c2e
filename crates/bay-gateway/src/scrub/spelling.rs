//! The spellings of a value: the forms of each character, and their replacements.

use zeroize::Zeroizing;

/// A way to write a value. Within a spelling, each character may have any of its forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Plain, `%41`, or `%2541`.
    Percent,
    /// Plain, `\u0041`, `\x41`, or a short escape such as `\/`.
    Json,
    /// Plain, `&#65;`, `&#x41;`, or a named reference such as `&amp;`.
    Html,
    /// Plain, or `=41`, with soft line breaks.
    Quoted,
    /// Either alphabet, `after` this many other bytes (modulo three), in lines of any length.
    Base64 {
        after: usize,
    },
    Hex,
    Utf16 {
        big_endian: bool,
    },
}

impl Spelling {
    pub(super) const ALL: [Self; 10] = [
        Self::Percent,
        Self::Json,
        Self::Html,
        Self::Quoted,
        Self::Base64 { after: 0 },
        Self::Base64 { after: 1 },
        Self::Base64 { after: 2 },
        Self::Hex,
        Self::Utf16 { big_endian: false },
        Self::Utf16 { big_endian: true },
    ];

    /// The minimum number of characters for this many bytes.
    pub(super) fn units_of(self, bytes: usize) -> usize {
        match self {
            Self::Base64 { .. } => (bytes * 8).div_ceil(6) + 1,
            Self::Hex => bytes * 2,
            _ => bytes,
        }
    }

    /// Text between two characters that belongs to neither.
    pub(super) fn separators(self) -> &'static [&'static [u8]] {
        match self {
            Self::Quoted => &[b"=\r\n", b"=\n"],
            Self::Base64 { .. } => &[b"\r\n", b"\n", b"\\r\\n", b"\\n", b"%0D%0A", b"%0d%0a", b"%0A", b"%0a"],
            _ => &[],
        }
    }

    /// The characters of a value in this spelling, with their replacements.
    pub(super) fn units(self, value: &[u8], sentinel: &[u8]) -> Vec<Unit> {
        match self {
            Self::Percent | Self::Quoted => {
                value.iter().zip(sentinel).map(|(was, is)| self.unit(&[*was], &[*is])).collect()
            }
            Self::Json | Self::Html | Self::Utf16 { .. } => {
                letters(value).map(|at| self.unit(&value[at.clone()], &sentinel[at])).collect()
            }
            Self::Base64 { after } => base64_units(after, value, sentinel),
            Self::Hex => value.iter().zip(sentinel).flat_map(|(was, is)| hex_units(*was, *is)).collect(),
        }
    }

    /// One letter and its replacement, each in all forms.
    fn unit(self, was: &[u8], is: &[u8]) -> Unit {
        let others = self.forms(is);
        let forms = self.forms(was).into_iter().map(|(kind, text)| {
            let other = others.iter().find(|(other, text_of)| *other == kind && text_of.len() == text.len());
            let instead = match other {
                Some((_, text)) => text.clone(),
                None => self.filler(text.len()),
            };
            Form { text: text.into(), instead }
        });
        Unit::new(forms.collect())
    }

    /// All forms of one letter. Each form has a number, the same for all letters.
    fn forms(self, letter: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let code = match std::str::from_utf8(letter).ok().and_then(|text| text.chars().next()) {
            Some(char) => u32::from(char),
            None => letter.first().copied().map_or(0, u32::from),
        };
        let byte = u8::try_from(code).unwrap_or(0);
        let mut forms = vec![(0, letter.to_vec())];
        let mut add = |kind: u32, text: String| forms.push((kind, text.into_bytes()));
        match self {
            Self::Percent => {
                for (kind, hex) in (1..).zip(hex_cases(letter[0])) {
                    add(kind, format!("%{hex}"));
                    add(kind + 4, format!("%25{hex}"));
                }
                if byte == b' ' {
                    add(9, "+".to_owned());
                }
            }
            Self::Quoted => {
                for (kind, hex) in (1..).zip(hex_cases(letter[0])) {
                    add(kind, format!("={hex}"));
                }
            }
            Self::Json if code > 0xff || letter.len() > 1 => {
                let mut units = [0; 2];
                let units = char::from_u32(code).unwrap_or('x').encode_utf16(&mut units);
                add(1, units.iter().map(|unit| format!("\\u{unit:04x}")).collect());
                add(2, units.iter().map(|unit| format!("\\u{unit:04X}")).collect());
                // As programming languages escape bytes.
                add(3, letter.iter().map(|byte| format!("\\x{byte:02x}")).collect());
                add(4, letter.iter().map(|byte| format!("\\x{byte:02X}")).collect());
            }
            Self::Json => {
                for (kind, hex) in (1..).zip(hex_cases(byte)) {
                    add(kind, format!("\\u00{hex}"));
                    add(kind + 4, format!("\\x{hex}"));
                }
                let short = match byte {
                    b'"' | b'\\' | b'/' | b'\'' => Some(char::from(byte)),
                    b'\n' => Some('n'),
                    b'\r' => Some('r'),
                    b'\t' => Some('t'),
                    8 => Some('b'),
                    12 => Some('f'),
                    _ => None,
                };
                if let Some(short) = short {
                    add(9, format!("\\{short}"));
                }
            }
            Self::Html => {
                // The reference is padded to the longest decimal code of a byte, so that it can replace a longer one.
                add(1, format!("&#{code};"));
                add(2, format!("&#{code:03};"));
                add(3, format!("&#{code:04};"));
                for (kind, x) in [(4, 'x'), (6, 'X')] {
                    add(kind, format!("&#{x}{code:02x};"));
                    add(kind + 1, format!("&#{x}{code:02X};"));
                }
                let name = match byte {
                    b'&' => Some("amp"),
                    b'<' => Some("lt"),
                    b'>' => Some("gt"),
                    b'"' => Some("quot"),
                    b'\'' => Some("apos"),
                    _ => None,
                };
                if let Some(name) = name {
                    add(8, format!("&{name};"));
                }
            }
            Self::Utf16 { big_endian } => {
                let mut units = [0; 2];
                let units = char::from_u32(code).unwrap_or('x').encode_utf16(&mut units);
                let bytes = units
                    .iter()
                    .flat_map(|unit| if big_endian { unit.to_be_bytes() } else { unit.to_le_bytes() });
                forms = vec![(0, bytes.collect())];
            }
            Self::Base64 { .. } | Self::Hex => {}
        }
        forms
    }

    fn filler(self, length: usize) -> Vec<u8> {
        match self {
            Self::Utf16 { big_endian } => {
                let pair = if big_endian { [0, b'x'] } else { [b'x', 0] };
                pair.into_iter().cycle().take(length).collect()
            }
            _ => vec![b'x'; length],
        }
    }
}

/// One form of a character, and its replacement of the same length.
pub(super) struct Form {
    pub(super) text: Zeroizing<Vec<u8>>,
    pub(super) instead: Vec<u8>,
}

/// One character of a value.
pub(super) struct Unit {
    /// Longest form first. If one form is a prefix of another, the longer one is more probable.
    pub(super) forms: Vec<Form>,
}

impl Unit {
    fn new(mut forms: Vec<Form>) -> Self {
        forms.sort_by(|one, other| other.text.len().cmp(&one.text.len()).then(one.text.cmp(&other.text)));
        forms.dedup_by(|one, other| one.text == other.text);
        Self { forms }
    }
}

/// The letters of a value: its characters if it is text, otherwise its bytes.
fn letters(value: &[u8]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let of_text = text.char_indices().map(|(at, char)| at..at + char.len_utf8());
    let bytes = if text.is_empty() { value.len() } else { 0 };
    of_text.chain((0..bytes).map(|at| at..at + 1))
}

/// Two hexadecimal digits in all combinations of upper and lower case.
fn hex_cases(byte: u8) -> [String; 4] {
    let (high, low) = (byte >> 4, byte & 15);
    [
        format!("{high:X}{low:X}"),
        format!("{high:x}{low:x}"),
        format!("{high:X}{low:x}"),
        format!("{high:x}{low:X}"),
    ]
}

fn hex_units(was: u8, is: u8) -> [Unit; 2] {
    let digit = |was: u8, is: u8| {
        let form = |text: String, instead: String| Form {
            text: text.into_bytes().into(),
            instead: instead.into_bytes(),
        };
        Unit::new(vec![
            form(format!("{was:x}"), format!("{is:x}")),
            form(format!("{was:X}"), format!("{is:X}")),
        ])
    };
    [digit(was >> 4, is >> 4), digit(was & 15, is & 15)]
}

/// The base64 characters that contain bits of the value, including those shared with neighbouring bytes.
fn base64_units(after: usize, value: &[u8], sentinel: &[u8]) -> Vec<Unit> {
    let bits = |bytes: &[u8], at: usize| -> (u8, u8) {
        // The six bits at this position, and a mask of those that belong to the value.
        (0..6).fold((0, 0), |(bits, mask), bit| {
            let at = at + bit;
            let byte = (at / 8).checked_sub(after).and_then(|index| bytes.get(index));
            match byte {
                Some(byte) => (bits << 1 | (byte >> (7 - at % 8) & 1), mask << 1 | 1),
                None => (bits << 1, mask << 1),
            }
        })
    };
    let first = after * 8 / 6;
    let end = ((after + value.len()) * 8).div_ceil(6);
    (first..end)
        .map(|place| {
            let (was, mask) = bits(value, place * 6);
            let (is, _) = bits(sentinel, place * 6);
            let forms = (0..64u8).filter(|six| six & mask == was).flat_map(|six| {
                let instead = base64_forms(six & !mask | is);
                base64_forms(six).into_iter().map(move |(kind, text)| {
                    let same =
                        instead.iter().find(|(other, form)| *other == kind && form.len() == text.len());
                    // The replacement must have the same length. If there is none, the plain character or a filler is
                    // used.
                    let instead = match same {
                        Some((_, form)) => form.clone(),
                        None if text.len() == 1 => instead[0].1.clone(),
                        None => vec![b'x'; text.len()],
                    };
                    Form { text: text.into(), instead }
                })
            });
            Unit::new(forms.collect())
        })
        .collect()
}

/// One base64 character in both alphabets, with the two special characters also escaped as in URLs and JSON.
fn base64_forms(six: u8) -> Vec<(u32, Vec<u8>)> {
    let texts: &[&str] = match six {
        62 => &["+", "-", "%2B", "%2b", "\\u002b", "\\u002B"],
        63 => &["/", "_", "%2F", "%2f", "\\u002f", "\\u002F", "\\/"],
        _ => {
            let char = match six {
                0..26 => b'A' + six,
                26..52 => b'a' + six - 26,
                _ => b'0' + six - 52,
            };
            return vec![(0, vec![char])];
        }
    };
    (0..).zip(texts.iter().map(|text| text.as_bytes().to_vec())).collect()
}
