//! Puts the programs of directories that a caller added to the image `host` on the path: of every command
//! (`/etc/environment`, which the guest reads) and of login shells (`/etc/profile.d`).

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::skeleton;
use super::tree::open_beneath;

/// Most entries of a directory that are read.
const MAX_ENTRIES: usize = 256;
/// Most directories that are put on the path.
const MAX_DIRECTORIES: usize = 64;

/// The default path of every command.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const HEAD: &str = "# made by Workbay with the image: the tools of directories that were added to it\n";

/// Parents of `*/bin` directories below an added one, and whether all or only the newest of them is used. Version
/// managers install many versions side by side.
const MANY: &[(&str, Which)] = &[
    ("", Which::All),
    ("versions", Which::Newest),
    ("versions/node", Which::Newest),
    ("toolchains", Which::Newest),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    Newest,
}

/// Tools that look for their files in the home directory, which differs in a bay.
const HOMES: &[(&str, &str)] =
    &[(".cargo", "CARGO_HOME"), (".rustup", "RUSTUP_HOME"), (".nvm", "NVM_DIR"), (".pyenv", "PYENV_ROOT")];

/// Puts the programs of the added directories on the path.
pub(crate) fn put_on_path(target: &OwnedFd, added: &[PathBuf]) -> io::Result<()> {
    let mut path: Vec<String> = Vec::new();
    let mut settings = String::new();
    for added in added {
        let Some(text) = plain(added) else { continue };
        for dir in programs(target, text) {
            if !path.contains(&dir) {
                path.push(dir);
            }
        }
        let name = added.file_name().and_then(|name| name.to_str());
        if let Some((_, variable)) = HOMES.iter().find(|(home, _)| Some(*home) == name) {
            settings.push_str(&format!("{variable}=\"{text}\"\n"));
        }
    }
    path.truncate(MAX_DIRECTORIES);
    if path.is_empty() && settings.is_empty() {
        return Ok(());
    }
    let front = path.iter().map(|dir| format!("{dir}:")).collect::<String>();
    let environment = format!("{HEAD}PATH=\"{front}{USUAL_PATH}\"\n{settings}");
    let exported = settings.lines().map(|line| format!("export {line}\n")).collect::<String>();
    let profile = format!("{HEAD}export PATH=\"{front}$PATH\"\n{exported}");
    skeleton::write_plain(target, "etc", "environment", &environment)?;
    skeleton::write_plain(target, "etc/profile.d", "added-tools.sh", &profile)
}

/// A path that needs no quoting. Other paths are not put on the path automatically.
fn plain(path: &Path) -> Option<&str> {
    let text = path.to_str()?;
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._+@,-".contains(&b)).then_some(text)
}

/// Directories with programs, in or below an added one.
fn programs(target: &OwnedFd, added: &str) -> Vec<String> {
    let mut found = Vec::new();
    if added.ends_with("/bin") {
        found.push(added.to_owned());
    }
    for name in ["bin", "shims"] {
        found.push(format!("{added}/{name}"));
    }
    for (below, which) in MANY {
        let parent = if below.is_empty() { added.to_owned() } else { format!("{added}/{below}") };
        let mut names = names_in(target, &parent);
        names.retain(|name| is_directory(target, &format!("{parent}/{name}/bin")));
        names.sort_by_key(|name| version(name));
        if *which == Which::Newest {
            names.drain(..names.len().saturating_sub(1));
        }
        found.extend(names.iter().map(|name| format!("{parent}/{name}/bin")));
    }
    found.retain(|path| is_directory(target, path));
    found
}

fn is_directory(target: &OwnedFd, path: &str) -> bool {
    let relative = Path::new(path.trim_start_matches('/'));
    open_beneath(target, relative, OFlags::PATH | OFlags::DIRECTORY).is_ok()
}

/// Names in a directory of the image that need no quoting; empty if there is no such directory.
fn names_in(target: &OwnedFd, path: &str) -> Vec<String> {
    let relative = Path::new(path.trim_start_matches('/'));
    let Ok(directory) = open_beneath(target, relative, OFlags::RDONLY | OFlags::DIRECTORY) else {
        return Vec::new();
    };
    let Ok(entries) = rustix::fs::Dir::read_from(&directory) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().to_str().ok()?.to_owned();
        (plain(Path::new(&name)).is_some() && name != "." && name != "..").then_some(name)
    });
    names.take(MAX_ENTRIES).collect()
}

/// Sort key: `v20.1` comes before `v20.10`.
fn version(name: &str) -> (Vec<u64>, String) {
    let numbers = name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
    (numbers.collect(), name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(directories: &[&str]) -> (tempfile::TempDir, OwnedFd) {
        let temp = tempfile::tempdir().unwrap();
        for directory in directories {
            std::fs::create_dir_all(temp.path().join(directory)).unwrap();
        }
        std::fs::create_dir_all(temp.path().join("etc")).unwrap();
        let target = std::fs::File::open(temp.path()).unwrap().into();
        (temp, target)
    }

    #[test]
    fn tools_of_common_layouts_are_found_and_of_many_versions_the_newest() {
        let (_temp, target) = image(&[
            "h/.cargo/bin",
            "h/.rustup/toolchains/1.9-x/bin",
            "h/.rustup/toolchains/1.80-x/bin",
            "h/.nvm/versions/node/v9.1/bin",
            "h/.nvm/versions/node/v20.0/bin",
            "h/.pyenv/shims",
            "h/.pyenv/versions/3.12/bin",
            "opt/go/bin",
            "opt/node/bin",
            "opt/odd name/bin",
            "opt/docs",
        ]);
        let found = |added: &str| programs(&target, added);
        assert_eq!(found("/h/.cargo"), ["/h/.cargo/bin"]);
        assert_eq!(found("/h/.cargo/bin"), ["/h/.cargo/bin"]);
        assert_eq!(found("/h/.rustup"), ["/h/.rustup/toolchains/1.80-x/bin"]);
        assert_eq!(found("/h/.nvm"), ["/h/.nvm/versions/node/v20.0/bin"]);
        assert_eq!(found("/h/.pyenv"), ["/h/.pyenv/shims", "/h/.pyenv/versions/3.12/bin"]);
        assert_eq!(found("/opt"), ["/opt/go/bin", "/opt/node/bin"]);
        assert!(found("/nowhere").is_empty());
    }

    #[test]
    fn commands_and_login_shells_get_the_path_and_links_are_not_followed() {
        let (temp, target) = image(&["h/.cargo/bin", "elsewhere/bin"]);
        std::os::unix::fs::symlink("/elsewhere", temp.path().join("h/link")).unwrap();
        std::os::unix::fs::symlink("/etc", temp.path().join("h/bin")).unwrap();
        put_on_path(&target, &["/h/.cargo".into(), "/h".into()]).unwrap();
        let read = |name: &str| std::fs::read_to_string(temp.path().join("etc").join(name)).unwrap();
        let expected = format!("{HEAD}PATH=\"/h/.cargo/bin:{USUAL_PATH}\"\nCARGO_HOME=\"/h/.cargo\"\n");
        assert_eq!(read("environment"), expected);
        let profile = read("profile.d/added-tools.sh");
        assert!(
            profile.contains("export PATH=\"/h/.cargo/bin:") && profile.contains(":$PATH\""),
            "{profile}"
        );
        assert!(profile.contains("export CARGO_HOME=\"/h/.cargo\""), "{profile}");
    }

    #[test]
    fn an_image_without_such_tools_stays_unchanged() {
        let (temp, target) = image(&["data"]);
        put_on_path(&target, &["/data".into(), "/a b".into()]).unwrap();
        assert!(!temp.path().join("etc/environment").exists());
    }
}
