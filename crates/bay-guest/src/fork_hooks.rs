//! The hooks of a fork: the programs in `/etc/bay/fork.d`, run in the order of their names before anything else runs in
//! the child. Each has the child's number in its environment. They change what must not be the same in two machines:
//! seeds of random generators, keys, names in configuration files.
//!
//! Hooks run once in the life of a bay, unless the guest dies before it has recorded that, or cannot record it. The
//! state directory may be a copy of the parent's, so it says for which bay they ran. If a hook fails or takes too
//! long, that is reported, and the bay starts.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bay_types::exec::ExecSpec;
use bay_types::guest::{FORK_HOOKS, FORK_HOOKS_TIME, FORK_INDEX};
use tokio::time::Instant;

use crate::execs::Execs;
use crate::log::Log;

/// Hooks that are run; further ones are ignored.
const MOST: usize = 64;
/// Entries of the directory that are read.
const MOST_ENTRIES: usize = 4096;
/// File in the state directory with the id of the bay for which the hooks ran.
const RAN_FOR: &str = "fork-hooks";

/// Runs the hooks, unless they have run for this bay. Returns one line for each hook that failed or had no time left.
pub(crate) async fn run(execs: &Execs, state: &Path, root: &Path, index: u32, log: &Log) -> Vec<String> {
    let bay = execs.context.identity.current().0;
    let mark = state.join(RAN_FOR);
    if std::fs::read_to_string(&mark).is_ok_and(|ran_for| ran_for == bay) {
        return Vec::new();
    }
    let mut failed = Vec::new();
    let until = Instant::now() + FORK_HOOKS_TIME;
    for hook in hooks(&root.join(FORK_HOOKS.trim_start_matches('/'))) {
        let name = hook.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let within = until.saturating_duration_since(Instant::now());
        let why = match one(execs, &name, index, within).await {
            None => {
                log.line("fork-hook.done", format_args!("hook={name}"));
                continue;
            }
            Some(why) => why,
        };
        log.line("fork-hook.failed", format_args!("hook={name} why={why}"));
        failed.push(format!("the fork hook {name} {why}"));
    }
    if let Err(error) = std::fs::write(&mark, bay) {
        log.line("fork-hook.unmarked", format_args!("error={error}"));
    }
    failed
}

/// Runs one hook. Returns why it failed, or None.
async fn one(execs: &Execs, name: &str, index: u32, within: Duration) -> Option<String> {
    if within.is_zero() {
        return Some(format!("was not run: those before it took {} s", FORK_HOOKS_TIME.as_secs()));
    }
    let mut spec = ExecSpec::new([format!("{FORK_HOOKS}/{name}")]);
    spec.env = vec![(FORK_INDEX.to_owned(), index.to_string())];
    spec.cwd = Some("/".to_owned());
    match execs.run_unrecorded(&spec, within).await {
        Err(error) => Some(format!("could not be run: {}", error.message)),
        Ok(probed) => probed.failure(within).map(|why| format!("failed: {why}")),
    }
}

/// Executable files that are not hidden, ordered by name. Empty if the directory cannot be read.
fn hooks(dir: &Path) -> Vec<PathBuf> {
    let entries = || -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(dir)?.take(MOST_ENTRIES) {
            let entry = entry?;
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            let runs = |meta: std::fs::Metadata| meta.is_file() && meta.permissions().mode() & 0o111 != 0;
            if !hidden && std::fs::metadata(entry.path()).is_ok_and(runs) {
                found.push(entry.path());
            }
        }
        Ok(found)
    };
    let mut found = entries().unwrap_or_default();
    found.sort();
    found.truncate(MOST);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_are_hooks_and_they_run_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (name, mode) in [("20-b", 0o755), ("10-a", 0o700), ("30-notes", 0o644), (".40-hidden", 0o755)] {
            std::fs::write(at(name), "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        std::fs::create_dir(at("50-directory")).unwrap();
        assert_eq!(hooks(dir.path()), [at("10-a"), at("20-b")]);
        assert!(hooks(&at("nothing")).is_empty());
    }
}
