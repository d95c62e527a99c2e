//! The verbs on files of a running bay, and on changes of files. The guest resolves the paths, inside the bay.

use std::fmt::{self, Write};

use bay_store::Draft;
use bay_text::percent::path_value;
use bay_types::event::file::FileWrite;
use bay_types::guest::{FileStat, WORKSPACE};
use bay_types::principal::Principal;
use bay_types::{CoreError, ErrorCode};
use bytes::Bytes;
use http::Method;

use super::execs;
use crate::authorize::Verb;
use crate::byte_stream::ByteStream;
use crate::channel::{ANSWER_WITHIN, Answer, new_guest};
use crate::daemon::Daemon;
use crate::validate;

/// The longest name of a user.
const MAX_USER: usize = 256;
/// The most octal digits of permission bits.
const MAX_MODE: usize = 5;

/// A file or directory of a bay, with the options of the verb.
#[derive(Debug, Default)]
pub struct Place {
    pub path: String,
    /// Permission bits in octal.
    pub mode: Option<String>,
    pub user: Option<String>,
    /// For an archive: holes of files are left out.
    pub sparse: Option<bool>,
    /// For a stat: follow a link.
    pub follow: Option<bool>,
}

impl Place {
    fn check(&self) -> Result<(), CoreError> {
        validate::bay_path(&self.path)?;
        let odd_mode = self.mode.as_ref().is_some_and(|mode| {
            mode.is_empty() || mode.len() > MAX_MODE || !mode.bytes().all(|b| matches!(b, b'0'..=b'7'))
        });
        let odd_user = self.user.as_ref().is_some_and(|user| user.is_empty() || user.len() > MAX_USER);
        if odd_mode || odd_user {
            return Err(CoreError::new(
                ErrorCode::InvalidInput,
                "the mode is not octal, or the user's name is empty or too long",
                "give a mode such as 644 and a user of the bay",
            ));
        }
        Ok(())
    }

    fn uri(&self, noun: &str) -> String {
        let mut uri = format!("/v1/{noun}?path={}", path_value(self.path.as_bytes()));
        for (key, value) in [("mode", &self.mode), ("user", &self.user)] {
            if let Some(value) = value {
                let _ = write!(uri, "&{key}={}", path_value(value.as_bytes()));
            }
        }
        for (key, flag) in [("sparse", self.sparse), ("follow", self.follow)] {
            if flag == Some(true) {
                let _ = write!(uri, "&{key}=true");
            }
        }
        uri
    }
}

/// Bytes of an upload into a bay.
pub struct Upload {
    /// The number of bytes, if the client sent it.
    pub length: Option<u64>,
    pub bytes: ByteStream,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("length", &self.length).finish_non_exhaustive()
    }
}

/// The type and attributes of a path.
pub async fn stat(daemon: &Daemon, who: &Principal, bay: &str, place: &Place) -> Result<FileStat, CoreError> {
    daemon.permit(who, Verb::FileRead)?;
    place.check()?;
    let handle = daemon.bay_for(who, Verb::FileRead, bay)?;
    execs::must_run(&handle)?;
    handle.guest.json(Method::GET, &place.uri("stat"), Bytes::new(), ANSWER_WITHIN).await
}

/// Reads one file. This is not recorded, unlike a write.
pub async fn read(daemon: &Daemon, who: &Principal, bay: &str, place: &Place) -> Result<Answer, CoreError> {
    send_out(daemon, who, bay, place, "files").await
}

/// Reads a directory with everything below it, as an archive.
pub async fn read_archive(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    place: &Place,
) -> Result<Answer, CoreError> {
    send_out(daemon, who, bay, place, "archive").await
}

/// Writes one file.
pub async fn write(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    place: &Place,
    upload: Upload,
) -> Result<FileStat, CoreError> {
    let said = take_in(daemon, who, bay, place, "files", upload, false).await?;
    serde_json::from_slice(&said).map_err(|e| {
        CoreError::new(
            ErrorCode::GuestUnreachable,
            format!("the guest's answer about the file that it wrote cannot be parsed: {e}"),
            new_guest(),
        )
    })
}

/// Unpacks an archive into a directory. With `beginning` the work in the bay begins with these files: comparisons
/// from the beginning do not show them as changes.
pub async fn write_archive(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    place: &Place,
    upload: Upload,
    beginning: bool,
) -> Result<(), CoreError> {
    take_in(daemon, who, bay, place, "archive", upload, beginning).await?;
    if beginning {
        let bay = daemon.bay_for(who, Verb::FileWrite, bay)?.id;
        daemon.with_pool(move |pool| pool.beginning_keep(bay)).await?;
    }
    Ok(())
}

/// Changes below a directory, as lines of JSON: as the guest writes them, at the pace of the reader. Unread changes
/// wait in the bay.
pub async fn watch(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    path: &str,
    recursive: bool,
) -> Result<ByteStream, CoreError> {
    daemon.permit(who, Verb::FileWatch)?;
    validate::bay_path(path)?;
    let handle = daemon.bay_for(who, Verb::FileWatch, bay)?;
    execs::must_run(&handle)?;
    let uri = format!("/v1/watch?path={}&recursive={recursive}", path_value(path.as_bytes()));
    Ok(handle.guest.read(&uri).await?.bytes)
}

/// Only the length and the bytes of the guest's answer are passed on, none of its headers.
async fn send_out(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    place: &Place,
    noun: &str,
) -> Result<Answer, CoreError> {
    daemon.permit(who, Verb::FileRead)?;
    place.check()?;
    let handle = daemon.bay_for(who, Verb::FileRead, bay)?;
    execs::must_run(&handle)?;
    handle.guest.read(&place.uri(noun)).await
}

/// Whether a file that is written here belongs to the bay's own user: below the workspace and its home directory. Files
/// of the system stay root's.
fn belongs_to(path: &str, user: &str) -> bool {
    let home = format!("/home/{user}");
    [WORKSPACE, &home]
        .iter()
        .any(|top| path.strip_prefix(*top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

async fn take_in(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    place: &Place,
    noun: &str,
    upload: Upload,
    beginning: bool,
) -> Result<Bytes, CoreError> {
    let handle = daemon.bay_for(who, Verb::FileWrite, bay)?;
    place.check()?;
    execs::must_run(&handle)?;
    let event = Draft::of(FileWrite {
        path: place.path.clone(),
        archive: noun == "archive",
        beginning: beginning.then_some(true),
        by: who.by(),
    });
    daemon.store.event_append(Some(handle.id), &event).await.map_err(|e| e.to_api())?;
    let user = handle.row().spec.user;
    let place = match &user {
        Some(user) if place.user.is_none() && belongs_to(&place.path, &user.name) => &Place {
            user: Some(user.name.clone()),
            mode: place.mode.clone(),
            path: place.path.clone(),
            ..*place
        },
        _ => place,
    };
    handle.guest.write(&place.uri(noun), upload.length, upload.bytes).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_workspace_and_of_the_home_directory_belong_to_the_bays_user() {
        for path in ["/workspace", "/workspace/a/b", "/home/agent/.npmrc"] {
            assert!(belongs_to(path, "agent"), "{path}");
        }
        for path in ["/workspace-2/a", "/etc/hosts", "/home/other/x", "/"] {
            assert!(!belongs_to(path, "agent"), "{path}");
        }
    }
}
