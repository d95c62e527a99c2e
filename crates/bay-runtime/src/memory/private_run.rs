//! A private `/run` for CRIU, with two things that save it work.
//!
//! * What CRIU found out about the kernel. It tests that once, in about thirty milliseconds, and keeps the result in `/run`;
//!   but only if that is in memory, and not if it was killed at the wrong moment. Here it finds the result of an earlier
//!   CRIU of this boot, whatever the host's `/run` is.
//! * The groups of the host under the names that CRIU expects. Otherwise it would mount and unmount every hierarchy for
//!   every thread of the bay, which takes milliseconds each while the bay is stopped.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bay_types::runtime::{Criu, RuntimePlace};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, renameat, unlinkat};
use rustix::mount::{MoveMountFlags, move_mount};

use super::namespace_view::tmpfs;
use crate::cgroup::Hierarchies;
use crate::failure::{Failure, Try};

const STEP: &str = "room";
const RUN: &str = "/run";
/// Where CRIU keeps its result.
const KERNEL: &str = "/run/criu.kdat";
/// Where the groups are.
const GROUPS: &str = "/run/groups";
/// How the names of the kept results begin.
const KEPT: &str = ".kernel-";
/// More than CRIU writes.
const MAX_KERNEL_BYTES: u64 = 1 << 20;

pub(super) struct PrivateRun {
    /// The parent of the bays' run directories, and the name of the kept result in it.
    dir: OwnedFd,
    kept: String,
    /// The result that CRIU was given.
    given: Vec<u8>,
}

fn what() -> String {
    format!("could not give CRIU a {RUN} of its own")
}

impl PrivateRun {
    /// Opens the directory of the kept results, before `/run` is covered. None if `/run` contains something that is
    /// needed.
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

    /// Covers `/run` in the mount namespace of the caller, which must be its own. Returns where CRIU finds the groups,
    /// or None if the name of one is unknown.
    pub(super) fn enter(&mut self, groups: &Hierarchies) -> Result<Option<&'static str>, Failure> {
        let named = fs::read_to_string("/proc/self/cgroup").at(STEP, what)?;
        let memory = tmpfs().at(STEP, what)?;
        move_mount(memory, "", CWD, RUN, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).at(STEP, what)?;
        // CRIU tests the kernel again if it cannot read the result, and discards one of another version.
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

    /// Keeps what CRIU has found out, for the next one. Must be called while the private `/run` is visible.
    pub(super) fn keep(&self) {
        if let Err(error) = self.write_kept() {
            eprintln!("CRIU's cache of kernel features could not be stored: {error}");
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

    /// Deletes every kept result: this one is replaced, and those of earlier boots and other versions are of no use.
    fn forget_others(&self) {
        for name in Dir::read_from(&self.dir).into_iter().flatten().flatten() {
            let name = name.file_name();
            if name.to_bytes().starts_with(KEPT.as_bytes()) {
                let _ = unlinkat(&self.dir, name, AtFlags::empty());
            }
        }
    }
}

/// The name of the result for one boot and one version of CRIU.
fn kept_name(boot: &str, criu: &Criu) -> String {
    let plain = |text: &str| -> String {
        text.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).collect()
    };
    format!("{KEPT}{}-{}", plain(boot), plain(&criu.version))
}

/// Every hierarchy that a process is in, by CRIU's name for it, with its mount point. None if one is unknown.
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
    fn results_of_another_boot_or_criu_are_not_used() {
        let criu = |version: &str| Criu { program: "/criu".into(), version: version.to_owned() };
        assert_eq!(kept_name("0a-1b\n", &criu("4.2.1")), ".kernel-0a-1b-4.2.1");
        assert_ne!(kept_name("0a", &criu("4.2.1")), kept_name("0a", &criu("4.3")));
    }
}
