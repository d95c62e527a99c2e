//! Checked work, pushed to a remote with the caller's own git, settings and credentials, from the clean repository.

use std::io;
use std::process::Stdio;

use bay_client::{invalid, local};
use bay_types::{ApiError, ErrorCode};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use super::bring_out::Work;
use super::local_branch::diverged;
use super::safe_command::REPOSITORY_VARIABLES;
use super::sudo_user::SudoUser;
use super::{discover, not_run};

use bay_text::escape::one_line;

/// Most bytes of the output of git and the remote.
const MAX_SAID: u64 = 1 << 20;
/// Most lines of the remote that are shown.
const MAX_SHOWN: usize = 20;

/// The address that an argument means: that of the remote of this name in the current repository, or the argument
/// itself.
pub(crate) async fn address(remote: &str) -> Result<String, ApiError> {
    if remote.is_empty() || remote.starts_with('-') || remote.chars().any(char::is_control) {
        return Err(invalid(
            format!("{remote:?} is not a remote"),
            "write a path, a URL or the name of a remote",
        ));
    }
    if !remote.contains(['/', ':'])
        && let Ok(here) = std::env::current_dir()
        && let Ok(Some(repo)) = discover(&here).await
        && let Some(url) = repo.line(&["remote", "get-url", "--push", "--", remote]).await?
    {
        return Ok(url);
    }
    Ok(remote.to_owned())
}

/// Pushes the work as a branch. Returns the messages of the remote for a person.
pub(crate) async fn push(
    work: &Work,
    remote: &str,
    branch: &str,
    force: bool,
) -> Result<Vec<String>, ApiError> {
    let mut command = Command::new("git");
    command.arg("--git-dir").arg(work.clean.repo().git_dir());
    command.args(["-c", "protocol.ext.allow=never", "-c", "push.followTags=false", "push", "--porcelain"]);
    command.arg("--no-recurse-submodules");
    if force {
        command.arg("--force");
    }
    command.args(["--", remote]).arg(format!("{}:refs/heads/{branch}", work.tip));
    for variable in REPOSITORY_VARIABLES {
        command.env_remove(variable);
    }
    command.envs(work.clean.repo().lent()).env("LC_ALL", "C");
    if let Some(user) = SudoUser::behind_sudo() {
        user.is_given(work.clean.place()).map_err(|e| local("passing the work to git", &e))?;
        user.runs(&mut command);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|e| not_run(&e))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (answer, said) = tokio::join!(bounded(stdout), bounded(stderr));
    let (answer, said) = (answer.map_err(|e| not_run(&e))?, said.map_err(|e| not_run(&e))?);
    let status = child.wait().await.map_err(|e| not_run(&e))?;
    if status.success() {
        return Ok(of_remote(&said));
    }
    Err(failure(remote, branch, &answer, &said))
}

async fn bounded(stream: Option<impl AsyncRead + Unpin>) -> io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(MAX_SAID).read_to_end(&mut bytes).await?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Messages of a server for the person who pushes, such as where to open a pull request.
fn of_remote(said: &str) -> Vec<String> {
    let lines = said.split(['\n', '\r']).filter_map(|line| line.strip_prefix("remote:")).map(one_line);
    lines.filter(|line| !line.trim().is_empty()).take(MAX_SHOWN).collect()
}

fn failure(remote: &str, branch: &str, answer: &str, said: &str) -> ApiError {
    let remote = &without_password(remote);
    let refused = answer.lines().find(|line| line.starts_with("!\t")).unwrap_or_default();
    if refused.contains("[rejected]")
        && (refused.contains("(non-fast-forward)") || refused.contains("(fetch first)"))
    {
        return diverged(branch, &format!("of {remote}"));
    }
    let reason = refused.rsplit('\t').next().unwrap_or_default();
    let complaint = |line: &&str| line.starts_with("fatal: ") || line.starts_with("error: ");
    let why = match reason {
        "" => said.lines().find(complaint).or_else(|| said.lines().last()).unwrap_or("git gave no reason"),
        reason => reason,
    };
    let asks =
        ["Authentication failed", "Permission denied (", "could not read Username", "returned error: 403"];
    let (code, next) = if asks.iter().any(|words| said.contains(words)) {
        (ErrorCode::RepoAuth, "your git has no credentials for it: try `git push` there yourself first")
    } else {
        (ErrorCode::PushFailed, "check that `git push` to the same place works for you")
    };
    ApiError::new(code, format!("pushing {branch} to {remote}: {}", one_line(why)), next)
}

/// An address without its password.
pub(crate) fn without_password(address: &str) -> String {
    match address.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.split_once('@')?))) {
        Some((scheme, (login, rest))) if !login.contains('/') => format!("{scheme}://{rest}"),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_push_is_reported_with_its_reason() {
        let at = |answer: &str, said: &str| failure("r", "b", answer, said);
        let behind =
            at("To r\n!\tabc:refs/heads/b\t[rejected] (fetch first)\nDone\n", "error: failed to push\n");
        assert_eq!(behind.code, ErrorCode::BranchDiverged);
        let hook = at("To r\n!\tabc:refs/heads/b\t[remote rejected] (pre-receive hook declined)\n", "");
        assert_eq!(hook.code, ErrorCode::PushFailed);
        assert!(hook.message.contains("hook declined"), "{hook:?}");
        let absent = at("", "fatal: 'r' does not appear to be a git repository\nfatal: Could not read\n");
        assert!(absent.message.contains("does not appear"), "{absent:?}");
        let login = at("", "fatal: could not read Username for 'https://x': terminal prompts disabled\n");
        assert_eq!(login.code, ErrorCode::RepoAuth);
    }

    #[test]
    fn only_messages_of_the_remote_are_shown_and_no_control_characters() {
        let said = "remote: open a pull request:   \nremote:   https://x/y\x1b[31m\nTo x\n * [new branch]\nremote:\n";
        assert_eq!(of_remote(said), ["open a pull request:", "https://x/y\\x1b[31m"]);
    }

    #[tokio::test]
    async fn a_remote_that_looks_like_an_option_is_refused() {
        for odd in ["", "-x", "--receive-pack=touch x", "a\nb"] {
            assert_eq!(address(odd).await.unwrap_err().code, ErrorCode::InvalidInput, "{odd:?}");
        }
        assert_eq!(address("https://example.invalid/x.git").await.unwrap(), "https://example.invalid/x.git");
    }

    #[test]
    fn a_password_in_an_address_is_not_shown() {
        assert_eq!(without_password("https://me:secret@example.org/x"), "https://example.org/x");
        assert_eq!(without_password("https://example.org/a@b"), "https://example.org/a@b");
        assert_eq!(without_password("git@example.org:x"), "git@example.org:x");
        assert_eq!(without_password("/some/path"), "/some/path");
    }
}
