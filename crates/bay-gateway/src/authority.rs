//! The certificate authority of one bay, and the certificates for the hosts that the bay connects to.
//!
//! The bay's trust stores have the authority. A fork of the bay inherits it. All leaf certificates share one key that
//! lives as long as the gateway, so a new leaf costs one signature. The cache of leaves forgets the least recently
//! used.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use lru::LruCache;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::limits::MAX_LEAVES;

/// How long an authority is valid: longer than a bay is expected to live.
const AUTHORITY_DAYS: i64 = 3650;
/// How long a leaf is valid.
const LEAF_DAYS: i64 = 30;
/// The age from which the gateway replaces a leaf at the next connection.
const LEAF_RENEWAL: Duration = Duration::from_secs(7 * 24 * 3600);
/// Certificates are valid from before their creation, because the clock in a bay may differ.
const BACKDATED_DAYS: i64 = 2;
/// TLS sessions that can be resumed, for all names together.
const MAX_SESSIONS: usize = 1024;

/// An authority in stored form. It contains the private key: encrypt it at rest.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedAuthority {
    pub name: String,
    pub certificate_der: Vec<u8>,
    pub key_der: Vec<u8>,
}

impl fmt::Debug for SavedAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedAuthority").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("the certificate or its key cannot be made")]
    Make(#[from] rcgen::Error),
    #[error("TLS does not take the certificate")]
    Tls(#[from] rustls::Error),
    #[error("the key that was kept is not the one of the certificate; make a new authority")]
    OtherKey,
}

/// A certificate authority for one bay and its forks.
pub struct Authority {
    name: String,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Authority {
    /// Creates an authority. People see the name in lists of authorities.
    pub fn generate(name: &str) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let params = authority_params(name);
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self { name: name.to_owned(), certificate, issuer: Issuer::new(params, key) })
    }

    /// Reads an authority that [`Authority::saved`] wrote.
    ///
    /// # Errors
    /// The key is invalid, or is not the one in the certificate.
    pub fn load(saved: &SavedAuthority) -> Result<Self, AuthorityError> {
        let key = KeyPair::try_from(saved.key_der.as_slice())?;
        let public = key.der_bytes();
        if !saved.certificate_der.windows(public.len()).any(|window| window == public) {
            return Err(AuthorityError::OtherKey);
        }
        Ok(Self {
            name: saved.name.clone(),
            certificate: saved.certificate_der.clone().into(),
            issuer: Issuer::new(authority_params(&saved.name), key),
        })
    }

    #[must_use]
    pub fn saved(&self) -> SavedAuthority {
        SavedAuthority {
            name: self.name.clone(),
            certificate_der: self.certificate.to_vec(),
            key_der: self.issuer.key().serialize_der(),
        }
    }

    /// The certificate in PEM, the format of trust stores.
    #[must_use]
    pub fn pem(&self) -> String {
        pem::encode(&pem::Pem::new("CERTIFICATE", self.certificate.to_vec()))
    }

    pub(crate) fn key_der(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.issuer.key().serialize_der())
    }

    /// The certificate for the bay's trust stores.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, AUTHORITY_DAYS);
    params
}

/// Sets the validity, from and until midnight. `days` counts from now.
fn valid(params: &mut CertificateParams, days: i64) {
    let day = |days: i64| {
        let seconds = Timestamp::now().as_second() + days * 24 * 3600;
        let at = Timestamp::from_second(seconds).unwrap_or_default().to_zoned(TimeZone::UTC);
        // jiff's months and days are in range, so neither default applies.
        let (month, day) = (u8::try_from(at.month()), u8::try_from(at.day()));
        rcgen::date_time_ymd(i32::from(at.year()), month.unwrap_or(1), day.unwrap_or(1))
    };
    params.not_before = day(-BACKDATED_DAYS);
    params.not_after = day(days);
}

/// The TLS servers that a bay sees, one configuration for each name.
pub(crate) struct Leaves {
    authority: Arc<Authority>,
    key: KeyPair,
    provider: Arc<CryptoProvider>,
    sessions: Arc<dyn StoresServerSessions>,
    made: Mutex<LruCache<String, (Instant, Arc<ServerConfig>)>>,
}

impl fmt::Debug for Leaves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaves").field("authority", &self.authority).finish_non_exhaustive()
    }
}

impl Leaves {
    pub(crate) fn new(
        authority: Arc<Authority>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, AuthorityError> {
        Ok(Self {
            authority,
            key: KeyPair::generate()?,
            provider,
            sessions: ServerSessionMemoryCache::new(MAX_SESSIONS),
            made: Mutex::new(LruCache::new(NonZeroUsize::new(MAX_LEAVES).unwrap_or(NonZeroUsize::MIN))),
        })
    }

    /// The TLS configuration for a canonical name or an address.
    pub(crate) fn server(&self, host: &str) -> Result<Arc<ServerConfig>, AuthorityError> {
        let now = Instant::now();
        {
            let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((at, config)) = made.get(host)
                && now.saturating_duration_since(*at) < LEAF_RENEWAL
            {
                return Ok(config.clone());
            }
        }
        let config = Arc::new(self.make(host)?);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.put(host.to_owned(), (now, config.clone()));
        Ok(config)
    }

    fn make(&self, host: &str) -> Result<ServerConfig, AuthorityError> {
        let mut params = CertificateParams::new(vec![host.to_owned()])?;
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::OrganizationName, "Workbay gateway");
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        valid(&mut params, LEAF_DAYS);
        let leaf = params.signed_by(&self.key, &self.authority.issuer)?;
        let chain = vec![leaf.der().clone(), self.authority.certificate.clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // One store is enough: rustls resumes a session only for the name it was created for.
        config.session_storage = self.sessions.clone();
        Ok(config)
    }
}
