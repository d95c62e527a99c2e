//! Forks: new bays from a point in the life of another. All children of one fork come from one checkpoint.

use std::sync::Arc;
use std::time::Duration;

use bay_store::{BayNew, Draft, NameChoice};
use bay_types::bay::{BayCreate, BayView, Lineage, State};
use bay_types::checkpoint::{CheckpointKind, ForkCreate, Forked, MAX_FORKS, Point, SHOWN_INSIDE};
use bay_types::durability::Durability;
use bay_types::event;
use bay_types::event::bay::BayForked;
use bay_types::principal::Principal;
use bay_types::{Action, BayName, CoreError, ErrorCode, Hint};

use super::checkpoints::{self, Wanted};
use super::{bays, memory};
use crate::authorize::Verb;
use crate::background::to_the_end;
use crate::daemon::Daemon;
use crate::durability::{may_skip_flushes, relaxed};
use crate::registry::BayHandle;

/// If the request has no name, the children's names are the parent's name, this and a number.
const SUFFIX: &str = "-fork";
/// The most numbers that are tried for a free name. After that, the store finds one.
const MOST_TRIED: u32 = 9999;

/// Makes new bays from a point in a bay's life.
pub async fn fork(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    wanted: ForkCreate,
) -> Result<Forked, CoreError> {
    let parent = daemon.bay_for(who, Verb::BayFork, bay)?;
    to_the_end(make_children(Arc::clone(daemon), parent, wanted, *who)).await
}

async fn make_children(
    daemon: Arc<Daemon>,
    parent: Arc<BayHandle>,
    wanted: ForkCreate,
    caller: Principal,
) -> Result<Forked, CoreError> {
    if !(1..=MAX_FORKS).contains(&wanted.count) {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("a fork cannot make {} bays", wanted.count),
            format!("give a number from 1 to {MAX_FORKS}"),
        ));
    }
    parent.require_driver()?;
    let prefix = match &wanted.name {
        Some(given) => crate::validate::name(given)?,
        None => with_suffix(&parent.name),
    };
    if wanted.from.is_none()
        && !wanted.files_only
        && parent.backend.require_memory().is_ok()
        && let Some(held) = parent.backend.memory_held(parent.id).await
    {
        // Checked before the capture with an estimate; the capture gives the exact size.
        has_room(&daemon, &parent, held, wanted.count)?;
    }
    let point = match wanted.from {
        Some(name) => {
            let current = parent.row().checkpoint;
            let all = checkpoints::views(&daemon, &parent).await?;
            let shown = all.len().saturating_sub(SHOWN_INSIDE);
            checkpoints::find(&daemon, &parent, name)
                .await?
                .view(current, all.iter().skip(shown).any(|other| other.name == name))
        }
        None => {
            let automatic = Some(format!("to fork {prefix} from"));
            let kind = wanted.files_only.then_some(CheckpointKind::Files);
            checkpoints::take(
                &daemon,
                &parent,
                Wanted { kind, message: None, automatic, spared: None },
                caller,
            )
            .await?
        }
    };
    let live = point.kind == CheckpointKind::Memory && !wanted.files_only;
    if live {
        let at = Point { bay: parent.id, checkpoint: point.name };
        let each = memory::restorable_bytes(&parent, at).await?;
        has_room(&daemon, &parent, each, wanted.count)?;
    }
    let (mut children, mut not_made) = (Vec::new(), None);
    let mut number = 0_u32;
    for index in 0..wanted.count {
        let name = loop {
            number += 1;
            let name = BayName::slug(&format!("{prefix}-{number}"));
            // Another bay may take the name in between. Then the store adds another number.
            if daemon.bays.find(name.as_str()).is_err() || number > MOST_TRIED {
                break name;
            }
        };
        let lineage = Lineage {
            bay: parent.id,
            name: parent.name.clone(),
            checkpoint: point.name,
            index,
            memory: live,
        };
        match child(&daemon, &parent, name.clone(), lineage, caller).await {
            Ok(made) => children.push(made),
            Err(error) => {
                not_made = Some((name, error));
                break;
            }
        }
    }
    if !children.is_empty() {
        let names: Vec<BayName> = children.iter().map(|(handle, _)| handle.name.clone()).collect();
        let event = Draft::of(BayForked { checkpoint: point.name.into(), children: names, by: caller.by() });
        daemon.store.event_append(Some(parent.id), &event).await.map_err(|e| e.to_api())?;
    }
    let (mut bays, mut failed): (Vec<BayView>, Vec<(BayName, CoreError)>) = (Vec::new(), Vec::new());
    for (handle, asked) in &children {
        match bays::reach(&daemon, handle, *asked, State::Running, Duration::ZERO).await {
            Ok(view) => bays.push(view),
            Err(error) => failed.push((handle.name.clone(), error)),
        }
    }
    let mut errors = failed.iter().chain(&not_made).map(|(_, error)| error);
    let Some(first) = errors.next().cloned() else {
        return Ok(Forked { checkpoint: point, bays });
    };
    match wanted.count {
        1 => Err(first),
        count => Err(incomplete(count, &bays, &failed, not_made.as_ref(), &first)),
    }
}

/// The error of a fork whose children do not all run. It names the running ones, the others, and the reasons.
fn incomplete(
    count: u32,
    running: &[BayView],
    failed: &[(BayName, CoreError)],
    not_made: Option<&(BayName, CoreError)>,
    first: &CoreError,
) -> CoreError {
    let mut parts = Vec::new();
    if let Some((name, error)) = not_made {
        parts.push(format!("{name} could not be made: {}", error.message));
    }
    parts.extend(
        failed.iter().map(|(name, error)| format!("{name} was made but does not run: {}", error.message)),
    );
    let names: Vec<&str> = running.iter().map(|bay| bay.name.as_str()).collect();
    parts.push(match names.as_slice() {
        [] => "none of the children runs".to_owned(),
        names => format!("{} of {count} children run: {}", names.len(), names.join(", ")),
    });
    let left: Vec<&str> = names.into_iter().chain(failed.iter().map(|(name, _)| name.as_str())).collect();
    let hint = match left.as_slice() {
        [] => first.hint.clone(),
        left => {
            let made = Action::RemoveBays(left.iter().map(ToString::to_string).collect());
            Hint::new("{} removes the new bays", [made]).and(first.hint.clone())
        }
    };
    CoreError::new(first.code, parts.join("; "), hint)
}

/// Before any child is made, refuses children that this host has no memory for now.
fn has_room(daemon: &Daemon, parent: &BayHandle, each: u64, count: u32) -> Result<(), CoreError> {
    daemon.admission.fits(each.saturating_mul(u64::from(count))).map_err(|shortage| {
        let what = match count {
            1 => format!("a fork of the running {}", parent.name),
            _ => format!("{count} bays that continue from {}", parent.name),
        };
        let hint = Hint::new(
            "make fewer, or stop other bays; or {} starts the new bays from the files, without the memory",
            [Action::FilesOnly],
        );
        shortage.refusal(&what, hint)
    })
}

/// Makes the child's row, and starts its reconciler.
async fn child(
    daemon: &Arc<Daemon>,
    parent: &BayHandle,
    name: BayName,
    lineage: Lineage,
    caller: Principal,
) -> Result<(Arc<BayHandle>, u64), CoreError> {
    let row = parent.row();
    let by = caller.by();
    // Its processes continue with the filter they had.
    let skips = lineage.memory && may_skip_flushes(&daemon.store, &row).await.map_err(|e| e.to_api())?;
    let durability = if skips { Durability::Relaxed } else { row.spec.durability };
    let new = BayNew {
        name: NameChoice::Derived(name),
        // An operator opened ports of the host to the parent alone.
        spec: BayCreate { name: None, reach: Vec::new(), durability, ..row.spec },
        image_id: row.image_id,
        origin: row.origin,
        reason: format!("its disk is being made from {} of {}", lineage.checkpoint, lineage.name),
        forked_from: Some(lineage),
        environment: None,
        backend: row.backend,
        policy: None,
    };
    let made = daemon.store.bay_create(new, |row| {
        Draft::of(event::bay::BayCreate {
            name: row.name.clone().into(),
            image: row.image_id.into(),
            origin: None,
            limits: None,
            durability: relaxed(row.spec.durability),
            mounts: None,
            policy: None,
            forked_from: row.forked_from.clone(),
            environment: None,
            backend: Some(row.backend.to_string()),
            user: row.spec.user.clone(),
            reach: Vec::new(),
            by,
        })
    });
    let row = made.await.map_err(|e| e.to_api())?;
    // While the parent exists: processes in the child remember the parent's sentinels.
    daemon.secrets.fork(row.id, parent.id);
    let handle = Arc::new(BayHandle::of(row, &daemon.backends));
    daemon.bays.insert(Arc::clone(&handle));
    let asked = handle.first_ask();
    (daemon.start_reconciler)(Arc::clone(daemon), Arc::clone(&handle));
    Ok((handle, asked))
}

/// `web-fork`, shortened if there would be no room for a number.
fn with_suffix(name: &BayName) -> BayName {
    const NUMBER: usize = 4;
    let room = BayName::MAX_LEN.saturating_sub(SUFFIX.len() + NUMBER);
    let short: String = name.as_str().chars().take(room).collect();
    BayName::slug(&format!("{short}{SUFFIX}"))
}
