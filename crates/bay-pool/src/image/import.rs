//! Importing images: planning, filling, and recording.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bay_git::{Confinement, SYSTEM_PATH};
use bay_sys::btrfs;
use bay_text::hex;
use bay_types::ImageId;
use bay_types::image::{ImageImport, ImageView};
use bay_types::progress::{Progress, Report};
use jiff::Timestamp;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::added_tools;
use super::archive::Unpack;
use super::host::{self, host_key};
use super::tree::{self, Choice, Rights, Tally, Tree, Walk};
use super::{Meta, Source, check_name, skeleton};
use crate::error::{Doing, PoolError, Result, one_line};
use crate::files::{make_private_dir, retry, sync_dir, write_json};
use crate::pool::{CHECK_SPACE_EVERY, Pool, leave_free};
use crate::subvolume::{self, open_dir, remove_all};

const ROOT_MODE: u32 = 0o755;
/// An import needs this much more space than its files, for the filesystem's metadata (as a divisor).
const OVERHEAD_DIVISOR: u64 = 8;

/// The plan of an import.
struct Import {
    source: Source,
    source_text: String,
    name: String,
    key: String,
    packages: Option<String>,
    add: Vec<PathBuf>,
    add_rights: Rights,
    /// The added directories are repeated from the last import. A missing one is not an error.
    refresh: bool,
    rights: Rights,
}

impl Pool {
    /// Imports an image, or returns an existing one with the same key (unless `force`). Paths are read with the
    /// rights of `caller_uid`. A refresh of `host` adds the same directories as the last import.
    pub fn image_import(
        &self,
        import: &ImageImport,
        caller_uid: u32,
        report: Report<'_>,
    ) -> Result<ImageView> {
        self.check_writable()?;
        let source = Source::parse(&import.source)?;
        let name = import.name.clone().unwrap_or_else(|| source.default_name());
        check_name(&name, &source)?;
        let _lock = self.import_lock(report)?;
        let plan = self.plan(import, source, name, caller_uid, report)?;
        if !import.force
            && let Some(meta) = self.image_metas()?.into_iter().rev().find(|meta| meta.key == plan.key)
        {
            return self.image_view(meta);
        }
        let id = ImageId::generate();
        let tmp = self.images().join(format!("tmp-{id}"));
        make_private_dir(&tmp)?;
        let made = self.fill(&plan, id, &tmp, report);
        if made.is_err()
            && let Err(error) = remove_all(&tmp)
        {
            tracing::warn!(error = %bay_types::error::chain(&error), "a failed import stays until the next sweep");
        }
        self.image_view(made?)
    }

    /// Waits for the lock: one import at a time on a pool.
    fn import_lock(&self, report: Report<'_>) -> Result<File> {
        let file = self.open_import_lock()?;
        match retry(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Err(Errno::WOULDBLOCK) => {
                report(Progress { stage: "waiting for another import".to_owned(), ..Progress::default() });
                retry(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))
                    .doing(|| "lock the images".to_owned())?;
            }
            other => other.doing(|| "lock the images".to_owned())?,
        }
        Ok(file)
    }

    fn plan(
        &self,
        import: &ImageImport,
        source: Source,
        name: String,
        caller_uid: u32,
        report: Report<'_>,
    ) -> Result<Import> {
        let rights = self.rights_of(caller_uid);
        if !matches!(source, Source::Host) && !import.add.is_empty() {
            return Err(PoolError::Invalid {
                what: "--add".to_owned(),
                why: "directories can be added to the image host only".to_owned(),
            });
        }
        let mut plan = Import {
            source,
            source_text: import.source.clone(),
            name,
            key: String::new(),
            packages: None,
            add: import.add.clone(),
            add_rights: rights,
            refresh: false,
            rights,
        };
        match &plan.source {
            Source::Host => {
                if plan.add.is_empty()
                    && !import.force
                    && let Some(last) = self
                        .image_metas()?
                        .into_iter()
                        .rev()
                        .find(|meta| meta.source == "host" && meta.name == plan.name)
                {
                    plan.add = last.add;
                    plan.add_rights = self.rights_of(last.add_uid);
                    plan.refresh = true;
                }
                for path in &plan.add {
                    host::check_added(path)?;
                    if !plan.refresh {
                        self.check_reachable(path, plan.add_rights)?;
                    }
                }
                plan.add.sort();
                plan.add.dedup();
                let packages = self.host_packages()?;
                plan.key = host_key(&packages, &plan.add);
                plan.packages = Some(packages);
                // Always `nobody`, whoever imports: besides what a caller adds, a bay must not hold more of the host
                // than every user can read.
                plan.rights = Rights { uid: bay_sys::identity::NOBODY, gid: bay_sys::identity::NOBODY };
            }
            Source::Dir(path) => {
                let found = self.measure_dir(path, plan.rights, report)?;
                plan.key = hash_of(&["dir-1", &plan.source_text, &format!("{:032x}", found.fingerprint())]);
            }
            Source::Tar(path) => {
                plan.key = tar_key(path, &plan.source_text, plan.rights)?;
            }
        }
        plan.key = named_key(plan.key, &plan.name, &plan.source);
        Ok(plan)
    }

    /// Whether the archive of an image changed since, checked with the rights of the import. An unreadable archive
    /// counts as unchanged. A directory is not checked, because that would mean reading every file in it.
    pub(super) fn is_outdated(&self, meta: &Meta) -> bool {
        let Ok(source) = Source::parse(&meta.source) else { return false };
        let Source::Tar(path) = &source else { return false };
        tar_key(path, &meta.source, self.rights_of(meta.add_uid))
            .is_ok_and(|key| named_key(key, &meta.name, &source) != meta.key)
    }

    /// Fails before gigabytes are copied if the caller may not read a directory.
    fn check_reachable(&self, path: &Path, rights: Rights) -> Result<()> {
        let refuse = |why: String| PoolError::ImageImport { source_name: path.display().to_string(), why };
        let opened = tree::open_as(&self.host_path(path), rights)?
            .map_err(|error| refuse(format!("it cannot be read by user {} ({error})", rights.uid)))?;
        let found = opened.metadata().doing(|| format!("look at {}", path.display()))?;
        if found.is_dir() { Ok(()) } else { Err(refuse("it is not a directory".to_owned())) }
    }

    fn host_path(&self, path: &Path) -> PathBuf {
        self.inner.host.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn rights_of(&self, uid: u32) -> Rights {
        let gid = if uid == 0 { 0 } else { primary_group(&self.inner.host.root, uid) };
        Rights { uid, gid }
    }

    /// Directories of the pool, which an import never enters.
    fn own_places(&self) -> Vec<(u64, u64)> {
        [Some(self.base()), self.base().parent()]
            .into_iter()
            .flatten()
            .filter(|path| path.parent().is_some())
            .filter_map(|path| std::fs::metadata(path).ok())
            .map(|found| (found.dev(), found.ino()))
            .collect()
    }

    fn measure_dir(&self, path: &Path, rights: Rights, report: Report<'_>) -> Result<Tally> {
        let trees = [Tree { source: path.to_owned(), into: PathBuf::new(), choose: &|_| Choice::Take }];
        tree::measure(&Walk { rights, trees: &trees, never: &self.own_places() }, report)
    }

    fn fill(&self, plan: &Import, id: ImageId, tmp: &Path, report: Report<'_>) -> Result<Meta> {
        let root = tmp.join("root");
        subvolume::create(&root, ROOT_MODE, None)?;
        let target: OwnedFd = open_dir(&root).doing(|| "open the new image".to_owned())?.into();
        let tally = Tally::default();
        let mut notes = Vec::new();
        match &plan.source {
            Source::Host => self.fill_host(plan, &target, &tally, &mut notes, report)?,
            Source::Dir(path) => {
                let trees = [Tree { source: path.clone(), into: PathBuf::new(), choose: &|_| Choice::Take }];
                let stage = format!("copying {}", path.display());
                self.copy(&trees, plan.rights, &target, &tally, &stage, report)?;
            }
            Source::Tar(path) => self.fill_tar(path, plan, &target, &tally, report)?,
        }
        skeleton::lay_out(&target).doing(|| "lay out the image".to_owned())?;
        if matches!(plan.source, Source::Host) {
            skeleton::lay_out_host(&target)
                .and_then(|()| skeleton::accounts(&target))
                .and_then(|()| added_tools::put_on_path(&target, &plan.add))
                .doing(|| "lay out the image".to_owned())?;
        }
        if !skeleton::has_shell(&target) {
            let source_name = plan.source_text.clone();
            return Err(if skeleton::is_layers(&target) {
                PoolError::ImageInLayers { source_name }
            } else {
                PoolError::ImageWithoutShell { source_name }
            });
        }
        let meta = Meta {
            id,
            name: plan.name.clone(),
            source: plan.source_text.clone(),
            key: plan.key.clone(),
            packages: plan.packages.clone(),
            add: plan.add.clone(),
            add_uid: plan.add_rights.uid,
            created_at: Timestamp::now(),
            files: Tally::get(&tally.files),
            bytes: Tally::get(&tally.bytes),
            left_out: left_out(&tally, notes),
        };
        drop(target);
        report(Progress { stage: "writing the image to disk".to_owned(), ..Progress::default() });
        subvolume::seal(&root)?;
        write_json(&tmp.join("meta.json"), &meta)?;
        btrfs::sync(self.top()?).doing(|| "sync the pool".to_owned())?;
        std::fs::rename(tmp, self.image_dir(id)).doing(|| "name the new image".to_owned())?;
        sync_dir(&self.images())?;
        Ok(meta)
    }

    fn fill_host(
        &self,
        plan: &Import,
        target: &OwnedFd,
        tally: &Tally,
        notes: &mut Vec<String>,
        report: Report<'_>,
    ) -> Result<()> {
        let host = &self.inner.host.root;
        let trees = [Tree { source: host.clone(), into: PathBuf::new(), choose: &host::choose }];
        self.copy(&trees, plan.rights, target, tally, "importing the host's tools", report)?;
        for path in &plan.add {
            let relative = path.strip_prefix("/").unwrap_or(path);
            let source = self.host_path(path);
            if plan.refresh && !source.is_dir() {
                notes.push(format!("{} does not exist any more", path.display()));
                continue;
            }
            skeleton::lay_out(target).doing(|| "lay out the image".to_owned())?;
            skeleton::parents_like(target, host, path).map_err(|error| PoolError::ImageImport {
                source_name: path.display().to_string(),
                why: format!(
                    "its place in the image cannot be made ({error}); give the real path, without links"
                ),
            })?;
            let choose = |inside: &Path| {
                if host::holds_credentials(&path.join(inside)) { Choice::Withhold } else { Choice::Take }
            };
            let trees = [Tree { source, into: relative.to_owned(), choose: &choose }];
            let stage = format!("importing {}", path.display());
            self.copy(&trees, plan.add_rights, target, tally, &stage, report)?;
        }
        Ok(())
    }

    /// Measures the trees, ensures free space, and copies.
    fn copy(
        &self,
        trees: &[Tree<'_>],
        rights: Rights,
        target: &OwnedFd,
        tally: &Tally,
        stage: &str,
        report: Report<'_>,
    ) -> Result<()> {
        let never = self.own_places();
        let walk = Walk { rights, trees, never: &never };
        let total = Tally::get(&tree::measure(&walk, report)?.bytes);
        self.make_room(total + total / OVERHEAD_DIVISOR + leave_free(self.usage()?.total_bytes))?;
        let before = Tally::get(&tally.bytes);
        let mut news = |tally: &Tally| {
            report(Progress {
                stage: stage.to_owned(),
                done: (Tally::get(&tally.bytes) - before).min(total),
                total: Some(total),
                unit: "bytes".to_owned(),
            });
        };
        tree::copy(&walk, target, tally, &mut news)
    }

    fn fill_tar(
        &self,
        path: &Path,
        plan: &Import,
        target: &OwnedFd,
        tally: &Tally,
        report: Report<'_>,
    ) -> Result<()> {
        let file = open_archive(path, plan.rights)?;
        let total = file.metadata().doing(|| format!("look at {}", path.display()))?.len();
        self.make_room(total)?;
        let packing = packing(&file).doing(|| format!("read {}", path.display()))?;
        // The decompressor reads from the same open file, so its position shows the progress.
        let position = file.try_clone().doing(|| format!("read {}", path.display()))?;
        let mut since = 0_u64;
        let mut pace = |bytes: u64| {
            since += bytes;
            if since < CHECK_SPACE_EVERY {
                return Ok(());
            }
            since = 0;
            report(Progress {
                stage: format!("unpacking {}", path.display()),
                done: (&position).stream_position().unwrap_or(0).min(total),
                total: Some(total),
                unit: "bytes".to_owned(),
            });
            // An archive may unpack to any size; it must not use up the space that bays need.
            if self.room_left() { Ok(()) } else { Err(Errno::NOSPC.into()) }
        };
        let unpack = Unpack { target, tally, pace: &mut pace };
        let done = match packing {
            None => unpack.run(io::BufReader::with_capacity(1 << 18, file)),
            Some(packing) => unpack_with(&packing, file, unpack)?,
        };
        match done {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                Err(PoolError::ImageImport { source_name: path.display().to_string(), why: one_line(error) })
            }
            other => other.doing(|| format!("unpack {}", path.display())),
        }
    }
}

fn tar_key(path: &Path, source_text: &str, rights: Rights) -> Result<String> {
    let file = open_archive(path, rights)?;
    let found = file.metadata().doing(|| format!("look at {}", path.display()))?;
    let stamp = format!("{} {}.{} {}", found.len(), found.mtime(), found.mtime_nsec(), found.ino());
    Ok(hash_of(&["tar-1", source_text, &stamp]))
}

/// The same source with another name is another image.
fn named_key(key: String, name: &str, source: &Source) -> String {
    if name == source.default_name() { key } else { hash_of(&[&key, name]) }
}

fn hash_of(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex::encode(hash.finalize())
}

/// The user's primary group; `nobody` if the host does not know the user.
fn primary_group(host: &Path, uid: u32) -> u32 {
    let accounts = std::fs::read_to_string(host.join("etc/passwd")).unwrap_or_default();
    accounts
        .lines()
        .find_map(|line| {
            let mut fields = line.split(':').skip(2);
            let found: u32 = fields.next()?.parse().ok()?;
            let group = fields.next()?.parse().ok()?;
            (found == uid).then_some(group)
        })
        .unwrap_or(bay_sys::identity::NOBODY)
}

fn open_archive(path: &Path, rights: Rights) -> Result<File> {
    let refuse = |why: String| PoolError::ImageImport { source_name: path.display().to_string(), why };
    let file = tree::open_as(path, rights)?
        .map_err(|error| refuse(format!("it cannot be read by user {} ({error})", rights.uid)))?;
    let found = file.metadata().doing(|| format!("look at {}", path.display()))?;
    if found.is_file() { Ok(file) } else { Err(refuse("it is not a file".to_owned())) }
}

/// A decompressor.
struct Packing {
    program: &'static str,
    package: &'static str,
}

/// The compression of a file, by its first bytes.
fn packing(file: &File) -> io::Result<Option<Packing>> {
    const KNOWN: &[(&[u8], Packing)] = &[
        (&[0x1f, 0x8b], Packing { program: "gzip", package: "gzip" }),
        (&[0x28, 0xb5, 0x2f, 0xfd], Packing { program: "zstd", package: "zstd" }),
        (&[0xfd, b'7', b'z', b'X', b'Z', 0], Packing { program: "xz", package: "xz-utils" }),
        (b"BZh", Packing { program: "bzip2", package: "bzip2" }),
    ];
    let mut start = [0_u8; 8];
    let count = retry(|| rustix::io::pread(file, &mut start, 0))?;
    Ok(KNOWN
        .iter()
        .find(|(magic, _)| start[..count].starts_with(magic))
        .map(|(_, packing)| Packing { ..*packing }))
}

/// Decompresses the file with an unprivileged program, and unpacks its output.
fn unpack_with(packing: &Packing, file: File, unpack: Unpack<'_>) -> Result<io::Result<()>> {
    let mut command = Command::new(packing.program);
    command
        .arg("-dc")
        .stdin(file)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .env_clear()
        .env("PATH", SYSTEM_PATH)
        .env("LC_ALL", "C")
        .current_dir("/")
        .uid(bay_sys::identity::NOBODY)
        .gid(bay_sys::identity::NOBODY);
    let ran = Confinement::default().run(&mut command, |child| match child.stdout.take() {
        Some(stdout) => unpack.run(io::BufReader::with_capacity(1 << 18, stdout)),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    });
    match ran {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(PoolError::ProgramMissing {
            program: packing.program,
            package: packing.package,
            purpose: "unpack this archive",
        }),
        other => other.doing(|| format!("run {}", packing.program)),
    }
}

fn left_out(tally: &Tally, notes: Vec<String>) -> String {
    let counted = [
        (&tally.denied, "not readable with the rights of the import"),
        (&tally.withheld, "that name the host or may hold secrets"),
        (&tally.special, "devices, sockets or pipes"),
        (&tally.elsewhere, "on other filesystems or of the pool"),
        (&tally.unreadable, "that could not be taken as they are"),
    ];
    counted
        .iter()
        .map(|(counter, why)| (Tally::get(counter), why))
        .filter(|(count, _)| *count > 0)
        .map(|(count, why)| format!("{count} {why}"))
        .chain(notes)
        .collect::<Vec<_>>()
        .join("; ")
}
