//! Both ends of SCRAM-SHA-256 (RFC 5802, RFC 7677). Its proof shows knowledge of a password without revealing it. So
//! the bay's client proves that it has the sentinel, and the gateway proves to the database that it has the value.

use std::num::NonZeroU32;

use aws_lc_rs::{constant_time, digest, hmac, pbkdf2, rand};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use unicode_normalization::UnicodeNormalization;
use zeroize::Zeroizing;

pub(super) const MECHANISM: &str = "SCRAM-SHA-256";
/// PostgreSQL's default.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(4096).unwrap();
/// The most iterations that a database may request. More would keep the daemon busy.
const MAX_ITERATIONS: u32 = 200_000;
const NONCE_BYTES: usize = 18;
const SALT_BYTES: usize = 16;
const KEY_BYTES: usize = digest::SHA256_OUTPUT_LEN;

type Key = Zeroizing<[u8; KEY_BYTES]>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScramError {
    #[error("its messages are not those of {MECHANISM}")]
    Malformed,
    #[error(
        "it asks to bind the login to its TLS connection, which ends at the gateway; connect with channel_binding=prefer"
    )]
    ChannelBinding,
    #[error("it asks for more work than the gateway does for a login")]
    Iterations,
    #[error("it does not know the password itself")]
    Signature,
    #[error("there is no randomness to be had")]
    Random,
}

/// Normalises a password (RFC 4013, as far as PostgreSQL and its clients agree on it).
fn prepared(password: &str) -> Zeroizing<String> {
    Zeroizing::new(if password.is_ascii() { password.to_owned() } else { password.nfkc().collect() })
}

fn salted(password: &str, salt: &[u8], iterations: NonZeroU32) -> Key {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, prepared(password).as_bytes(), &mut *key);
    key
}

fn sign(key: &[u8], text: &str) -> Key {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    bytes(hmac::sign(&key, text.as_bytes()).as_ref())
}

fn hash(text: &[u8]) -> Key {
    bytes(digest::digest(&digest::SHA256, text).as_ref())
}

/// An array of the hash's length.
fn bytes(of: &[u8]) -> Key {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    for (to, from) in key.iter_mut().zip(of) {
        *to = *from;
    }
    key
}

fn xor(one: &[u8], other: &[u8]) -> Key {
    let mut key = bytes(one);
    for (to, from) in key.iter_mut().zip(other) {
        *to ^= *from;
    }
    key
}

fn nonce(length: usize) -> Result<Vec<u8>, ScramError> {
    let mut bytes = vec![0; length];
    rand::fill(&mut bytes).map_err(|_| ScramError::Random)?;
    Ok(bytes)
}

/// The value of the attribute at this place of a message.
fn attribute<'a>(part: Option<&'a str>, name: &str) -> Result<&'a str, ScramError> {
    part.and_then(|part| part.strip_prefix(name)?.strip_prefix('=')).ok_or(ScramError::Malformed)
}

/// The server side: the gateway, towards the bay.
pub(super) struct Server {
    /// The client's channel binding header.
    header: String,
    client_first: String,
    server_first: String,
    nonce: String,
    salt: Vec<u8>,
}

impl Server {
    /// Reads the client's first message.
    pub(super) fn new(message: &[u8]) -> Result<Self, ScramError> {
        let text = std::str::from_utf8(message).map_err(|_| ScramError::Malformed)?;
        let (flag, rest) = text.split_once(',').ok_or(ScramError::Malformed)?;
        let (authority, bare) = rest.split_once(',').ok_or(ScramError::Malformed)?;
        match flag {
            "n" | "y" => {}
            _ if flag.starts_with("p=") => return Err(ScramError::ChannelBinding),
            _ => return Err(ScramError::Malformed),
        }
        let mut parts = bare.split(',');
        attribute(parts.next(), "n")?;
        let theirs = attribute(parts.next(), "r")?;
        let salt = nonce(SALT_BYTES)?;
        let nonce = format!("{theirs}{}", STANDARD.encode(nonce(NONCE_BYTES)?));
        Ok(Self {
            header: format!("{flag},{authority},"),
            client_first: bare.to_owned(),
            server_first: format!("r={nonce},s={},i={ITERATIONS}", STANDARD.encode(&salt)),
            nonce,
            salt,
        })
    }

    pub(super) fn first(&self) -> &str {
        &self.server_first
    }

    /// Checks the client's last message. Returns the server's answer if the client knows one of the passwords.
    pub(super) fn check(&self, message: &[u8], passwords: &[String]) -> Result<Option<String>, ScramError> {
        let text = std::str::from_utf8(message).map_err(|_| ScramError::Malformed)?;
        let (unproven, proof) = text.rsplit_once(",p=").ok_or(ScramError::Malformed)?;
        let proof = STANDARD.decode(proof).map_err(|_| ScramError::Malformed)?;
        let mut parts = unproven.split(',');
        let header = attribute(parts.next(), "c")?;
        let nonce = attribute(parts.next(), "r")?;
        let agrees =
            header == STANDARD.encode(&self.header) && nonce == self.nonce && proof.len() == KEY_BYTES;
        if !agrees {
            return Err(ScramError::Malformed);
        }
        let said = format!("{},{},{unproven}", self.client_first, self.server_first);
        let knows = |password: &String| {
            let salted = salted(password, &self.salt, ITERATIONS);
            let stored = hash(&*sign(&*salted, "Client Key"));
            let key = xor(&proof, &*sign(&*stored, &said));
            constant_time::verify_slices_are_equal(&*hash(&*key), &*stored).ok()?;
            let signature = sign(&*sign(&*salted, "Server Key"), &said);
            Some(format!("v={}", STANDARD.encode(*signature)))
        };
        Ok(passwords.iter().find_map(knows))
    }
}

/// The client side: the gateway, towards the database.
pub(super) struct Client {
    client_first: String,
    nonce: String,
    signature: Option<Key>,
}

/// No channel binding: only the gateway itself could be bound.
const NO_BINDING: &str = "n,,";

impl Client {
    pub(super) fn new() -> Result<Self, ScramError> {
        Ok(Self::with(STANDARD.encode(nonce(NONCE_BYTES)?)))
    }

    fn with(nonce: String) -> Self {
        // The server takes the user from the startup message.
        Self { client_first: format!("n=,r={nonce}"), nonce, signature: None }
    }

    pub(super) fn first(&self) -> String {
        format!("{NO_BINDING}{}", self.client_first)
    }

    /// Reads the server's first message and returns the client's last one. The server determines how long this takes.
    pub(super) fn prove(&mut self, message: &[u8], password: &str) -> Result<String, ScramError> {
        let server_first = std::str::from_utf8(message).map_err(|_| ScramError::Malformed)?;
        let mut parts = server_first.split(',');
        let nonce = attribute(parts.next(), "r")?;
        let salt = STANDARD.decode(attribute(parts.next(), "s")?).map_err(|_| ScramError::Malformed)?;
        let iterations: NonZeroU32 =
            attribute(parts.next(), "i")?.parse().map_err(|_| ScramError::Malformed)?;
        if !nonce.starts_with(&self.nonce) || nonce == self.nonce {
            return Err(ScramError::Malformed);
        }
        if iterations.get() > MAX_ITERATIONS {
            return Err(ScramError::Iterations);
        }
        let unproven = format!("c={},r={nonce}", STANDARD.encode(NO_BINDING));
        let said = format!("{},{server_first},{unproven}", self.client_first);
        let salted = salted(password, &salt, iterations);
        let key = sign(&*salted, "Client Key");
        let proof = xor(&*key, &*sign(&*hash(&*key), &said));
        self.signature = Some(sign(&*sign(&*salted, "Server Key"), &said));
        Ok(format!("{unproven},p={}", STANDARD.encode(*proof)))
    }

    /// Checks the server's last message, which proves that it knows the password too.
    pub(super) fn check(&self, message: &[u8]) -> Result<(), ScramError> {
        let text = std::str::from_utf8(message).map_err(|_| ScramError::Malformed)?;
        let said = STANDARD.decode(attribute(Some(text), "v")?).map_err(|_| ScramError::Malformed)?;
        let signature = self.signature.as_ref().ok_or(ScramError::Malformed)?;
        constant_time::verify_slices_are_equal(&said, &**signature).map_err(|_| ScramError::Signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_7677_is_reproduced() {
        let mut client = Client::with("rOprNGfwEbeRWgbNEkqO".to_owned());
        // The RFC's example names its user.
        client.client_first = "n=user,r=rOprNGfwEbeRWgbNEkqO".to_owned();
        let first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let last = client.prove(first, "pencil").unwrap();
        assert_eq!(
            last,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
             p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        assert_eq!(client.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Ok(()));
        assert_eq!(
            client.check(b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="),
            Err(ScramError::Signature)
        );
    }

    #[test]
    fn both_ends_agree_on_a_password_and_on_nothing_else() {
        let passwords = ["one".to_owned(), "p\u{e9}ncil \u{2168}".to_owned()];
        // A decomposed spelling, and another way to write the number.
        for (password, known) in [("one", true), ("pe\u{301}ncil IX", true), ("two", false)] {
            let mut client = Client::new().unwrap();
            let server = Server::new(client.first().as_bytes()).unwrap();
            let proof = client.prove(server.first().as_bytes(), password).unwrap();
            let answer = server.check(proof.as_bytes(), &passwords).unwrap();
            assert_eq!(answer.is_some(), known, "{password}");
            if let Some(answer) = answer {
                assert_eq!(client.check(answer.as_bytes()), Ok(()));
            }
        }
    }

    #[test]
    fn what_is_not_said_as_it_should_be_is_refused() {
        for text in ["", "n", "n,,", "x,,n=,r=a", "n,,r=a", "n,,n=u"] {
            assert!(matches!(Server::new(text.as_bytes()), Err(ScramError::Malformed)), "{text}");
        }
        let bound = Server::new(b"p=tls-server-end-point,,n=,r=a");
        assert!(matches!(bound, Err(ScramError::ChannelBinding)));
        let mut client = Client::with("abc".to_owned());
        for text in [
            "",
            "r=abcd,s=c2FsdA==",
            "r=abc,s=c2FsdA==,i=1",
            "r=other,s=c2FsdA==,i=1",
            "r=abcd,s=c2FsdA==,i=0",
        ] {
            assert_eq!(client.prove(text.as_bytes(), "p"), Err(ScramError::Malformed), "{text}");
        }
        assert_eq!(client.prove(b"r=abcd,s=c2FsdA==,i=9999999", "p"), Err(ScramError::Iterations));
        assert_eq!(client.check(b"v=AAAA"), Err(ScramError::Malformed));
    }
}
