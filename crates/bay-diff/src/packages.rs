//! Installed packages of the distribution, read from dpkg's list. The list is a file in an agent's tree: it may
//! contain anything, and is only ever displayed.

use std::collections::BTreeMap;
use std::io::{self, Read};

use bay_types::diff::PackageChange;

use crate::tree::{Tree, open_file};

/// Dpkg's list of packages.
const STATUS: &[u8] = b"var/lib/dpkg/status";
/// Longest list that is read. A full desktop's is a tenth of this.
const MAX_STATUS_BYTES: u64 = 64 << 20;
/// Most packages that are read.
const MAX_PACKAGES: usize = 100_000;
/// Longest name or version.
const MAX_WORD: usize = 200;

/// Installed packages and their versions.
pub type Packages = BTreeMap<String, String>;

/// The packages installed in a tree; empty if there is no list.
///
/// # Errors
/// When there is a list that cannot be read, or that is too long to be one.
pub fn installed(tree: Tree<'_>) -> io::Result<Packages> {
    let Some(top) = tree else { return Ok(Packages::new()) };
    let file = match open_file(top, STATUS) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Packages::new());
        }
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(MAX_STATUS_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_STATUS_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(parse(&text))
}

/// Reads the list: paragraphs of `Field: value`, an empty line between them.
#[must_use]
pub fn parse(status: &[u8]) -> Packages {
    let mut packages = Packages::new();
    let (mut name, mut architecture, mut version, mut is_installed) = (None, None, None, false);
    // The added empty line ends the last paragraph.
    for line in status.split(|byte| *byte == b'\n').chain([&b""[..]]) {
        if line.is_empty() {
            if let (Some(name), Some(version), true) = (name.take(), version.take(), is_installed)
                && packages.len() < MAX_PACKAGES
            {
                let name = match architecture.take() {
                    Some(architecture) => format!("{name}:{architecture}"),
                    None => name,
                };
                packages.insert(name, version);
            }
            (name, architecture, version, is_installed) = (None, None, None, false);
        } else if let Some(value) = line.strip_prefix(b"Package: ") {
            name = word(value);
        } else if let Some(value) = line.strip_prefix(b"Architecture: ") {
            architecture = word(value);
        } else if let Some(value) = line.strip_prefix(b"Version: ") {
            version = word(value);
        } else if let Some(value) = line.strip_prefix(b"Status: ") {
            is_installed = value.trim_ascii().ends_with(b" installed");
        }
    }
    packages
}

/// A name or version as dpkg allows it; `None` for other text.
fn word(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes.trim_ascii()).ok()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || ".+-~:_".contains(c);
    (!text.is_empty() && text.len() <= MAX_WORD && text.chars().all(plain)).then(|| text.to_owned())
}

/// Packages that were installed, removed or changed version, sorted by name.
#[must_use]
pub fn changes(before: &Packages, after: &Packages) -> Vec<PackageChange> {
    let mut all: BTreeMap<&str, (Option<&String>, Option<&String>)> = BTreeMap::new();
    for (name, version) in before {
        all.entry(name).or_default().0 = Some(version);
    }
    for (name, version) in after {
        all.entry(name).or_default().1 = Some(version);
    }
    all.into_iter()
        .filter(|(_, (before, after))| before != after)
        .map(|(name, (before, after))| PackageChange {
            name: name.to_owned(),
            before: before.cloned(),
            after: after.cloned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BEFORE: &[u8] =
        b"Package: bash\nStatus: install ok installed\nArchitecture: amd64\nVersion: 5.2-1\n\n\
        Package: gone\nStatus: install ok installed\nVersion: 1\nDescription: x\n Package: not-this\n\n\
        Package: removed\nStatus: deinstall ok config-files\nVersion: 9\n";
    const AFTER: &[u8] =
        b"Package: bash\nStatus: install ok installed\nArchitecture: amd64\nVersion: 5.2-2\n\n\
        Package: new\nVersion: 2:1.0~rc1\nStatus: install ok installed\n";

    #[test]
    fn packages_that_were_installed_removed_or_upgraded_are_listed() {
        let told: Vec<_> = changes(&parse(BEFORE), &parse(AFTER))
            .into_iter()
            .map(|change| (change.name, change.before.unwrap_or_default(), change.after.unwrap_or_default()))
            .collect();
        let wanted = [("bash:amd64", "5.2-1", "5.2-2"), ("gone", "1", ""), ("new", "", "2:1.0~rc1")];
        assert_eq!(told, wanted.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())));
    }

    #[test]
    fn an_invalid_name_is_not_a_package() {
        let odd = b"Package: a\x1b[31m\nStatus: install ok installed\nVersion: 1\n";
        assert!(parse(odd).is_empty());
    }

    proptest! {
        #[test]
        fn no_list_makes_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let packages = parse(&bytes);
            prop_assert!(changes(&packages, &packages).is_empty());
        }
    }
}
