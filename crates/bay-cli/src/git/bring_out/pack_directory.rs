//! The directory in a bay where its work is packed, and the download of the pack.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use bay_client::{Client, bay_path, local, transfer};
use bay_text::percent::path_value;
use bay_types::exec::{EndReason, ExecSpec, SignalRequest};
use bay_types::progress::Progress;
use bay_types::{ApiError, ErrorCode, ExecId};

use super::{Kind, MAX_PACK_BYTES, Wanted};

use crate::output::progress::Meter;
use crate::session::capture::capture;
use bay_text::percent::segment;

const SCRIPT: &str = include_str!("pack.sh");
/// Packing the largest repositories takes minutes. If it takes longer than this, something is wrong in the bay.
const PACK_WITHIN_S: u64 = 3600;
/// How long the cleanup in the bay is tried, also while its daemon is unreachable.
const CLEAR_WITHIN: Duration = Duration::from_secs(5);
/// Pause between two attempts to clean up.
const POLL: Duration = Duration::from_millis(20);
/// Free space that stays on the caller's disk.
const KEEP_FREE_BYTES: u64 = 512 << 20;
/// Number of received bytes after which the free space is checked again.
const LOOK_EVERY_BYTES: u64 = 64 << 20;
const SIGKILL: i32 = 9;

/// The answer of the script.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Tip { commit: String, kind: Kind },
    Refused { why: String, said: String },
}

impl Answer {
    /// Parses the one line that the script prints. `None` if the output is anything else.
    fn parse(stdout: &[u8], stderr: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(stdout).ok()?.strip_suffix('\n')?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["tip", commit, kind] if bay_git::is_object_id(commit) => {
                let kind = match kind {
                    "committed" => Kind::Committed,
                    "uncommitted" => Kind::Uncommitted,
                    "whole" => Kind::Whole,
                    _ => return None,
                };
                Some(Self::Tip { commit: commit.to_owned(), kind })
            }
            ["refused", why] => {
                let said = String::from_utf8_lossy(stderr).into_owned();
                Some(Self::Refused { why: why.to_owned(), said })
            }
            _ => None,
        }
    }
}

/// The directory in a bay in which the work is packed.
#[derive(Debug)]
pub(super) struct PackDirectory {
    client: Client,
    bay: String,
    /// The exec that packs. Its id also makes the directory's name unique.
    packing: ExecId,
    path: String,
    in_use: bool,
    /// The commands that ran in the bay.
    ran: Vec<ExecId>,
}

impl PackDirectory {
    pub(super) fn new(client: &Client, bay: &str) -> Self {
        let packing = ExecId::generate();
        Self {
            client: client.another(),
            bay: bay.to_owned(),
            packing,
            path: format!("/tmp/.bay-leaving-{packing}"),
            in_use: false,
            ran: Vec::new(),
        }
    }

    /// Packs the work in the bay, without what `have` covers.
    pub(super) async fn pack(
        &mut self,
        wanted: &Wanted<'_>,
        have: Option<&str>,
        base: Option<&str>,
    ) -> Result<Answer, ApiError> {
        let what = if wanted.committed_only { "committed" } else { "all" };
        // One byte more than the limit, so that a truncated pack is recognised.
        let most = (MAX_PACK_BYTES + 1).to_string();
        let mut spec = ExecSpec::new(["sh", "-s", "--", "pack", &self.path, what]);
        spec.argv.extend(
            [have.unwrap_or("-"), base.unwrap_or("-"), &most, &self.bay, wanted.message].map(str::to_owned),
        );
        spec.id = self.packing;
        spec.stdin = true;
        spec.timeout_s = Some(PACK_WITHIN_S);
        self.in_use = true;
        self.ran.push(self.packing);
        let captured = capture(&mut self.client, &self.bay, &spec, SCRIPT.as_bytes()).await?;
        if captured.exit.reason == EndReason::TimedOut {
            return Err(self.odd(&format!("did not end within {} minutes", PACK_WITHIN_S / 60)));
        }
        if !matches!(captured.exit.reason, EndReason::Exited | EndReason::Signaled) {
            return Err(ApiError::new(
                ErrorCode::Interrupted,
                format!("packing the work of the bay {} was cut short: {}", self.bay, captured.exit.reason),
                "run the command again",
            ));
        }
        let answer = Answer::parse(&captured.stdout, &captured.stderr)
            .filter(|_| captured.exit.code == Some(0))
            .ok_or_else(|| self.odd("did not answer as it should"))?;
        // If the script reports a failure, it has deleted its files. If another program answered, the cleanup is that
        // program's.
        self.in_use = matches!(answer, Answer::Tip { .. });
        Ok(answer)
    }

    fn odd(&self, what: &str) -> ApiError {
        ApiError::new(
            ErrorCode::WorkRefused,
            format!("git in the bay {} {what}", self.bay),
            format!("check git there: `bay exec {} -- git status`", self.bay),
        )
    }

    /// Downloads the pack.
    pub(super) async fn download(&mut self, to: &Path, meter: &mut Meter) -> Result<(), ApiError> {
        let failed = |error: &io::Error| local(&format!("writing {}", to.display()), error);
        let mut file = File::create_new(to).map_err(|e| failed(&e))?;
        let place = to.parent().unwrap_or(to).to_owned();
        let path = format!("{}/pack", self.path);
        let body = self
            .client
            .download(&bay_path(&self.bay, &format!("/files?path={}", path_value(path.as_bytes()))))
            .await
            .map_err(|error| match error.code {
                ErrorCode::PathNotFound | ErrorCode::PathRefused => self.odd("left no pack"),
                _ => error,
            })?;
        let news = Progress {
            stage: format!("downloading the work of {}", self.bay),
            unit: "bytes".to_owned(),
            ..Progress::default()
        };
        let (mut total, mut unlooked) = (0_u64, LOOK_EVERY_BYTES);
        let received = transfer::receive(body, news, meter, |piece| {
            total += piece.len() as u64;
            unlooked += piece.len() as u64;
            if total > MAX_PACK_BYTES {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            if unlooked >= LOOK_EVERY_BYTES {
                unlooked = 0;
                let room = rustix::fs::statvfs(&place)?;
                if room.f_bavail.saturating_mul(room.f_frsize) < KEEP_FREE_BYTES {
                    return Err(io::ErrorKind::StorageFull.into());
                }
            }
            file.write_all(piece)
        });
        match received.await? {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                Err(self.odd(&format!("packed more than the {} GiB that are taken", MAX_PACK_BYTES >> 30)))
            }
            Err(error) => Err(failed(&error)),
        }
    }

    /// Cleans up in the bay: kills the packing exec if it still runs, and deletes the directory. Returns the commands
    /// that ran there.
    pub(super) async fn clear(mut self) -> Vec<ExecId> {
        if self.in_use {
            self.clear_directory().await;
        }
        self.ran
    }

    async fn clear_directory(&mut self) {
        let began = Instant::now();
        self.client = self.client.another_without_starting();
        let tried = async {
            while let Err(error) = self.try_clear().await {
                let passing = matches!(
                    error.code,
                    ErrorCode::DaemonUnreachable | ErrorCode::GuestUnreachable | ErrorCode::Interrupted
                );
                if !passing || began.elapsed() > CLEAR_WITHIN {
                    return;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        let _ = tokio::time::timeout(CLEAR_WITHIN, tried).await;
    }

    async fn try_clear(&mut self) -> Result<(), ApiError> {
        let kill = SignalRequest { signal: SIGKILL, tree: true };
        let path = bay_path(&self.bay, &format!("/execs/{}/signal", segment(&self.packing.to_string())));
        // Usually the exec has ended, and this does nothing.
        let _: Result<serde_json::Value, ApiError> = self.client.post(&path, &kill).await;
        let remove = ExecSpec::new(["rm", "-rf", "--", &self.path]);
        self.ran.push(remove.id);
        capture(&mut self.client, &self.bay, &remove, &[]).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_line_in_the_scripts_format_is_an_answer() {
        let id = "a".repeat(40);
        let parse = |text: &str| Answer::parse(text.as_bytes(), b"why");
        assert_eq!(
            parse(&format!("tip {id} uncommitted\n")),
            Some(Answer::Tip { commit: id.clone(), kind: Kind::Uncommitted })
        );
        assert_eq!(
            parse("refused no-git\n"),
            Some(Answer::Refused { why: "no-git".to_owned(), said: "why".to_owned() })
        );
        for odd in [
            "",
            "\n",
            "tip\n",
            &format!("tip {id}\n"),
            &format!("tip {id} committed"),
            &format!("tip {id} committed\ntip {id} committed\n"),
            &format!("tip {} committed\n", "A".repeat(40)),
            "tip refs/heads/../../x committed\n",
            "tip -x committed\n",
            "tip --upload-pack=x committed\n",
            "refused two words\n",
        ] {
            assert_eq!(parse(odd), None, "{odd:?}");
        }
        assert_eq!(Answer::parse(b"tip \xff committed\n", b""), None);
    }
}
