//! Out of a bay, onto the caller's disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bay_types::guest::{FileKind, FileStat, escape};
use bay_types::{ApiError, ErrorCode};

use super::{Copied, copying, name_of, refuse_kind, source_stat};
use crate::archive::{Unpacked, unpack};
use crate::client::{Client, bay_path};
use crate::failure::{Failure, invalid, local};
use crate::output::count;
use crate::output::progress::Meter;
use crate::output::streams::Streams;
use crate::transfer;

/// Tries to find a free name for a temporary file before giving up.
const TEMPORARY_TRIES: u32 = 100;

pub(super) async fn path(
    client: &mut Client,
    bay: &str,
    source: &str,
    destination: &Path,
    written: &str,
    meter: &mut Meter,
) -> Result<Copied, Failure> {
    let stat = source_stat(client, bay, source).await?;
    let name = name_of(source);
    let is_directory = destination.is_dir();
    if !is_directory && written.ends_with('/') {
        return Err(ApiError::new(
            ErrorCode::PathNotFound,
            format!("{written} is not a directory that exists"),
            "make it first, or leave the / at the end out",
        )
        .into());
    }
    match stat.kind {
        FileKind::File => {
            let target = match (is_directory, name?) {
                (true, Some(name)) => destination.join(name),
                _ => destination.to_owned(),
            };
            file(client, bay, source, &stat, &target, meter).await
        }
        FileKind::Directory => {
            let target = match (is_directory, name?) {
                (true, Some(name)) => destination.join(name),
                _ => destination.to_owned(),
            };
            tree(client, bay, source, &target, meter).await
        }
        FileKind::Symlink | FileKind::Other => Err(refuse_kind(bay, source).into()),
    }
}

/// To standard output: a file as it is, a directory as a tar.
pub(super) async fn stream(client: &mut Client, bay: &str, source: &str) -> Result<Copied, Failure> {
    let kind = match source_stat(client, bay, source).await?.kind {
        FileKind::File => "files",
        FileKind::Directory if rustix::termios::isatty(io::stdout()) => {
            return Err(invalid(
                "a directory comes out as a tar, which is not for a terminal",
                "send it to a file",
            )
            .into());
        }
        FileKind::Directory => "archive",
        FileKind::Symlink | FileKind::Other => return Err(refuse_kind(bay, source).into()),
    };
    let body =
        client.download(&bay_path(bay, &format!("/{kind}?path={}", escape(source.as_bytes())))).await?;
    // A file of a bay is no less hostile than what its commands write.
    let mut streams = Streams::new(false);
    let mut silent = Meter::new(true);
    let received =
        transfer::receive(body, copying(source, None), &mut silent, |piece| streams.write(false, piece))
            .await;
    crate::output::written(streams.end())?;
    crate::output::written(received?)?;
    Ok(Copied::default())
}

async fn file(
    client: &mut Client,
    bay: &str,
    source: &str,
    stat: &FileStat,
    target: &Path,
    meter: &mut Meter,
) -> Result<Copied, Failure> {
    let failed = |error: &io::Error| local(&format!("writing {}", target.display()), error);
    let mut place = Place::open(target, stat.mode & 0o777).map_err(|e| failed(&e))?;
    let body = client.download(&bay_path(bay, &format!("/files?path={}", escape(source.as_bytes())))).await?;
    let mut bytes = 0;
    let received = transfer::receive(body, copying(source, Some(stat.size)), meter, |piece| {
        bytes += piece.len() as u64;
        place.file.write_all(piece)
    });
    received.await?.and_then(|()| place.keep()).map_err(|e| failed(&e))?;
    Ok(Copied { files: 1, bytes, notes: Vec::new() })
}

/// A file being received: beside its final place until it is whole, so that a broken copy never replaces a good file.
struct Place {
    file: File,
    temporary: Option<PathBuf>,
    target: PathBuf,
}

impl Place {
    fn open(target: &Path, mode: u32) -> io::Result<Self> {
        // The caller's own link is followed, as cp does: it is the caller who named it.
        let target = target.canonicalize().unwrap_or_else(|_| target.to_owned());
        if target.symlink_metadata().is_ok_and(|m| !m.is_file()) {
            // A device or a pipe is written to, not replaced.
            let file = OpenOptions::new().write(true).open(&target)?;
            return Ok(Self { file, temporary: None, target });
        }
        let directory =
            target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        for attempt in 0..TEMPORARY_TRIES {
            let temporary = directory.join(format!(".bay-cp.{}.{attempt}", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary) {
                Ok(file) => return Ok(Self { file, temporary: Some(temporary), target }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn keep(&mut self) -> io::Result<()> {
        match self.temporary.take() {
            Some(temporary) => fs::rename(&temporary, &self.target).inspect_err(|_| {
                let _ = fs::remove_file(&temporary);
            }),
            None => Ok(()),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = fs::remove_file(temporary);
        }
    }
}

async fn tree(
    client: &mut Client,
    bay: &str,
    source: &str,
    target: &Path,
    meter: &mut Meter,
) -> Result<Copied, Failure> {
    let failed = |error: &io::Error| {
        if error.kind() == io::ErrorKind::InvalidData {
            let next = "what came before it was copied; look at the source inside the bay";
            return ApiError::new(ErrorCode::PathRefused, format!("copying {bay}:{source}: {error}"), next);
        }
        local(&format!("writing {}", target.display()), error)
    };
    meter.stage(&format!("copying {source}"));
    let body =
        client.download(&bay_path(bay, &format!("/archive?path={}", escape(source.as_bytes())))).await?;
    match fs::create_dir(target) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !target.is_dir() => {
            return Err(failed(&error).into());
        }
        _ => {}
    }
    let unpacked = unpack(body, target).await.map_err(|e| failed(&e))?;
    Ok(Copied { files: unpacked.files, bytes: unpacked.bytes, notes: notes(&unpacked) })
}

fn notes(unpacked: &Unpacked) -> Vec<String> {
    let mut notes = Vec::new();
    if unpacked.skipped > 0 {
        notes.push(format!("skipped {} (devices and pipes)", count(unpacked.skipped, "file")));
    }
    if unpacked.links_out > 0 {
        notes.push(format!(
            "{} out of the copied tree: mind what follows them",
            match unpacked.links_out {
                1 => "1 link points".to_owned(),
                n => format!("{n} links point"),
            }
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_copy_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("f");
        fs::write(&target, b"old").unwrap();
        let mut place = Place::open(&target, 0o644).unwrap();
        place.file.write_all(b"half").unwrap();
        drop(place);
        assert_eq!(fs::read(&target).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let mut place = Place::open(&target, 0o644).unwrap();
        place.file.write_all(b"new").unwrap();
        place.keep().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
