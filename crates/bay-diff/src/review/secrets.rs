//! Secrets in added lines.
//!
//! Tokens of known formats are recognised by prefix, alphabet and length, and by their checksum if they have one.
//! Most formats without a checksum must look random, so that `glpat-xxxx…` in documentation does not match. A secret
//! of unknown format is reported only if a name such as `password` is assigned a random value: as a warning, or as a
//! note in a test file.

use bay_types::diff::Severity;

use super::{Hit, sensitive_paths, test_changes};
use crate::patch::{LineKind, PatchLine, patch_lines};

/// Longest line that is searched for assignments, because longer ones are generated. Known formats are found in
/// lines of any length.
const MAX_ASSIGNMENT_LINE: usize = 4096;
/// Characters of a secret that are shown.
const SHOWN: usize = 4;
/// Findings in one file after which its search for secrets ends.
const MAX_PER_FILE: usize = 50;

/// Bits per character that the body of a token of a known format must have to look random.
const RANDOM_BITS: f64 = 3.0;
/// Bits per character that a value must have to look random if nothing but its name says that it is a secret.
const RANDOM_BITS_UNKNOWN: f64 = 3.6;

type Alphabet = fn(u8) -> bool;

struct Format {
    rule: &'static str,
    what: &'static str,
    prefixes: &'static [&'static str],
    alphabet: Alphabet,
    /// Characters after the prefix.
    length: std::ops::RangeInclusive<usize>,
    genuine: fn(&str) -> bool,
}

fn base62(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn base64url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

fn dotted(byte: u8) -> bool {
    base64url(byte) || byte == b'.'
}

fn slashed(byte: u8) -> bool {
    base62(byte) || byte == b'/'
}

fn base32(byte: u8) -> bool {
    matches!(byte, b'A'..=b'Z' | b'2'..=b'7')
}

fn upper(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

fn hex(byte: u8) -> bool {
    byte.is_ascii_hexdigit()
}

fn random(body: &str) -> bool {
    entropy(body) >= RANDOM_BITS
}

/// The last six characters are a CRC-32 of the others, in base 62.
fn checksummed(body: &str) -> bool {
    body.split_at_checked(body.len().saturating_sub(6)).is_some_and(|(rest, sum)| sum == checksum(rest))
}

fn sendgrid(body: &str) -> bool {
    body.split_once('.').is_some_and(|(id, key)| id.len() == 22 && key.len() == 43) && random(body)
}

fn openai(body: &str) -> bool {
    body.contains("T3BlbkFJ")
}

fn not_an_example(body: &str) -> bool {
    !body.contains("EXAMPLE") && entropy(body) >= 2.5
}

const FORMATS: &[Format] = &[
    Format {
        rule: "github-token",
        what: "a GitHub token",
        prefixes: &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"],
        alphabet: base62,
        length: 36..=36,
        genuine: checksummed,
    },
    Format {
        rule: "github-token",
        what: "a GitHub token",
        prefixes: &["github_pat_"],
        alphabet: base64url,
        length: 82..=82,
        genuine: random,
    },
    Format {
        rule: "npm-token",
        what: "an npm token",
        prefixes: &["npm_"],
        alphabet: base62,
        length: 36..=36,
        genuine: checksummed,
    },
    Format {
        rule: "gitlab-token",
        what: "a GitLab token",
        prefixes: &["glpat-", "gldt-", "glrt-", "glptt-", "glcbt-"],
        alphabet: dotted,
        length: 20..=300,
        genuine: random,
    },
    Format {
        rule: "aws-key",
        what: "an AWS access key",
        prefixes: &["AKIA", "ASIA"],
        alphabet: base32,
        length: 16..=16,
        genuine: not_an_example,
    },
    Format {
        rule: "slack-token",
        what: "a Slack token",
        prefixes: &["xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xapp-"],
        alphabet: base64url,
        length: 20..=250,
        genuine: random,
    },
    Format {
        rule: "slack-webhook",
        what: "the address of a Slack webhook",
        prefixes: &["hooks.slack.com/services/T"],
        alphabet: slashed,
        length: 30..=80,
        genuine: random,
    },
    Format {
        rule: "stripe-key",
        what: "a live Stripe key",
        prefixes: &["sk_live_", "rk_live_"],
        alphabet: base62,
        length: 20..=200,
        genuine: random,
    },
    Format {
        rule: "google-key",
        what: "a Google API key",
        prefixes: &["AIza"],
        alphabet: base64url,
        length: 35..=35,
        genuine: random,
    },
    Format {
        rule: "google-key",
        what: "a Google client secret",
        prefixes: &["GOCSPX-"],
        alphabet: base64url,
        length: 28..=28,
        genuine: random,
    },
    Format {
        rule: "anthropic-key",
        what: "an Anthropic key",
        prefixes: &["sk-ant-"],
        alphabet: base64url,
        length: 60..=200,
        genuine: random,
    },
    Format {
        rule: "openai-key",
        what: "an OpenAI key",
        prefixes: &["sk-proj-", "sk-svcacct-", "sk-admin-"],
        alphabet: base64url,
        length: 40..=250,
        genuine: random,
    },
    Format {
        rule: "openai-key",
        what: "an OpenAI key",
        prefixes: &["sk-"],
        alphabet: base62,
        length: 48..=48,
        genuine: openai,
    },
    Format {
        rule: "pypi-token",
        what: "a PyPI token",
        prefixes: &["pypi-AgEIcHlwaS5vcmc", "pypi-AgENdGVzdC5weXBpLm9yZw"],
        alphabet: base64url,
        length: 50..=500,
        genuine: random,
    },
    Format {
        rule: "crates-token",
        what: "a token of a cargo registry",
        prefixes: &["cio"],
        alphabet: base62,
        length: 32..=32,
        genuine: |body| entropy(body) >= RANDOM_BITS_UNKNOWN && mixed(body),
    },
    Format {
        rule: "sendgrid-key",
        what: "a SendGrid key",
        prefixes: &["SG."],
        alphabet: dotted,
        length: 66..=66,
        genuine: sendgrid,
    },
    Format {
        rule: "huggingface-token",
        what: "a Hugging Face token",
        prefixes: &["hf_"],
        alphabet: base62,
        length: 34..=34,
        genuine: |body| random(body) && mixed_case(body),
    },
    Format {
        rule: "digitalocean-token",
        what: "a DigitalOcean token",
        prefixes: &["dop_v1_", "doo_v1_", "dor_v1_"],
        alphabet: hex,
        length: 64..=64,
        genuine: random,
    },
    Format {
        rule: "docker-token",
        what: "a Docker Hub token",
        prefixes: &["dckr_pat_", "dckr_oat_"],
        alphabet: base64url,
        length: 27..=32,
        genuine: random,
    },
    Format {
        rule: "vault-token",
        what: "a Vault token",
        prefixes: &["hvs.", "hvb."],
        alphabet: base64url,
        length: 24..=250,
        genuine: random,
    },
    Format {
        rule: "age-key",
        what: "an age identity",
        prefixes: &["AGE-SECRET-KEY-1"],
        alphabet: upper,
        length: 58..=58,
        genuine: random,
    },
];

/// Searches the added lines of a patch.
pub(super) fn patch(path: &str, patch: &str, hits: &mut Vec<Hit>) {
    let before = hits.len();
    let machine_made = sensitive_paths::is_lock(path);
    let mut key_began = None;
    for line in patch_lines(patch) {
        if hits.len() - before >= MAX_PER_FILE {
            return;
        }
        if line.kind != LineKind::Added {
            key_began = None;
            continue;
        }
        private_key(&line, &mut key_began, hits);
        let known = hits.len();
        known_formats(&line, hits);
        if hits.len() == known && !machine_made {
            assignment(path, &line, hits);
        }
    }
}

/// Finds secrets of known formats in a line.
fn known_formats(line: &PatchLine<'_>, hits: &mut Vec<Hit>) {
    for format in FORMATS {
        for prefix in format.prefixes {
            for (at, _) in line.text.match_indices(prefix) {
                // `my_ghp_…` and `xAKIA…` are parts of longer words.
                let alone =
                    line.text[..at].bytes().next_back().is_none_or(|byte| !base62(byte) && byte != b'_');
                let rest = &line.text[at + prefix.len()..];
                let end = rest.bytes().position(|byte| !(format.alphabet)(byte)).unwrap_or(rest.len());
                let body = rest[..end].trim_end_matches('.');
                if alone && format.length.contains(&body.len()) && (format.genuine)(body) {
                    let found = &line.text[at..at + prefix.len() + body.len()];
                    let why = format!("{}: {}", format.what, masked(found));
                    hits.push(Hit::new(Severity::Stop, format.rule, why).at(line.number));
                }
            }
        }
    }
}

/// Finds private keys. A key is a header followed by a body: a program that only searches for the header contains
/// no key.
fn private_key(line: &PatchLine<'_>, began: &mut Option<u64>, hits: &mut Vec<Hit>) {
    /// Fewest characters of a key in one line. Less is a word.
    const MIN_BODY: usize = 24;
    let body = |text: &str| {
        let letters = text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(byte));
        letters.count() >= MIN_BODY
    };
    let mut found = |at: u64| {
        hits.push(Hit::new(Severity::Stop, "private-key", "a private key").at(at));
    };
    if let Some(at) = began.take() {
        let text = line.text.trim_matches([' ', '\t', '"', '\'', '+', '\r']);
        if body(text) {
            found(at);
        } else if text.is_empty() || text.contains(": ") {
            // Headers of the old format come between.
            *began = Some(at);
        }
    }
    let Some((_, rest)) = line.text.split_once("-----BEGIN ") else { return };
    let Some((kind, rest)) = rest.split_once("-----") else { return };
    let secret = kind.ends_with("PRIVATE KEY") || kind == "PGP PRIVATE KEY BLOCK";
    if !secret || kind.starts_with("ENCRYPTED") {
        return;
    }
    let same_line = rest.trim_start_matches("\\n").trim_start_matches("\\r\\n");
    if body(same_line) {
        found(line.number);
    } else {
        *began = Some(line.number);
    }
}

/// Words in a name that mark its value as secret.
const SECRET_WORDS: &[&str] = &[
    "secret",
    "token",
    "passwd",
    "password",
    "passphrase",
    "apikey",
    "api_key",
    "api-key",
    "accesskey",
    "access_key",
    "access-key",
    "privatekey",
    "private_key",
    "private-key",
    "credential",
    "auth_key",
    "authkey",
];
/// Text that marks a value as a placeholder.
const PLACEHOLDERS: &[&str] = &[
    "example",
    "changeme",
    "change-me",
    "placeholder",
    "dummy",
    "your",
    "xxxx",
    "1234",
    "abcd",
    "test",
    "fake",
    "sample",
];
const VALUE_LENGTH: std::ops::RangeInclusive<usize> = 16..=256;
/// Random hexadecimal text of fewer digits could be an id or an abbreviated hash.
const MIN_HEX: usize = 32;
/// Longest name that is read.
const MAX_NAME: usize = 80;

/// Finds assignments such as `api_key = "…"` with a random value.
fn assignment(path: &str, line: &PatchLine<'_>, hits: &mut Vec<Hit>) {
    if line.text.len() > MAX_ASSIGNMENT_LINE {
        return;
    }
    let bytes = line.text.as_bytes();
    for at in bytes.iter().enumerate().filter(|(_, byte)| matches!(byte, b'=' | b':')).map(|(at, _)| at) {
        let name = name_before(&bytes[..at]);
        if !SECRET_WORDS.iter().any(|word| name.contains(word)) {
            continue;
        }
        let Some(value) = value_after(&line.text[at + 1..]) else { continue };
        if looks_secret(value) {
            let in_test = test_changes::is_test(path);
            let severity = if in_test { Severity::Note } else { Severity::Warn };
            let why = format!("a random value given to a name that says secret: {}", masked(value));
            hits.push(Hit::new(severity, "random-value", why).at(line.number));
            return;
        }
    }
}

fn name_before(bytes: &[u8]) -> String {
    let bytes = bytes.trim_ascii_end();
    let bytes = bytes.strip_suffix(b"\"").or_else(|| bytes.strip_suffix(b"'")).unwrap_or(bytes);
    let word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let start = bytes.iter().rev().take(MAX_NAME).take_while(|byte| word(byte)).count();
    String::from_utf8_lossy(&bytes[bytes.len() - start..]).to_ascii_lowercase()
}

/// A quoted value, or a bare one that ends the line.
fn value_after(text: &str) -> Option<&str> {
    let text = text.trim_start_matches(['=', ':', '>', ' ', '\t']);
    for quote in ['"', '\'', '`'] {
        if let Some(rest) = text.strip_prefix(quote) {
            return rest.split_once(quote).map(|(value, _)| value);
        }
    }
    let value = text.trim_end_matches([' ', '\t', '\r', ',', ';']);
    (!value.contains([' ', '\t', '(', ')', '"', '\'', '`', '[', ']', '{', '}'])).then_some(value)
}

fn looks_secret(value: &str) -> bool {
    if !VALUE_LENGTH.contains(&value.len())
        || !value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=_-.~!@#%^&*".contains(&byte))
        || value.contains("://")
    {
        return false;
    }
    let lower = value.to_ascii_lowercase();
    if PLACEHOLDERS.iter().any(|word| lower.contains(word)) {
        return false;
    }
    if value.bytes().all(hex) {
        return value.len() >= MIN_HEX && entropy(value) >= RANDOM_BITS && digits(value) >= 4;
    }
    let plain =
        value.split(['-', '_', '.', '/']).filter(|part| part.bytes().all(|b| b.is_ascii_alphabetic()));
    // A name, path or identifier of words joined by dashes, dots or slashes.
    if plain.map(str::len).sum::<usize>() * 2 > value.len() {
        return false;
    }
    entropy(value) >= RANDOM_BITS_UNKNOWN && mixed(value)
}

fn digits(text: &str) -> usize {
    text.bytes().filter(u8::is_ascii_digit).count()
}

fn mixed(text: &str) -> bool {
    digits(text) >= 2 && text.bytes().filter(u8::is_ascii_alphabetic).count() >= 4
}

fn mixed_case(text: &str) -> bool {
    text.bytes().any(|b| b.is_ascii_lowercase()) && text.bytes().any(|b| b.is_ascii_uppercase())
}

/// The first four characters and the length: enough to find the secret, too little to use it.
fn masked(secret: &str) -> String {
    let shown: String = secret.chars().take(SHOWN).collect();
    format!("{shown}… ({} characters)", secret.chars().count())
}

/// Shannon's bits per byte.
fn entropy(text: &str) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in text.bytes() {
        counts[usize::from(byte)] += 1;
    }
    let total = text.len() as u32;
    let share = |count: &u32| f64::from(*count) / f64::from(total.max(1));
    counts.iter().filter(|count| **count > 0).map(share).map(|p| -p * p.log2()).sum()
}

/// CRC-32 as six digits of base 62.
pub(super) fn checksum(text: &str) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut crc = u32::MAX;
    for byte in text.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
        }
    }
    let mut rest = !crc;
    let mut digits = [b'0'; 6];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(rest % 62) as usize];
        rest /= 62;
    }
    String::from_utf8_lossy(&digits).into_owned()
}
