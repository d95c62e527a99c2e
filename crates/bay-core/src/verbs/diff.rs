//! What differs between two moments of a bay's life, and which of it a person should look at.
//!
//! ```text
//!  moments ──► a turn ──► both trees opened (now: a temporary snapshot) ──► compared on a blocking thread
//!                                                      caller hangs up ──► given up at the next path
//! ```
//! This changes nothing of a bay and runs no program. A stopped bay is compared like a running one.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bay_backend::files::WorkspaceFrom;
use bay_diff::review::Reviewer;
use bay_diff::{DiffError, Hear, LeftOut, Options, RulesOf, Told};
use bay_pool::{DiffSide, Pool, Side};
use bay_types::diff::{DiffAsk, DiffLine, DiffSummary, Moment, PackageChange, Part, Review, UnusedRules};
use bay_types::principal::Principal;
use bay_types::progress::Progress;
use bay_types::{Action, CoreError, ErrorCode, Hint};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::authorize::Verb;
use crate::background::blocking;
use crate::daemon::Daemon;
use crate::progress::{IN_FLIGHT, ProgressReporter, REPORT_EVERY};
use crate::registry::BayHandle;
use crate::verbs::start_spec::{begins_from, environment_of};
use crate::verbs::{bays, checkpoints};

/// How long a reader, for example a person in a pager, may leave lines unread before others get its turn.
const READ_WITHIN: Duration = Duration::from_secs(15 * 60);
/// How many comparisons run at the same time, of all bays. For a hostile bay, each may take a few hundred MiB for
/// names and paths.
pub(crate) const MAX_DIFFS: usize = 4;
/// How long another comparison waits for its turn.
const TURN_WITHIN: Duration = Duration::from_secs(60);

/// A comparison that has its turn.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) bay: String,
    pub(crate) from: Moment,
    pub(crate) to: Moment,
    part: Part,
    /// Whether another owner of a file is a difference.
    owners: bool,
    before: Wanted,
    after: Wanted,
    /// Where the work began, if files that the repository ignores are left out.
    beginning: Option<(Moment, Wanted)>,
    pool: Pool,
    _turn: OwnedSemaphorePermit,
}

/// One side of a comparison.
#[derive(Debug)]
struct Wanted {
    bay: bay_types::BayId,
    side: Side,
}

/// Compares two moments of a bay's life, and sends differences while they are found. If the reader leaves, the work
/// ends at the next path.
pub async fn diff(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    ask: &DiffAsk,
) -> Result<mpsc::Receiver<Result<DiffLine, CoreError>>, CoreError> {
    let comparison = prepare(daemon, who, bay, ask).await?;
    let (to, from) = mpsc::channel(IN_FLIGHT);
    let (part, options) = (ask.part, shown(ask.part, ask.patch));
    tokio::spawn(async move {
        let lines = Lines { to: to.clone(), runtime: Handle::current(), told: None };
        let last = blocking(move || lines.send(&comparison, part, &options)).await;
        let _ = to.send_timeout(last.map(DiffLine::Done), READ_WITHIN).await;
    });
    Ok(from)
}

/// The lines of a comparison, sent at the pace of the reader.
struct Lines {
    to: mpsc::Sender<Result<DiffLine, CoreError>>,
    runtime: Handle,
    told: Option<Instant>,
}

impl Lines {
    fn send(
        mut self,
        comparison: &Comparison,
        part: Part,
        options: &Options,
    ) -> Result<DiffSummary, CoreError> {
        let (bay, from, to) = (comparison.bay.clone(), comparison.from, comparison.to);
        let _ = self.line(DiffLine::Begin { bay, from, to, part });
        run(comparison, options, &mut |found| match found {
            Found::Package(change) => self.line(DiffLine::Package(change)),
            Found::Told(Told::Entry(entry)) => self.line(DiffLine::Entry(entry)),
            Found::Told(Told::Progress(progress)) => {
                if self.told.is_some_and(|at| at.elapsed() < REPORT_EVERY) {
                    return ControlFlow::Continue(());
                }
                self.told = Some(Instant::now());
                match self.to.try_send(Ok(DiffLine::Progress(progress))) {
                    Err(mpsc::error::TrySendError::Closed(_)) => ControlFlow::Break(()),
                    // If the channel is full, it contains more important items.
                    Err(mpsc::error::TrySendError::Full(_)) | Ok(()) => ControlFlow::Continue(()),
                }
            }
        })
    }

    fn line(&self, told: DiffLine) -> ControlFlow<()> {
        match self.runtime.block_on(self.to.send_timeout(Ok(told), READ_WITHIN)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

/// Prepares a review. Only the workspace leaves a bay, so only the workspace is reviewed.
pub async fn begin_review(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    ask: DiffAsk,
) -> Result<ReviewBegun, CoreError> {
    let handle = daemon.bay_for(who, Verb::BayReview, bay)?;
    let ask = DiffAsk { part: Part::Workspace, ..ask };
    prepare_for(daemon, &handle, &ask).await.map(ReviewBegun)
}

/// A prepared review.
#[derive(Debug)]
pub struct ReviewBegun(Comparison);

impl ReviewBegun {
    /// Reads what changed in the workspace, and reports what a person should look at before it leaves the bay.
    pub async fn run(self, reporter: ProgressReporter) -> Result<Review, CoreError> {
        review(self.0, reporter).await
    }
}

/// Prepares a comparison for a principal, and waits for its turn.
pub(super) async fn prepare(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    ask: &DiffAsk,
) -> Result<Comparison, CoreError> {
    let handle = daemon.bay_for(who, Verb::BayDiff, bay)?;
    prepare_for(daemon, &handle, ask).await
}

/// Determines what to compare, and waits for a turn. Without another request, a comparison begins where the work
/// began, so restores, promotions and checkpoints do not change from where it compares.
async fn prepare_for(
    daemon: &Daemon,
    handle: &Arc<BayHandle>,
    ask: &DiffAsk,
) -> Result<Comparison, CoreError> {
    let row = handle.row();
    bays::not_deleting(&row, "compared")?;
    if !row.disk_ready {
        return Err(CoreError::new(
            ErrorCode::BayState,
            format!("the bay {} has no files yet: it is {} ({})", row.name, row.state, row.reason),
            "repeat the command when the bay runs",
        ));
    }
    let pool = daemon.pool()?;
    // A bay from before beginnings were kept only knows what it was made from.
    let beginning = if pool.has_beginning(row.id) { Moment::Beginning } else { Moment::Base };
    let known = |moment: Moment| if moment == Moment::Beginning { beginning } else { moment };
    let (from, to) = (known(ask.from.unwrap_or(beginning)), known(ask.to.unwrap_or(Moment::Now)));
    for moment in [from, to] {
        if let Moment::Checkpoint(name) = moment {
            checkpoints::find(daemon, handle, name).await?;
        }
    }
    let wanted = |moment| {
        let side = match moment {
            Moment::Now => Side::Now,
            Moment::Base => {
                let begins_from = begins_from(&row);
                Side::Base { root: begins_from.root, workspace: begins_from.workspace }
            }
            Moment::Beginning => Side::Beginning { root: environment_of(&row) },
            Moment::Checkpoint(name) => Side::Checkpoint(name),
        };
        Wanted { bay: row.id, side }
    };
    let turn = tokio::time::timeout(TURN_WITHIN, Arc::clone(&daemon.diffs).acquire_owned()).await;
    let Ok(Ok(turn)) = turn else {
        return Err(CoreError::new(
            ErrorCode::Interrupted,
            format!("{MAX_DIFFS} comparisons are running, the most allowed"),
            "repeat the command when one of them has ended",
        ));
    };
    let without_ignored = ask.part == Part::Workspace && !ask.ignored;
    Ok(Comparison {
        bay: row.name.to_string(),
        from,
        to,
        part: ask.part,
        owners: ask.part == Part::Root || row.spec.user.is_none(),
        before: wanted(from),
        after: wanted(to),
        beginning: without_ignored.then(|| (beginning, wanted(beginning))),
        pool,
        _turn: turn,
    })
}

/// How a comparison is made for a reader.
pub(super) fn shown(part: Part, patch: bool) -> Options {
    let git = match part {
        Part::Workspace => bay_diff::GitDirectories::LeftOut,
        Part::Root => bay_diff::GitDirectories::All,
    };
    Options { git, ctl_link: part == Part::Workspace, ..Options::shown(patch) }
}

/// A result of a comparison.
#[derive(Debug)]
pub(crate) enum Found {
    Package(PackageChange),
    Told(Told),
}

/// Compares on the calling thread, which may take long. [`ControlFlow::Break`] ends it early.
pub(super) fn run(
    comparison: &Comparison,
    options: &Options,
    hear: &mut dyn FnMut(Found) -> ControlFlow<()>,
) -> Result<DiffSummary, CoreError> {
    let stage = |stage: &str| {
        Found::Told(Told::Progress(Progress { stage: stage.to_owned(), ..Progress::default() }))
    };
    let stopped = || failed(&DiffError::Stopped);
    if hear(stage("opening both sides")).is_break() {
        return Err(stopped());
    }
    let open = |wanted: &Wanted, hear: &mut dyn FnMut(Found) -> ControlFlow<()>| {
        open(&comparison.pool, wanted, comparison.part, hear)
    };
    // The present state is captured first: making an old checkout again may take a while.
    let (before, after);
    if matches!(comparison.after.side, Side::Now) {
        after = open(&comparison.after, hear)?;
        before = open(&comparison.before, hear)?;
    } else {
        before = open(&comparison.before, hear)?;
        after = open(&comparison.after, hear)?;
    }
    let settled_before = [before.settled_before(), after.settled_before()].into_iter().flatten().min();
    let options = Options { settled_before, owners: comparison.owners, ..options.clone() };
    if comparison.part == Part::Root {
        let installed = |side: &DiffSide| {
            bay_diff::packages::installed(side.top()).unwrap_or_else(|error| {
                tracing::info!(bay = comparison.bay, %error, "a list of packages cannot be read");
                bay_diff::packages::Packages::default()
            })
        };
        for change in bay_diff::packages::changes(&installed(&before), &installed(&after)) {
            if hear(Found::Package(change)).is_break() {
                return Err(stopped());
            }
        }
    }
    // The rules that an agent adds must hide nothing from a review.
    let reviewing = options.git == bay_diff::GitDirectories::WhatRuns;
    let rules = if reviewing { RulesOf::Beginning } else { RulesOf::Newer };
    let opened;
    let beginning = match &comparison.beginning {
        None => Ok(None),
        Some((moment, _)) if *moment == comparison.from => Ok(Some(before.top())),
        Some((moment, _)) if *moment == comparison.to => Ok(Some(after.top())),
        Some((_, wanted)) => match open(wanted, hear) {
            Ok(side) => {
                opened = side;
                Ok(Some(opened.top()))
            }
            Err(error) => Err(error.message),
        },
    };
    let (left_out, unknown) = match beginning {
        Ok(beginning) => (beginning.map(|beginning| LeftOut { beginning, rules }), None),
        Err(why) => (None, Some(UnusedRules { path: ".gitignore".to_owned(), why })),
    };
    let listen: Hear<'_> = &mut |told| hear(Found::Told(told));
    let mut summary = bay_diff::compare_without(left_out, before.top(), after.top(), &options, listen)
        .map_err(|e| failed(&e))?;
    summary.unused_rules.extend(unknown);
    for (side, moment) in [(&before, comparison.from), (&after, comparison.to)] {
        if !side.is_whole() {
            return Err(CoreError::new(
                ErrorCode::Interrupted,
                format!("{moment} of {} was removed while it was compared", comparison.bay),
                Hint::new(
                    "{} lists the remaining checkpoints to compare with",
                    [Action::ListCheckpoints(comparison.bay.as_str().into())],
                ),
            ));
        }
    }
    Ok(summary)
}

/// Opens a side. If a checkout was dropped to save space, it is made again from the cached repository.
fn open(
    pool: &Pool,
    wanted: &Wanted,
    part: Part,
    hear: &mut dyn FnMut(Found) -> ControlFlow<()>,
) -> Result<DiffSide, CoreError> {
    if let Side::Base { workspace: WorkspaceFrom::Checkout { repo, commit, branch }, .. } = &wanted.side
        && part == Part::Workspace
    {
        let report = &mut |progress| {
            let _ = hear(Found::Told(Told::Progress(progress)));
        };
        pool.repo_checkout(*repo, commit, branch.as_deref(), report).map_err(|e| e.to_api())?;
    }
    pool.diff_side(wanted.bay, &wanted.side, part).map_err(|e| {
        let error = e.to_api();
        if !matches!(wanted.side, Side::Base { .. }) {
            return error;
        }
        CoreError::new(
            error.code,
            format!("what the bay began from is gone: {}", error.message),
            Hint::new("compare with a checkpoint instead: {}", [Action::CompareWithCheckpoint]),
        )
    })
}

fn failed(error: &DiffError) -> CoreError {
    match error {
        DiffError::Stopped => CoreError::new(
            ErrorCode::Interrupted,
            "the comparison was stopped because its client did not read the result",
            "repeat the command",
        ),
        DiffError::Top(_) => CoreError::internal(error),
    }
}

async fn review(comparison: Comparison, mut reporter: ProgressReporter) -> Result<Review, CoreError> {
    blocking(move || {
        reviewed(comparison, &mut |progress| {
            reporter.progress(progress);
            if reporter.has_reader() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
    })
    .await
}

/// Reviews on the calling thread, for the verbs by which work leaves a bay.
pub(crate) fn reviewed(
    comparison: Comparison,
    hear: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Review, CoreError> {
    let mut reviewer = Reviewer::default();
    let summary = run(&comparison, &Options::reviewed(), &mut |found| match found {
        Found::Told(Told::Progress(progress)) => hear(progress),
        Found::Told(Told::Entry(entry)) => {
            reviewer.look(&entry);
            ControlFlow::Continue(())
        }
        Found::Package(_) => ControlFlow::Continue(()),
    })?;
    let Comparison { bay, from, to, .. } = comparison;
    Ok(Review { bay, from, to, found: reviewer.finish(), ignored: summary.ignored, summary })
}
