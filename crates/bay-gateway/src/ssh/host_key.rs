//! The host key of the gateway's SSH server.

use std::fmt;

use aws_lc_rs::hmac;
use russh::keys::PrivateKey;
use russh::keys::ssh_key::private::Ed25519Keypair;

use crate::authority::Authority;

/// Separates this key from other keys that are derived from an authority's.
const PURPOSE: &[u8] = b"workbay ssh host key";
const SEED_BYTES: usize = 32;

/// Derived from the key of the bay's authority: it lives as long, and a fork inherits it with the authority.
pub(super) struct HostKey(PrivateKey);

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostKey").field(&self.public()).finish()
    }
}

impl HostKey {
    pub(super) fn of_authority(authority: &Authority) -> Self {
        Self::derive(&authority.key_der())
    }

    fn derive(authority_key: &[u8]) -> Self {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, authority_key), PURPOSE);
        let mut seed = zeroize::Zeroizing::new([0; SEED_BYTES]);
        seed.copy_from_slice(tag.as_ref());
        Self(PrivateKey::from(Ed25519Keypair::from_seed(&seed)))
    }

    pub(super) fn private(&self) -> PrivateKey {
        self.0.clone()
    }

    /// The type and the key, in the format of `known_hosts`.
    fn public(&self) -> String {
        self.0.public_key().to_openssh().unwrap_or_default()
    }
}

impl Authority {
    /// The public key that the gateway shows to the bay's SSH clients, whatever host they connect to.
    #[must_use]
    pub fn ssh_host_key(&self) -> String {
        HostKey::of_authority(self).public()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_authority_has_the_same_key_and_another_has_another() {
        let key = |of: &[u8]| HostKey::derive(of).public();
        assert_eq!(key(b"one"), key(b"one"));
        assert_ne!(key(b"one"), key(b"two"));
        assert!(key(b"one").starts_with("ssh-ed25519 AAAA"));
        assert!(!format!("{:?}", HostKey::derive(b"one")).contains("PRIVATE"));
    }
}
