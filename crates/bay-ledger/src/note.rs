//! Signed heads and the keys that sign them, as text.
//!
//! ```text
//! workbay/0a1b2c3d4e5f6071                      the log
//! 1041                                          events
//! pN0m…=                                        root
//! time 2026-01-02T03:04:05Z
//!
//! — workbay/0a1b2c3d4e5f6071 7RcZ…=             signer, id of the key and signature
//! ```

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::hash::Hash;
use crate::tree::MAX_SIZE;

/// Longest head that is read.
pub const MAX_NOTE: usize = 4096;
/// Longest name of a log.
const MAX_NAME: usize = 128;
/// Most signatures that are read, because others may sign too.
const MAX_SIGNATURES: usize = 16;
/// Ed25519, in the numbering of signed notes.
const ALGORITHM: u8 = 1;
const KEY_ID: usize = 4;
const SECRET: &str = "PRIVATE+KEY+";
const TIME: &str = "time ";
const SIGNED_BY: &str = "\u{2014} ";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    #[error("this is not a key: {0}")]
    Key(&'static str),
    #[error("this is not a signed head: {0}")]
    Malformed(&'static str),
    #[error("the head is of the log {found}, and the key is that of {expected}")]
    OtherLog { found: String, expected: String },
    #[error("the head of {0} is not signed by this key")]
    NotSigned(String),
    #[error("the signature on the head of {0} is wrong: it was changed, or signed by another key")]
    WrongSignature(String),
}

/// The size of a log at a time, and the root over all its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub log: String,
    pub size: u64,
    pub root: Hash,
    pub time: Timestamp,
}

/// Whether a text can name a log: it must fit into a line of a note, and between plus signs and spaces.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(|b| b.is_ascii_graphic() && b != b'+')
}

fn key_id(name: &str, key: &VerifyingKey) -> [u8; KEY_ID] {
    let digest = Sha256::new()
        .chain_update(name.as_bytes())
        .chain_update([b'\n', ALGORITHM])
        .chain_update(key.as_bytes())
        .finalize();
    [digest[0], digest[1], digest[2], digest[3]]
}

/// Splits a key into name, key id and the 32 bytes after the algorithm byte.
fn parts(text: &str) -> Option<(&str, [u8; KEY_ID], [u8; 32])> {
    let (name, rest) = text.split_once('+')?;
    let (id, key) = rest.split_once('+')?;
    let id = (id.len() == 2 * KEY_ID).then(|| u32::from_str_radix(id, 16).ok())??;
    let bytes = BASE64.decode(key).ok()?;
    let (algorithm, bytes) = bytes.split_first()?;
    (*algorithm == ALGORITHM && is_name(name)).then_some(())?;
    Some((name, id.to_be_bytes(), bytes.try_into().ok()?))
}

fn joined(name: &str, key: &VerifyingKey, bytes: &[u8; 32]) -> String {
    let mut tagged = vec![ALGORITHM];
    tagged.extend_from_slice(bytes);
    format!("{name}+{:08x}+{}", u32::from_be_bytes(key_id(name, key)), BASE64.encode(tagged))
}

/// The key that verifies heads of one log. Its text is one line and public.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    name: String,
    key: VerifyingKey,
}

impl PublicKey {
    /// # Errors
    /// When the line is not a key, or was copied with an error.
    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let line = text.trim();
        if line.starts_with(SECRET) {
            return Err(NoteError::Key("it is the secret one, which nobody but the daemon needs"));
        }
        let (name, id, bytes) = parts(line).ok_or(NoteError::Key("it is one line, NAME+ID+KEY"))?;
        let key =
            VerifyingKey::from_bytes(&bytes).map_err(|_| NoteError::Key("it is no point of the curve"))?;
        if key_id(name, &key) != id {
            return Err(NoteError::Key("its id does not fit the rest: it was miscopied"));
        }
        Ok(Self { name: name.to_owned(), key })
    }

    /// The log whose heads it verifies.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&joined(&self.name, &self.key, self.key.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// The key that signs heads of one log. It has no `Display`, and `Debug` hides it.
pub struct SecretKey {
    name: String,
    key: SigningKey,
}

impl SecretKey {
    /// Makes a key of this log from random bytes.
    ///
    /// # Errors
    /// When the name cannot stand in a note.
    pub fn new(log: &str, random: &[u8; 32]) -> Result<Self, NoteError> {
        if !is_name(log) {
            return Err(NoteError::Key("a log's name is printable ASCII without spaces and plus signs"));
        }
        Ok(Self { name: log.to_owned(), key: SigningKey::from_bytes(random) })
    }

    /// # Errors
    /// When the text is not what [`SecretKey::to_secret_text`] made.
    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let line = text.trim().strip_prefix(SECRET).ok_or(NoteError::Key("it is not a secret one"))?;
        let (name, id, bytes) =
            parts(line).ok_or(NoteError::Key("it is one line, PRIVATE+KEY+NAME+ID+KEY"))?;
        let key = SigningKey::from_bytes(&bytes);
        if key_id(name, &key.verifying_key()) != id {
            return Err(NoteError::Key("its id does not fit the rest: it is damaged"));
        }
        Ok(Self { name: name.to_owned(), key })
    }

    /// Its text, for the file that stores it.
    #[must_use]
    pub fn to_secret_text(&self) -> String {
        format!("{SECRET}{}", joined(&self.name, &self.key.verifying_key(), self.key.as_bytes()))
    }

    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey { name: self.name.clone(), key: self.key.verifying_key() }
    }

    /// The head as a signed note.
    #[must_use]
    pub fn sign(&self, size: u64, root: Hash, time: Timestamp) -> String {
        let text = format!("{}\n{size}\n{}\n{TIME}{time}\n", self.name, BASE64.encode(root.bytes()));
        let mut tagged = key_id(&self.name, &self.key.verifying_key()).to_vec();
        tagged.extend_from_slice(&self.key.sign(text.as_bytes()).to_bytes());
        format!("{text}\n{SIGNED_BY}{} {}\n", self.name, BASE64.encode(tagged))
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({}, …)", self.name)
    }
}

impl Head {
    /// Verifies the signature of a note, then parses it.
    ///
    /// # Errors
    /// When it is not a head, belongs to another log, or is not signed by this key.
    pub fn open(note: &str, key: &PublicKey) -> Result<Self, NoteError> {
        if note.len() > MAX_NOTE {
            return Err(NoteError::Malformed("it is too long"));
        }
        let (text, signatures) = note
            .split_once("\n\n")
            .ok_or(NoteError::Malformed("it has no empty line before its signature"))?;
        let head = Self::parse(text)?;
        if head.log != key.name {
            return Err(NoteError::OtherLog { found: head.log, expected: key.name.clone() });
        }
        // The signed text includes the end of its last line.
        let signed = &note[..=text.len()];
        let own = key_id(&key.name, &key.key);
        let mut found = false;
        for line in signatures.lines().take(MAX_SIGNATURES) {
            let Some((name, tagged)) = line.strip_prefix(SIGNED_BY).and_then(|rest| rest.split_once(' '))
            else {
                return Err(NoteError::Malformed("a line behind the empty one is no signature"));
            };
            let tagged =
                BASE64.decode(tagged).map_err(|_| NoteError::Malformed("a signature is not base64"))?;
            if name != key.name || tagged.len() != KEY_ID + Signature::BYTE_SIZE || tagged[..KEY_ID] != own {
                continue;
            }
            found = true;
            let signature = Signature::from_slice(&tagged[KEY_ID..])
                .map_err(|_| NoteError::Malformed("a signature has the wrong length"))?;
            if key.key.verify_strict(signed.as_bytes(), &signature).is_ok() {
                return Ok(head);
            }
        }
        if found { Err(NoteError::WrongSignature(head.log)) } else { Err(NoteError::NotSigned(head.log)) }
    }

    fn parse(text: &str) -> Result<Self, NoteError> {
        let mut lines = text.split('\n');
        let mut line = |what| lines.next().ok_or(NoteError::Malformed(what));
        let log = line("the log is missing")?;
        let size_text = line("the size is missing")?;
        let root = line("the root is missing")?;
        let time = line("the time is missing")?;
        if !is_name(log) {
            return Err(NoteError::Malformed("the log has no proper name"));
        }
        let size: u64 = size_text.parse().map_err(|_| NoteError::Malformed("the size is no number"))?;
        // Each number has one text.
        if size > MAX_SIZE || size.to_string() != size_text {
            return Err(NoteError::Malformed("the size is no proper number"));
        }
        let root: [u8; Hash::BYTES] = BASE64
            .decode(root)
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(NoteError::Malformed("the root is not 32 bytes in base64"))?;
        let time = time
            .strip_prefix(TIME)
            .and_then(|time| time.parse().ok())
            .ok_or(NoteError::Malformed("the time is not understood"))?;
        Ok(Self { log: log.to_owned(), size, root: Hash::new(root), time })
    }
}
