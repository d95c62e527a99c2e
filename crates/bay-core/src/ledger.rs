//! The ledger's key, and the signed heads.
//!
//! ```text
//!   data directory/ledger/key    made on the first start, readable only by the daemon
//!                        /head   the newest signed head: outside the database, so that the daemon notices a
//!                                database that was truncated or exchanged
//! ```
//!
//! The daemon signs only what is on the disk: a head whose events are lost in a power cut would look like a fork.
//! When it starts, it checks that the database continues the stored head. If not, it keeps working and recording,
//! signs nothing, and reports why to every reader who verifies.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bay_ledger::{Hash, Head, PublicKey, SecretKey};
use bay_store::Store;
use bay_types::{CoreError, ErrorCode};
use jiff::Timestamp;
use tokio::sync::Mutex;

use crate::background::blocking;
use crate::open_error::OpenError;

/// The shortest interval between two heads. While events come, the stored head is about this far behind them.
const HEAD_EVERY: Duration = Duration::from_secs(1);

/// A signed head as readers get it.
#[derive(Debug, Clone)]
pub(crate) struct Signed {
    pub(crate) note: String,
    pub(crate) size: u64,
    pub(crate) root: Hash,
    pub(crate) time: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    store: Store,
    key: SecretKey,
    head_path: PathBuf,
    /// The newest stored head, if there is one.
    kept: Mutex<Option<Signed>>,
    /// Why the database does not continue the head that was stored when the daemon started.
    broken: Option<String>,
}

impl Ledger {
    pub(crate) async fn open(data_dir: &Path, store: &Store) -> Result<Self, OpenError> {
        let dir = data_dir.join("ledger");
        let head_path = dir.join("head");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::DataDir { path, source }
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(failed(&dir))?;
        let note = read(&head_path).map_err(failed(&head_path))?;
        let key = key(&dir.join("key"), &format!("workbay/{}", store.daemon_id()), note.is_some())?;
        let mut ledger = Self { store: store.clone(), key, head_path, kept: Mutex::default(), broken: None };
        if let Some(note) = note {
            match Head::open(&note, &ledger.key.public()) {
                Ok(Head { size, root, time, .. }) => {
                    ledger.kept = Mutex::new(Some(Signed { note, size, root, time }));
                    ledger.broken = ledger.contradiction(size, root, time).await?;
                }
                Err(error) => {
                    ledger.broken = Some(format!("{}: {error}", ledger.head_path.display()));
                }
            }
        }
        if let Some(why) = &ledger.broken {
            tracing::error!(
                why,
                "the database does not continue the signed head; no head is signed any more"
            );
        }
        Ok(ledger)
    }

    pub(crate) fn public(&self) -> PublicKey {
        self.key.public()
    }

    /// Why the record contradicts the stored head, if it does.
    async fn contradiction(
        &self,
        size: u64,
        root: Hash,
        time: Timestamp,
    ) -> Result<Option<String>, OpenError> {
        let has = self.store.events_head().await?;
        if has < size {
            return Ok(Some(format!("the record was cut: it has {has} events, and had {size} on {time}")));
        }
        if self.store.ledger_root(size).await? != Some(root) {
            return Ok(Some(format!("the first {size} events are not those that were signed on {time}")));
        }
        Ok(None)
    }

    /// Whether the record still continues the stored head.
    pub(crate) async fn sound(&self) -> Result<(), CoreError> {
        if let Some(why) = &self.broken {
            return Err(self.refusal(why));
        }
        let kept = self.kept.lock().await.clone();
        let Some(kept) = kept else { return Ok(()) };
        match self.contradiction(kept.size, kept.root, kept.time).await {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(self.refusal(&why)),
            Err(error) => Err(error.to_api()),
        }
    }

    fn refusal(&self, why: &str) -> CoreError {
        CoreError::new(
            ErrorCode::LedgerBroken,
            format!("the ledger of {} does not hold: {why}", self.key.public().log()),
            format!(
                "copy the data directory as evidence, then restore bay.db from a backup; moving {} away starts a new ledger, which everybody who has an older head will notice",
                self.head_path.display()
            ),
        )
    }

    /// Signs the present end of the record, after it is on the disk, and stores the head before anybody sees it.
    pub(crate) async fn sign(&self) -> Result<Signed, CoreError> {
        if let Some(why) = &self.broken {
            return Err(self.refusal(why));
        }
        let size = self.store.events_head().await.map_err(|e| e.to_api())?;
        let frontier = self.store.durable_frontier(size).await.map_err(|e| e.to_api())?;
        let mut kept = self.kept.lock().await;
        if let Some(kept) = kept.as_ref().filter(|kept| kept.size >= frontier.size()) {
            return Ok(kept.clone());
        }
        let time = Timestamp::now().round(jiff::Unit::Second).unwrap_or_else(|_| Timestamp::now());
        let (size, root) = (frontier.size(), frontier.root());
        let signed = Signed { note: self.key.sign(size, root, time), size, root, time };
        let (path, note) = (self.head_path.clone(), signed.note.clone());
        blocking(move || {
            write_private(&path, &note).map_err(|error| {
                CoreError::new(
                    crate::open_error::io_code(&error),
                    format!("the ledger's head could not be saved to {}: {error}", path.display()),
                    "check that the disk of the data directory is writable and not full",
                )
            })
        })
        .await?;
        *kept = Some(signed.clone());
        Ok(signed)
    }
}

/// Keeps the stored head near the end of the record.
pub(crate) async fn keep_heads(ledger: Arc<Ledger>, store: Store) {
    let mut told = store.events_told();
    let mut said = false;
    loop {
        match ledger.sign().await {
            Ok(_) => said = false,
            // Logged once per stretch of failures.
            Err(error) if !said => {
                tracing::error!(message = %error.message, "no head of the ledger can be stored");
                said = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(HEAD_EVERY).await;
        if told.changed().await.is_err() {
            return;
        }
    }
}

fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The key of this log. It is made if nothing was signed yet.
fn key(path: &Path, log: &str, signed_before: bool) -> Result<SecretKey, OpenError> {
    let failed = |source| OpenError::DataDir { path: path.to_owned(), source };
    let unfit = |why: String| OpenError::LedgerKey { path: path.to_owned(), why };
    if let Some(text) = read(path).map_err(failed)? {
        let key = SecretKey::parse(&text).map_err(|error| unfit(error.to_string()))?;
        if key.public().log() != log {
            return Err(unfit(format!("it is that of {}, and this is {log}", key.public().log())));
        }
        return Ok(key);
    }
    if signed_before {
        return Err(unfit("it is gone, and heads were signed with it".to_owned()));
    }
    let mut random = [0_u8; 32];
    let mut filled = 0;
    while filled < random.len() {
        filled += rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|e| failed(e.into()))?;
    }
    let key = SecretKey::new(log, &random).map_err(|error| unfit(error.to_string()))?;
    write_private(path, &format!("{}\n", key.to_secret_text())).map_err(failed)?;
    Ok(key)
}

/// Writes a private file of the daemon, completely or not at all, also in a power cut.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_data()?;
    fs::rename(&new, path)?;
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_data())
}
