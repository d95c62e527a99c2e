use std::path::Path;
use std::time::Instant;

use bay_client::{Client, bay_path};
use bay_policy::Preset;
use bay_types::bay::{BayCreate, BayUser, BayView, Source, State, WorkspaceView};
use bay_types::policy::PolicyView;
use bay_types::repo::RepoView;
use bay_types::settings::Settings;
use bay_types::{ApiError, BayName, ErrorCode};
use clap::Args;
use jiff::SignedDuration;

use super::exec::Options;
use super::policy::{self, Complete, PolicyFlags};
use super::set::{LimitFlags, ReachFlag};
use crate::archive::Packed;
use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::naming::{Target, without_credentials};
use crate::output::age::since;
use crate::output::progress::Meter;
use crate::output::{count, size, talk};
use crate::{git, operator, session, terminal, unused_recipes, workspace};
use bay_text::escape::{self, one_line, visible};
use bay_text::percent::segment;

/// Make a bay: a workstation with a copy of a repository, isolated and kept until `bay rm`.
///
/// A local repository is copied with its uncommitted changes. Nothing in the bay ever writes back to it; use `bay cp`
/// or `bay branch` to copy changes out. Commits made in the bay have your git name and address, if your git has them.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay up                                 this directory\n  bay up https://example.org/project.git --ref v2\n  bay up . --name web --memory-mib 2G --mount /srv/data:/data:ro\n  bay up ../other --from web:v3          another repository, with what web had installed at v3\n  bay up . -- make test                  and run a command in it"
)]
pub(crate) struct Up {
    /// A directory or a git URL.
    #[arg(value_name = "PATH|GIT-URL", default_value = ".")]
    what: String,
    /// Name of the bay [default: from the path or URL].
    #[arg(short, long)]
    name: Option<String>,
    /// Begin with a copy of a kept workspace instead, by its name from `bay workspaces ls`.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["what", "reference", "committed_only"])]
    workspace: Option<String>,
    /// Branch, tag or commit to begin from. For a local path this leaves out uncommitted changes.
    #[arg(short, long = "ref", value_name = "REF")]
    reference: Option<String>,
    /// `host`, `dir:PATH`, `tar:PATH`, or the name of an imported image.
    #[arg(short, long, default_value = "host")]
    image: String,
    /// Begin with everything that is installed in another bay, or was at one of its checkpoints: its root filesystem, not
    /// its workspace, processes, secrets or policy.
    #[arg(long, value_name = "BAY[:CHECKPOINT]", conflicts_with = "image")]
    from: Option<String>,
    /// The backend that runs the bay, for its whole life [default: the daemon's].
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    #[command(flatten)]
    limits: LimitFlags,
    #[command(flatten)]
    reach: ReachFlag,
    #[command(flatten)]
    policy: PolicyFlags,
    /// Show a path of the host in the bay, read-only.
    #[arg(long, value_name = "SRC:DST:ro")]
    mount: Vec<String>,
    /// Run commands as this user instead of root. The user is created if the image lacks it, and owns the workspace.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Let that user run every command as root with sudo, without a password.
    #[arg(long, requires = "user")]
    user_sudo: bool,
    /// Leave out uncommitted changes.
    #[arg(long, visible_alias = "clean")]
    committed_only: bool,
    /// A command to run in the new bay, as `bay exec` would.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// If the last fetch of a cached repository is older than this, the summary says so.
const OLD_FETCH: SignedDuration = SignedDuration::from_mins(10);

/// The new bay, for the summary.
struct Made {
    view: BayView,
    packed: Option<Packed>,
    notes: Vec<String>,
    /// The files of the directory that other tools would use, and a bay does not.
    unused: Option<String>,
}

impl Up {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let began = Instant::now();
        let mut client = global.client();
        let made = self.make(&mut client, global.json).await.map_err(|failure| match failure {
            Failure::Api { error, exit } => {
                Failure::Api { error: policy::one_by_one(error, global.json), exit }
            }
            other => other,
        })?;
        let text = if global.json {
            escape::json(serde_json::to_string_pretty(&made.view).map_err(|e| ApiError::internal(&e))?)
        } else {
            let closed = self.policy.policy.is_none() && has_no_policy(&mut client, &made.view).await;
            summary(&made, self.policy.policy.as_deref(), closed, began)
        };
        if let Some(unused) = made.unused.as_ref().filter(|_| !global.json) {
            talk(unused);
        }
        if self.command.is_empty() {
            crate::output::data(&text)?;
            return Ok(0);
        }
        if global.json || crate::output::watched() {
            talk(&text);
        }
        self.run_first(&mut client, made.view.name.as_str(), !global.json).await.map_err(Failure::in_exec)
    }

    async fn run_first(self, client: &mut Client, bay: &str, explain: bool) -> Outcome {
        let mut spec = Options::default().spec(self.command)?;
        spec.stdin = !terminal::stdin_is_terminal() && !terminal::stdin_is_nothing();
        session::run(client, bay, spec, false, explain).await
    }

    async fn make(&self, client: &mut Client, json: bool) -> Result<Made, Failure> {
        if let Some(name) = &self.name
            && let Err(error) = name.parse::<BayName>()
        {
            let next = format!("`--name {}` would do", BayName::slug(name));
            return Err(ApiError::new(ErrorCode::InvalidName, error.to_string(), next).into());
        }
        let mounts =
            self.mount.iter().map(|given| crate::naming::mount(given)).collect::<Result<Vec<_>, _>>()?;
        let image = crate::naming::image(&self.image)?;
        let environment = self.from.as_deref().map(crate::naming::environment).transpose()?;
        // A new bay has no limit that `none` could remove, so it means the same as no flag.
        let settings = self.limits.change().over(&Settings::default());
        let policy = self.policy().await?;
        let sent = policy.as_ref().map(|policy| policy.policy.clone());
        let user = self.user.clone().map(|name| BayUser { name, sudo: self.user_sudo });
        let create = |name: BayName, source, author| BayCreate {
            name: Some(self.name.clone().unwrap_or_else(|| name.to_string())),
            source,
            image,
            limits: settings.limits,
            mounts,
            idle_stop_s: settings.idle_stop_s,
            durability: settings.durability,
            author,
            user,
            reach: self.reach.reach.clone(),
            backend: self.backend.clone(),
            policy: sent,
            environment,
        };
        let mut meter = Meter::new(json);
        if let Some(given) = &self.workspace {
            let kept: WorkspaceView = client.get(&format!("/v1/workspaces/{}", segment(given))).await?;
            let author = git::author(Path::new("/")).await;
            let source = Source::Kept { workspace: kept.name.clone() };
            let create = create(BayName::slug(&kept.bay), source, author);
            let view = ask(client, &create, &mut meter).await?;
            let mut notes = vec![format!("a copy of the kept {}, which stays as it is", kept.name)];
            notes.extend(self.with_proposals(client, &view, policy).await?);
            return Ok(Made { view, packed: None, notes, unused: None });
        }
        match crate::naming::target(&self.what, |path| path.exists()) {
            Target::Url(url) => {
                let source = Source::Remote { url: url.clone(), reference: self.reference.clone() };
                // Only the caller's own settings. The current directory has nothing to do with a URL.
                let author = git::author(Path::new("/")).await;
                let create = create(crate::naming::name_of_url(&url), source, author);
                let view = ask(client, &create, &mut meter).await?;
                let mut notes: Vec<String> = cached_since(client, &view).await.into_iter().collect();
                notes.extend(self.with_proposals(client, &view, policy).await?);
                Ok(Made { view, packed: None, notes, unused: None })
            }
            Target::Path(path) => {
                let plan = workspace::plan(&path, self.reference.as_deref(), self.committed_only).await?;
                let directory = plan.directory.file_name().unwrap_or_default().to_string_lossy();
                let name = BayName::slug(directory.strip_suffix(".git").unwrap_or(&directory));
                // Look for changed files while the bay is made.
                let making = async {
                    let (source, author) = tokio::join!(
                        workspace::provide(client, &plan.source, &mut meter),
                        git::author(&plan.directory)
                    );
                    ask(client, &create(name, source?, author), &mut meter).await
                };
                let (view, findings) = tokio::join!(making, workspace::look(&plan.overlay));
                let view = view?;
                let mut notes = plan.notes;
                let unused = unused_recipes::note(&plan.directory, &self.image);
                let half_made = |error: ApiError| half_made(&view, &error);
                let findings = findings.map_err(half_made)?;
                notes.extend(findings.notes());
                let bay = view.id.to_string();
                let packed =
                    workspace::send(client, &bay, plan.overlay, findings).await.map_err(half_made)?;
                notes.extend(packed.as_ref().and_then(Packed::warning));
                notes.extend(self.with_proposals(client, &view, policy).await?);
                Ok(Made { view, packed, notes, unused })
            }
        }
    }
}

impl Up {
    /// The requested policy, with the destinations on this machine that it refers to.
    async fn policy(&self) -> Result<Option<Complete>, ApiError> {
        let Some(word) = &self.policy.policy else { return Ok(None) };
        let given = policy::given(word)?;
        // The daemon knows where a repository with an address can be fetched, but not what its host resolves to.
        let forge = match crate::naming::target(&self.what, |path| path.exists()) {
            _ if self.workspace.is_some() => Vec::new(),
            Target::Url(url) => operator::forge(&without_credentials(&url), "the bay's repository"),
            Target::Path(path) => policy::forge_of_path(&path).await,
        };
        let (places, notes) = operator::places(given.text(), forge, &self.policy.list).await;
        Ok(Some(Complete { policy: given.with(places)?, notes }))
    }

    /// Adds the destinations that only the repository's own files name. They are known when the files are in the bay.
    /// From then on they are asked about; before, they are refused.
    async fn with_proposals(
        &self,
        client: &mut Client,
        view: &BayView,
        complete: Option<Complete>,
    ) -> Result<Vec<String>, ApiError> {
        let Some(Complete { mut policy, mut notes }) = complete else { return Ok(Vec::new()) };
        let text = match &policy.text {
            Some(text) => text.as_str(),
            None => Preset::named(&policy.name).map_or("", Preset::text),
        };
        let bay = view.id.to_string();
        if operator::wants(text, "@proposed") {
            policy.places.proposed = operator::proposals(client, &bay).await;
        }
        if !policy.places.proposed.is_empty() {
            let _: PolicyView = client.put(&bay_path(&bay, "/policy"), &policy).await?;
            notes.extend(policy.places.proposed.iter().map(|place| {
                format!("{} needs an approval: only {} of the repository names it", place.url, place.from)
            }));
        }
        Ok(notes)
    }
}

/// A second bay on a repository fetches nothing that the cache has, so the user must know that newer commits may exist.
async fn cached_since(client: &mut Client, view: &BayView) -> Option<String> {
    let origin = view.origin.as_ref()?;
    let repos: Vec<RepoView> = client.get("/v1/repos").await.ok()?;
    let repo = repos.into_iter().find(|repo| repo.id == origin.repo)?;
    (repo.synced_at < view.created_at - OLD_FETCH).then(|| {
        let age = since(repo.synced_at, view.created_at);
        let location = without_credentials(&origin.location);
        format!("the repository was last fetched {age} ago; `bay repos sync {location}` updates it")
    })
}

async fn ask(client: &mut Client, create: &BayCreate, meter: &mut Meter) -> Result<BayView, ApiError> {
    match client.work("/v1/bays", create, meter).await {
        Err(error) if error.code == ErrorCode::BayExists => Err(exists(client, create, error).await),
        other => other,
    }
}

/// Describes the existing bay of this name, so that the caller can choose.
async fn exists(client: &mut Client, create: &BayCreate, error: ApiError) -> ApiError {
    let name = create.name.as_deref().unwrap_or_default();
    let Ok(view) = client.get::<BayView>(&bay_path(name, "")).await else {
        return error;
    };
    let source = super::ls::source(&view);
    let message =
        format!("a bay named {name} exists already: it is {} and was made from {source}", view.state);
    let use_it = match view.state {
        State::Stopped | State::Failed => format!("`bay start {name}` to continue with it"),
        State::Paused => format!("`bay resume {name}` to continue with it"),
        _ => format!("`bay shell {name}` to use it"),
    };
    ApiError::new(
        ErrorCode::BayExists,
        message,
        format!("{use_it}, or `bay up --name OTHER` for a second one"),
    )
}

/// The error for a bay that was made, but lacks a part of what was requested.
fn half_made(view: &BayView, error: &ApiError) -> ApiError {
    let name = &view.name;
    let next = match error.code {
        ErrorCode::DiskLimit => {
            format!(
                "`bay rm {name}` and try again with a larger --disk-mib; --committed-only leaves uncommitted changes of a repository out"
            )
        }
        _ => format!(
            "`bay rm {name}` and try again; --committed-only leaves uncommitted changes of a repository out"
        ),
    };
    ApiError::new(
        error.code,
        format!(
            "{name} was made, but not all files of the directory could be copied into it: {}",
            error.message
        ),
        next,
    )
}

/// Whether the bay has no policy of its own. Then nothing leaves it, whatever the policies of the host and the project
/// allow. If the policy cannot be read, the summary does not mention it.
async fn has_no_policy(client: &mut Client, view: &BayView) -> bool {
    let found = client.get::<PolicyView>(&bay_path(&view.id.to_string(), "/policy")).await;
    found.is_ok_and(|policy| policy.layers.iter().all(|layer| layer.layer != "bay" || layer.set_at.is_none()))
}

fn summary(made: &Made, policy: Option<&str>, closed: bool, began: Instant) -> String {
    let view = &made.view;
    let name = view.name.as_str();
    let ms = began.elapsed().as_millis();
    let time = if ms < 1000 { format!("{ms} ms") } else { format!("{:.1} s", began.elapsed().as_secs_f64()) };
    let mut lines = vec![format!("{} {name} is {} ({time})", tick(), view.state)];
    let mut content = match &view.origin {
        Some(origin) => {
            let commit = origin.commit.get(..8).unwrap_or(&origin.commit);
            let branch = origin.branch.as_deref().map(|b| format!(" on {b}")).unwrap_or_default();
            visible(&format!("{} at {commit}{branch}", without_credentials(&origin.location)))
        }
        None => "empty".to_owned(),
    };
    if let Some(packed) = &made.packed {
        let files = count(packed.files, "file");
        let what = if view.origin.is_some() {
            format!("{content} + uncommitted changes")
        } else {
            "copied".to_owned()
        };
        content = format!("{what}: {files}, {}", size(packed.bytes));
        if packed.deleted > 0 {
            content.push_str(&format!(", {} deleted", packed.deleted));
        }
    }
    lines.push(format!("  {}: {content}", visible(&view.workspace)));
    if let Some(of) = &view.environment {
        lines.push(format!("  environment: of {} at {}", of.name, of.checkpoint));
    }
    if let Some(policy) = policy {
        lines
            .push(format!("  policy: {}; `bay policy show {name}` shows what may leave it", visible(policy)));
    }
    if closed {
        lines.push(format!(
            "  network: closed; `bay policy set {name} coding` lets it read packages and fetch its repository (or `bay up --policy coding`)"
        ));
    }
    lines.extend(made.notes.iter().map(|note| format!("  note: {}", one_line(note))));
    lines.push(String::new());
    lines.push(format!("  bay exec {name} -- CMD    run a command in it"));
    lines.push(format!("  bay shell {name}          look around"));
    lines.push(format!("  bay rm {name}             delete it"));
    lines.join("\n")
}

fn tick() -> &'static str {
    if crate::output::colours() { "\u{1b}[32m✓\u{1b}[0m" } else { "✓" }
}
