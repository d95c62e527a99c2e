//! The parts of DER that are needed to find names and certificates. Does not panic on any input.

use memchr::memmem;
use sha1::{Digest, Sha1};

use super::pem::Certificate;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT: u8 = 0x06;
const OCTETS: u8 = 0x04;
const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const IA5: u8 = 0x16;
const VISIBLE: u8 = 0x1a;
const VERSION: u8 = 0xa0;
const EXPLICIT: u8 = 0xa0;
/// The object identifier `x509Certificate`, which precedes each certificate in PKCS#12.
const CERTIFICATE_BAG: [u8; 12] = [0x06, 0x0a, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x16, 0x01];
/// Certificates of one key store that are read.
const MAX_CERTIFICATES: usize = 2048;

/// Tag, content, and the bytes that follow.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let count = usize::from(first & 0x7f);
        if !(1..=4).contains(&count) || rest.len() < count {
            return None;
        }
        let (digits, after) = rest.split_at(count);
        length = digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit));
        rest = after;
    }
    let (content, after) = rest.split_at_checked(length)?;
    Some((tag, content, after))
}

fn expect(bytes: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    element(bytes).filter(|(tag, ..)| *tag == wanted).map(|(_, content, after)| (content, after))
}

fn encode(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    let length = content.len();
    if length < 0x80 {
        bytes.push(length.to_le_bytes()[0]);
    } else {
        let digits: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|digit| *digit == 0).collect();
        bytes.push(0x80 | digits.len().to_le_bytes()[0]);
        bytes.extend(digits);
    }
    bytes.extend(content);
    bytes
}

/// Whether this is one sequence with nothing after it.
pub(super) fn is_one_element(bytes: &[u8]) -> bool {
    expect(bytes, SEQUENCE).is_some_and(|(_, after)| after.is_empty())
}

/// The certificates of a PKCS#12 store without encryption, as JDKs have it.
pub(super) fn pkcs12_certificates(bytes: &[u8]) -> Vec<Certificate> {
    let found = memmem::find_iter(bytes, &CERTIFICATE_BAG).filter_map(|at| {
        let (explicit, _) = expect(&bytes[at + CERTIFICATE_BAG.len()..], EXPLICIT)?;
        let (certificate, _) = expect(explicit, OCTETS)?;
        is_one_element(certificate).then(|| Certificate(certificate.to_vec()))
    });
    found.take(MAX_CERTIFICATES).collect()
}

/// The fields of a certificate that identify it, in their encoding.
pub(super) struct Parts<'a> {
    pub(super) serial: &'a [u8],
    pub(super) issuer: &'a [u8],
    pub(super) subject: &'a [u8],
}

pub(super) fn parts(certificate: &Certificate) -> Option<Parts<'_>> {
    let (whole, _) = expect(&certificate.0, SEQUENCE)?;
    let (mut rest, _) = expect(whole, SEQUENCE)?;
    if let Some((_, after)) = expect(rest, VERSION) {
        rest = after;
    }
    let mut next = || {
        let after = element(rest)?.2;
        let (encoded, _) = rest.split_at(rest.len() - after.len());
        rest = after;
        Some(encoded)
    };
    let (serial, _algorithm, issuer, _validity, subject) = (next()?, next()?, next()?, next()?, next()?);
    Some(Parts { serial, issuer, subject })
}

/// OpenSSL's name of a certificate in a directory: a hash of its subject that ignores case and repeated blanks. None
/// for a subject that is malformed or in an obsolete encoding.
pub(super) fn subject_hash(certificate: &Certificate) -> Option<String> {
    let (mut subject, _) = expect(parts(certificate)?.subject, SEQUENCE)?;
    let mut canonical = Vec::new();
    while !subject.is_empty() {
        let (mut set, after) = expect(subject, SET)?;
        let mut attributes = Vec::new();
        while !set.is_empty() {
            let (attribute, next) = expect(set, SEQUENCE)?;
            let (object, value) = expect(attribute, OBJECT)?;
            let (tag, content, _) = element(value)?;
            if ![UTF8, PRINTABLE, IA5, VISIBLE].contains(&tag) {
                return None;
            }
            let words: Vec<Vec<u8>> = content
                .split(u8::is_ascii_whitespace)
                .filter(|word| !word.is_empty())
                .map(<[u8]>::to_ascii_lowercase)
                .collect();
            let fields = [encode(OBJECT, object), encode(UTF8, &words.join(&b' '))].concat();
            attributes.push(encode(SEQUENCE, &fields));
            set = next;
        }
        attributes.sort();
        canonical.extend(encode(SET, &attributes.concat()));
        subject = after;
    }
    let digest = Sha1::digest(&canonical);
    let first = digest.first_chunk::<4>()?;
    Some(format!("{:08x}", u32::from_le_bytes(*first)))
}
