//! Images: read-only subvolumes that the roots of bays are snapshots of.
//!
//! ```text
//!  images/tmp-<id>/{root,meta.json} ── filled, sealed, synced ── rename ──► images/<id>/ ── rename ──► images/trash-<id>
//! ```
//!
//! One import at a time holds `images/import.lock`. The holder of that lock may remove every `tmp-…`, because its
//! maker is dead.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use bay_types::ImageId;
use bay_types::image::ImageView;
use jiff::Timestamp;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::error::{Doing, PoolError, Result, one_line};
use crate::files::{read_json, retry};
use crate::pool::Pool;
use crate::subvolume::{self, entries, remove_all};

mod added_tools;
mod archive;
mod host;
mod import;
mod skeleton;
mod tree;

/// Longest name of an image.
const MAX_NAME: usize = 64;

/// The content of an image's `meta.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Meta {
    id: ImageId,
    name: String,
    source: String,
    key: String,
    /// For `host`: the hash of the package database at the import.
    #[serde(default)]
    packages: Option<String>,
    #[serde(default)]
    add: Vec<PathBuf>,
    /// The user whose rights applied to the added directories.
    #[serde(default)]
    add_uid: u32,
    created_at: Timestamp,
    files: u64,
    bytes: u64,
    left_out: String,
}

enum Source {
    Host,
    Dir(PathBuf),
    Tar(PathBuf),
}

impl Source {
    fn parse(text: &str) -> Result<Self> {
        let invalid = |why: &str| {
            Err(PoolError::Invalid {
                what: format!("the image source {:?}", one_line(text)),
                why: why.to_owned(),
            })
        };
        if text == "host" {
            return Ok(Self::Host);
        }
        let (kind, path) = match text.split_once(':') {
            Some((kind @ ("dir" | "tar"), path)) => (kind, PathBuf::from(path)),
            _ => return invalid("it must be host, dir:/path or tar:/path"),
        };
        if !path.is_absolute() || path.as_os_str().as_encoded_bytes().contains(&0) {
            return invalid("the path must be absolute");
        }
        Ok(if kind == "dir" { Self::Dir(path) } else { Self::Tar(path) })
    }

    fn default_name(&self) -> String {
        match self {
            Self::Host => "host".to_owned(),
            Self::Dir(path) | Self::Tar(path) => {
                let stem = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let stem = stem.split(".tar").next().unwrap_or_default();
                let name: String = stem
                    .chars()
                    .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' })
                    .take(MAX_NAME)
                    .collect();
                let name = name.trim_matches(['-', '.']);
                if name.is_empty() || name == "host" { "image".to_owned() } else { name.to_owned() }
            }
        }
    }
}

fn check_name(name: &str, source: &Source) -> Result<()> {
    let invalid = |why: &str| {
        Err(PoolError::Invalid { what: format!("the image name {:?}", one_line(name)), why: why.to_owned() })
    };
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(allowed) || name.starts_with(['-', '.'])
    {
        return invalid("at most 64 letters, digits, '-', '_' and '.', not beginning with '-' or '.'");
    }
    if name.starts_with(ImageId::PREFIX) || (name == "host" && !matches!(source, Source::Host)) {
        return invalid("that name has a meaning of its own");
    }
    Ok(())
}

impl Pool {
    fn open_import_lock(&self) -> Result<File> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.images().join("import.lock"))
            .doing(|| "lock the images".to_owned())
    }

    fn host_packages(&self) -> Result<String> {
        let mut cache = self.inner.host_key.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.inner.host.packages(&mut cache)
    }

    fn image_dir(&self, id: ImageId) -> PathBuf {
        self.images().join(id.to_string())
    }

    /// The subvolume of an image that exists.
    pub(crate) fn image_root(&self, id: ImageId) -> Result<PathBuf> {
        let root = self.image_dir(id).join("root");
        if subvolume::exists(&root) {
            Ok(root)
        } else {
            Err(PoolError::ImageNotFound { image: id.to_string() })
        }
    }

    /// Every complete image, oldest first. An image with an unreadable `meta.json` is skipped and logged.
    fn image_metas(&self) -> Result<Vec<Meta>> {
        let mut metas = Vec::new();
        for path in entries(&self.images())? {
            let is_image =
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(ImageId::PREFIX));
            if !is_image {
                continue;
            }
            match read_json::<Meta>(&path.join("meta.json")) {
                Ok(Some(meta)) => metas.push(meta),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(error = %bay_types::error::chain(&error), "an image is left out");
                }
            }
        }
        metas.sort_by_key(|meta| meta.id);
        Ok(metas)
    }

    fn image_view(&self, meta: Meta) -> Result<ImageView> {
        let corners = entries(&self.base().join("corners"))?;
        let root = subvolume::info(&self.image_root(meta.id)?)?;
        let bays = self.bays_snapshotting(&corners, "root", &[root.uuid])?;
        Ok(ImageView {
            id: meta.id,
            name: meta.name,
            source: meta.source,
            key: meta.key,
            created_at: meta.created_at,
            files: meta.files,
            bytes: meta.bytes,
            add: meta.add.clone(),
            left_out: meta.left_out,
            bays,
        })
    }

    /// The newest matching image with this name, id or source. For `host`, an image matches only if it has the host's
    /// present packages. For `tar:…`, an image does not match if the archive changed; an unreadable archive counts
    /// as unchanged. A directory is not checked for changes.
    pub fn image_find(&self, name: &str) -> Result<Option<ImageView>> {
        let packages = if name == "host" { Some(self.host_packages()?) } else { None };
        let found = self.image_metas()?.into_iter().rev().find(|meta| {
            let named = meta.name == name || meta.source == name || meta.id.to_string() == name;
            named
                && (packages.is_none() || (meta.name == "host" && meta.packages == packages))
                && (meta.source != name || !self.is_outdated(meta))
        });
        found.map(|meta| self.image_view(meta)).transpose()
    }

    pub fn image_list(&self) -> Result<Vec<ImageView>> {
        self.image_metas()?.into_iter().map(|meta| self.image_view(meta)).collect()
    }

    /// Removes an image that no bay of any daemon uses.
    pub fn image_remove(&self, id: ImageId) -> Result<()> {
        self.check_writable()?;
        let Some(meta) = read_json::<Meta>(&self.image_dir(id).join("meta.json"))? else {
            return Err(PoolError::ImageNotFound { image: id.to_string() });
        };
        let view = self.image_view(meta)?;
        if view.bays > 0 {
            return Err(PoolError::ImageInUse { image: view.name, bays: view.bays });
        }
        let aside = self.images().join(format!("trash-{id}"));
        std::fs::rename(self.image_dir(id), &aside).doing(|| format!("remove image {id}"))?;
        remove_all(&aside)
    }

    /// Removes unfinished imports (if no import runs) and unfinished removals.
    pub(crate) fn image_sweep(&self) -> Result<()> {
        let lock = self.open_import_lock()?;
        let idle = retry(|| rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)).is_ok();
        for path in entries(&self.images())? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("trash-") || (idle && name.starts_with("tmp-")) {
                remove_all(&path)?;
            }
        }
        Ok(())
    }
}
