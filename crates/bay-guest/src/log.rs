//! The guest's own log: a small file in the state directory, for people who examine why a bay behaves oddly.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bay_types::guest::STATE_DIR;

/// Length at which the log is renamed and a new one begun. One old log is kept.
const MAX_BYTES: u64 = 256 << 10;
const NAME: &str = "guest.log";
const OLD_NAME: &str = "guest.log.1";

/// Writes lines of time, event and fields. If writing fails, the line is lost and the guest goes on.
#[derive(Debug)]
pub(crate) struct Log {
    dir: PathBuf,
    file: Mutex<Option<(File, u64)>>,
}

impl Log {
    pub(crate) fn open(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), file: Mutex::new(open(dir).ok()) }
    }

    pub(crate) fn line(&self, what: &str, fields: fmt::Arguments<'_>) {
        let text = format!("{} {what} {fields}\n", jiff::Timestamp::now());
        let Ok(mut slot) = self.file.lock() else { return };
        if slot.as_ref().is_none_or(|(_, len)| *len > MAX_BYTES) {
            let _ = std::fs::rename(self.dir.join(NAME), self.dir.join(OLD_NAME));
            *slot = open(&self.dir).ok();
        }
        if let Some((file, len)) = slot.as_mut()
            && file.write_all(text.as_bytes()).is_ok()
        {
            *len += text.len() as u64;
        }
    }
}

fn open(dir: &Path) -> io::Result<(File, u64)> {
    // The agent may have put anything under this name. Opening it must not block, and must not follow a link.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(flags.bits().cast_signed())
        .open(dir.join(NAME))?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok((file, meta.len()))
}

/// Logs why the guest could not start.
pub(crate) fn log_failed_start(error: &io::Error) {
    Log::open(Path::new(STATE_DIR)).line("guest.failed", format_args!("error={error:?}"));
}
