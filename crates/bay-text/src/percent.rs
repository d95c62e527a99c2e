//! Percent-encoding of URLs (RFC 3986).
//!
//! Everything but unreserved characters is encoded, with capitals, so that a value contains no delimiter. Only
//! [`path_value`] keeps slashes. There are two decoders, for different treatment of text that is not valid
//! percent-encoding: [`decode`] refuses it, and [`decode_forgiving`] reads it as a forgiving server would.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode, percent_encode};

/// Everything but letters, digits and `-._~`.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// [`RESERVED`] without the slash.
const RESERVED_IN_PATH: &AsciiSet = &RESERVED.remove(b'/');

/// Encodes one value of a query.
#[must_use]
pub fn value(text: &str) -> String {
    percent_encode(text.as_bytes(), RESERVED).to_string()
}

/// Encodes one value of a query in pieces without allocation, for secrets, of which no copy may remain in memory.
#[must_use]
pub fn value_pieces(text: &str) -> PercentEncode<'_> {
    percent_encode(text.as_bytes(), RESERVED)
}

/// Encodes a path as one value of a query. Slashes stay, so that logs are readable.
#[must_use]
pub fn path_value(path: &[u8]) -> String {
    percent_encode(path, RESERVED_IN_PATH).to_string()
}

/// Encodes one segment of a path, or one value of a query. The dots of a segment of only dots are encoded too, because
/// servers read `.` and `..` as directories.
#[must_use]
pub fn segment(text: &str) -> String {
    if !text.is_empty() && text.bytes().all(|byte| byte == b'.') {
        return "%2E".repeat(text.len());
    }
    value(text)
}

/// Decodes text in which two hexadecimal digits must follow each `%`. `None` if they do not.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let mut rest = text.as_bytes();
    while let Some(at) = memchr::memchr(b'%', rest) {
        let digits = rest.get(at + 1..at + 3)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        rest = &rest[at + 3..];
    }
    Some(decode_forgiving(text.as_bytes()))
}

/// Decodes valid percent-encoding. A `%` without two hexadecimal digits stays.
#[must_use]
pub fn decode_forgiving(text: &[u8]) -> Vec<u8> {
    percent_decode(text).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_escapes_from_a_path_segment() {
        assert_eq!(segment("a-b_c.d~e"), "a-b_c.d~e");
        assert_eq!(segment("../x?y#z"), "..%2Fx%3Fy%23z");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(segment("ü\n"), "%C3%BC%0A");
        assert_eq!(segment(""), "");
    }

    #[test]
    fn any_path_stands_safely_in_a_request_line() {
        assert_eq!(path_value("/a b/ü&x=1#?\r\n".as_bytes()), "/a%20b/%C3%BC%26x%3D1%23%3F%0D%0A");
        assert_eq!(value("/a b&+"), "%2Fa%20b%26%2B");
    }

    #[test]
    fn a_percent_sign_without_two_digits_is_refused_or_stays() {
        for text in ["%", "%0", "%g0", "a%+1b", "%%41", "%4"] {
            assert_eq!(decode(text), None, "{text}");
        }
        assert_eq!(decode("a+%2b%2B").unwrap(), b"a+++");
        assert_eq!(decode_forgiving(b"%%41%4%zz"), b"%A%4%zz");
    }

    proptest! {
        #[test]
        fn encoded_bytes_decode_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(decode(&path_value(&bytes)), Some(bytes));
        }

        #[test]
        fn both_decoders_agree_on_valid_text(text in "[%0-9a-f ü]{0,40}") {
            if let Some(bytes) = decode(&text) {
                prop_assert_eq!(bytes, decode_forgiving(text.as_bytes()));
            }
        }
    }
}
