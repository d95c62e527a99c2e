//! Secrets: credentials that stay with the daemon.
//!
//! ```text
//!   set, rotate, rm ──► Vault: one encrypted file for each secret, values in memory
//!                         │ changes
//!   bay starts ───────────┼─► of_bay: its sentinels (bay_sentinels), kept for its life
//!                         │      ├─► what the gateway looks for and may attach
//!                         │      └─► what the guest puts where tools look
//!   gateway attaches ─────┴─► value: refreshed by its command when it is too old
//! ```
//!
//! Former and removed values are remembered for a while (`former_values`): they are scrubbed from the answers of
//! their hosts to every bay.
//!
//! If a value cannot be had, the request that needs it is refused. A daemon without its key has no secrets and
//! reports that. If a source fails, the present value stays in use until it expires. A sentinel whose secret was
//! removed is recognized and refused. Former values that cannot be read are not scrubbed, and the daemon logs
//! that.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bay_gateway::scrub::Guesses;
use bay_gateway::secrets::{Held, Named, Secrets};
use bay_policy::CompiledPolicy;
use bay_store::BayRow;
use bay_types::secret::{
    Delivered, GitHeader, MAX_SECRETS, SENTINEL_MARK, SecretFile, SecretText, SecretView, SourceView,
};
use bay_types::{Action, BayId, CoreError, ErrorCode, Hint};
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{mpsc, watch};

use crate::keyring::Keyring;

mod bay_sentinels;
pub(crate) mod definition;
mod former_values;
mod scrubbed_values;
mod sentinel;
pub(crate) mod source;
pub(crate) mod stored;
pub(crate) mod strength;

use bay_sentinels::BaySentinels;
use former_values::Former;
use stored::Kept;

/// How long the daemon does not run a command again after it failed.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// The directory of secrets in the data directory.
const DIR: &str = "secrets";

/// One secret with its present value.
pub(crate) struct Secret {
    pub(crate) kept: Kept,
    named: Vec<Named>,
    value: Arc<SecretString>,
    /// So many bytes at the beginning of the value are not secret.
    public: usize,
    /// Whether the value is easy to guess.
    weak: bool,
    /// In microseconds; zero if it was never used.
    last_used: AtomicI64,
    problem: Mutex<Option<Problem>>,
}

/// Why the last refresh failed, and when, by the monotonic clock.
#[derive(Debug, Clone)]
struct Problem {
    why: String,
    at: Instant,
}

/// The result of a command that was run because a value was old: another value, or a failure.
#[derive(Debug)]
pub(crate) struct Refreshed {
    pub(crate) name: String,
    pub(crate) failed: Option<String>,
}

impl Secret {
    fn new(kept: Kept) -> Result<Self, String> {
        let named: Result<Vec<Named>, _> = kept.uses.iter().map(|one| Named::parse(one)).collect();
        let named = named.map_err(|error| error.to_string())?;
        let value = Arc::new(SecretString::from(kept.value.clone()));
        for copy in [value.expose_secret(), kept.value.expose()] {
            keep_from_swap(copy);
        }
        let (public, weak) = {
            let value = kept.value.expose();
            (sentinel::public_prefix(value), strength::weakness(value).is_some())
        };
        let last_used = AtomicI64::new(0);
        Ok(Self { kept, named, value, public, weak, last_used, problem: Mutex::default() })
    }

    /// Takes over when the secret was last used.
    fn after(mut self, before: &Self) -> Self {
        self.last_used = AtomicI64::new(before.last_used.load(Ordering::Relaxed));
        self
    }

    fn is_over(&self, now: Timestamp) -> bool {
        self.kept.expires.is_some_and(|expires| expires <= now)
    }

    /// Whether the command should be run for a new value.
    fn is_old(&self, now: Timestamp) -> bool {
        let Some(command) = &self.kept.command else { return false };
        let refresh = SignedDuration::from_secs(i64::try_from(command.refresh_s).unwrap_or(i64::MAX));
        let age = now.duration_since(self.kept.value_since);
        // A time in the future is from before the clock was set back. Nobody knows how old such a value is.
        self.is_over(now) || age >= refresh || age.is_negative()
    }

    fn problem(&self) -> Option<Problem> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether this bay has the secret.
    fn is_of(&self, bay: BayId, ancestors: &[BayId]) -> bool {
        let meant = |one: &stored::KeptBay| one.id == bay || ancestors.contains(&one.id);
        self.kept.bays.is_empty() || self.kept.bays.iter().any(meant)
    }

    pub(crate) fn view(&self) -> SecretView {
        let kept = &self.kept;
        let now = Timestamp::now();
        let problem = match self.problem() {
            Some(problem) => Some(problem.why),
            None => self.is_over(now).then(|| "it has ended".to_owned()),
        };
        SecretView {
            name: kept.name.clone(),
            uses: kept.uses.clone(),
            env: kept.env.clone(),
            files: kept.files.iter().map(|file| file.path.clone()).collect(),
            git: kept.git.clone(),
            bays: kept.bays.iter().map(|bay| bay.name.clone()).collect(),
            managed: kept.managed,
            literal_bodies: kept.literal_bodies,
            weak: self.weak,
            source: match &kept.command {
                None => SourceView::Value,
                Some(command) => SourceView::Command { refresh_s: command.refresh_s, as_uid: command.uid },
            },
            set_at: kept.set_at,
            value_since: kept.value_since,
            expires: kept.expires,
            last_used: Some(self.last_used.load(Ordering::Relaxed))
                .filter(|at| *at > 0)
                .and_then(|at| Timestamp::from_microsecond(at).ok()),
            problem,
        }
    }
}

/// Keeps the pages of a value out of swap, if the system allows that.
fn keep_from_swap(value: &str) {
    if let Err(error) = bay_sys::memory::keep_from_swap(value.as_bytes()) {
        tracing::debug!(%error, "a secret's memory may be swapped out");
    }
}

/// All secrets of this daemon.
pub(crate) struct Vault {
    data_dir: PathBuf,
    pub(crate) keys: Arc<Keyring>,
    secrets: RwLock<BTreeMap<String, Arc<Secret>>>,
    sentinels_of_bays: Mutex<HashMap<BayId, BaySentinels>>,
    changes: watch::Sender<u64>,
    /// Held while a secret is changed.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// Held while a command runs: one at a time for each secret.
    refreshing: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Results of commands, to be recorded.
    refreshed: mpsc::UnboundedSender<Refreshed>,
    to_write: Mutex<Option<mpsc::UnboundedReceiver<Refreshed>>>,
    /// By bay and name, for this value.
    guesses: Mutex<HashMap<(BayId, String), GuessesOf>>,
    former: Mutex<Former>,
}

type GuessesOf = (Option<SecretText>, Arc<Guesses>);

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault").field("secrets", &self.secrets().len()).finish_non_exhaustive()
    }
}

impl Vault {
    /// Reads all secrets. Without the key there are none, and every use reports why.
    pub(crate) fn open(data_dir: &Path, keys: Arc<Keyring>) -> Self {
        let mut secrets = BTreeMap::new();
        let mut former = Former::open(data_dir, &keys).unwrap_or_else(|error| {
            tracing::error!(message = %error.message, "former values of secrets cannot be read");
            Former::unreadable()
        });
        match stored::read_all(&data_dir.join(DIR), &keys) {
            Ok((all, problems)) => {
                for problem in problems {
                    tracing::error!(%problem, "a secret cannot be used");
                }
                for mut kept in all {
                    let name = kept.name.clone();
                    let earlier = std::mem::take(&mut kept.earlier);
                    match Secret::new(kept) {
                        Ok(secret) => {
                            if !earlier.is_empty() {
                                scrubbed_values::remember_earlier(
                                    &mut former,
                                    &secret,
                                    earlier,
                                    (data_dir, &*keys),
                                );
                            }
                            secrets.insert(name, Arc::new(secret));
                        }
                        Err(why) => tracing::error!(%name, %why, "a secret cannot be used"),
                    }
                }
            }
            Err(error) => tracing::error!(message = %error.message, "no secret can be used"),
        }
        let (refreshed, to_write) = mpsc::unbounded_channel();
        Self {
            data_dir: data_dir.to_owned(),
            refreshed,
            guesses: Mutex::default(),
            former: Mutex::new(former),
            to_write: Mutex::new(Some(to_write)),
            keys,
            secrets: RwLock::new(secrets),
            sentinels_of_bays: Mutex::default(),
            changes: watch::Sender::new(0),
            changing: tokio::sync::Mutex::default(),
            refreshing: Mutex::default(),
        }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.data_dir.join(DIR)
    }

    pub(crate) fn secrets(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Arc<Secret>>> {
        self.secrets.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find(&self, name: &str) -> Result<Arc<Secret>, CoreError> {
        self.keys.check()?;
        self.secrets().get(name).cloned().ok_or_else(|| {
            CoreError::new(
                ErrorCode::SecretNotFound,
                format!("there is no secret {:?}", crate::channel::plain_text(name)),
                Hint::new("{} lists the secrets", [Action::ListSecrets]),
            )
        })
    }

    /// A number that grows with every change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn list(&self) -> Result<Vec<SecretView>, CoreError> {
        self.keys.check()?;
        Ok(self.secrets().values().map(|secret| secret.view()).collect())
    }

    pub(crate) fn show(&self, name: &str) -> Result<SecretView, CoreError> {
        Ok(self.find(name)?.view())
    }

    /// Replaces the secret of the same name.
    fn put(&self, secret: Secret) -> Arc<Secret> {
        let mut all = self.secrets.write().unwrap_or_else(PoisonError::into_inner);
        let secret = match all.get(&secret.kept.name) {
            Some(before) if before.kept.incarnation == secret.kept.incarnation => secret.after(before),
            _ => secret,
        };
        let secret = Arc::new(secret);
        all.insert(secret.kept.name.clone(), Arc::clone(&secret));
        drop(all);
        self.changes.send_modify(|changes| *changes += 1);
        secret
    }

    pub(crate) fn take_out(&self, name: &str) {
        self.secrets.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.changes.send_modify(|changes| *changes += 1);
    }

    pub(crate) fn has_room(&self, name: &str) -> Result<(), CoreError> {
        let all = self.secrets();
        if all.len() < MAX_SECRETS || all.contains_key(name) {
            return Ok(());
        }
        Err(CoreError::new(
            ErrorCode::NotEnough,
            format!("there are {MAX_SECRETS} secrets, the most allowed"),
            Hint::new("{} removes one", [Action::RemoveSecret]),
        ))
    }

    /// What the gateway of a bay needs: all secrets of the bay, and the sentinels of those that it had.
    pub(crate) fn of_bay(&self, row: &BayRow, policy: &CompiledPolicy) -> Result<Arc<Secrets>, CoreError> {
        let (all, bay_sentinels) = self.those_of(row)?;
        let mut held: Vec<Held> = Vec::new();
        for secret in &all {
            let kept = &secret.kept;
            held.push(Held {
                name: kept.name.clone(),
                incarnation: kept.incarnation,
                uses: secret.named.iter().flat_map(|one| one.uses(policy)).collect(),
                sentinels: bay_sentinels.all(&kept.name),
                values: vec![Arc::clone(&secret.value)],
                public: secret.public,
                weak: secret.weak,
                managed: kept.managed,
                literal_bodies: kept.literal_bodies,
                guesses: self.guesses(row.id, &kept.name, Some(&kept.value)),
            });
        }
        self.note_rule_hosts(&all, policy)?;
        let covered = self.covered(row.id, &held);
        for name in bay_sentinels.names() {
            if !held.iter().any(|one| one.name == name) {
                held.push(Held::gone(name.clone(), bay_sentinels.all(&name)));
            }
        }
        Ok(Arc::new(Secrets::new(held).covering(covered)))
    }

    /// The sentinels for the guest of a bay, with their places.
    pub(crate) fn delivered(&self, row: &BayRow) -> Result<Vec<Delivered>, CoreError> {
        let (all, bay_sentinels) = self.those_of(row)?;
        let own = |secret: &Arc<Secret>| Some(deliver(secret, bay_sentinels.own.get(&secret.kept.name)?));
        Ok(all.iter().filter_map(own).collect())
    }

    /// The secrets of a bay and its sentinels, with new sentinels for new secrets.
    fn those_of(&self, row: &BayRow) -> Result<(Vec<Arc<Secret>>, BaySentinels), CoreError> {
        self.keys.check()?;
        let mut all: Vec<Arc<Secret>> = self.secrets().values().cloned().collect();
        let bay_sentinels = self.bay_sentinels(row, &all)?;
        all.retain(|secret| secret.is_of(row.id, &bay_sentinels.ancestors));
        Ok((all, bay_sentinels))
    }

    fn sentinels_of_bays(&self) -> std::sync::MutexGuard<'_, HashMap<BayId, BaySentinels>> {
        self.sentinels_of_bays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bay's sentinels, with new ones for new secrets.
    fn bay_sentinels(&self, row: &BayRow, all: &[Arc<Secret>]) -> Result<BaySentinels, CoreError> {
        let mut sentinels_of_bays = self.sentinels_of_bays();
        let parent = row.forked_from.as_ref().map(|from| from.bay);
        let mut bay_sentinels = match sentinels_of_bays.get(&row.id) {
            Some(bay_sentinels) => bay_sentinels.clone(),
            None => BaySentinels::open(&self.data_dir, row.id, parent, &self.keys)?,
        };
        let mut grown = false;
        let ancestors = bay_sentinels.ancestors.clone();
        for secret in all.iter().filter(|secret| secret.is_of(row.id, &ancestors)) {
            grown |= bay_sentinels
                .add(&secret.kept.name, secret.kept.value.expose())
                .map_err(|e| CoreError::internal(&e))?;
        }
        if grown {
            bay_sentinels.keep(&self.data_dir, row.id, &self.keys)?;
        }
        sentinels_of_bays.insert(row.id, bay_sentinels.clone());
        Ok(bay_sentinels)
    }

    /// Gives a fork its parent's sentinels, if there are any.
    pub(crate) fn fork(&self, child: BayId, parent: BayId) {
        let begun = BaySentinels::open(&self.data_dir, child, Some(parent), &self.keys);
        if let Err(error) = begun {
            tracing::error!(bay = %child, message = %error.message, "a fork did not get its parent's sentinels");
        }
    }

    /// Forgets a bay that is gone.
    pub(crate) fn forget(&self, bay: BayId) {
        self.sentinels_of_bays().remove(&bay);
        self.guesses.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _), _| *of != bay);
    }

    /// The value to put into a request of a bay that has the secret.
    pub(crate) async fn value(&self, name: &str, incarnation: u64) -> Result<Arc<SecretString>, String> {
        let now = Timestamp::now();
        let mut secret = self.current(name, incarnation)?;
        if secret.is_old(now) {
            secret = self.refresh(secret, now).await?;
        }
        if secret.is_over(now) {
            let why = secret.problem().map(|problem| format!(", and {}", problem.why)).unwrap_or_default();
            return Err(format!("the secret {name} has ended{why}"));
        }
        secret.last_used.store(now.as_microsecond(), Ordering::Relaxed);
        Ok(Arc::clone(&secret.value))
    }

    fn current(&self, name: &str, incarnation: u64) -> Result<Arc<Secret>, String> {
        let all = self.secrets();
        let found = all.get(name).filter(|secret| secret.kept.incarnation == incarnation);
        found.cloned().ok_or_else(|| format!("the secret {name} was taken back"))
    }

    /// Runs a secret's command. If it fails, the value stays, and the command is not run again for a while.
    async fn refresh(&self, secret: Arc<Secret>, now: Timestamp) -> Result<Arc<Secret>, String> {
        let (name, incarnation) = (secret.kept.name.clone(), secret.kept.incarnation);
        let turn = {
            let mut all = self.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(name.clone()).or_default())
        };
        let _turn = turn.lock().await;
        // Another task may have done it while this one waited.
        let secret = self.current(&name, incarnation)?;
        let lately = |problem: &Problem| problem.at.elapsed() < AGAIN_AFTER;
        if !secret.is_old(now) || secret.problem().as_ref().is_some_and(lately) {
            return Ok(secret);
        }
        let Some(command) = &secret.kept.command else { return Ok(secret) };
        let fetched = source::fetch(command.line.expose(), command.uid, source::WITHIN).await;
        let fetched = fetched.and_then(|fetched| match strength::weakness(fetched.value.expose()) {
            Some(why) if !secret.kept.allow_weak => {
                Err(format!("its command printed a value that is not taken: {why}"))
            }
            _ => Ok(fetched),
        });
        match fetched {
            Ok(fetched) => {
                let _changing = self.changing.lock().await;
                let mut kept = self.current(&name, incarnation)?.kept.clone();
                kept.replace_value(fetched.value);
                kept.expires = fetched.expires;
                let secret = self.keep(kept).await?;
                self.record_refresh(Refreshed { name, failed: None });
                Ok(secret)
            }
            Err(why) => {
                tracing::warn!(secret = %name, %why, "a secret could not be refreshed");
                self.record_refresh(Refreshed { name, failed: Some(why.clone()) });
                let problem = Problem { why, at: Instant::now() };
                *secret.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
                Ok(secret)
            }
        }
    }

    fn record_refresh(&self, refreshed: Refreshed) {
        // In tests, and while the daemon ends, nobody receives it.
        let _ = self.refreshed.send(refreshed);
    }

    /// The results of commands since the daemon started. Only the first caller gets them.
    pub(crate) fn refreshes(&self) -> Option<mpsc::UnboundedReceiver<Refreshed>> {
        self.to_write.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Stores a secret and puts it to use.
    pub(crate) async fn keep(&self, kept: Kept) -> Result<Arc<Secret>, String> {
        let secret = Secret::new(kept)?;
        self.remember_before(&secret).map_err(|error| error.message)?;
        let (dir, keys, copy) = (self.dir(), Arc::clone(&self.keys), secret.kept.clone());
        let written = crate::background::blocking(move || stored::write(&dir, &copy, &keys)).await;
        written.map_err(|error| error.message)?;
        Ok(self.put(secret))
    }
}

/// What the guest learns of a secret.
fn deliver(secret: &Secret, sentinel: &str) -> Delivered {
    let kept = &secret.kept;
    let files = kept
        .files
        .iter()
        .map(|file| SecretFile { path: file.path.clone(), text: file.text.replace(SENTINEL_MARK, sentinel) });
    let git = kept.git.iter().filter_map(|text| {
        let (user, place) = definition::git_place(text);
        let header = definition::git_slot(place, &secret.named)?.header_line(user, sentinel)?;
        Some(GitHeader { url: format!("https://{place}/"), header })
    });
    Delivered {
        name: kept.name.clone(),
        sentinel: sentinel.to_owned(),
        env: kept.env.clone(),
        files: files.collect(),
        git: git.collect(),
    }
}

pub(crate) fn text(value: &str) -> SecretText {
    SecretText::new(value.to_owned())
}

#[cfg(test)]
mod tests;
