//! Packs the caller's files into a tar.
//!
//! Owners are not copied: in the archive all files belong to root, and the receiving bay chooses the owner. Links stay
//! links. Files that cannot be copied (devices, sockets, files that the caller may not read, sparse files of more than
//! 64 GiB) are skipped, counted and reported.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bay_client::{Body, from_channel};
use bay_types::guest::DELETE_LIST;
use tar::{Builder, EntryType, Header};
use tokio::task::JoinHandle;

use super::pipe::{Pieces, PipeWriter};

/// The name that GNU tar gives to a member that holds the next member's long name.
const LONG_NAME: &[u8] = b"././@LongLink";
/// Longest file with holes that is sent with all of its zeros. A sparse file may be longer than any disk.
pub(crate) const MAX_ZEROS_SENT: u64 = 64 << 30;
/// The permissions that a copied file keeps. Set-id bits of one machine mean nothing on another.
const MODE_MASK: u32 = 0o777;

/// Unit in which the kernel reports the space that a file uses on its disk.
pub(crate) const STAT_BLOCK: u64 = 512;

/// Whether a file of this length and disk usage has too many holes to be sent with its zeros.
pub(crate) fn too_sparse(length: u64, allocated: u64) -> bool {
    length > MAX_ZEROS_SENT && allocated < length
}

/// What an archive contains.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) deleted: u64,
    pub(crate) left_out: u64,
    /// The first skipped file and the reason, for the message.
    pub(crate) example: Option<String>,
}

/// Adds members to an archive while it is sent.
pub(crate) struct Packer {
    builder: Builder<PipeWriter>,
    begun: bool,
    packed: Packed,
}

/// Runs `work` on a separate thread. The body is what `work` packs; the handle returns a summary.
pub(crate) fn pack<W>(work: W) -> (Body, JoinHandle<io::Result<Packed>>)
where
    W: FnOnce(&mut Packer) -> io::Result<()> + Send + 'static,
{
    let (body, handle) = pack_pieces(work);
    (from_channel(body), handle)
}

fn pack_pieces<W>(work: W) -> (Pieces, JoinHandle<io::Result<Packed>>)
where
    W: FnOnce(&mut Packer) -> io::Result<()> + Send + 'static,
{
    let (writer, pieces) = PipeWriter::new();
    let handle = tokio::task::spawn_blocking(move || {
        let mut packer = Packer { builder: Builder::new(writer), begun: false, packed: Packed::default() };
        let result = work(&mut packer).and_then(|()| packer.builder.finish());
        // The builder has written the end of the archive, or the stream will be aborted. All it still holds is the
        // pipe.
        let mut writer = packer.builder.into_inner()?;
        match result.and_then(|()| io::Write::flush(&mut writer)) {
            Ok(()) => Ok(packer.packed),
            Err(error) => {
                writer.fail(&error);
                Err(error)
            }
        }
    });
    (pieces, handle)
}

/// The beginning of an archive with an empty list of deletions. Put before a stream from another source, it prevents
/// that a file in the stream is read as the list.
pub(crate) fn harmless_beginning() -> io::Result<Vec<u8>> {
    let mut header = header(EntryType::Regular, 0o600, 0);
    header.set_path(DELETE_LIST)?;
    header.set_cksum();
    Ok(header.as_bytes().to_vec())
}

impl Packer {
    /// Names files to delete before any other member of this archive is unpacked.
    pub(crate) fn delete(&mut self, paths: &[PathBuf]) -> io::Result<()> {
        let mut list = Vec::new();
        for path in paths {
            list.extend_from_slice(path.as_os_str().as_bytes());
            list.push(0);
        }
        let mut header = header(EntryType::Regular, 0o600, 0);
        header.set_size(list.len() as u64);
        self.begun = true;
        self.builder.append_data(&mut header, DELETE_LIST, &*list)?;
        self.packed.deleted += paths.len() as u64;
        Ok(())
    }

    /// An archive always begins with a list of deletions. Otherwise a file of the caller's with its name would be read
    /// as one.
    fn begin(&mut self) -> io::Result<()> {
        if self.begun { Ok(()) } else { self.delete(&[]) }
    }

    /// Adds one file, one link, or one directory without its content, as `name`.
    pub(crate) fn add(&mut self, source: &Path, name: &Path) -> io::Result<()> {
        self.begin()?;
        let metadata = match source.symlink_metadata() {
            Ok(metadata) => metadata,
            // Deleted since it was listed, so it is no longer part of the tree.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return self.leave_out(source, &error.to_string()),
        };
        let kind = metadata.file_type();
        if kind.is_file() {
            self.add_file(source, name)
        } else if kind.is_symlink() {
            let target = fs::read_link(source)?;
            self.packed.files += 1;
            self.add_link(name, target.as_os_str().as_bytes(), metadata.mtime())
        } else if kind.is_dir() {
            let mut header = header(EntryType::Directory, metadata.mode(), metadata.mtime());
            self.builder.append_data(&mut header, name, io::empty())
        } else {
            self.leave_out(source, "it is neither a file, a link nor a directory")
        }
    }

    /// Adds an empty directory.
    pub(crate) fn add_directory(&mut self, name: &Path) -> io::Result<()> {
        self.begin()?;
        self.builder.append_data(&mut header(EntryType::Directory, 0o755, 0), name, io::empty())
    }

    /// Adds a directory with its content, without following links. If `name` is empty, adds the content only.
    pub(crate) fn add_tree(&mut self, source: &Path, name: &Path) -> io::Result<()> {
        // A list of pending directories instead of recursion: a deep tree costs memory, not stack.
        let mut directories = vec![(source.to_owned(), name.to_owned())];
        while let Some((directory, name)) = directories.pop() {
            if !name.as_os_str().is_empty() {
                self.add(&directory, &name)?;
            }
            let entries = match fs::read_dir(&directory).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
                Ok(entries) => entries,
                Err(error) => {
                    self.leave_out(&directory, &error.to_string())?;
                    continue;
                }
            };
            for entry in entries {
                let (path, name) = (entry.path(), name.join(entry.file_name()));
                if entry.file_type()?.is_dir() {
                    directories.push((path, name));
                } else {
                    self.add(&path, &name)?;
                }
            }
        }
        Ok(())
    }

    fn add_file(&mut self, source: &Path, name: &Path) -> io::Result<()> {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let open = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(source);
        let file = match open {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return self.leave_out(source, &error.to_string()),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return self.leave_out(source, "it changed its kind while it was read");
        }
        if too_sparse(metadata.len(), metadata.blocks().saturating_mul(STAT_BLOCK)) {
            return self.leave_out(source, "it is sparse and longer than 64 GiB");
        }
        let mut header = header(EntryType::Regular, metadata.mode(), metadata.mtime());
        header.set_size(metadata.len());
        let content = Exactly { file, left: metadata.len() };
        self.builder.append_data(&mut header, name, content)?;
        self.packed.files += 1;
        self.packed.bytes += metadata.len();
        Ok(())
    }

    /// Writes the target byte for byte. The library's own function would normalise it, and git would see a change.
    fn add_link(&mut self, name: &Path, target: &[u8], mtime: i64) -> io::Result<()> {
        let mut link = header(EntryType::Symlink, 0o777, mtime);
        if link.set_link_name_literal(target).is_err() {
            let mut long = header(EntryType::GNULongLink, 0o644, 0);
            if let Some(gnu) = long.as_gnu_mut() {
                gnu.name[..LONG_NAME.len()].copy_from_slice(LONG_NAME);
            }
            long.set_size(target.len() as u64 + 1);
            long.set_cksum();
            self.builder.append(&long, target.chain(&b"\0"[..]))?;
        }
        self.builder.append_data(&mut link, name, io::empty())
    }

    fn leave_out(&mut self, source: &Path, why: &str) -> io::Result<()> {
        self.packed.left_out += 1;
        self.packed.example.get_or_insert_with(|| format!("{}: {why}", source.display()));
        Ok(())
    }
}

fn header(kind: EntryType, mode: u32, mtime: i64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode & MODE_MASK);
    header.set_mtime(u64::try_from(mtime).unwrap_or(0));
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header
}

/// Yields exactly the announced number of bytes, even if the file grows or shrinks meanwhile: a tar member's length is
/// fixed.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if room == 0 {
            return Ok(0);
        }
        let mut read = self.file.read(&mut buffer[..room])?;
        if read == 0 {
            buffer[..room].fill(0);
            read = room;
        }
        self.left -= read as u64;
        Ok(read)
    }
}

impl Packed {
    /// A warning for a person, if files were skipped.
    pub(crate) fn warning(&self) -> Option<String> {
        let example = self.example.as_deref()?;
        Some(format!(
            "left out {}, such as {}",
            crate::output::count(self.left_out, "file"),
            bay_text::escape::one_line(example)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Packs, and returns the unpacked members: name to kind and content.
    fn round(
        work: impl FnOnce(&mut Packer) -> io::Result<()> + Send + 'static,
    ) -> (BTreeMap<String, (EntryType, Vec<u8>)>, Packed) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut pieces, handle) = pack_pieces(work);
            let mut bytes = Vec::new();
            while let Some(piece) = pieces.recv().await {
                bytes.extend_from_slice(&piece.unwrap());
            }
            let packed = handle.await.unwrap().unwrap();
            let mut members = BTreeMap::new();
            for entry in tar::Archive::new(&*bytes).entries().unwrap() {
                let mut entry = entry.unwrap();
                let mut content = Vec::new();
                entry.read_to_end(&mut content).unwrap();
                assert_eq!(entry.header().uid().unwrap(), 0);
                let name = entry.path().unwrap().display().to_string();
                members.insert(name, (entry.header().entry_type(), content));
            }
            (members, packed)
        })
    }

    #[test]
    fn a_tree_is_packed_with_links_unfollowed_and_special_files_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let deep = root.join("d").join("x".repeat(200));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), b"deep").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let (members, packed) = round(move |p| p.add_tree(&root, Path::new("top")));
        assert_eq!(members["top/link"].0, EntryType::Symlink);
        assert_eq!(members[&format!("top/d/{}/file", "x".repeat(200))].1, b"deep");
        assert_eq!((packed.files, packed.left_out), (2, 1));
        assert!(packed.warning().unwrap().contains("socket"));
    }

    #[test]
    fn link_targets_arrive_byte_by_byte() {
        let dir = tempfile::tempdir().unwrap();
        let long = format!("./{}//x", "y".repeat(300));
        for (name, target) in [("a", "./f"), ("b", "x//../y"), ("c", "/"), ("d", long.as_str())] {
            std::os::unix::fs::symlink(target, dir.path().join(name)).unwrap();
        }
        let root = dir.path().to_owned();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let bytes = runtime.block_on(async {
            let (mut pieces, _) = pack_pieces(move |p| p.add_tree(&root, Path::new("")));
            pieces.recv().await.unwrap().unwrap()
        });
        let mut targets = BTreeMap::new();
        for entry in tar::Archive::new(&*bytes).entries().unwrap() {
            let entry = entry.unwrap();
            if let Some(target) = entry.link_name_bytes() {
                targets.insert(
                    entry.path().unwrap().display().to_string(),
                    String::from_utf8(target.to_vec()).unwrap(),
                );
            }
        }
        let targets: Vec<&str> = targets.values().map(String::as_str).collect();
        assert_eq!(targets, ["./f", "x//../y", "/", long.as_str()]);
    }

    #[test]
    fn deletions_come_first_and_are_ended_by_nul() {
        let (members, packed) = round(|p| p.delete(&["a".into(), "b c".into()]));
        assert_eq!(members[DELETE_LIST].1, b"a\0b c\0");
        assert_eq!(packed.deleted, 2);
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_read_does_not_break_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, b"abc").unwrap();
        let mut content = Vec::new();
        Exactly { file: File::open(&path).unwrap(), left: 5 }.read_to_end(&mut content).unwrap();
        assert_eq!(content, b"abc\0\0");
        content.clear();
        Exactly { file: File::open(&path).unwrap(), left: 2 }.read_to_end(&mut content).unwrap();
        assert_eq!(content, b"ab");
    }

    #[test]
    fn a_file_with_the_name_of_the_list_is_not_read_as_the_list() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(DELETE_LIST), b"precious\0").unwrap();
        let root = dir.path().to_owned();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let bytes = runtime.block_on(async {
            let (mut pieces, _) = pack_pieces(move |p| p.add_tree(&root, Path::new("")));
            pieces.recv().await.unwrap().unwrap()
        });
        let sizes = |bytes: &[u8]| -> Vec<u64> {
            tar::Archive::new(bytes).entries().unwrap().map(|e| e.unwrap().size()).collect()
        };
        assert_eq!(sizes(&bytes), [0, 9]);
        let hostile = [harmless_beginning().unwrap(), bytes[512..].to_vec()].concat();
        assert_eq!(sizes(&hostile), [0, 9]);
    }

    #[test]
    fn a_file_that_was_deleted_meanwhile_is_omitted() {
        let (members, packed) = round(|p| p.add(Path::new("/no/such/file"), Path::new("x")));
        assert_eq!(members.keys().collect::<Vec<_>>(), [DELETE_LIST]);
        assert_eq!(packed, Packed::default());
    }
}
