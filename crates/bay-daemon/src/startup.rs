//! What a start prepares on the host besides store, pool and socket: the data directory, its lock and record, the
//! executable that bays run, the token, and limits of the process.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bay_text::hex;
use bay_types::installation::{self, DataRecord};
use rustix::fs::FlockOperation;
use sha2::{Digest, Sha256};

use crate::config::ServerConfig;
use crate::serve_error::ServeError;

/// Digits of the hash in the name of an executable's copy.
const NAME_DIGITS: usize = 16;
/// Bytes of randomness in the token.
const TOKEN_BYTES: usize = 32;
/// Open files that a daemon with many bays needs: a few for each bay and two for each attached caller.
const WANTED_FILES: u64 = 65_536;

/// The lock of the data directory, held while this value lives.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Makes the data directory. An existing one must be ours, and is closed to others. Members of `group` may pass through
/// it, to the socket.
pub(crate) fn data_dir(path: &Path, group: Option<u32>) -> Result<(), ServeError> {
    let failed = |source| ServeError::DataDir { path: path.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let dir = File::open(path).map_err(failed)?;
    let found = dir.metadata().map_err(failed)?;
    check_owner(path, found.uid(), rustix::process::geteuid().as_raw())?;
    // Through the descriptor, so that the directory that was checked is the one that is changed.
    if let Some(group) = group {
        std::os::unix::fs::fchown(&dir, None, Some(group)).map_err(failed)?;
    }
    let mode = if group.is_some() { 0o710 } else { 0o700 };
    if found.permissions().mode() & 0o777 != mode {
        dir.set_permissions(fs::Permissions::from_mode(mode)).map_err(failed)?;
    }
    Ok(())
}

/// Writes down where this daemon has its pool, socket and key, before it makes them. `new_key` is a key that this
/// start makes. A key that no daemon made is not on the record.
pub(crate) fn keep_record(
    config: &ServerConfig,
    daemon: &str,
    new_key: Option<&PathBuf>,
) -> Result<(), ServeError> {
    let path = config.data_dir.join(installation::FILE);
    let failed = |source| ServeError::DataDir { path: path.clone(), source };
    let before = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<DataRecord>(&text).ok());
    let made_before =
        before.as_ref().filter(|before| before.daemon == daemon).and_then(|before| before.key.clone());
    let absolute = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).map_err(failed);
    let record = DataRecord {
        daemon: daemon.to_owned(),
        pool: absolute(&config.pool_dir)?,
        socket: absolute(&config.socket)?,
        key: new_key.cloned().or(made_before),
    };
    if before.as_ref() == Some(&record) {
        return Ok(());
    }
    let text = serde_json::to_vec_pretty(&record).map_err(|error| failed(error.into()))?;
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(failed)?;
    file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&new, &path).map_err(failed)
}

fn check_owner(path: &Path, owner: u32, own: u32) -> Result<(), ServeError> {
    if owner == own {
        return Ok(());
    }
    Err(ServeError::Foreign { path: path.to_owned(), owner })
}

/// One daemon per data directory.
pub(crate) fn lock(data_dir: &Path) -> Result<Lock, ServeError> {
    let path = data_dir.join("daemon.lock");
    let failed = |source| ServeError::DataDir { path: path.clone(), source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let _ = (&mut file).take(32).read_to_string(&mut text);
            return Err(ServeError::Busy { path: data_dir.to_owned(), pid: text.trim().parse().ok() });
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    file.set_len(0).map_err(failed)?;
    writeln!(file, "{}", std::process::id()).map_err(failed)?;
    Ok(Lock { _file: file })
}

/// A copy of the executable that nobody can read from a bay and that an upgrade does not replace under running bays. It
/// is both PID 1 of bays and the runtime helper, so that these always match the daemon.
pub(crate) fn guest_copy(data_dir: &Path, executable: &Path) -> Result<PathBuf, ServeError> {
    let failed = |source| ServeError::Executable { path: executable.to_owned(), source };
    let dir = data_dir.join("guest");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(failed)?;
    let mut source = File::open(executable).map_err(failed)?;
    let hash = hash(&mut source).map_err(failed)?;
    let path = dir.join(&hash[..NAME_DIGITS]);
    let wanted = source.metadata().map_err(failed)?.len();
    if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() == wanted) {
        return Ok(path);
    }
    io::Seek::rewind(&mut source).map_err(failed)?;
    let new = dir.join(format!("{}.new", &hash[..NAME_DIGITS]));
    let _ = fs::remove_file(&new);
    {
        let mut copy =
            OpenOptions::new().write(true).create_new(true).mode(0o700).open(&new).map_err(failed)?;
        io::copy(&mut source, &mut copy).map_err(failed)?;
        // Executable by the bay's mapped root, but readable by nobody there.
        copy.set_permissions(fs::Permissions::from_mode(0o711)).map_err(failed)?;
        copy.sync_all().map_err(failed)?;
    }
    fs::rename(&new, &path).map_err(failed)?;
    Ok(path)
}

/// Removes all other copies. A bay that runs such a copy keeps it, because an open file stays.
pub(crate) fn drop_old_copies(current: &Path) {
    let listed = current.parent().map(fs::read_dir);
    for entry in listed.into_iter().flatten().flatten().filter_map(Result::ok) {
        let old = entry.path();
        if old == current {
            continue;
        }
        match fs::remove_file(&old) {
            Ok(()) => tracing::info!(path = %old.display(), "an earlier copy of the executable was removed"),
            Err(error) => {
                tracing::warn!(path = %old.display(), %error, "an earlier copy of the executable stays");
            }
        }
    }
}

fn hash(file: &mut File) -> io::Result<String> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let got = file.read(&mut buffer)?;
        if got == 0 {
            break;
        }
        digest.update(&buffer[..got]);
    }
    Ok(hex::encode(digest.finalize()))
}

/// The token that TCP callers must present. Made on first use, readable by the daemon's user only.
pub(crate) fn token(data_dir: &Path) -> Result<String, ServeError> {
    let path = data_dir.join("token");
    let failed = |source| ServeError::DataDir { path: path.clone(), source };
    match fs::read_to_string(&path) {
        Ok(text) if text.trim().len() >= TOKEN_BYTES => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(failed(e)),
    }
    let mut random = [0_u8; TOKEN_BYTES];
    let mut filled = 0;
    while filled < random.len() {
        filled += rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|e| failed(e.into()))?;
    }
    let token = hex::encode(random);
    let new = data_dir.join("token.new");
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(failed)?;
    writeln!(file, "{token}").map_err(failed)?;
    fs::rename(&new, &path).map_err(failed)?;
    Ok(token)
}

/// Keeps the daemon's memory from core dumps and from other processes of its user, and raises the limit of open
/// files. What fails is logged, and the daemon starts all the same.
pub(crate) fn harden() {
    // Otherwise a core dump, or another process of the same user, could reveal the daemon's memory.
    if let Err(error) = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
    {
        tracing::warn!(%error, "core dumps could not be turned off");
    }
    use rustix::process::{Resource, getrlimit, setrlimit};
    // The limit on core dumps also applies to the daemon's children. It is one byte and not zero, because the kernel
    // ignores zero if it passes cores to a program. The hard limit stays, because bays inherit theirs from it.
    let mut limit = getrlimit(Resource::Core);
    limit.current = Some(limit.maximum.map_or(1, |hard| hard.min(1)));
    if let Err(error) = setrlimit(Resource::Core, limit) {
        tracing::warn!(%error, "the limit on core files could not be set");
    }
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(WANTED_FILES, |hard| hard.min(WANTED_FILES));
    if limit.current.is_some_and(|soft| soft < most) {
        limit.current = Some(most);
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "the limit on open files could not be raised");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_on_the_same_directory_reports_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let first = lock(dir.path()).unwrap();
        match lock(dir.path()) {
            Err(ServeError::Busy { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        drop(first);
        lock(dir.path()).unwrap();
    }

    #[test]
    fn the_guests_copy_is_complete_and_executable_but_not_readable_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let executable = dir.path().join("bay");
        fs::write(&executable, b"content").unwrap();
        let copy = guest_copy(dir.path(), &executable).unwrap();
        assert_eq!(fs::read(&copy).unwrap(), b"content");
        assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o711);
        assert_eq!(guest_copy(dir.path(), &executable).unwrap(), copy);
        fs::write(&executable, b"upgraded").unwrap();
        assert_ne!(guest_copy(dir.path(), &executable).unwrap(), copy);
        assert_eq!(fs::read(&copy).unwrap(), b"content");
    }

    #[test]
    fn only_the_copy_in_use_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let executable = dir.path().join("bay");
        fs::write(&executable, b"first").unwrap();
        let first = guest_copy(dir.path(), &executable).unwrap();
        let running = File::open(&first).unwrap();
        fs::write(&executable, b"second").unwrap();
        let second = guest_copy(dir.path(), &executable).unwrap();
        fs::write(dir.path().join("guest/cut-short.new"), b"x").unwrap();
        drop_old_copies(&second);
        let left: Vec<_> =
            fs::read_dir(dir.path().join("guest")).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(left, [second]);
        assert_eq!(running.metadata().unwrap().len(), 5);
    }

    #[test]
    fn the_data_directory_is_made_private_and_never_belongs_to_another_user() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        data_dir(&open, None).unwrap();
        assert_eq!(mode(&open), 0o700);
        // Members of the group may pass through, but not list it.
        data_dir(&open, Some(rustix::process::getegid().as_raw())).unwrap();
        assert_eq!(mode(&open), 0o710);
        data_dir(&open, None).unwrap();
        assert_eq!(mode(&open), 0o700);
        let new = dir.path().join("new");
        data_dir(&new, None).unwrap();
        assert_eq!(mode(&new), 0o700);
        let error = check_owner(&open, 1000, 0).unwrap_err();
        assert!(matches!(error, ServeError::Foreign { owner: 1000, .. }));
        assert_eq!(error.to_api().code, bay_types::ErrorCode::InvalidInput);
    }

    #[test]
    fn the_token_is_kept_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let first = token(dir.path()).unwrap();
        assert_eq!(first.len(), 2 * TOKEN_BYTES);
        assert_eq!(token(dir.path()).unwrap(), first);
        assert_eq!(fs::metadata(dir.path().join("token")).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
