//! Fetching a remote repository into the cache. If the first fetch of a repository fails, the empty repository is
//! removed again. A concurrent fetch of the same one then starts again.

use bay_pool::{Pool, PoolError};
use bay_types::{Action, CoreError, ErrorCode, Hint, RepoId};

use crate::progress::ProgressReporter;

/// How often a fetch is tried while the repository is removed at the same time.
const ATTEMPTS: usize = 5;

/// Fetches from `url`, unless `have` finds the wanted content already. Returns the result of `have`. Blocks.
pub(crate) fn bring<T>(
    pool: &Pool,
    url: &str,
    reporter: &mut ProgressReporter,
    have: impl Fn(RepoId, Fetched) -> Result<Option<T>, PoolError>,
) -> Result<(RepoId, T), CoreError> {
    for _ in 0..ATTEMPTS {
        let repo = pool.repo_for(url).map_err(|e| e.to_api())?;
        if let Ok(Some(found)) = have(repo, Fetched::NotYet) {
            return Ok((repo, found));
        }
        let fetched =
            pool.repo_fetch(repo, &mut |p| reporter.progress(p)).and_then(|()| have(repo, Fetched::JustNow));
        match fetched {
            Ok(Some(found)) => return Ok((repo, found)),
            Ok(None) | Err(PoolError::RepoNotFound { .. }) => {}
            Err(error) => {
                // A repository from which nothing was ever fetched is a mistyped name.
                let _ = pool.repo_remove_if_empty(repo);
                return Err(error.to_api());
            }
        }
    }
    Err(CoreError::new(
        ErrorCode::Interrupted,
        "the repository was removed from the cache while it was being fetched",
        "repeat the command",
    ))
}

/// Whether `have` is called before or after a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fetched {
    NotYet,
    JustNow,
}

/// Whether a location is a path of this host.
pub(crate) fn is_local(location: &str) -> bool {
    location.starts_with('/') || location.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:"))
}

/// Whether a text can only mean a remote repository: a URL, or `host:path` in the form of ssh.
pub(crate) fn is_remote(given: &str) -> bool {
    if is_local(given) || given.starts_with('-') || given.contains("::") {
        return false;
    }
    given.contains("://")
        || given
            .split_once(':')
            .is_some_and(|(host, path)| !host.is_empty() && !host.contains('/') && !path.is_empty())
}

/// Refuses a path of this host. The daemon is root and must not open a repository at a caller's path: the caller's
/// own git reads it.
pub(crate) fn refuse_local(location: &str) -> Result<(), CoreError> {
    if !is_local(location) {
        return Ok(());
    }
    let shown: String = location.chars().take(200).collect();
    Err(CoreError::new(
        ErrorCode::InvalidInput,
        format!("{shown:?} is a path of this host, which the daemon does not open"),
        Hint::new("{} copies a local repository and its new commits", [Action::MakeBayFromPath]),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_this_host_are_distinguished_from_remote_locations() {
        for local in ["/srv/x", "file:///srv/x", "FILE:///x", "file://localhost/x", "file:x"] {
            assert!(is_local(local) && !is_remote(local), "{local}");
            assert_eq!(refuse_local(local).unwrap_err().code, ErrorCode::InvalidInput);
        }
        for remote in ["https://host/x.git", "ssh://me@host/x", "git@host:x/y.git", "host:x"] {
            assert!(is_remote(remote) && refuse_local(remote).is_ok(), "{remote}");
        }
        for part in ["project", "team/project", "ext::sh -c x", "--x=a:b", "0123abcd", "", "ü"] {
            assert!(!is_remote(part) && !is_local(part), "{part}");
        }
    }
}
