//! The host keys that a server may have, from the operator's `known_hosts`. There is no trust on first use.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bay_policy::stars::fits_by;
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Algorithm, PublicKey};

use super::client::OWN_PORT;

/// The keys of one server.
#[derive(Debug, Default)]
pub(super) struct Known {
    keys: Vec<KeyData>,
    revoked: Vec<KeyData>,
}

/// The result of comparing a server's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Known,
    /// Other keys are known for the server, but not this one. Also a certificate instead of a key.
    Changed,
    Revoked,
}

impl Known {
    /// Reads the keys of one host. Malformed lines and certificate authorities are ignored.
    pub(super) fn read(text: &str, host: &str, port: u16) -> Self {
        let name = if port == OWN_PORT { host.to_owned() } else { format!("[{host}]:{port}") };
        let mut known = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            let mut words = line.split_ascii_whitespace();
            let Some(first) = words.next() else { continue };
            let (marker, names) = match first.strip_prefix('@') {
                Some(marker) => (Some(marker), words.next().unwrap_or_default()),
                None => (None, first),
            };
            let (Some(kind), Some(key)) = (words.next(), words.next()) else { continue };
            if !names_host(names, &name) {
                continue;
            }
            let Ok(key) = PublicKey::from_openssh(&format!("{kind} {key}")) else { continue };
            match marker {
                None => known.keys.push(key.key_data().clone()),
                Some("revoked") => known.revoked.push(key.key_data().clone()),
                Some(_) => {}
            }
        }
        known
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(super) fn verdict(&self, key: &PublicKey) -> Verdict {
        if self.revoked.contains(key.key_data()) {
            return Verdict::Revoked;
        }
        if self.keys.contains(key.key_data()) { Verdict::Known } else { Verdict::Changed }
    }

    /// The key algorithms to request from the server, limited to known keys. The server may also have keys that are
    /// not known.
    pub(super) fn algorithms(&self, usable: &[Algorithm]) -> Vec<Algorithm> {
        let known = |algorithm: &Algorithm| {
            self.keys.iter().any(|key| match (key.algorithm(), algorithm) {
                (Algorithm::Rsa { .. }, Algorithm::Rsa { hash }) => hash.is_some(),
                (own, other) => own == *other,
            })
        };
        usable.iter().filter(|algorithm| known(algorithm)).cloned().collect()
    }
}

/// Whether a list of patterns matches the host: one pattern matches, and none that begins with `!`.
fn names_host(patterns: &str, name: &str) -> bool {
    let mut named = false;
    for pattern in patterns.split(',') {
        match pattern.strip_prefix('!') {
            Some(pattern) if fits(pattern, name) => return false,
            Some(_) => {}
            None => named |= fits(pattern, name),
        }
    }
    named
}

fn fits(pattern: &str, name: &str) -> bool {
    if let Some(hashed) = pattern.strip_prefix("|1|") {
        let Some((salt, hash)) = hashed.split_once('|') else { return false };
        let (Ok(salt), Ok(hash)) = (BASE64.decode(salt), BASE64.decode(hash)) else { return false };
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
        return hmac::verify(&key, name.as_bytes(), &hash).is_ok();
    }
    wildcard(pattern.to_ascii_lowercase().as_bytes(), name.to_ascii_lowercase().as_bytes())
}

/// `*` matches any text, `?` one character.
fn wildcard(pattern: &[u8], name: &[u8]) -> bool {
    fits_by(pattern, name, |wanted, letter| wanted == b'?' || wanted == letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
    const TWO: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGLD6S2P8G2HUmrbpFAB/fVQ0PjdWwPZhOFZpOHBqPGZ";

    fn verdict(text: &str, host: &str, port: u16, key: &str) -> Option<Verdict> {
        let known = Known::read(text, host, port);
        (!known.is_empty()).then(|| known.verdict(&PublicKey::from_openssh(key).unwrap()))
    }

    #[test]
    fn a_key_is_known_for_the_names_of_its_line_and_for_no_other() {
        let text = format!(
            "# words\n\nforge.test,*.lab.test,!not.lab.test {ONE} a comment\n[forge.test]:2222 {TWO}\nbroken\n"
        );
        assert_eq!(verdict(&text, "forge.test", 22, ONE), Some(Verdict::Known));
        assert_eq!(verdict(&text, "forge.test", 22, TWO), Some(Verdict::Changed));
        assert_eq!(verdict(&text, "forge.test", 2222, TWO), Some(Verdict::Known));
        assert_eq!(verdict(&text, "forge.test", 2223, TWO), None);
        assert_eq!(verdict(&text, "a.lab.test", 22, ONE), Some(Verdict::Known));
        assert_eq!(verdict(&text, "not.lab.test", 22, ONE), None);
        assert_eq!(verdict(&text, "lab.test", 22, ONE), None);
        assert_eq!(verdict("", "forge.test", 22, ONE), None);
    }

    #[test]
    fn hashed_names_are_found_and_revoked_keys_are_never_taken() {
        // In the format of `ssh-keygen -H` for `forge.test`.
        let salt = b"a salt of twenty b.!";
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
        let hash = BASE64.encode(hmac::sign(&key, b"forge.test"));
        let text =
            format!("|1|{}|{hash} {ONE}\n@revoked * {TWO}\n@cert-authority * {TWO}\n", BASE64.encode(salt));
        assert_eq!(verdict(&text, "forge.test", 22, ONE), Some(Verdict::Known));
        assert_eq!(verdict(&text, "forge.test", 22, TWO), Some(Verdict::Revoked));
        assert_eq!(verdict(&text, "other.test", 22, ONE), None);
        let both = format!("forge.test {TWO}\n@revoked forge.test {TWO}\n");
        assert_eq!(verdict(&both, "forge.test", 22, TWO), Some(Verdict::Revoked));
    }

    #[test]
    fn stars_in_names_cost_little() {
        assert!(wildcard(b"*.a*b?.test", b"x.aaab1.test"));
        assert!(!wildcard(b"*.a*b?.test", b"x.aaab.test"));
        let long = vec![b'a'; 4000];
        assert!(!wildcard(b"*a*a*a*a*a*a*a*a*b", &long));
    }
}
