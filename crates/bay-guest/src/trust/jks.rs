//! Java's own key store format (JKS), as far as a store with only certificates needs it.
//!
//! ```text
//!  FEEDFEED  version 2  count  ( 2  alias  milliseconds  "X.509"  length  certificate )…  SHA-1(password, words, all before)
//! ```
//!
//! Every Java accepts it as its `cacerts`, even if its own store is PKCS#12.

use sha1::{Digest, Sha1};

use super::pem::Certificate;

const MAGIC: [u8; 4] = [0xfe, 0xed, 0xfe, 0xed];
const VERSION: u32 = 2;
const TRUSTED: u32 = 2;
const KIND: &str = "X.509";
/// The password of every `cacerts`. It keeps nothing secret.
const PASSWORD: &str = "changeit";
/// A constant that the format includes in its checksum.
const WORDS: &[u8] = b"Mighty Aphrodite";
const CHECKSUM: usize = 20;
/// Entries that are read.
const MAX_ENTRIES: u32 = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) alias: String,
    pub(super) created_ms: u64,
    pub(super) certificate: Certificate,
}

pub(super) fn is_jks(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// None if the store is damaged, has another password, or contains more than certificates.
pub(super) fn read(bytes: &[u8]) -> Option<Vec<Entry>> {
    let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM)?)?;
    if checksum(body) != sum {
        return None;
    }
    let mut rest = Fields(body.strip_prefix(&MAGIC)?);
    if rest.number()? != VERSION {
        return None;
    }
    let count = rest.number().filter(|count| *count <= MAX_ENTRIES)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        if rest.number()? != TRUSTED {
            return None;
        }
        let alias = rest.text()?;
        let created_ms = u64::from_be_bytes(*rest.take(8)?.first_chunk()?);
        if rest.text()? != KIND {
            return None;
        }
        let length = usize::try_from(rest.number()?).ok()?;
        entries.push(Entry { alias, created_ms, certificate: Certificate(rest.take(length)?.to_vec()) });
    }
    rest.0.is_empty().then_some(entries)
}

/// None if a field is too long for the format.
pub(super) fn write(entries: &[Entry]) -> Option<Vec<u8>> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend(u32::try_from(entries.len()).ok()?.to_be_bytes());
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend(u16::try_from(text.len()).ok()?.to_be_bytes());
        bytes.extend(text.as_bytes());
        Some(())
    };
    for entry in entries {
        bytes.extend(TRUSTED.to_be_bytes());
        text(&mut bytes, &entry.alias)?;
        bytes.extend(entry.created_ms.to_be_bytes());
        text(&mut bytes, KIND)?;
        bytes.extend(u32::try_from(entry.certificate.0.len()).ok()?.to_be_bytes());
        bytes.extend(&entry.certificate.0);
    }
    let sum = checksum(&bytes);
    bytes.extend(sum);
    Some(bytes)
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM] {
    let mut hash = Sha1::new();
    for unit in PASSWORD.encode_utf16() {
        hash.update(unit.to_be_bytes());
    }
    hash.update(WORDS);
    hash.update(body);
    hash.finalize().into()
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(*self.take(4)?.first_chunk()?))
    }

    /// None if the alias has characters in which Java's variant of UTF-8 differs. Such a store is left unchanged.
    fn text(&mut self) -> Option<String> {
        let length = u16::from_be_bytes(*self.take(2)?.first_chunk()?);
        String::from_utf8(self.take(usize::from(length))?.to_vec()).ok()
    }
}
