//! Adds the certificate to the `cacerts` of each Java that it finds. A variable would also work, but then Java prints
//! a message to standard error at every start.

use std::io;

use super::jks::{self, Entry};
use super::pem::{self, Certificate};
use super::tree::{Tree, invalid_data};
use super::{Wanted, der};
use crate::etc_environment;

/// Longest `cacerts` or bundle that is read.
const MAX_STORE: u64 = 8 << 20;
/// Where distributions keep one store for all.
const SHARED: [&str; 2] = ["etc/ssl/certs/java/cacerts", "etc/pki/ca-trust/extracted/java/cacerts"];
/// Each directory in one of these may be a Java.
const PARENTS: [&str; 6] =
    ["usr/lib/jvm", "usr/java", "opt", "opt/java", "usr/local", "root/.sdkman/candidates/java"];
/// Where a Java has its store: today, and in Java 8 with and without the development tools.
const PLACES: [&str; 2] = ["lib/security/cacerts", "jre/lib/security/cacerts"];

pub(super) fn install(
    tree: &Tree<'_>,
    wanted: &Wanted,
    bundle: Option<&str>,
    attempt: &impl Fn(&str, io::Result<()>),
) {
    let mut homes: Vec<String> = Vec::new();
    for parent in PARENTS {
        homes.extend(tree.names(parent).into_iter().map(|name| format!("{parent}/{name}")));
    }
    homes.extend(
        etc_environment::value(tree.root(), "JAVA_HOME").map(|home| home.trim_start_matches('/').to_owned()),
    );
    let inside = homes.iter().flat_map(|home| PLACES.map(|place| format!("{home}/{place}")));
    for store in SHARED.map(str::to_owned).into_iter().chain(inside) {
        match tree.read(&store, MAX_STORE) {
            Ok(None) => {}
            // Links are followed. A second link to the same store finds it done.
            Ok(Some(old)) => attempt(&store, update(tree, &store, &old, wanted, bundle)),
            Err(error) => attempt(&store, Err(error)),
        }
    }
}

fn update(tree: &Tree<'_>, store: &str, old: &[u8], wanted: &Wanted, bundle: Option<&str>) -> io::Result<()> {
    // A fast check for the usual case: both formats contain certificates unencoded.
    let has = |certificate: &Certificate| memchr::memmem::find(old, &certificate.0).is_some();
    if wanted.trusted.iter().all(has) && !wanted.dropped.iter().any(has) {
        return Ok(());
    }
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
    let mut entries = if jks::is_jks(old) {
        jks::read(old).ok_or_else(|| invalid_data("a key store with another password, or with keys"))?
    } else {
        let mut certificates = der::pkcs12_certificates(old);
        if certificates.is_empty() {
            // The store is encrypted. A store with the system's certificates replaces it.
            let bundle = bundle.ok_or_else(|| invalid_data("the system's bundle cannot be read"))?;
            let text = tree.read(bundle, MAX_STORE)?.unwrap_or_default();
            certificates.extend(pem::certificates(&text).into_iter().map(|(_, certificate)| certificate));
        }
        let named = certificates.into_iter().enumerate().map(|(number, certificate)| Entry {
            alias: format!("system-{number}"),
            created_ms: now,
            certificate,
        });
        named.collect()
    };
    entries.retain(|entry| !wanted.dropped.contains(&entry.certificate));
    for certificate in &wanted.trusted {
        if !entries.iter().any(|entry| entry.certificate == *certificate) {
            let alias = certificate.short_name();
            entries.retain(|entry| entry.alias != alias);
            entries.push(Entry { alias, created_ms: now, certificate: certificate.clone() });
        }
    }
    let new = jks::write(&entries).ok_or_else(|| invalid_data("too many certificates for a key store"))?;
    tree.write(store, &new)
}
