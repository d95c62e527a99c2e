//! The key by which bays know their gateway as an SSH server.

use std::fmt;

use aws_lc_rs::hmac;
use russh::keys::PrivateKey;
use russh::keys::ssh_key::private::Ed25519Keypair;

/// What sets this key apart from whatever else is made of an authority's.
const PURPOSE: &[u8] = b"workbay ssh host key";
const SEED_BYTES: usize = 32;

/// Made from the key of the bay's authority, so that it is as old, as secret and as much a fork's as that one.
#[derive(Clone)]
pub(crate) struct HostKey(PrivateKey);

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostKey").field(&self.public()).finish()
    }
}

impl HostKey {
    pub(crate) fn of_authority(authority_key: &[u8]) -> Self {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, authority_key), PURPOSE);
        let mut seed = zeroize::Zeroizing::new([0; SEED_BYTES]);
        seed.copy_from_slice(tag.as_ref());
        Self(PrivateKey::from(Ed25519Keypair::from_seed(&seed)))
    }

    pub(super) fn private(&self) -> PrivateKey {
        self.0.clone()
    }

    /// As a line of `known_hosts` has it behind the names.
    pub(crate) fn public(&self) -> String {
        self.0.public_key().to_openssh().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_authority_has_the_same_key_and_another_has_another() {
        let key = |of: &[u8]| HostKey::of_authority(of).public();
        assert_eq!(key(b"one"), key(b"one"));
        assert_ne!(key(b"one"), key(b"two"));
        assert!(key(b"one").starts_with("ssh-ed25519 AAAA"));
        assert!(!format!("{:?}", HostKey::of_authority(b"one")).contains("PRIVATE"));
    }
}
