//! What must hold of the checkpoints of a daemon's bays after any process was killed: every listed checkpoint has
//! its directories, and its memory if it is listed with memory; the disk and the host have nothing that is not listed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::daemon::{Daemon, listed};
use crate::leaks;
use crate::wait::{PATIENCE, until, within};

/// The file that a memory checkpoint writes last: if it exists, the memory is complete.
const WHOLE: &str = "memory/memory.json";

/// The checkpoints of a bay as the daemon lists them.
///
/// # Panics
/// If it does not answer with a list.
#[must_use]
pub fn checkpoints(daemon: &Daemon, bay: &str) -> Vec<Value> {
    let answer = daemon.rest("GET", &format!("/v1/bays/{bay}/checkpoints"), &Value::Null).json();
    answer.as_array().unwrap_or_else(|| panic!("{answer}")).clone()
}

/// The directory with the files of a bay's checkpoints.
#[must_use]
pub fn checkpoint_files(daemon: &Daemon, bay: &str) -> PathBuf {
    let id = daemon.show(bay)["id"].as_str().unwrap_or_default().to_owned();
    leaks::corner(&daemon.pool, daemon.id()).join("bays").join(id).join("checkpoints")
}

/// The directory of one checkpoint that holds `root` and `workspace`.
///
/// # Panics
/// If it is listed and has no files.
#[must_use]
pub fn files_at(files: &Path, name: &str) -> PathBuf {
    let places = ["shown", "older"].map(|place| files.join(place).join(name));
    let found = places.into_iter().find(|dir| dir.exists());
    found.unwrap_or_else(|| panic!("{name} is listed and has no files"))
}

/// The names in a directory; empty if the directory does not exist.
#[must_use]
pub fn entries(dir: &Path) -> BTreeSet<String> {
    let found = fs::read_dir(dir).into_iter().flatten().flatten();
    found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Asserts that the directories on disk are exactly those of the listed checkpoints of a bay, and that a checkpoint has
/// complete memory exactly if it is listed so. Does not look into the directories. Returns the names.
///
/// # Panics
/// If a checkpoint is not whole or not listed.
#[must_use]
pub fn checkpoints_are_whole(daemon: &Daemon, bay: &str) -> BTreeSet<String> {
    let files = checkpoint_files(daemon, bay);
    let mut known = BTreeSet::new();
    for checkpoint in checkpoints(daemon, bay) {
        let name = checkpoint["name"].as_str().unwrap_or_default().to_owned();
        let memory = files.join("inner").join(&name).join(WHOLE).exists();
        assert_eq!(memory, checkpoint["kind"] == "memory", "{bay}: {checkpoint}");
        known.insert(name);
    }
    let on_disk: BTreeSet<String> =
        entries(&files.join("shown")).union(&entries(&files.join("older"))).cloned().collect();
    assert_eq!(on_disk, known, "{bay}: what is on disk is not what is listed");
    assert_eq!(entries(&files.join("inner")), known, "{bay}");
    let top = entries(&files);
    assert!(top.is_subset(&["inner", "older", "shown"].map(str::to_owned).into()), "{bay}: {top:?}");
    known
}

/// Asserts that removed files take up no disk any more, and that everything on the host belongs to a bay.
///
/// # Panics
/// If something is still left over after a while.
pub fn nothing_is_left_over(daemon: &Daemon) {
    let trash = leaks::corner(&daemon.pool, daemon.id()).join("trash");
    until("the trash to be empty", || entries(&trash).is_empty().then_some(()));
    let orphans = within(PATIENCE, || daemon.orphans().is_empty().then_some(()));
    assert!(orphans.is_some(), "left over:\n{}", listed(&daemon.orphans()));
}
