//! Copies from a bay to the caller's disk.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use bay_client::{Client, bay_path, invalid, local, transfer};
use bay_text::percent::path_value;
use bay_types::guest::{FileKind, FileStat};
use bay_types::{ApiError, ErrorCode};

use super::target_file::{TargetFile, Temporary};
use super::{Copied, copying, name_of, refuse_kind, source_stat};
use crate::archive::{Unpacked, unpack, unpack_file};
use crate::disk_space::DiskSpace;
use crate::failure::Failure;
use crate::output::count;
use crate::output::progress::Meter;
use crate::output::streams::Streams;
use crate::sparse_file::SparseFile;

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
            format!("{written} is not a directory"),
            "create the directory, or omit the final / to use this as the name of the copy",
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

/// Copies to standard output: a file as it is, a directory as a tar.
pub(super) async fn stream(client: &mut Client, bay: &str, source: &str) -> Result<Copied, Failure> {
    let kind = match source_stat(client, bay, source).await?.kind {
        FileKind::File => "files",
        FileKind::Directory if rustix::termios::isatty(io::stdout()) => {
            return Err(invalid(
                "a directory is copied as a tar archive, which cannot be written to a terminal",
                "redirect it to a file",
            )
            .into());
        }
        FileKind::Directory => "archive",
        FileKind::Symlink | FileKind::Other => return Err(refuse_kind(bay, source).into()),
    };
    let body =
        client.download(&bay_path(bay, &format!("/{kind}?path={}", path_value(source.as_bytes())))).await?;
    // A file of a bay is as untrusted as the output of its commands.
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
    let failed = |error: &io::Error| writing(bay, source, target, error);
    let place = TargetFile::new(target).map_err(|e| failed(&e))?;
    let Some(directory) = place.directory() else {
        return device(client, bay, source, stat, &place, meter).await;
    };
    let space = DiskSpace::of(directory).map_err(|e| failed(&e))?;
    let has_holes = stat.allocated_bytes.is_some_and(|allocated| allocated < stat.size);
    let needed = stat.allocated_bytes.map_or(stat.size, |allocated| allocated.min(stat.size));
    space.require(needed, &format!("copying {bay}:{source}"), directory)?;
    let file = place.begin(stat.mode & 0o777).map_err(|e| failed(&e))?;
    let bytes = if has_holes {
        // The daemon does not send holes: zeros of any length would take too long.
        meter.stage(&format!("copying {source}"));
        let path = format!("/archive?path={}&sparse=true", path_value(source.as_bytes()));
        let body = client.download(&bay_path(bay, &path)).await?;
        let into = file.file.try_clone().map_err(|e| failed(&e))?;
        unpack_file(body, into, space).await.map_err(|e| failed(&e))?
    } else {
        whole(client, bay, source, stat, &file, space, meter).await?.map_err(|e| failed(&e))?
    };
    file.keep().map_err(|e| failed(&e))?;
    Ok(Copied { files: 1, bytes, notes: Vec::new() })
}

/// Most bytes of a file that claims to be empty, as files below `/proc` do.
const MAX_MADE_UP_BYTES: u64 = 64 << 20;

/// Receives a file without holes. The bay may change it meanwhile: if it became longer, it is refused. Zeros still
/// become holes.
async fn whole(
    client: &mut Client,
    bay: &str,
    source: &str,
    stat: &FileStat,
    file: &Temporary,
    mut space: DiskSpace,
    meter: &mut Meter,
) -> Result<io::Result<u64>, Failure> {
    let body =
        client.download(&bay_path(bay, &format!("/files?path={}", path_value(source.as_bytes())))).await?;
    // Files that the kernel generates claim to be empty and are not. Some of them never end.
    let most = if stat.size > 0 { stat.size } else { MAX_MADE_UP_BYTES };
    let mut bytes = 0;
    let mut into = SparseFile::new(&file.file, &mut space);
    let received = transfer::receive(body, copying(source, Some(stat.size)), meter, |piece| {
        bytes += piece.len() as u64;
        if bytes > most {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is longer than announced, or never ends",
            ));
        }
        into.write(piece)
    });
    let received = received.await?;
    Ok(received.and_then(|()| into.finish()).map(|()| bytes))
}

/// Copies into a device or a pipe of the caller's, which is written to and not replaced.
async fn device(
    client: &mut Client,
    bay: &str,
    source: &str,
    stat: &FileStat,
    place: &TargetFile,
    meter: &mut Meter,
) -> Result<Copied, Failure> {
    let failed = |error: &io::Error| writing(bay, source, place.target(), error);
    let mut file = OpenOptions::new().write(true).open(place.target()).map_err(|e| failed(&e))?;
    let body =
        client.download(&bay_path(bay, &format!("/files?path={}", path_value(source.as_bytes())))).await?;
    let mut bytes = 0;
    let received = transfer::receive(body, copying(source, Some(stat.size)), meter, |piece| {
        bytes += piece.len() as u64;
        file.write_all(piece)
    });
    received.await?.map_err(|e| failed(&e))?;
    Ok(Copied { files: 1, bytes, notes: Vec::new() })
}

/// Why a copy could not be written. Distinguishes errors of the bay from errors of the caller's disk.
fn writing(bay: &str, source: &str, target: &Path, error: &io::Error) -> ApiError {
    match error.kind() {
        io::ErrorKind::InvalidData => ApiError::new(
            ErrorCode::PathRefused,
            format!("copying {bay}:{source}: {error}"),
            "look at the source inside the bay",
        ),
        io::ErrorKind::FileTooLarge => ApiError::new(
            ErrorCode::PathRefused,
            format!("writing {}: {error}", target.display()),
            format!(
                "copy it to a filesystem that allows larger files, such as XFS, or copy only a part: \
                 `bay exec {bay} -- dd if=FILE bs=1M skip=N count=N > PART`"
            ),
        ),
        _ => local(&format!("writing {}", target.display()), error),
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
        let mut told = writing(bay, source, target, error);
        if error.kind() == io::ErrorKind::InvalidData {
            told.next = "the files before it were copied; look at the source inside the bay".to_owned();
        }
        told
    };
    let parent = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let existing = if target.is_dir() { target } else { parent };
    if let Ok(space) = DiskSpace::of(existing) {
        space.require(1, &format!("copying {bay}:{source}"), existing)?;
    }
    meter.stage(&format!("copying {source}"));
    let body = client
        .download(&bay_path(bay, &format!("/archive?path={}&sparse=true", path_value(source.as_bytes()))))
        .await?;
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
            "{} out of the copied tree: beware of programs that follow them",
            match unpacked.links_out {
                1 => "1 link points".to_owned(),
                n => format!("{n} links point"),
            }
        ));
    }
    notes
}
