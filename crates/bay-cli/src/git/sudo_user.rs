//! The user who runs this program through sudo.
//!
//! Bays need root; repositories and credentials do not. Git writes to the user's repositories, and pushes with the
//! user's keys, as that user.

use std::io;
use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::author::home_of;

#[derive(Debug)]
pub(super) struct SudoUser {
    name: String,
    uid: u32,
    gid: u32,
    home: PathBuf,
}

impl SudoUser {
    /// The user who ran sudo; `None` without sudo.
    pub(super) fn behind_sudo() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let variable = |name: &str| std::env::var(name).ok();
        let name = variable("SUDO_USER")?;
        let uid = variable("SUDO_UID")?.parse().ok().filter(|uid| *uid != 0)?;
        let gid = variable("SUDO_GID")?.parse().ok()?;
        let home = home_of(&name, &std::fs::read_to_string("/etc/passwd").ok()?)?;
        Some(Self { name, uid, gid, home })
    }

    /// Makes a command run as this user.
    pub(super) fn runs(&self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid).env("HOME", &self.home);
        command.env("USER", &self.name).env("LOGNAME", &self.name).env_remove("XDG_CONFIG_HOME");
    }

    /// Changes the owner of one of our directories, with its content, to this user.
    pub(super) fn is_given(&self, place: &Path) -> io::Result<()> {
        if place.symlink_metadata()?.is_dir() {
            for entry in std::fs::read_dir(place)? {
                self.is_given(&entry?.path())?;
            }
        }
        lchown(place, Some(self.uid), Some(self.gid))
    }
}
