//! Git commands that run no program that a repository's own configuration names.
//!
//! A directory may come from anywhere, such as a stranger's archive, and its `.git/config` comes with it. Git would run
//! the programs that it names: filters for `git status`, an ssh command to fetch a missing object, hooks, monitors. The
//! caller, often root, only asked for a copy.
//!
//! | what would run                                   | what stops it                                            |
//! |--------------------------------------------------|----------------------------------------------------------|
//! | filters (`filter.X.clean`, `.smudge`, `.process`) | each is set to nothing by name; git lists the names       |
//! | fetching what a partial clone lacks               | no lazy fetch, and no protocol allowed if one is tried    |
//! | hooks, file system monitor, pager, ssh, askpass, gpg, external diff, credential helpers | fixed settings     |
//!
//! All filters are off, even the caller's own, because those may in turn run what the repository names (Git LFS does,
//! with its extensions). A filtered file whose time changed then counts as changed, and is copied as it is.
//!
//! Settings given on the command line outrank every file. So neither an `include.path` nor the configuration of a
//! worktree can turn anything on again.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Stdio;

use bay_types::{ApiError, ErrorCode};
use tokio::process::Command;

/// Most settings of drivers that are switched off by name. No honest repository has nearly as many.
const MAX_DRIVER_SETTINGS: usize = 1024;

/// Fixed settings of every git command that runs here.
const FIXED: [(&str, &str); 16] = [
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.sshCommand", "false"),
    ("core.gitProxy", "false"),
    ("core.askPass", "false"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("core.alternateRefsCommand", "true"),
    ("credential.helper", ""),
    ("diff.external", ""),
    ("gpg.program", "false"),
    ("log.showSignature", "false"),
    ("status.submoduleSummary", "false"),
    ("submodule.recurse", "false"),
    ("interactive.diffFilter", ""),
    ("core.quotePath", "false"),
];

/// Variables that an outer git may have set, which would make git use another repository.
pub(super) const REPOSITORY_VARIABLES: [&str; 9] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_EXTERNAL_DIFF",
];

/// `git` in a directory, for commands that read no file's content.
pub(super) fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.args(["--no-optional-locks", "--no-pager"]);
    for (name, value) in FIXED {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    command
        .current_dir(dir)
        .env("LC_ALL", "C")
        // Git 2.44 and newer does not try to fetch. Older versions try, and no protocol is allowed.
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_ALLOW_PROTOCOL", "")
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    for variable in REPOSITORY_VARIABLES {
        command.env_remove(variable);
    }
    command
}

/// `git` in a directory, for commands that may read the content of files and would filter it.
pub(super) async fn git_on_content(dir: &Path) -> Result<Command, ApiError> {
    let output = git(dir)
        .args(["config", "--includes", "-z", "--name-only", "--list"])
        .output()
        .await
        .map_err(|e| super::not_run(&e))?;
    if !output.status.success() {
        return Err(super::refused("reading the repository's configuration", &output));
    }
    let mut command = git(dir);
    for setting in switched_off(&output.stdout, dir)? {
        command.arg("-c").arg(setting);
    }
    Ok(command)
}

/// `name=value` for every driver in a list of setting names, which are separated by NUL.
fn switched_off(names: &[u8], dir: &Path) -> Result<Vec<OsString>, ApiError> {
    let mut settings = Vec::new();
    for name in names.split(|b| *b == 0) {
        let Some(value) = harmless_value(name) else { continue };
        // `-c` splits at the first `=`: such a name would set another setting and leave this one.
        if name.contains(&b'=') || settings.len() >= MAX_DRIVER_SETTINGS {
            return Err(ApiError::new(
                ErrorCode::RepoFetch,
                format!(
                    "the git configuration of {} defines drivers that cannot be switched off: {:?}",
                    dir.display(),
                    OsStr::from_bytes(name)
                ),
                "see `git config --show-origin --list`; remove the setting if it is not yours",
            ));
        }
        let mut setting = name.to_vec();
        setting.extend_from_slice(value);
        settings.push(OsString::from_vec(setting));
    }
    settings.sort_unstable();
    settings.dedup();
    Ok(settings)
}

/// The value that disables the setting, if its name is one that names a program or requires one.
fn harmless_value(name: &[u8]) -> Option<&'static [u8]> {
    let (section, rest) = name.split_at(name.iter().position(|b| *b == b'.')?);
    let variable = &rest[rest.iter().rposition(|b| *b == b'.')? + 1..];
    match (section, variable) {
        (b"filter", b"clean" | b"smudge" | b"process")
        | (b"diff", b"textconv" | b"command")
        | (b"merge", b"driver") => Some(b"="),
        (b"filter", b"required") => Some(b"=false"),
        _ => None,
    }
}

#[cfg(test)]
#[path = "safe_command_tests.rs"]
mod tests;
