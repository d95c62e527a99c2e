//! The verbs on cached repositories.

use std::io::Read;
use std::sync::Arc;

use bay_store::Draft;
use bay_types::event::pool::{RepoBundled, RepoRemoved, RepoSynced};
use bay_types::principal::Principal;
use bay_types::repo::{RepoOffer, RepoOffered, RepoView};
use bay_types::{Action, CoreError, ErrorCode, Hint, RepoId};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::ends_id;
use super::fetch::{Fetched, bring, is_local, is_remote, refuse_local};
use crate::authorize::Verb;
use crate::background::{blocking, to_the_end};
use crate::byte_stream::ByteStream;
use crate::daemon::Daemon;
use crate::progress::ProgressReporter;
use crate::verbs::images::some;

/// The longest bundle that is accepted: more than the largest repositories that are usual.
const MAX_BUNDLE: u64 = 64 << 30;
/// How many pieces of a bundle wait between the network and git.
const IN_FLIGHT: usize = 16;
/// The longest location of a repository.
const MAX_LOCATION: usize = 4096;

fn bays_of(daemon: &Daemon, repo: RepoId) -> Vec<String> {
    daemon
        .bays
        .list()
        .iter()
        .filter(|handle| handle.row().origin.is_some_and(|origin| origin.repo == repo))
        .map(|handle| handle.name.to_string())
        .collect()
}

fn counted(daemon: &Daemon, mut repo: RepoView) -> RepoView {
    // The pool counts only workspaces that are snapshots of a checkout. More bays may have this repository as their
    // origin.
    repo.bays = repo.bays.max(bays_of(daemon, repo.id).len() as u64);
    repo
}

pub async fn list(daemon: &Daemon, who: &Principal) -> Result<Vec<RepoView>, CoreError> {
    daemon.permit(who, Verb::RepoList)?;
    let repos = daemon.with_pool(bay_pool::Pool::repo_list).await?;
    Ok(repos.into_iter().map(|repo| counted(daemon, repo)).collect())
}

fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns whether the cache has the offered commit. If not, returns the newest branch tips in the cache, which a
/// bundle can leave out. If the repository is not cached, an empty one is made for it.
pub async fn offer(
    daemon: &Arc<Daemon>,
    who: &Principal,
    offer: RepoOffer,
) -> Result<RepoOffered, CoreError> {
    daemon.permit(who, Verb::RepoOffer)?;
    let daemon = Arc::clone(daemon);
    to_the_end(async move { compare_offer(&daemon, offer).await }).await
}

/// Receives a bundle of commits. If the stream ends with an error, or is longer than [`MAX_BUNDLE`], the upload
/// counts as cut short and nothing of it is kept.
pub async fn upload(
    daemon: &Arc<Daemon>,
    who: &Principal,
    repo: &str,
    mut bundle: ByteStream,
) -> Result<RepoView, CoreError> {
    daemon.permit(who, Verb::RepoUpload)?;
    let repo = repo.parse::<RepoId>().map_err(|e| {
        CoreError::new(
            ErrorCode::RepoNotFound,
            e.to_string(),
            "offer the repository first; the answer has its id",
        )
    })?;
    let (to, from) = mpsc::channel(IN_FLIGHT);
    let _turn = daemon.upload_turn().await?;
    let (at, who) = (Arc::clone(daemon), *who);
    let taking = tokio::spawn(async move { unbundle(&at, repo, ChannelReader::new(from), who).await });
    let mut left = MAX_BUNDLE;
    loop {
        let piece = match bundle.next().await {
            None => Piece::End,
            Some(Ok(data)) => match left.checked_sub(data.len() as u64) {
                Some(rest) => {
                    left = rest;
                    Piece::Bytes(data)
                }
                None => break,
            },
            // If the channel closes without an end, the upload was cut short.
            Some(Err(_)) => break,
        };
        let last = matches!(piece, Piece::End);
        // If the reader gave up, its error is the answer.
        if to.send(piece).await.is_err() || last {
            break;
        }
    }
    drop(to);
    taking.await.map_err(|e| CoreError::internal(&e))?
}

/// Fetches what is new, or everything if the repository is not cached yet.
pub async fn sync(
    daemon: &Arc<Daemon>,
    who: &Principal,
    given: &str,
    reporter: ProgressReporter,
) -> Result<RepoView, CoreError> {
    daemon.permit(who, Verb::RepoSync)?;
    let (daemon, who, given) = (Arc::clone(daemon), *who, given.to_owned());
    to_the_end(async move { fetch_new(&daemon, &given, who, reporter).await }).await
}

/// Removes a repository from the cache. If an existing bay was made from it, refuses.
pub async fn remove(daemon: &Arc<Daemon>, who: &Principal, given: &str) -> Result<(), CoreError> {
    daemon.permit(who, Verb::RepoDelete)?;
    let (daemon, who, given) = (Arc::clone(daemon), *who, given.to_owned());
    to_the_end(async move { remove_repo(&daemon, &given, who).await }).await
}

async fn compare_offer(daemon: &Daemon, offer: RepoOffer) -> Result<RepoOffered, CoreError> {
    if offer.location.is_empty() || offer.location.len() > MAX_LOCATION || offer.location.contains('\0') {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            "the repository's location is empty or too long",
            "give the path of the repository",
        ));
    }
    if !is_commit(&offer.commit) {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            "the commit is not a full hash in lower-case hexadecimal",
            "`git rev-parse HEAD` prints one",
        ));
    }
    daemon
        .with_pool(move |pool| {
            let repo = pool.repo_for(&offer.location)?;
            let present = pool.repo_has_commit(repo, &offer.commit)?;
            let have = if present { Vec::new() } else { pool.repo_tips(repo)? };
            Ok(RepoOffered { repo, present, have })
        })
        .await
}

/// A piece of an upload.
#[derive(Debug)]
enum Piece {
    Bytes(Bytes),
    /// The last piece. A channel that closes without it is an upload that was cut short.
    End,
}

/// A blocking reader of bytes that another task receives.
#[derive(Debug)]
struct ChannelReader {
    from: mpsc::Receiver<Piece>,
    rest: Bytes,
    ended: bool,
}

impl ChannelReader {
    fn new(from: mpsc::Receiver<Piece>) -> Self {
        Self { from, rest: Bytes::new(), ended: false }
    }
}

impl Read for ChannelReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.rest.is_empty() && !self.ended {
            match self.from.blocking_recv() {
                Some(Piece::Bytes(bytes)) => self.rest = bytes,
                Some(Piece::End) => self.ended = true,
                None => {
                    return Err(std::io::Error::new(
                        std::io::ErrorKind::UnexpectedEof,
                        "the upload was cut short",
                    ));
                }
            }
        }
        let taken = self.rest.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&self.rest.split_to(taken));
        Ok(taken)
    }
}

async fn unbundle(
    daemon: &Daemon,
    repo: RepoId,
    mut bundle: ChannelReader,
    caller: Principal,
) -> Result<RepoView, CoreError> {
    let event = Draft::of(RepoBundled { repo: repo.into(), by: caller.by() });
    daemon.store.event_append(None, &event).await.map_err(|e| e.to_api())?;
    let repo = daemon
        .with_pool(move |pool| {
            pool.repo_unbundle(repo, &mut bundle)?;
            pool.repo_view(repo)
        })
        .await?;
    Ok(counted(daemon, repo))
}

async fn find(daemon: &Daemon, given: &str) -> Result<RepoView, CoreError> {
    pick(daemon.with_pool(bay_pool::Pool::repo_list).await?, given)
}

/// A repository by its id, its URL, the end of its id, or a unique part of its location.
fn pick(repos: Vec<RepoView>, given: &str) -> Result<RepoView, CoreError> {
    let exact = repos.iter().find(|repo| repo.id.to_string() == given || repo.location == given);
    if let Some(repo) = exact {
        return Ok(repo.clone());
    }
    let mut ending = repos.iter().filter(|repo| ends_id(&repo.id, given));
    if let (Some(repo), None) = (ending.next(), ending.next()) {
        return Ok(repo.clone());
    }
    let shown: String = given.chars().take(100).collect();
    let mut matching = repos.into_iter().filter(|repo| !given.is_empty() && repo.location.contains(given));
    match (matching.next(), matching.next()) {
        (Some(repo), None) => Ok(repo),
        (Some(one), Some(other)) => Err(CoreError::new(
            ErrorCode::RepoNotFound,
            format!("{shown:?} matches more than one repository: {}, {}", one.location, other.location),
            Hint::new("give a longer part of the location, or the id from {}", [Action::ListRepos]),
        )),
        (None, _) => Err(CoreError::new(
            ErrorCode::RepoNotFound,
            format!("no repository {shown:?} is in the cache"),
            Hint::new("{} lists the cached repositories", [Action::ListRepos]),
        )),
    }
}

/// What to fetch: a cached repository, or a remote location that is not cached yet.
fn to_sync(repos: Vec<RepoView>, given: &str) -> Result<String, CoreError> {
    let location = match pick(repos, given) {
        // A URL means itself, not a longer URL that contains it.
        Ok(repo) if repo.location == given || !given.contains("://") => repo.location,
        Ok(_) => given.to_owned(),
        Err(error) if error.code == ErrorCode::RepoNotFound && !is_remote(given) && !is_local(given) => {
            return Err(error);
        }
        Err(_) => given.to_owned(),
    };
    refuse_local(&location)?;
    Ok(location)
}

async fn fetch_new(
    daemon: &Arc<Daemon>,
    given: &str,
    caller: Principal,
    mut reporter: ProgressReporter,
) -> Result<RepoView, CoreError> {
    let location = to_sync(daemon.with_pool(bay_pool::Pool::repo_list).await?, given)?;
    let named = location.clone();
    let repo = daemon.with_pool(move |pool| pool.repo_for(&named)).await?;
    let event = Draft::of(RepoSynced { repo: repo.into(), by: caller.by() });
    daemon.store.event_append(None, &event).await.map_err(|e| e.to_api())?;
    let pool = daemon.pool()?;
    let repo = blocking(move || {
        let fetched = bring(&pool, &location, &mut reporter, |repo, fetched| match fetched {
            Fetched::NotYet => Ok(None),
            Fetched::JustNow => pool.repo_view(repo).map(Some),
        });
        fetched.map(|(_, view)| view)
    })
    .await?;
    Ok(counted(daemon, repo))
}

async fn remove_repo(daemon: &Daemon, given: &str, caller: Principal) -> Result<(), CoreError> {
    let _excluded = daemon.alone().await?;
    let repo = find(daemon, given).await?;
    let bays = bays_of(daemon, repo.id);
    if !bays.is_empty() {
        return Err(CoreError::new(
            ErrorCode::RepoInUse,
            format!("the repository {} is used by {}", repo.location, some(&bays)),
            "remove those bays first",
        ));
    }
    let event =
        Draft::of(RepoRemoved { repo: repo.id.into(), location: repo.location.clone(), by: caller.by() });
    daemon.store.event_append(None, &event).await.map_err(|e| e.to_api())?;
    daemon.with_pool(move |pool| pool.repo_remove(repo.id)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(pieces: Vec<Piece>) -> (Vec<u8>, Result<usize, std::io::ErrorKind>) {
        let (to, from) = mpsc::channel(2);
        let reading = tokio::task::spawn_blocking(move || {
            let mut whole = Vec::new();
            let end = ChannelReader::new(from).read_to_end(&mut whole);
            (whole, end.map_err(|e| e.kind()))
        });
        for piece in pieces {
            to.send(piece).await.unwrap();
        }
        drop(to);
        reading.await.unwrap()
    }

    #[tokio::test]
    async fn an_upload_arrives_in_order_and_a_cut_one_is_an_error() {
        let bytes = |text: &'static [u8]| Piece::Bytes(Bytes::from_static(text));
        let whole = read(vec![bytes(b"ab"), bytes(b""), bytes(b"cde"), Piece::End]).await;
        assert_eq!(whole, (b"abcde".to_vec(), Ok(5)));
        let cut = read(vec![bytes(b"ab")]).await;
        assert_eq!(cut, (b"ab".to_vec(), Err(std::io::ErrorKind::UnexpectedEof)));
    }

    fn repo(location: &str) -> RepoView {
        RepoView {
            id: RepoId::generate(),
            location: location.to_owned(),
            synced_at: jiff::Timestamp::UNIX_EPOCH,
            bytes: 0,
            checkouts: 0,
            bays: 0,
        }
    }

    #[test]
    fn a_repository_is_found_by_what_the_list_shows_of_it() {
        let all = vec![repo("https://host/team/one"), repo("https://host/team/two"), repo("/srv/three")];
        let found = |given: &str| pick(all.clone(), given).map(|repo| repo.location).map_err(|e| e.code);
        assert_eq!(found(&all[1].id.short()), Ok("https://host/team/two".to_owned()));
        assert_eq!(found(&all[1].id.short()[2..]), Ok("https://host/team/two".to_owned()));
        assert_eq!(found("three"), Ok("/srv/three".to_owned()));
        assert_eq!(found("team"), Err(ErrorCode::RepoNotFound));
        assert_eq!(found(&all[1].id.short()[3..]), Err(ErrorCode::RepoNotFound));
    }

    #[test]
    fn what_is_synced_is_what_was_named_and_never_a_path_of_this_host() {
        let all = vec![repo("https://host/project"), repo("git@host:x/y"), repo("/srv/local")];
        let location = |given: &str| to_sync(all.clone(), given).map_err(|e| e.code);
        assert_eq!(location("project"), Ok("https://host/project".to_owned()));
        assert_eq!(location(&all[0].id.to_string()), Ok("https://host/project".to_owned()));
        // Not cached yet: the URL itself, also if it is a part of another one.
        assert_eq!(location("https://host/pro"), Ok("https://host/pro".to_owned()));
        assert_eq!(location("https://other/z.git"), Ok("https://other/z.git".to_owned()));
        assert_eq!(location("host:x/y"), Ok("git@host:x/y".to_owned()));
        assert_eq!(location("other:x/y"), Ok("other:x/y".to_owned()));
        for local in ["local", "/srv/local", "/srv/new", "file:///srv/new", &all[2].id.to_string()] {
            assert_eq!(location(local), Err(ErrorCode::InvalidInput), "{local}");
        }
        assert_eq!(location("nothing"), Err(ErrorCode::RepoNotFound));
    }

    #[test]
    fn only_full_hashes_are_commits() {
        assert!(is_commit(&"a".repeat(40)) && is_commit(&"0".repeat(64)));
        for odd in ["", "HEAD", "--upload-pack=x", &"A".repeat(40), &"a".repeat(41)] {
            assert!(!is_commit(odd));
        }
    }
}
