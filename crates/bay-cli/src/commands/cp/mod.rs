mod between_bays;
mod download;
mod target_file;
mod upload;

use bay_client::{Client, ShowProgress, bay_path, invalid, local};
use bay_text::percent::path_value;
use bay_types::guest::{FileKind, FileStat};
use bay_types::progress::Progress;
use bay_types::{ApiError, ErrorCode};
use clap::Args;
use serde::Serialize;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::naming::Place;
use crate::output::progress::Meter;
use crate::output::{count, size};
use crate::session::{Ends, code_of_signal};

/// Copy files and directories between here and a bay, or from bay to bay.
///
/// NAME:PATH is a path in a bay. If it does not begin with /, it is relative to /workspace. If the destination is a
/// directory, the source is copied into it under its own name; otherwise the destination is the name of the copy. SRC/.
/// copies the content of a directory instead of the directory. A destination that ends in / must be an existing
/// directory. `-` is standard input or output: one file, or a tar of a directory that is copied out.
///
/// Files from a bay never land outside the destination, whatever the bay does. Holes of sparse files stay holes,
/// except in a copy to `-`; into a bay, a sparse file of more than 64 GiB is not copied. Some space stays free on
/// this side's disk: a single file that does not fit is refused before anything is written; a copy of a directory
/// ends when the disk is that full, and what was copied stays. On a terminal `-` shows a file's text and colours, and
/// any other terminal sequence as text.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay cp notes.txt web:            into /workspace\n  bay cp web:/workspace/dist .     a directory, as ./dist\n  bay cp web:report/. out          what is in report, into out\n  bay cp web:log.txt - | less"
)]
pub(crate) struct Cp {
    /// What to copy: a path, NAME:PATH, or -.
    #[arg(value_name = "SRC")]
    source: String,
    /// Destination: a path, NAME:PATH, or -.
    #[arg(value_name = "DST")]
    destination: String,
    /// Owner of the copy in a bay [default: of a replaced file, its owner; in the workspace and home directory of the
    /// user of `bay up --user`, that user; otherwise root].
    #[arg(short, long)]
    user: Option<String>,
}

/// The result of a copy, as `--json` prints it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Copied {
    files: u64,
    bytes: u64,
    /// Files that could not be copied, and links that point elsewhere.
    notes: Vec<String>,
}

impl Cp {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut ends = Ends::listen().map_err(|e| local("listening for signals", &e))?;
        tokio::select! {
            outcome = self.copy(global) => outcome,
            // Dropping the copy deletes the file that it was writing.
            number = ends.next() => {
                crate::output::talk("bay: the copy was interrupted; files that were copied completely remain");
                Ok(code_of_signal(number))
            }
        }
    }

    async fn copy(&self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        let mut meter = Meter::new(global.json);
        let (from, to) = (crate::naming::place(&self.source), crate::naming::place(&self.destination));
        let user = self.user.as_deref();
        let (copied, to_stdout) = match (from, to) {
            (Place::Local(source), Place::Bay { bay, path }) => {
                let target = Target { bay, path, user };
                (upload::path(&mut client, &source, &self.source, &target, &mut meter).await?, false)
            }
            (Place::Stream, Place::Bay { bay, path }) => {
                let target = Target { bay, path, user };
                (upload::stream(&mut client, &target).await?, false)
            }
            (Place::Bay { bay, path }, Place::Local(destination)) => (
                download::path(&mut client, &bay, &path, &destination, &self.destination, &mut meter).await?,
                false,
            ),
            (Place::Bay { bay, path }, Place::Stream) => {
                (download::stream(&mut client, &bay, &path).await?, true)
            }
            (Place::Bay { bay: from, path: source }, Place::Bay { bay, path }) => {
                let target = Target { bay, path, user };
                (between_bays::copy(&mut client, &from, &source, &target).await?, false)
            }
            (Place::Local(_) | Place::Stream, Place::Local(_) | Place::Stream) => {
                return Err(invalid(
                    "neither side of the copy is in a bay",
                    "write one of them as NAME:PATH; `bay ls` lists the names of bays",
                )
                .into());
            }
        };
        meter.clear();
        report(&copied, to_stdout, global.json)?;
        Ok(0)
    }
}

fn report(copied: &Copied, to_stdout: bool, json: bool) -> Result<(), crate::failure::Failure> {
    if to_stdout {
        return Ok(());
    }
    if json {
        return crate::output::json(copied);
    }
    for note in &copied.notes {
        crate::output::talk(&format!("note: {note}"));
    }
    if crate::output::watched() {
        crate::output::talk(&format!("{}, {}", count(copied.files, "file"), size(copied.bytes)));
    }
    Ok(())
}

/// A path in a bay that a copy is written to.
#[derive(Debug)]
pub(super) struct Target<'a> {
    bay: String,
    path: String,
    user: Option<&'a str>,
}

impl Target<'_> {
    /// The file at the path, links followed, or `None`.
    async fn stat(&self, client: &mut Client) -> Result<Option<FileStat>, ApiError> {
        stat(client, &self.bay, &self.path).await
    }

    /// The path for a file of this name.
    async fn for_file(&self, client: &mut Client, name: Option<&str>) -> Result<String, ApiError> {
        match (self.stat(client).await?, name) {
            (Some(stat), Some(name)) if stat.kind == FileKind::Directory => Ok(join(&self.path, name)),
            (Some(stat), None) if stat.kind == FileKind::Directory => Err(invalid(
                format!("{}:{} is a directory", self.bay, self.path),
                "give the path of the file to write standard input to",
            )),
            (None, _) if self.path.ends_with('/') => Err(self.no_directory()),
            _ => Ok(self.path.clone()),
        }
    }

    /// The directory that receives the members of an archive, and the name of their parent in it (empty for none).
    async fn for_tree(&self, client: &mut Client, name: Option<&str>) -> Result<(String, String), ApiError> {
        match self.stat(client).await? {
            Some(stat) if stat.kind == FileKind::Directory => {
                Ok((self.path.clone(), name.unwrap_or_default().to_owned()))
            }
            Some(_) => Err(ApiError::new(
                ErrorCode::PathRefused,
                format!("{}:{} is not a directory, but the source is one", self.bay, self.path),
                "name a directory, or a path that does not exist yet",
            )),
            None if self.path.ends_with('/') => Err(self.no_directory()),
            None => match self.path.rsplit_once('/') {
                Some((parent, name)) => Ok((format!("{parent}/"), name.to_owned())),
                None => Ok(("/".to_owned(), self.path.clone())),
            },
        }
    }

    fn no_directory(&self) -> ApiError {
        ApiError::new(
            ErrorCode::PathNotFound,
            format!("there is no directory {}:{}", self.bay, self.path),
            "create it, or omit the final /",
        )
    }

    fn request(&self, kind: &str, path: &str, more: &str) -> String {
        let mut query = format!("/{kind}?path={}{more}", path_value(path.as_bytes()));
        if let Some(user) = self.user {
            query.push_str("&user=");
            query.push_str(&path_value(user.as_bytes()));
        }
        bay_path(&self.bay, &query)
    }
}

/// The file at a path of a bay, links followed. `None` if nothing exists there.
pub(super) async fn stat(client: &mut Client, bay: &str, path: &str) -> Result<Option<FileStat>, ApiError> {
    let stat = stat_itself(client, bay, path, false).await?;
    match stat {
        Some(stat) if stat.kind == FileKind::Symlink => {
            // A dangling link counts as an empty file: a copy to it creates the file, and a copy from it fails.
            let behind = stat_itself(client, bay, path, true).await.ok().flatten();
            let nothing =
                FileStat { kind: FileKind::File, size: 0, mode: 0o644, allocated_bytes: None, ..stat };
            Ok(Some(behind.unwrap_or(nothing)))
        }
        other => Ok(other),
    }
}

async fn stat_itself(
    client: &mut Client,
    bay: &str,
    path: &str,
    follow: bool,
) -> Result<Option<FileStat>, ApiError> {
    let follow = if follow { "&follow=true" } else { "" };
    match client.get(&bay_path(bay, &format!("/stat?path={}{follow}", path_value(path.as_bytes())))).await {
        Ok(stat) => Ok(Some(stat)),
        Err(error) if error.code == ErrorCode::PathNotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file at a path of a bay, links followed. It is an error if nothing exists there.
pub(super) async fn source_stat(client: &mut Client, bay: &str, path: &str) -> Result<FileStat, ApiError> {
    stat(client, bay, path).await?.ok_or_else(|| {
        ApiError::new(
            ErrorCode::PathNotFound,
            format!("there is no {path} in {bay}"),
            format!("look with `bay exec {bay} -- ls`"),
        )
    })
}

pub(super) fn refuse_kind(bay: &str, path: &str) -> ApiError {
    ApiError::new(
        ErrorCode::PathRefused,
        format!("{bay}:{path} is neither a file nor a directory"),
        "only files and directories are copied",
    )
}

/// The error for a file that would be sent as an endless run of zeros.
pub(super) fn refuse_sparse(what: &str, length: u64) -> ApiError {
    ApiError::new(
        ErrorCode::PathRefused,
        format!(
            "{what} is {} long, most of it holes, and is sent into a bay with all of its zeros",
            size(length)
        ),
        "send it without its holes: `tar -cS FILE | bay exec NAME -- tar x`",
    )
}

pub(super) fn join(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

/// The name of a copy of this path. `None` for `DIR/.`, which means the content of DIR.
pub(super) fn name_of(path: &str) -> Result<Option<&str>, ApiError> {
    let path = path.trim_end_matches('/');
    match path.rsplit('/').next() {
        Some(".") => Ok(None),
        Some("" | "..") | None => Err(invalid(
            "the source's path ends without a file name, and the copy needs one",
            "write SRC/. to copy the content of the directory",
        )),
        Some(name) => Ok(Some(name)),
    }
}

pub(super) fn copying(name: &str, total: Option<u64>) -> Progress {
    Progress { stage: format!("copying {name}"), done: 0, total, unit: "bytes".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_name_of_its_source_unless_that_ends_in_a_dot() {
        assert_eq!(name_of("/a/b").unwrap(), Some("b"));
        assert_eq!(name_of("/a/b///").unwrap(), Some("b"));
        assert_eq!(name_of("b/.").unwrap(), None);
        assert_eq!(name_of(".").unwrap(), None);
        assert!(name_of("/").is_err());
        assert!(name_of("a/..").is_err());
    }

    #[test]
    fn joining_does_not_double_slashes() {
        assert_eq!(join("/a/", "b"), "/a/b");
        assert_eq!(join("/", "b"), "/b");
    }
}
