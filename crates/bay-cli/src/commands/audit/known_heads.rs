//! For each log, the newest head that this user has verified. It is stored in the user's own state directory and not
//! with the daemon's data, so a daemon that loses or changes its record does not change it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bay_ledger::{Head, MAX_NOTE, NoteError, PublicKey};
use bay_types::{ApiError, ErrorCode};

use crate::output::talk;

/// The path of the file with the verified head of this log. `None` if neither `XDG_STATE_HOME` nor `HOME` is an
/// absolute path.
pub(super) fn place(log: &str) -> Option<PathBuf> {
    place_in(log, std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
}

fn place_in(log: &str, state: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute(state).or_else(|| Some(absolute(home)?.join(".local/state")))?;
    // A log's name is printable ASCII. It must become a single file name.
    let name: String =
        log.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    Some(state.join("workbay/ledger").join(name))
}

/// The newest verified head. `None` if there is no file. A file without a head that this key signed is an error
/// (`LedgerBroken`).
pub(super) fn recall(place: &Path, key: &PublicKey) -> Result<Option<Head>, ApiError> {
    let note = match fs::read_to_string(place) {
        Ok(note) if note.len() <= MAX_NOTE => note,
        Ok(_) => String::new(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(bay_client::local(&format!("reading {}", place.display()), &error)),
    };
    match Head::open(&note, key) {
        Ok(head) => Ok(Some(head)),
        Err(error) => {
            let why = match error {
                NoteError::NotSigned(_) | NoteError::WrongSignature(_) => {
                    "the head that was verified here before was signed by another key".to_owned()
                }
                error => error.to_string(),
            };
            Err(ApiError::new(
                ErrorCode::LedgerBroken,
                format!("the ledger of {}: {why}", key.log()),
                format!("if the key was changed on purpose, move {} away and verify again", place.display()),
            ))
        }
    }
}

/// Stores a verified head. If that fails, it prints a warning: the ledger itself is not in doubt.
pub(super) fn keep(place: &Path, note: &str) {
    let kept = (|| {
        if let Some(dir) = place.parent() {
            fs::create_dir_all(dir)?;
        }
        let new = place.with_extension("new");
        fs::write(&new, note)?;
        fs::rename(&new, place)
    })();
    if let Err(error) = kept {
        talk(&format!("bay: the verified head could not be saved to {}: {error}", place.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_log_does_not_leave_the_directory() {
        let place = |log: &str| place_in(log, Some("/s".into()), None).unwrap();
        assert_eq!(place("workbay/0a1b"), PathBuf::from("/s/workbay/ledger/workbay_0a1b"));
        assert_eq!(place("../../x"), PathBuf::from("/s/workbay/ledger/______x"));
        let home = place_in("a", Some("relative".into()), Some("/home/u".into())).unwrap();
        assert_eq!(home, PathBuf::from("/home/u/.local/state/workbay/ledger/a"));
        assert_eq!(place_in("a", None, None), None);
    }
}
