//! Sentinels: what bays have in place of values. A sentinel has the length and the form of its value, so that clients
//! accept it that check a credential before they send it. The form is a well-known prefix, separators and kinds of
//! characters, and of a JSON web token the header and, if they fit, the times. Everything else is random.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

/// Public prefixes that state the kind of a credential. A prefix stands before shorter ones that it begins with.
const PREFIXES: &[&str] = &[
    "github_pat_",
    "sk-ant-api03-",
    "sk-ant-admin01-",
    "sk-ant-oat01-",
    "sk-svcacct-",
    "sk-or-v1-",
    "sk-admin-",
    "dckr_pat_",
    "sk-proj-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "rk_test_",
    "sk-ant-",
    "glpat-",
    "gldt-",
    "pypi-",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "npm_",
    "gsk_",
    "xai-",
    "cio",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "SG.",
    "hf_",
    "sk-",
];
/// The fewest random characters of a sentinel, so that it is hard to guess.
pub(crate) const MIN_CHANCE: usize = 8;
/// Claims that clients read, and that are not secret.
const OPEN_CLAIMS: [&str; 3] = ["exp", "iat", "nbf"];

/// How many bytes of a value's beginning its sentinel shows: they state the kind of credential.
pub(crate) fn public_prefix(value: &str) -> usize {
    let prefix = if let Some((header, _)) = value.split_once('.')
        && read_part(header).is_some_and(|head| head.get("alg").is_some())
        && value.split('.').count() == 3
    {
        header.len() + 1
    } else {
        PREFIXES.iter().find(|prefix| value.starts_with(**prefix)).map_or(0, |prefix| prefix.len())
    };
    // If the prefix is nearly the whole value, showing it would reveal the value.
    if value.len() - prefix < MIN_CHANCE { 0 } else { prefix }
}

/// Decodes a part of a JSON web token.
fn read_part(part: &str) -> Option<Value> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok().filter(Value::is_object)
}

/// Makes a sentinel for a value.
pub(crate) fn make(value: &str) -> io::Result<String> {
    let mut chance = Chance::default();
    if let Some(token) = web_token(value, &mut chance)? {
        return Ok(token);
    }
    // A token that is too short for such a sentinel gets one like any other value.
    let (prefix, rest) = value.split_at(public_prefix(value));
    let letters = rest.bytes().filter(u8::is_ascii_alphanumeric).count();
    let alphabet = alphabet(rest);
    let mut made = String::with_capacity(value.len());
    made.push_str(prefix);
    for byte in rest.bytes() {
        // Separators stay in their places, unless that leaves too few random characters.
        if byte.is_ascii_alphanumeric() || letters < MIN_CHANCE {
            made.push(char::from(chance.of(&alphabet)?));
        } else {
            made.push(char::from(byte));
        }
    }
    Ok(made)
}

/// The characters that such a text may consist of.
fn alphabet(text: &str) -> Vec<u8> {
    let has = |test: fn(&u8) -> bool| text.bytes().any(|byte| test(&byte));
    let digits = has(u8::is_ascii_digit);
    let hexadecimal = |lower: bool| {
        text.bytes().filter(u8::is_ascii_alphanumeric).all(|byte| {
            byte.is_ascii_digit() || matches!((lower, byte), (true, b'a'..=b'f') | (false, b'A'..=b'F'))
        })
    };
    let mut all: Vec<u8> = Vec::new();
    if digits {
        all.extend(b'0'..=b'9');
    }
    if has(u8::is_ascii_lowercase) {
        all.extend(b'a'..=if digits && hexadecimal(true) { b'f' } else { b'z' });
    }
    if has(u8::is_ascii_uppercase) {
        all.extend(b'A'..=if digits && hexadecimal(false) { b'F' } else { b'Z' });
    }
    if all.len() < 2 {
        all.extend(b'a'..=b'z');
    }
    all
}

/// A JSON web token of the same length that clients can parse like the real one.
fn web_token(value: &str, chance: &mut Chance) -> io::Result<Option<String>> {
    let parts: Vec<&str> = value.split('.').collect();
    let [header, payload, signature] = parts.as_slice() else { return Ok(None) };
    let (Some(head), Some(claims)) = (read_part(header), read_part(payload)) else { return Ok(None) };
    if head.get("alg").is_none() {
        return Ok(None);
    }
    let length = payload.len() * 3 / 4;
    let mut open = String::new();
    for name in OPEN_CLAIMS {
        if let Some(number) = claims.get(name).and_then(Value::as_i64) {
            open.push_str(&format!("\"{name}\":{number},"));
        }
    }
    let frame = |open: &str, fill: &str| format!("{{{open}\"sub\":\"{fill}\"}}");
    let mut left = length.checked_sub(frame(&open, "").len());
    if left.is_none_or(|left| left < MIN_CHANCE) {
        open.clear();
        left = length.checked_sub(frame("", "").len());
    }
    let Some(left) = left.filter(|left| *left >= MIN_CHANCE) else { return Ok(None) };
    let letters: Vec<u8> = (b'a'..=b'z').chain(b'0'..=b'9').collect();
    let fill: String = (0..left).map(|_| chance.of(&letters).map(char::from)).collect::<io::Result<_>>()?;
    let mut signed = vec![0; signature.len() * 3 / 4];
    chance.fill(&mut signed)?;
    // The header names an algorithm and a key, which every verifier of the token knows anyway.
    let made = format!(
        "{header}.{}.{}",
        URL_SAFE_NO_PAD.encode(frame(&open, &fill)),
        URL_SAFE_NO_PAD.encode(signed)
    );
    Ok((made.len() == value.len()).then_some(made))
}

/// Random bytes of the kernel.
#[derive(Default)]
struct Chance {
    ready: Vec<u8>,
}

impl Chance {
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(())
    }

    /// One of these characters, all equally likely.
    fn of(&mut self, alphabet: &[u8]) -> io::Result<u8> {
        let bound = 256 - 256 % alphabet.len();
        loop {
            if self.ready.is_empty() {
                let mut more = vec![0; 256];
                self.fill(&mut more)?;
                self.ready = more;
            }
            if let Some(byte) = self.ready.pop().map(usize::from)
                && byte < bound
            {
                return Ok(alphabet[byte % alphabet.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentinel_is_as_long_as_its_value_begins_like_it_and_has_nothing_else_of_it() {
        for (value, prefix) in [
            ("ghp_0123456789abcdefABCDEF0123456789abcd", "ghp_"),
            ("sk-ant-api03-AbCd1234AbCd1234AbCd1234-xY_zzAA", "sk-ant-api03-"),
            ("npm_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "npm_"),
            ("CANARY-2b9ba0f8-7f3c-4f52-9c3e-7d0a5a7e4f11", ""),
            ("correct horse battery".trim(), ""),
        ] {
            let (one, two) = (make(value).unwrap(), make(value).unwrap());
            assert_eq!(one.len(), value.len());
            assert!(one.starts_with(prefix), "{one}");
            assert_ne!(one, two, "chance is in it");
            let rest = &value[prefix.len()..];
            assert!(!one.contains(&rest[rest.len() - 8..]), "{one}");
            let marks = |text: &str| {
                text.bytes().map(|b| (!b.is_ascii_alphanumeric()).then_some(b)).collect::<Vec<_>>()
            };
            assert_eq!(marks(&one), marks(value));
        }
        let hex = make("0123456789abcdef0123456789abcdef").unwrap();
        assert!(hex.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hex}");
        let marks = make("!!!!!!!!????").unwrap();
        assert!(marks.bytes().all(|byte| byte.is_ascii_lowercase()), "all of it is chance: {marks}");
    }

    #[test]
    fn a_web_token_can_be_read_and_keeps_when_it_ends() {
        let part = |json: &str| URL_SAFE_NO_PAD.encode(json);
        let value = format!(
            "{}.{}.{}",
            part(r#"{"alg":"RS256","typ":"JWT"}"#),
            part(r#"{"iss":"https://issuer.test","sub":"somebody@example.test","exp":1999999999}"#),
            URL_SAFE_NO_PAD.encode([7; 64])
        );
        let made = make(&value).unwrap();
        assert_eq!(made.len(), value.len());
        let parts: Vec<&str> = made.split('.').collect();
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
        assert_eq!(claims["exp"], 1_999_999_999);
        assert!(!claims.to_string().contains("somebody"), "{claims}");
        assert_eq!(URL_SAFE_NO_PAD.decode(parts[2]).unwrap().len(), 64);
        assert_ne!(make(&value).unwrap(), made);
    }
}
