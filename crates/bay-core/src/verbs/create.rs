//! `bay up`: from a request to a running bay.
//!
//! ```text
//!  validate ──► image and commit made ready (imported, fetched, checked out: only what is missing)
//!           ──► a checkpoint of the bay whose environment it gets, if it gets one
//!           ──► one transaction: the bay's row, wanted running, and its event   ◄── from here on the bay exists
//!           ──► reconciler: disk, runtime, guest answers
//! ```
//! If the caller hangs up, the work is still completed.

use std::sync::Arc;

use bay_policy::Layer;
use bay_pool::{Pool, PoolError};
use bay_store::{BayNew, Draft, NameChoice};
use bay_types::bay::{BayCreate, BayView, Limits, Origin, Source, State};
use bay_types::event;
use bay_types::image::ImageImport;
use bay_types::principal::Principal;
use bay_types::trace::Traceparent;
use bay_types::{Action, BayName, CoreError, ErrorCode, Hint, ImageId};
use jiff::Timestamp;

use super::environment::Parent;
use super::fetch::{bring, refuse_local};
use super::{bays, environment, images, policy, workspaces};
use crate::authorize::Verb;
use crate::backends::refusal;
use crate::background::{blocking, to_the_end};
use crate::channel::plain_text;
use crate::daemon::Daemon;
use crate::durability::relaxed;
use crate::progress::ProgressReporter;
use crate::registry::BayHandle;
use crate::validate;

/// The longest URL of a repository.
const MAX_URL: usize = 4096;

/// A request for a bay that passed the first checks.
#[derive(Debug)]
pub struct Creation {
    daemon: Arc<Daemon>,
    create: BayCreate,
    name: Option<BayName>,
    parent: Option<Traceparent>,
    who: Principal,
    /// Whose environment it begins with.
    environment: Option<Parent>,
}

/// Checks as much of a request for a bay as needs no work.
pub fn begin(
    daemon: &Arc<Daemon>,
    who: &Principal,
    create: BayCreate,
    parent: Option<Traceparent>,
) -> Result<Creation, CoreError> {
    daemon.permit(who, Verb::BayCreate)?;
    let name = check(daemon, &create)?;
    let environment = environment::parent(daemon, who, &create)?;
    Ok(Creation { daemon: Arc::clone(daemon), create, name, parent, who: *who, environment })
}

impl Creation {
    /// Makes the bay and waits until it runs.
    pub async fn run(self, reporter: ProgressReporter) -> Result<BayView, CoreError> {
        to_the_end(create(self, reporter)).await
    }
}

/// Checks of a request that need no work. More follow in [`make`].
fn check(daemon: &Daemon, create: &BayCreate) -> Result<Option<BayName>, CoreError> {
    let name = validate::create(create, daemon.room())?;
    let (_, backend) = daemon.backends.choose(create.backend.as_deref())?;
    // With the environment of another bay, that bay's backend counts.
    if create.environment.is_none() {
        backend.can_keep(&create.limits).map_err(|e| refusal(&e))?;
    }
    if let Some(name) = &name
        && let Ok(taken) = daemon.bays.find(name.as_str())
    {
        return Err(bay_store::StoreError::NameTaken(taken.name.clone()).to_api());
    }
    if let Source::Remote { url, .. } = &create.source {
        if url.is_empty() || url.len() > MAX_URL || url.starts_with('-') || url.chars().any(char::is_control)
        {
            return Err(CoreError::new(
                ErrorCode::InvalidInput,
                "the repository's URL is empty, too long, or contains characters that no URL has",
                "give a URL such as https://host/path.git",
            ));
        }
        refuse_local(url)?;
    }
    Ok(name)
}

async fn create(creation: Creation, reporter: ProgressReporter) -> Result<BayView, CoreError> {
    let began = Timestamp::now();
    let (daemon, parent) = (Arc::clone(&creation.daemon), creation.parent);
    let mut prepared = None;
    let made = make(creation, reporter, &mut prepared).await;
    if let Some(trace) = daemon.telemetry.place(parent) {
        daemon.telemetry.bay_made(trace, began, prepared, made.as_ref());
    }
    made
}

/// `prepared` becomes the moment at which image and commit are ready.
async fn make(
    creation: Creation,
    reporter: ProgressReporter,
    prepared: &mut Option<Timestamp>,
) -> Result<BayView, CoreError> {
    let Creation { daemon, mut create, name, who: caller, environment, .. } = creation;
    let daemon = &daemon;
    create.reach = validate::reach(&create.reach)?;
    if let Some(parent) = &environment {
        parent.check(daemon).await?;
    }
    create.limits.pids.get_or_insert(Limits::DEFAULT_PIDS);
    // A mistake in the policy is reported before anything is fetched.
    let location = match &create.source {
        Source::Remote { url, .. } => Some(url.clone()),
        _ => None,
    };
    let policy = match create.policy.take() {
        Some(given) => Some((policy::prepare(Layer::Bay, given.clone(), location.clone()).await?, given)),
        None => None,
    };
    // Held until the row names image and repository. From then on they count as used.
    let making = daemon.making.read().await;
    if let Source::Kept { workspace } = &mut create.source {
        let kept = workspaces::find(daemon, workspace).await?;
        *workspace = kept.name;
    }
    // The bay keeps the whole id: an end that means one image today may mean several tomorrow.
    if environment.is_none()
        && let Some(id) = images::whole_id(daemon, &create.image).await?
    {
        create.image = id.to_string();
    }
    let image = environment.as_ref().map(|parent| parent.settle(&mut create));
    let (backend, _) = daemon.backends.choose(create.backend.take().as_deref())?;
    let (image, origin, reporter) = prepare(daemon, &create, image, caller, reporter).await?;
    let policy = match policy {
        // For the rules that depend on it, the repository turned out to be another one.
        Some((_, given)) if origin.as_ref().map(|origin| &origin.location) != location.as_ref() => {
            let location = origin.as_ref().map(|origin| origin.location.clone());
            Some(policy::prepare(Layer::Bay, given, location).await?)
        }
        Some((prepared, _)) => Some(prepared),
        None => None,
    };
    let told = policy.as_ref().map(|policy| policy.summary.clone());
    let environment = match environment {
        Some(parent) => Some(parent.point(daemon, caller).await?),
        None => None,
    };
    *prepared = Some(Timestamp::now());
    let choice = match name {
        Some(name) => NameChoice::Exact(name),
        None => NameChoice::Derived(derived_name(&create.source, origin.as_ref())),
    };
    let by = caller.by();
    let new = BayNew {
        name: choice,
        spec: create,
        image_id: image,
        origin,
        forked_from: None,
        environment,
        backend,
        policy: policy.map(|policy| policy.new),
        reason: "its disk is being made".to_owned(),
    };
    let row = daemon
        .store
        .bay_create(new, |row| {
            Draft::of(event::bay::BayCreate {
                name: row.name.clone().into(),
                image: row.image_id.into(),
                origin: Some(row.origin.clone()),
                limits: Some(row.spec.limits.clone()),
                durability: relaxed(row.spec.durability),
                mounts: Some(row.spec.mounts.clone()),
                policy: Some(told),
                forked_from: None,
                environment: row.environment.clone(),
                backend: Some(row.backend.to_string()),
                user: row.spec.user.clone(),
                reach: row.spec.reach.clone(),
                by,
            })
        })
        .await
        .map_err(|e| e.to_api())?;
    let handle = Arc::new(BayHandle::of(row, &daemon.backends));
    daemon.bays.insert(Arc::clone(&handle));
    drop(making);
    let mut reporter = reporter;
    reporter.stage("starting the bay");
    let asked = handle.first_ask();
    (daemon.start_reconciler)(Arc::clone(daemon), Arc::clone(&handle));
    bays::reach(daemon, &handle, asked, State::Running, std::time::Duration::ZERO).await
}

/// Makes image and commit available. If all is cached, this is one call on a blocking thread. `known` is the image of a
/// bay that exists.
async fn prepare(
    daemon: &Arc<Daemon>,
    create: &BayCreate,
    known: Option<ImageId>,
    caller: Principal,
    mut reporter: ProgressReporter,
) -> Result<(ImageId, Option<Origin>, ProgressReporter), CoreError> {
    let pool = daemon.pool()?;
    let source = create.source.clone();
    let wanted = create.image.clone();
    let (found, origin, mut reporter) = blocking(move || {
        let found = match known {
            Some(id) => Some(id),
            None => pool.image_find(&wanted).map_err(|e| e.to_api())?.map(|image| image.id),
        };
        let origin = origin(&pool, &source, &mut reporter)?;
        Ok((found, origin, reporter))
    })
    .await?;
    if let Some(image) = found {
        return Ok((image, origin, reporter));
    }
    if create.image != "host" && !create.image.starts_with("dir:") && !create.image.starts_with("tar:") {
        return Err(CoreError::new(
            ErrorCode::ImageNotFound,
            format!("there is no image {:?}", create.image),
            Hint::new("{} lists the images; {} imports one", [Action::ListImages, Action::ImportImage]),
        ));
    }
    reporter.stage("importing the image");
    let import = ImageImport { source: create.image.clone(), name: None, add: Vec::new(), force: false };
    let (image, reporter) = images::import_image(daemon, import, caller, reporter).await?;
    Ok((image.id, origin, reporter))
}

/// The commit that a workspace begins from, checked out and ready for a snapshot.
fn origin(
    pool: &Pool,
    source: &Source,
    reporter: &mut ProgressReporter,
) -> Result<Option<Origin>, CoreError> {
    let api = |e: PoolError| e.to_api();
    let (repo, commit, branch) = match source {
        Source::Empty | Source::Kept { .. } => return Ok(None),
        Source::Cached { repo, commit, branch } => {
            if !pool.repo_has_commit(*repo, commit).map_err(api)? {
                return Err(CoreError::new(
                    ErrorCode::RefNotFound,
                    format!("the commit {} is not in the repository cache", plain_text(commit)),
                    Hint::new("run {} again: it copies the commit into the cache", [Action::MakeBayFromPath]),
                ));
            }
            (*repo, commit.clone(), branch.clone())
        }
        Source::Remote { url, reference } => {
            let resolve = |repo| pool.repo_resolve(repo, reference.as_deref());
            let (repo, resolved) = bring(pool, url, reporter, |repo, _| resolve(repo).map(Some))?;
            (repo, resolved.commit, resolved.branch)
        }
    };
    pool.repo_checkout(repo, &commit, branch.as_deref(), &mut |p| reporter.progress(p)).map_err(api)?;
    let location = pool.repo_view(repo).map_err(api)?.location;
    Ok(Some(Origin { repo, location, commit, branch }))
}

/// A name derived from the source of the workspace.
fn derived_name(source: &Source, origin: Option<&Origin>) -> BayName {
    let location = match (source, origin) {
        (Source::Remote { url, .. }, _) => url.as_str(),
        (Source::Kept { workspace }, _) => workspace.as_str(),
        (_, Some(origin)) => origin.location.as_str(),
        (_, None) => "",
    };
    let trimmed = location.trim_end_matches('/');
    let last = trimmed.rsplit(['/', ':']).next().unwrap_or("");
    BayName::slug(last.strip_suffix(".git").unwrap_or(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bay_is_named_after_the_last_part_of_its_source() {
        let named = |url: &str| {
            let source = Source::Remote { url: url.to_owned(), reference: None };
            derived_name(&source, None).to_string()
        };
        assert_eq!(named("https://example.org/team/My.Project.git"), "my-project");
        assert_eq!(named("git@example.org:tool.git"), "tool");
        assert_eq!(named("file:///srv/repo/"), "repo");
        assert_eq!(named("///"), "bay");
        assert_eq!(derived_name(&Source::Empty, None).as_str(), "bay");
    }
}
