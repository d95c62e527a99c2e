//! Showing, setting, rotating and removing secrets. Each change has its event. No event has a value in it.

use std::sync::Arc;
use std::time::Duration;

use bay_store::Draft;
use bay_types::bay::State;
use bay_types::event::{self, EventBody};
use bay_types::principal::Principal;
use bay_types::secret::{SecretRotate, SecretSet, SecretSource, SecretText, SecretView};
use bay_types::{Action, CoreError, ErrorCode, Hint};
use futures_util::future::join_all;
use jiff::Timestamp;

use crate::authorize::{Verb, authorize};
use crate::background::{blocking, to_the_end};
use crate::daemon::Daemon;
use crate::secrets::definition::{self, wrong};
use crate::secrets::source::{self, Fetched};
use crate::secrets::stored::{Kept, KeptBay, KeptCommand};
use crate::secrets::{Refreshed, stored, strength, text};

/// The shortest and the longest interval at which a command may be run, in seconds.
const REFRESH_S: std::ops::RangeInclusive<u64> = 10..=30 * 24 * 3600;

/// How long a verb waits for running bays to have a new secret.
const DELIVERED_WITHIN: Duration = Duration::from_secs(3);

async fn record(daemon: &Daemon, event: impl Into<EventBody>) -> Result<(), CoreError> {
    let seq = daemon.store.event_append(None, &Draft::of(event)).await.map_err(|e| e.to_api())?;
    daemon.store.event_durable(seq).await.map_err(|e| e.to_api())
}

fn failed_source(name: &str, why: &str) -> CoreError {
    CoreError::new(
        ErrorCode::SecretSource,
        format!("there is no value for {name}: {why}"),
        "run the command by hand, as the user who sets the secret; it has to print the value and nothing else",
    )
}

/// Refuses a value that is easy to guess, unless the caller accepts that.
fn strong(value: &SecretText, name: &str, allow_weak: bool) -> Result<(), CoreError> {
    match strength::weakness(value.expose()) {
        Some(why) if !allow_weak => Err(wrong(
            format!(
                "the value for {name} is refused: {why}; a bay could try a list of such values at the secret's hosts"
            ),
            "have a program make the value (such as `openssl rand -hex 20`), or insist with --allow-weak: answers with it in them are \
             cut off then",
        )),
        _ => Ok(()),
    }
}

/// A value as the caller sent it, without its final line break.
fn given_value(value: &str, name: &str) -> Result<Fetched, CoreError> {
    let value = value.trim_end_matches(['\n', '\r']);
    source::fits(value).map_err(|why| {
        wrong(format!("the value for {name} cannot be one: {why}"), "give the credential alone, in one line")
    })?;
    Ok(Fetched { value: text(value), expires: None })
}

/// All secrets, without their values.
pub fn list(daemon: &Daemon, who: &Principal) -> Result<Vec<SecretView>, CoreError> {
    daemon.permit(who, Verb::SecretList)?;
    daemon.secrets.list()
}

/// One secret, without its value.
pub fn show(daemon: &Daemon, who: &Principal, name: &str) -> Result<SecretView, CoreError> {
    daemon.permit(who, Verb::SecretShow)?;
    daemon.secrets.show(name)
}

/// Sets a secret or replaces it.
pub async fn set(
    daemon: &Arc<Daemon>,
    who: &Principal,
    name: String,
    wanted: SecretSet,
) -> Result<SecretView, CoreError> {
    daemon.permit(who, Verb::SecretSet)?;
    let (daemon, who) = (Arc::clone(daemon), *who);
    to_the_end(async move {
        let view = set_secret(Arc::clone(&daemon), name, wanted, who).await?;
        delivered(&daemon).await;
        Ok(view)
    })
    .await
}

/// Gives a secret another value, from its next use on.
pub async fn rotate(
    daemon: &Arc<Daemon>,
    who: &Principal,
    name: String,
    wanted: SecretRotate,
) -> Result<SecretView, CoreError> {
    daemon.permit(who, Verb::SecretRotate)?;
    to_the_end(rotate_secret(Arc::clone(daemon), name, wanted, *who)).await
}

/// Deletes a secret. Requests that use it end.
pub async fn delete(daemon: &Arc<Daemon>, who: &Principal, name: String) -> Result<SecretView, CoreError> {
    daemon.permit(who, Verb::SecretDelete)?;
    to_the_end(remove_secret(Arc::clone(daemon), name, *who)).await
}

async fn set_secret(
    daemon: Arc<Daemon>,
    name: String,
    mut wanted: SecretSet,
    caller: Principal,
) -> Result<SecretView, CoreError> {
    let vault = &daemon.secrets;
    vault.keys.check()?;
    definition::name(&name)?;
    definition::expand(&name, &mut wanted);
    definition::check(&wanted)?;
    let mut bays = Vec::new();
    for bay in &wanted.bays {
        let handle = daemon.bays.find(bay)?;
        bays.push(KeptBay { id: handle.id, name: handle.name.to_string() });
    }
    if wanted.expires.is_some_and(|expires| expires <= Timestamp::now()) {
        return Err(wrong("the secret would have ended already", "give a time in the future, or none"));
    }
    let (fetched, command) = match &wanted.source {
        SecretSource::Value(value) => (given_value(value.expose(), &name)?, None),
        SecretSource::Command { line, refresh_s } => {
            // A caller with the token may be anywhere, and is no user of this host.
            if authorize(caller.kind(), Verb::SecretCommandSet).is_err() {
                let next = "set it on the host itself, or give a value";
                return Err(wrong("a command is only taken from a caller on this host", next));
            }
            if !REFRESH_S.contains(refresh_s) {
                return Err(wrong(
                    format!("a value cannot be asked for every {refresh_s} s"),
                    format!("give {} s to {} s", REFRESH_S.start(), REFRESH_S.end()),
                ));
            }
            let fetched = source::fetch(line.expose(), caller.uid(), source::WITHIN).await;
            let fetched = fetched.map_err(|why| failed_source(&name, &why))?;
            (fetched, Some(KeptCommand { line: line.clone(), refresh_s: *refresh_s, uid: caller.uid() }))
        }
    };
    strong(&fetched.value, &name, wanted.allow_weak)?;
    let _changing = vault.changing.lock().await;
    vault.has_room(&name)?;
    let now = Timestamp::now();
    let before = vault.secrets().get(&name).map(|secret| secret.kept.clone());
    let incarnation = before.as_ref().map(|before| before.incarnation);
    let mut kept = Kept {
        incarnation: incarnation.unwrap_or_else(|| u64::try_from(now.as_microsecond()).unwrap_or(1)),
        name: name.clone(),
        value: before.as_ref().map_or_else(|| fetched.value.clone(), |before| before.value.clone()),
        value_since: now,
        earlier: Vec::new(),
        expires: wanted.expires.or(fetched.expires),
        command,
        uses: wanted.uses,
        env: wanted.env,
        files: wanted.files,
        git: wanted.git,
        bays,
        managed: !wanted.unmanaged,
        literal_bodies: wanted.literal_bodies,
        allow_weak: wanted.allow_weak,
        set_at: now,
    };
    kept.replace_value(fetched.value);
    let event = event::secret::SecretSet {
        name: name.clone(),
        uses: kept.uses.clone(),
        env: kept.env.clone(),
        files: kept.files.iter().map(|file| file.path.clone()).collect(),
        git: kept.git.clone(),
        bays: kept.bays.iter().map(|bay| bay.id.to_string()).collect(),
        managed: kept.managed,
        weak: strength::weakness(kept.value.expose()).is_some(),
        source: if kept.command.is_some() { "command" } else { "value" }.to_owned(),
        expires: kept.expires,
        by: caller.by(),
    };
    record(&daemon, event).await?;
    let secret = vault.keep(kept).await.map_err(|why| unwritten(&name, &why))?;
    Ok(secret.view())
}

/// Waits until running bays have the present secrets, so that a command that starts next finds them. A bay that does not
/// answer in time gets them later.
async fn delivered(daemon: &Daemon) {
    let change = *daemon.secrets.subscribe().borrow();
    let handles = daemon.bays.list();
    let running = handles.iter().filter(|handle| handle.row().state == State::Running);
    let open: Vec<_> = running.filter_map(|handle| handle.egress()).collect();
    let all = join_all(open.iter().map(|egress| egress.secrets_delivered(change)));
    let _ = tokio::time::timeout(DELIVERED_WITHIN, all).await;
}

fn unwritten(name: &str, why: &str) -> CoreError {
    CoreError::new(
        ErrorCode::Internal,
        format!("the secret {name} could not be stored: {why}"),
        "check the disk of the data directory; until then the old value and uses apply",
    )
}

async fn rotate_secret(
    daemon: Arc<Daemon>,
    name: String,
    wanted: SecretRotate,
    caller: Principal,
) -> Result<SecretView, CoreError> {
    let vault = &daemon.secrets;
    let before = vault.find(&name)?;
    if wanted.expires.is_some_and(|expires| expires <= Timestamp::now()) {
        return Err(wrong("the new value would have expired already", "give a time in the future, or none"));
    }
    let fetched = match (&wanted.value, &before.kept.command) {
        (Some(value), None) => given_value(value.expose(), &name)?,
        (Some(_), Some(_)) => {
            return Err(wrong(
                format!("the values of {name} come from a command"),
                Hint::new(
                    "{} without a value runs that command again; {} gives the secret another source",
                    [Action::RotateSecret(name.clone()), Action::SetSecret(name.clone())],
                ),
            ));
        }
        (None, Some(command)) => {
            let fetched = source::fetch(command.line.expose(), command.uid, source::WITHIN).await;
            fetched.map_err(|why| failed_source(&name, &why))?
        }
        (None, None) => {
            return Err(wrong(
                format!("no new value was given for {name}, and no command provides one"),
                "give one with --from-env, --from-file or on standard input (-)",
            ));
        }
    };
    let allow_weak = wanted.allow_weak || (before.kept.allow_weak && before.kept.command.is_some());
    strong(&fetched.value, &name, allow_weak)?;
    let _changing = vault.changing.lock().await;
    let mut kept = vault.find(&name)?.kept.clone();
    kept.replace_value(fetched.value);
    kept.expires = wanted.expires.or(fetched.expires);
    kept.allow_weak = allow_weak;
    let weak = strength::weakness(kept.value.expose()).is_some();
    let event = event::secret::SecretRotated {
        name: name.clone(),
        expires: Some(kept.expires),
        weak: Some(weak),
        by: caller.by(),
    };
    record(&daemon, event).await?;
    let secret = vault.keep(kept).await.map_err(|why| unwritten(&name, &why))?;
    Ok(secret.view())
}

async fn remove_secret(
    daemon: Arc<Daemon>,
    name: String,
    caller: Principal,
) -> Result<SecretView, CoreError> {
    let vault = &daemon.secrets;
    let _changing = vault.changing.lock().await;
    let secret = vault.find(&name)?;
    record(&daemon, event::secret::SecretRemoved { name: name.clone(), by: caller.by() }).await?;
    // A server may have kept the value. Whatever happens to the files, this daemon gives it to no bay any more.
    let remembered = vault.remember(&secret);
    vault.take_out(&name);
    let (dir, view) = (vault.dir(), secret.view());
    let removed = name.clone();
    blocking(move || stored::remove(&dir, &removed)).await?;
    remembered.map_err(|error| {
        CoreError::new(
            ErrorCode::Internal,
            format!("{name} is removed, but after a restart the daemon will not recognize its old value in traffic: {}", error.message),
            "check the disk of the data directory; revoke the old value at its service",
        )
    })?;
    Ok(view)
}

/// Records every run of a secret's command, with its result.
pub(crate) async fn record_refreshes(daemon: Arc<Daemon>) {
    let Some(mut refreshes) = daemon.secrets.refreshes() else { return };
    while let Some(Refreshed { name, failed }) = refreshes.recv().await {
        let event = match failed {
            None => Draft::of(event::secret::SecretRotated {
                name: name.clone(),
                expires: None,
                weak: None,
                by: "its command".to_owned(),
            }),
            Some(why) => Draft::of(event::secret::SecretStale { name: name.clone(), why }),
        };
        if let Err(error) = daemon.store.event_append(None, &event).await {
            tracing::error!(secret = %name, %error, "the run of a secret's command could not be recorded");
        }
    }
}
