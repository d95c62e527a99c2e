//! Certificates as PEM, one or many in a file, with anything between them.

use std::ops::Range;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use memchr::memmem;
use sha1::{Digest, Sha1};

const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
const END: &[u8] = b"-----END CERTIFICATE-----";
/// Characters per line.
const WIDTH: usize = 64;
/// Certificates of one file that are read: ten times as many as a system has.
const MAX_CERTIFICATES: usize = 2048;
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A certificate as DER.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Certificate(pub(super) Vec<u8>);

impl Certificate {
    /// Its name in file names: the beginning of its fingerprint.
    pub(super) fn short_name(&self) -> String {
        let hash = Sha1::digest(&self.0);
        let digits: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        format!("workbay-{digits}")
    }

    pub(super) fn base64(&self) -> String {
        BASE64.encode(&self.0)
    }
}

/// The certificates in a text, and where each is. Incomplete and other blocks are skipped.
pub(super) fn certificates(text: &[u8]) -> Vec<(Range<usize>, Certificate)> {
    let mut found = Vec::new();
    let mut ends = memmem::find_iter(text, END).peekable();
    for begin in memmem::find_iter(text, BEGIN) {
        let body = begin + BEGIN.len();
        while ends.next_if(|end| *end < body).is_some() {}
        let Some(end) = ends.peek().copied() else { break };
        let letters: Vec<u8> =
            text[body..end].iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
        if let Ok(der) = BASE64.decode(letters)
            && super::der::is_one_element(&der)
        {
            let newline = usize::from(text.get(end + END.len()) == Some(&b'\n'));
            found.push((begin..end + END.len() + newline, Certificate(der)));
        }
        if found.len() == MAX_CERTIFICATES {
            break;
        }
    }
    found
}

pub(super) fn text(certificates: &[Certificate]) -> String {
    let mut text = String::new();
    for certificate in certificates {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let letters = certificate.base64();
        let mut rest = letters.as_str();
        while !rest.is_empty() {
            let (line, after) = rest.split_at(rest.len().min(WIDTH));
            text.push_str(line);
            text.push('\n');
            rest = after;
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}
