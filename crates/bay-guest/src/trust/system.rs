//! The system's own certificates: the bundle, the hashed directory, and the directories for additions.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::tree::{Tree, invalid_data, remove_in, write_in};
use super::{Wanted, der, pem};

/// The files in which distributions keep all trusted certificates. Some are links to others.
const BUNDLES: [&str; 5] = [
    // Debian, Alpine, Arch.
    "etc/ssl/certs/ca-certificates.crt",
    // Fedora and its relatives, the older path.
    "etc/pki/tls/certs/ca-bundle.crt",
    // Fedora and its relatives.
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    // openSUSE.
    "etc/ssl/ca-bundle.pem",
    // OpenSSL's default path, for example on Alpine.
    "etc/ssl/cert.pem",
];
/// Created if no bundle exists. One with the gateway's certificates alone must not replace or hide another.
const USUAL_BUNDLE: &str = BUNDLES[0];
/// Directories for additions, which the tools that rebuild the bundle read: Fedora, openSUSE, Arch.
const ANCHORS: [&str; 3] =
    ["etc/pki/ca-trust/source/anchors", "etc/pki/trust/anchors", "etc/ca-certificates/trust-source/anchors"];
/// Debian and Alpine. Created if none of [`ANCHORS`] exists, because ca-certificates may be installed later.
const USUAL_ANCHORS: &str = "usr/local/share/ca-certificates";
/// Debian's directory of trusted certificates: for each, a link by its name, and a link by a hash of its subject.
const HASHED: &str = "etc/ssl/certs";
/// Most certificates with the same subject.
const MAX_SAME: usize = 16;
/// Longest bundle that is read.
const MAX_BUNDLE: u64 = 8 << 20;

/// Installs the certificates in the anchor directories, the bundles and, on Debian, the hashed directory. Returns the
/// path of the system's bundle. `None` if bundles exist, but none of them can be read.
pub(super) fn install(
    tree: &Tree<'_>,
    wanted: &Wanted,
    attempt: &impl Fn(&str, io::Result<()>),
) -> Option<&'static str> {
    // The additions first: if a tool runs meanwhile, its bundle includes them.
    let known: Vec<&str> = ANCHORS.into_iter().filter(|dir| tree.has_directory(dir)).collect();
    let debian = known.is_empty();
    for anchors in if debian { vec![USUAL_ANCHORS] } else { known } {
        attempt(anchors, add_anchors(tree, anchors, wanted));
    }
    let mut system = None;
    let mut any_exists = false;
    for bundle in BUNDLES {
        match tree.read(bundle, MAX_BUNDLE) {
            Ok(None) => continue,
            Ok(Some(old)) => attempt(bundle, tree.write(bundle, &updated(&old, wanted))),
            Err(error) => {
                any_exists = true;
                attempt(bundle, Err(error));
                continue;
            }
        }
        any_exists = true;
        system.get_or_insert(bundle);
    }
    if !any_exists {
        attempt(USUAL_BUNDLE, tree.write(USUAL_BUNDLE, pem::text(&wanted.trusted).as_bytes()));
        system = Some(USUAL_BUNDLE);
    }
    if debian {
        attempt(HASHED, add_hashed(tree, wanted));
    }
    system
}

/// The bundle with what must be trusted and without what must no longer be trusted; the rest is unchanged.
fn updated(old: &[u8], wanted: &Wanted) -> Vec<u8> {
    let found = pem::certificates(old);
    let mut new = Vec::with_capacity(old.len());
    let mut done = 0;
    for (place, _) in found.iter().filter(|(_, certificate)| wanted.dropped.contains(certificate)) {
        new.extend(&old[done..place.start]);
        done = place.end;
    }
    new.extend(&old[done..]);
    let missing: Vec<_> = wanted
        .trusted
        .iter()
        .filter(|certificate| !found.iter().any(|(_, there)| there == *certificate))
        .cloned()
        .collect();
    if !missing.is_empty() && new.last().is_some_and(|last| *last != b'\n') {
        new.push(b'\n');
    }
    new.extend(pem::text(&missing).into_bytes());
    new
}

/// One certificate per file, because Debian's tools accept no others.
fn add_anchors(tree: &Tree<'_>, directory: &str, wanted: &Wanted) -> io::Result<()> {
    let at = tree.make_directory(directory)?;
    for certificate in &wanted.dropped {
        remove_in(at.as_fd(), &format!("{}.crt", certificate.short_name()))?;
    }
    for certificate in &wanted.trusted {
        let text = pem::text(std::slice::from_ref(certificate));
        write_in(at.as_fd(), &format!("{}.crt", certificate.short_name()), text.as_bytes())?;
    }
    Ok(())
}

/// What tools leave as an entry of the hashed directory: links by default, files if they copy.
fn is_link_or_file(directory: BorrowedFd<'_>, name: &str) -> bool {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
        matches!(FileType::from_raw_mode(stat.st_mode), FileType::Symlink | FileType::RegularFile)
    })
}

/// Adds the links that `update-ca-certificates` would make: one by name, and one by hash.
fn add_hashed(tree: &Tree<'_>, wanted: &Wanted) -> io::Result<()> {
    let at = tree.make_directory(HASHED)?;
    let link_of = |name: &str| {
        rustix::fs::readlinkat(&at, name, Vec::new()).ok().and_then(|link| link.into_string().ok())
    };
    for certificate in &wanted.dropped {
        let name = format!("{}.pem", certificate.short_name());
        remove_in(at.as_fd(), &name)?;
        // Links of one hash are numbered from 0, and OpenSSL stops at the first number that is missing or has no
        // target. So the last link takes the number of the dropped certificate.
        let Some(hash) = der::subject_hash(certificate) else { continue };
        let links: Vec<String> = (0..MAX_SAME).map(|n| format!("{hash}.{n}")).collect();
        let there: Vec<&String> = links.iter().take_while(|link| is_link_or_file(at.as_fd(), link)).collect();
        if let Some(gone) = there.iter().find(|link| link_of(link).as_deref() == Some(&name))
            && let Some(last) = there.last()
        {
            if last == gone {
                remove_in(at.as_fd(), last)?;
            } else {
                rustix::fs::renameat(&at, *last, &at, *gone)?;
            }
        }
    }
    for certificate in &wanted.trusted {
        let name = format!("{}.pem", certificate.short_name());
        let target = format!("/{USUAL_ANCHORS}/{}.crt", certificate.short_name());
        if link_of(&name).is_none_or(|link| link != target) {
            remove_in(at.as_fd(), &name)?;
            rustix::fs::symlinkat(&target, &at, &name)?;
        }
        let Some(hash) = der::subject_hash(certificate) else { continue };
        for number in 0..MAX_SAME {
            let link = format!("{hash}.{number}");
            match rustix::fs::statat(&at, &link, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => {
                    rustix::fs::symlinkat(&name, &at, &link)?;
                    break;
                }
                Err(error) => return Err(error.into()),
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                    if link_of(&link).is_some_and(|target| target == name) {
                        break;
                    }
                }
                Ok(_) => {}
            }
            if number + 1 == MAX_SAME {
                return Err(invalid_data("too many certificates with the same subject"));
            }
        }
    }
    Ok(())
}
