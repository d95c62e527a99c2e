//! Makes the usual clients in the bay trust the bay's gateway, without configuration by the user.
//!
//! The gateway terminates TLS with a certificate of the bay's own ([`GuestConfig::certificate`]). When a bay starts or is
//! restored from memory, the guest writes that certificate to the places where these clients look:
//!
//! ```text
//!  /.bay/ca.crt             the certificate from the daemon          Node, Deno: in addition to their own
//!  /.bay/ca-bundle.crt ──►  the system's bundle, including it        clients with a bundle of their own: instead of it
//!  /.bay/ca-earlier.crt     certificates trusted before, newest first   kept in the places below
//!  system                   bundle, hashed directory, anchors        OpenSSL, GnuTLS, Go, curl, git, dockerd …
//!  java                     cacerts of each Java found               JKS; other formats are converted
//!  browsers                 policies of Chromium and Firefox
//!  nss                      ~/.pki/nssdb, for Chromium without policies
//!  git                      SSH remotes of forges become HTTPS, which the gateway can read
//!  ssh                      the gateway's host key, for hosts to which it relays git over SSH
//! ```
//!
//! The agent controls the root filesystem and may undo all of this until the next start. Each file is read up to a
//! bound and written by a rename. The log names each file that cannot be read or written.
//!
//! A fork has a certificate of its own, but its running processes have loaded those of its ancestors. So earlier
//! certificates stay trusted, up to [`MAX_TRUSTED`]. Only the daemon has the keys.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use bay_types::guest::{CERTIFICATE, CERTIFICATE_BUNDLE, GuestConfig, HOME};
use rustix::fs::{AtFlags, OFlags, ResolveFlags};

use crate::log::Log;

mod browsers;
mod der;
mod git;
mod java;
mod jks;
mod nss;
mod pem;
mod ssh;
mod system;
mod tree;

pub(crate) use git::{over_https, without_https};
use pem::Certificate;
pub(crate) use tree::{Tree, read_in, remove_in, write_in, write_private_in};

/// Certificates of gateways that are trusted at once: the bay's own and those of its nearest ancestors.
const MAX_TRUSTED: usize = 8;
/// Longest certificate, as PEM, that is accepted from the daemon.
const MAX_PEM: usize = 16 << 10;
/// Longest of this module's own files that is read again.
const MAX_OURS: u64 = 256 << 10;
const EARLIER: &str = "ca-earlier.crt";

/// For clients that have certificates of their own and use neither the system's nor a browser policy.
const VARIABLES: [(&str, &str); 8] = [
    // The client uses these in addition to its own.
    ("NODE_EXTRA_CA_CERTS", CERTIFICATE),
    ("DENO_CERT", CERTIFICATE),
    // The client uses these instead of its own, so they contain everything.
    ("SSL_CERT_FILE", CERTIFICATE_BUNDLE),
    ("REQUESTS_CA_BUNDLE", CERTIFICATE_BUNDLE),
    ("GIT_SSL_CAINFO", CERTIFICATE_BUNDLE),
    ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", CERTIFICATE_BUNDLE),
    ("HTTPLIB2_CA_CERTS", CERTIFICATE_BUNDLE),
    ("CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", CERTIFICATE_BUNDLE),
];

/// What happens to certificates of gateways that were trusted before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Earlier {
    /// Running processes may have loaded them.
    Trusted,
    /// They are another bay's, and no process of this bay has ever run.
    Dropped,
}

/// What must be trusted, and what no longer.
struct Wanted {
    /// The bay's own certificate is first.
    trusted: Vec<Certificate>,
    /// Earlier certificates of gateways, beyond the bound.
    dropped: Vec<Certificate>,
}

/// The variables of a command in this bay. None if the bay has no gateway, or the files that they name are gone.
pub(crate) fn variables(root: BorrowedFd<'_>) -> &'static [(&'static str, &'static str)] {
    let there = [CERTIFICATE, CERTIFICATE_BUNDLE].into_iter().all(|path| {
        bay_sys::paths::open_below(root, path.trim_start_matches('/'), OFlags::PATH, ResolveFlags::IN_ROOT)
            .is_ok()
    });
    if there { &VARIABLES } else { &[] }
}

/// Makes the bay's clients trust its gateway. Without a certificate nothing is changed.
pub(crate) fn install(guest: &GuestConfig, earlier: Earlier, root: BorrowedFd<'_>, log: &Log) {
    let Some(text) = &guest.certificate else { return };
    let tree = Tree::new(root);
    let attempt = |what: &str, outcome: io::Result<()>| {
        if let Err(error) = outcome {
            log.line("trust.skipped", format_args!("what={what} error={error}"));
        }
    };
    let wanted = match write_certificates(&tree, text, earlier) {
        Ok(wanted) => wanted,
        Err(error) => return attempt(CERTIFICATE, Err(error)),
    };
    let bundle = system::install(&tree, &wanted, &attempt);
    attempt(CERTIFICATE_BUNDLE, bundle.map_or_else(|| remove_link(&tree), |bundle| link_to(&tree, bundle)));
    java::install(&tree, &wanted, bundle, &attempt);
    browsers::install(&tree, &wanted, &attempt);
    nss::install(&tree, &wanted.trusted, &attempt);
    if let Some(gateway) = &guest.ssh {
        attempt("known hosts of SSH", ssh::install(&tree, gateway));
    }
}

/// Writes the bay's own certificate and its earlier ones.
fn write_certificates(tree: &Tree<'_>, text: &str, earlier: Earlier) -> io::Result<Wanted> {
    let own = if text.len() <= MAX_PEM { pem::certificates(text.as_bytes()) } else { Vec::new() };
    if own.is_empty() || own.len() > MAX_TRUSTED {
        return Err(tree::invalid_data("the gateway's certificate is none"));
    }
    let home = home(tree)?;
    let name = CERTIFICATE.rsplit('/').next().unwrap_or(CERTIFICATE);
    let mut trusted: Vec<Certificate> = own.iter().map(|(_, certificate)| certificate.clone()).collect();
    let count = trusted.len();
    for file in [name, EARLIER] {
        for (_, certificate) in pem::certificates(&read_in(home.as_fd(), file, MAX_OURS).unwrap_or_default())
        {
            if !trusted.contains(&certificate) {
                trusted.push(certificate);
            }
        }
    }
    let kept = match earlier {
        Earlier::Trusted => MAX_TRUSTED,
        Earlier::Dropped => count,
    };
    let dropped = trusted.split_off(trusted.len().min(kept));
    // The list of earlier certificates is written first. So no certificate is in a bundle without being in the list.
    match &trusted[count..] {
        [] => remove_in(home.as_fd(), EARLIER)?,
        earlier => write_in(home.as_fd(), EARLIER, pem::text(earlier).as_bytes())?,
    }
    write_in(home.as_fd(), name, pem::text(&trusted[..count]).as_bytes())?;
    Ok(Wanted { trusted, dropped })
}

/// The runtime refuses to start a bay in which this directory is a link.
fn home(tree: &Tree<'_>) -> io::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let strict = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    Ok(bay_sys::paths::open_below(tree.root(), HOME.trim_start_matches('/'), flags, strict)?)
}

/// Without the link, commands get no [`variables`], and clients use the bundle that they use by default.
fn remove_link(tree: &Tree<'_>) -> io::Result<()> {
    remove_in(home(tree)?.as_fd(), CERTIFICATE_BUNDLE.rsplit('/').next().unwrap_or(CERTIFICATE_BUNDLE))
}

/// A link, so that certificates that the system's tools add later are trusted as well.
fn link_to(tree: &Tree<'_>, bundle: &str) -> io::Result<()> {
    let (home, target) = (home(tree)?, format!("/{bundle}"));
    let name = CERTIFICATE_BUNDLE.rsplit('/').next().unwrap_or(CERTIFICATE_BUNDLE);
    if rustix::fs::readlinkat(&home, name, Vec::new()).is_ok_and(|old| old.as_bytes() == target.as_bytes()) {
        return Ok(());
    }
    let fresh = tree::fresh(name);
    crate::spool::remove_tree(home.as_fd(), fresh.as_bytes())?;
    rustix::fs::symlinkat(&target, &home, &fresh)?;
    rustix::fs::renameat(&home, &fresh, &home, name).map_err(|error| {
        let _ = rustix::fs::unlinkat(&home, &fresh, AtFlags::empty());
        error.into()
    })
}

#[cfg(test)]
mod tests;
