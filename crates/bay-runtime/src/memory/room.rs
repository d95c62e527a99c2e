//! A `/run` for CRIU's eyes only, with what saves it work.
//!
//! * What it found out about the kernel: some thirty milliseconds of trying that it does once and keeps in `/run`, but only
//!   where that is in memory, and never again after it was killed in the wrong moment. Here it finds what an earlier run
//!   of this boot kept, whatever the host's `/run` is like.
//! * The groups of the host under the names CRIU looks for. Otherwise it mounts every hierarchy for every thread of the
//!   bay, and unmounts it: milliseconds each, while the bay stands still.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bay_types::runtime::{Criu, RuntimePlace};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, renameat, unlinkat};
use rustix::mount::{MoveMountFlags, move_mount};

use super::view::tmpfs;
use crate::cgroup::Hierarchies;
use crate::failure::{Failure, Try};

const STEP: &str = "room";
const RUN: &str = "/run";
/// Where CRIU looks for what it kept.
const KERNEL: &str = "/run/criu.kdat";
/// Where the groups are.
const GROUPS: &str = "/run/groups";
/// What the names begin with under which it is kept for the next one.
const KEPT: &str = ".kernel-";
/// More than CRIU keeps.
const MAX_KERNEL_BYTES: u64 = 1 << 20;

pub(super) struct Room {
    /// The run directory of all bays, and a name in it.
    dir: OwnedFd,
    kept: String,
    /// What CRIU was given to begin with.
    given: Vec<u8>,
}

fn what() -> String {
    format!("could not give CRIU a {RUN} of its own")
}

impl Room {
    /// Looks for what is kept, while paths of the host lead there. None where something that is needed is below `/run`.
    pub(super) fn find(
        place: &RuntimePlace,
        images: &Path,
        criu: &Criu,
        groups: &Hierarchies,
    ) -> Result<Option<Self>, Failure> {
        let needed = [&groups.v2, &place.run_dir, images];
        if needed.iter().any(|path| path.starts_with(RUN))
            || groups.v1.iter().any(|(_, point)| point.starts_with(RUN))
        {
            return Ok(None);
        }
        let above = place.run_dir.parent().unwrap_or(&place.run_dir);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, above, flags, Mode::empty()).at(STEP, what)?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").at(STEP, what)?;
        Ok(Some(Self { dir, kept: kept_name(&boot, criu), given: Vec::new() }))
    }

    /// Covers `/run` in the mount namespace of the caller, which must be its own. Answers where CRIU finds the groups,
    /// unless one of them has a name that is not known here.
    pub(super) fn enter(&mut self, groups: &Hierarchies) -> Result<Option<&'static str>, Failure> {
        let named = fs::read_to_string("/proc/self/cgroup").at(STEP, what)?;
        let memory = tmpfs().at(STEP, what)?;
        move_mount(memory, "", CWD, RUN, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).at(STEP, what)?;
        // What cannot be read, CRIU finds out again; what is not its own, it throws away.
        if let Ok(kernel) = self.read_kept() {
            fs::write(KERNEL, &kernel).at(STEP, what)?;
            self.given = kernel;
        }
        let Some(links) = group_links(&named, groups) else { return Ok(None) };
        fs::create_dir(GROUPS).at(STEP, what)?;
        for (name, point) in links {
            symlink(point, Path::new(GROUPS).join(name)).at(STEP, what)?;
        }
        Ok(Some(GROUPS))
    }

    fn read_kept(&self) -> io::Result<Vec<u8>> {
        let file = openat(
            &self.dir,
            &self.kept,
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut bytes = Vec::new();
        fs::File::from(file).take(MAX_KERNEL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Keeps what CRIU has found out, for the next one. Called where the room is still to be seen.
    pub(super) fn keep(&self) {
        if let Err(error) = self.write_kept() {
            eprintln!("what CRIU knows of the kernel could not be kept: {error}");
        }
    }

    fn write_kept(&self) -> io::Result<()> {
        let kernel = fs::read(KERNEL)?;
        if kernel == self.given {
            return Ok(());
        }
        self.forget_others();
        let new = format!("{}.{}", self.kept, std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.dir, &new, flags, Mode::from(0o600))?;
        let written = fs::File::from(file).write_all(&kernel);
        let done = written.and_then(|()| Ok(renameat(&self.dir, &new, &self.dir, &self.kept)?));
        if done.is_err() {
            let _ = unlinkat(&self.dir, &new, AtFlags::empty());
        }
        done
    }

    /// Those of earlier boots and of other versions.
    fn forget_others(&self) {
        for name in Dir::read_from(&self.dir).into_iter().flatten().flatten() {
            let name = name.file_name();
            if name.to_bytes().starts_with(KEPT.as_bytes()) {
                let _ = unlinkat(&self.dir, name, AtFlags::empty());
            }
        }
    }
}

/// Good for one boot and one version of CRIU.
fn kept_name(boot: &str, criu: &Criu) -> String {
    let plain = |text: &str| -> String {
        text.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).collect()
    };
    format!("{KEPT}{}-{}", plain(boot), plain(&criu.version))
}

/// Every hierarchy that a process is in, by the name CRIU gives it, with where it is mounted. None when one is not known.
fn group_links(named: &str, groups: &Hierarchies) -> Option<Vec<(String, PathBuf)>> {
    let link = |line: &str| {
        let controllers = line.split(':').nth(1)?;
        if controllers.is_empty() {
            return Some(("unified".to_owned(), groups.v2.clone()));
        }
        let first = controllers.split(',').next()?;
        let point = groups.v1.iter().find(|(name, _)| name == first).map(|(_, point)| point.clone())?;
        let name = controllers.strip_prefix("name=").unwrap_or(controllers);
        Some((name.to_owned(), point))
    };
    named.lines().map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_have_the_names_that_criu_looks_for() {
        let groups = Hierarchies {
            v2: "/cg/unified".into(),
            v1: vec![
                ("cpu".to_owned(), "/cg/cpu,cpuacct".into()),
                ("cpuacct".to_owned(), "/cg/cpu,cpuacct".into()),
                ("name=systemd".to_owned(), "/cg/systemd".into()),
            ],
        };
        let named = "3:cpu,cpuacct:/\n2:name=systemd:/a:b\n0::/";
        let links = group_links(named, &groups).unwrap();
        let shown: Vec<String> = links.iter().map(|(name, at)| format!("{name} {}", at.display())).collect();
        assert_eq!(shown, ["cpu,cpuacct /cg/cpu,cpuacct", "systemd /cg/systemd", "unified /cg/unified"]);
        assert_eq!(group_links("4:debug:/", &groups), None);
    }

    #[test]
    fn what_was_kept_is_not_of_another_boot_or_criu() {
        let criu = |version: &str| Criu { program: "/criu".into(), version: version.to_owned() };
        assert_eq!(kept_name("0a-1b\n", &criu("4.2.1")), ".kernel-0a-1b-4.2.1");
        assert_ne!(kept_name("0a", &criu("4.2.1")), kept_name("0a", &criu("4.3")));
    }
}
