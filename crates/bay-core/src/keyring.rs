//! The key that encrypts secret data before it is written to the data directory.
//!
//! The key is kept elsewhere, so that a copy of the data directory reveals nothing of what is encrypted: in
//! `/etc/workbay/keys/<daemon id>` unless the operator sets another path. If there is none, the first start makes
//! it. A later daemon whose key is gone logs that and runs. What was encrypted cannot be used until the key is
//! back and the daemon is started again. The daemon makes no new key in its place.
//!
//! Files are in the format of `age`, so that an operator with the key needs no Workbay to read them.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use age::secrecy::ExposeSecret;
use age::x25519::{Identity, Recipient};
use bay_store::Store;
use bay_types::installation::KEYS;
use bay_types::{CoreError, ErrorCode};
use zeroize::Zeroizing;

/// The name in the store of the public half of the key in use.
const RECIPIENT: &str = "key_recipient";
/// Longest key file that is read.
const MAX_KEY_FILE: u64 = 4096;
/// Longest encrypted file that is read.
const MAX_SEALED: u64 = 1 << 20;

pub(crate) struct Keyring {
    path: PathBuf,
    /// The key, or why there is none.
    identity: Result<Identity, String>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("path", &self.path).field("usable", &self.identity.is_ok()).finish()
    }
}

impl Keyring {
    /// Reads the key, or makes it if there never was one.
    pub(crate) async fn open(given: Option<&Path>, store: &Store) -> Result<Self, bay_store::StoreError> {
        let path = key_path(given, store.daemon_id());
        let known = store.setting(RECIPIENT).await?;
        let identity = match (read(&path), known) {
            (Ok(Some(found)), None) => {
                store.setting_set(RECIPIENT, &found.to_public().to_string()).await?;
                Ok(found)
            }
            (Ok(Some(found)), Some(known)) if found.to_public().to_string() == known => Ok(found),
            (Ok(Some(_)), Some(known)) => {
                Err(format!("{} is not the key that was used so far (that of {known})", path.display()))
            }
            (Ok(None), Some(known)) => {
                Err(format!("{} is gone, and only the key of {known} will do", path.display()))
            }
            (Ok(None), None) => match make(&path) {
                Ok(made) => {
                    store.setting_set(RECIPIENT, &made.to_public().to_string()).await?;
                    Ok(made)
                }
                Err(error) => Err(format!("{} could not be made: {error}", path.display())),
            },
            (Err(error), _) => Err(format!("{} cannot be used: {error}", path.display())),
        };
        if let Err(why) = &identity {
            tracing::error!(%why, "encrypted data cannot be used; bays run without egress");
        }
        Ok(Self { path, identity })
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.identity.is_ok()
    }

    /// Whether the key is there, so that data can be encrypted and read.
    pub(crate) fn check(&self) -> Result<(), CoreError> {
        self.identity().map(drop)
    }

    fn identity(&self) -> Result<&Identity, CoreError> {
        self.identity.as_ref().map_err(|why| {
            CoreError::new(
                ErrorCode::KeyUnusable,
                why.clone(),
                format!("put the key back at {} and start the daemon again", self.path.display()),
            )
        })
    }

    /// Writes data that only this daemon can read, completely or not at all.
    pub(crate) fn write(&self, path: &Path, plain: &[u8]) -> Result<(), CoreError> {
        let recipient: Recipient = self.identity()?.to_public();
        let failed = |error: &dyn fmt::Display| {
            let message = format!("{} could not be written: {error}", path.display());
            CoreError::new(ErrorCode::KeyUnusable, message, "check the disk of the data directory")
        };
        let sealed = age::encrypt(&recipient, plain).map_err(|e| failed(&e))?;
        let written = || -> io::Result<()> {
            let new = path.with_extension("new");
            let _ = fs::remove_file(&new);
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(&sealed)?;
            file.sync_all()?;
            fs::rename(&new, path)
        };
        written().map_err(|e| failed(&e))
    }

    /// Reads what [`Keyring::write`] wrote; `None` if there is no such file.
    pub(crate) fn read(&self, path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, CoreError> {
        let failed = |error: &dyn fmt::Display| {
            let message = format!("{} cannot be read: {error}", path.display());
            CoreError::new(ErrorCode::KeyUnusable, message, "restore the file from a backup, or remove it")
        };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
        let mut sealed = Vec::new();
        file.take(MAX_SEALED).read_to_end(&mut sealed).map_err(|e| failed(&e))?;
        let plain = age::decrypt(self.identity()?, &sealed).map_err(|e| failed(&e))?;
        Ok(Some(Zeroizing::new(plain)))
    }
}

/// The path of a daemon's key.
#[must_use]
pub fn key_path(given: Option<&Path>, daemon: &str) -> PathBuf {
    given.map_or_else(|| Path::new(KEYS).join(daemon), Path::to_owned)
}

/// Whether the next opening makes the key: there is none, and never was one.
///
/// # Errors
/// If the database cannot be read.
pub async fn makes_key(path: &Path, store: &Store) -> Result<bool, bay_store::StoreError> {
    Ok(!path.exists() && store.setting(RECIPIENT).await?.is_none())
}

/// Removes the key that a first start made, because the start failed: nothing is encrypted with it yet. The next start
/// makes another.
///
/// # Errors
/// If the database cannot be written.
pub async fn forget_new_key(path: &Path, store: &Store) -> Result<(), bay_store::StoreError> {
    // In this order: a key that is there and on no record is adopted, and a record without its key is an error.
    store.setting_remove(RECIPIENT).await?;
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "the key of a start that failed stays");
    }
    Ok(())
}

/// Describes the key at the given path, or all keys in [`KEYS`], without making or changing one.
///
/// # Errors
/// Why one of them cannot be used, or why the directory cannot be read.
pub fn look(given: Option<&Path>) -> Result<String, String> {
    let usable = |path: &Path| match read(path) {
        Ok(found) => Ok(found.is_some()),
        Err(error) => Err(format!("{} cannot be used: {error}", path.display())),
    };
    if let Some(path) = given {
        return match usable(path)? {
            true => Ok(format!("{} can be used", path.display())),
            false => Ok(format!("{} is not there yet; the first daemon makes it", path.display())),
        };
    }
    let entries = match fs::read_dir(KEYS) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(format!("none in {KEYS} yet; the first daemon makes one"));
        }
        Err(error) => return Err(format!("{KEYS} cannot be read: {error}")),
    };
    let mut count = 0;
    for entry in entries.flatten() {
        count += u32::from(usable(&entry.path())?);
    }
    Ok(format!("{count} in {KEYS} can be used"))
}

fn read(path: &Path) -> io::Result<Option<Identity>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let about = file.metadata()?;
    if about.uid() != rustix::process::geteuid().as_raw() || about.permissions().mode() & 0o077 != 0 {
        return Err(io::Error::other("others may read it; make it the daemon's own, with mode 600"));
    }
    let mut text = Zeroizing::new(String::new());
    file.take(MAX_KEY_FILE).read_to_string(&mut text)?;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let key = line.ok_or_else(|| io::Error::other("it is empty"))?;
    key.parse().map(Some).map_err(|why: &str| io::Error::other(why))
}

fn make(path: &Path) -> io::Result<Identity> {
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    let identity = Identity::generate();
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "# the key of a Workbay daemon: without it nothing that it encrypted can be read")?;
    writeln!(file, "# public key: {}", identity.to_public())?;
    writeln!(file, "{}", identity.to_string().expose_secret())?;
    file.sync_all()?;
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn open(dir: &Path) -> (Keyring, Store) {
        let store = Store::open(&dir.join("bay.db")).await.unwrap();
        (Keyring::open(Some(&dir.join("keys/own")), &store).await.unwrap(), store)
    }

    #[tokio::test]
    async fn what_was_encrypted_is_read_by_the_next_daemon_and_is_not_there_in_plain() {
        let temp = tempfile::tempdir().unwrap();
        let (keys, store) = open(temp.path()).await;
        let file = temp.path().join("thing.age");
        assert!(keys.read(&file).unwrap().is_none());
        keys.write(&file, b"an unusual word").unwrap();
        let raw = fs::read(&file).unwrap();
        assert!(!raw.windows(7).any(|window| window == b"unusual"));
        store.close().await;
        let (keys, _store) = open(temp.path()).await;
        assert_eq!(&**keys.read(&file).unwrap().unwrap(), b"an unusual word");
    }

    #[tokio::test]
    async fn a_forgotten_key_is_made_again_by_the_next_start() {
        let temp = tempfile::tempdir().unwrap();
        let key = temp.path().join("keys/own");
        let store = Store::open(&temp.path().join("bay.db")).await.unwrap();
        assert!(makes_key(&key, &store).await.unwrap());
        store.close().await;
        let (keys, store) = open(temp.path()).await;
        assert!(keys.is_usable());
        assert!(!makes_key(&key, &store).await.unwrap());
        forget_new_key(&key, &store).await.unwrap();
        assert!(!key.exists());
        forget_new_key(&key, &store).await.unwrap();
        store.close().await;
        let (keys, store) = open(temp.path()).await;
        assert!(keys.is_usable() && key.exists());
        store.close().await;
    }

    #[tokio::test]
    async fn a_missing_or_different_key_is_reported_and_not_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let (keys, store) = open(temp.path()).await;
        keys.write(&temp.path().join("thing.age"), b"x").unwrap();
        store.close().await;
        let key = temp.path().join("keys/own");
        let aside = temp.path().join("aside");
        fs::rename(&key, &aside).unwrap();
        let (keys, store) = open(temp.path()).await;
        let error = keys.read(&temp.path().join("thing.age")).unwrap_err();
        assert_eq!(error.code, ErrorCode::KeyUnusable);
        assert!(error.message.contains("is gone") && !key.exists(), "{}", error.message);
        assert!(
            !makes_key(&key, &store).await.unwrap(),
            "a start that fails must not forget that there was one"
        );
        store.close().await;
        make(&key).unwrap();
        let (keys, store) = open(temp.path()).await;
        assert!(keys.write(&temp.path().join("other"), b"x").unwrap_err().message.contains("not the key"));
        store.close().await;
        fs::rename(&aside, &key).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        let (keys, store) = open(temp.path()).await;
        assert!(keys.read(&temp.path().join("thing.age")).unwrap_err().message.contains("others may read"));
        store.close().await;
    }
}
