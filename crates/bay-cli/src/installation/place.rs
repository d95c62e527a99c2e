//! Where an installation is on the host, and the record of what was installed.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bay_client::local;
use bay_types::ApiError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Longest record that is read.
const MAX_RECORD: u64 = 64 * 1024;

/// The host's root directory, or another one in tests.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    root: PathBuf,
}

impl Place {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub(crate) fn is_the_host(&self) -> bool {
        self.root == Path::new("/")
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn executable(&self) -> PathBuf {
        self.root.join("usr/local/bin/bay")
    }

    pub(crate) fn unit(&self) -> PathBuf {
        self.root.join("etc/systemd/system/workbay.service")
    }

    /// Whether systemd manages this host. It makes this directory when it starts.
    pub(crate) fn has_systemd(&self) -> bool {
        self.root.join("run/systemd/system").is_dir()
    }

    pub(crate) fn groups(&self) -> PathBuf {
        self.root.join("etc/group")
    }

    pub(crate) fn settings(&self) -> PathBuf {
        self.root.join("etc/workbay")
    }

    pub(crate) fn keys(&self) -> PathBuf {
        self.settings().join("keys")
    }

    fn record(&self) -> PathBuf {
        self.settings().join("installation.json")
    }

    /// What was installed. `None` if nothing was.
    pub(crate) fn read(&self) -> Result<Option<Record>, ApiError> {
        let path = self.record();
        let doing = format!("reading {}", path.display());
        let mut text = Vec::new();
        match File::open(&path).and_then(|file| file.take(MAX_RECORD).read_to_end(&mut text)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(local(&doing, &error)),
        }
        serde_json::from_slice(&text).map(Some).map_err(|error| local(&doing, &error.into()))
    }

    pub(crate) fn write(&self, record: &Record) -> Result<(), ApiError> {
        let path = self.record();
        let text = serde_json::to_vec_pretty(record).unwrap_or_default();
        let written = || -> io::Result<()> {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(self.settings())?;
            replace(&path, &text, 0o644)
        };
        written().map_err(|error| local(&format!("writing {}", path.display()), &error))
    }

    pub(crate) fn forget(&self) -> io::Result<()> {
        remove_file(&self.record())?;
        // Keys of other daemons may be in it.
        let _ = fs::remove_dir(self.settings());
        Ok(())
    }
}

/// `etc/workbay/installation.json`: what `bay install` made. It is written before each step, so that an interrupted
/// installation can be removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The data directory of the daemon that the unit starts.
    pub(crate) data_dir: PathBuf,
    /// Hashes of what was installed as the executable, the newest last. Only a file with one of them is removed.
    pub(crate) sha256: Vec<String>,
    /// The unit was written.
    pub(crate) unit: bool,
    /// The group that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
}

/// Writes a file completely or not at all.
pub(crate) fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    remove_file(&new)?;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    // The umask of the caller must not decide who can read it.
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// Removes a file. Harmless if there is none.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let got = file.read(&mut buffer)?;
        if got == 0 {
            return Ok(bay_text::hex::encode(digest.finalize()));
        }
        digest.update(&buffer[..got]);
    }
}
