//! Commands that need an approval before they start, also commands of services: because a rule says so, or, for a
//! command that is run once, because the caller requests it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bay_policy::{ExecRule, Outcome, decide_exec};
use bay_store::Draft;
use bay_text::hex;
use bay_types::approval::{Approval, ApprovalState, Asked, AskedExec, AskingRule};
use bay_types::event::exec::ExecApproved;
use bay_types::event::service::ServiceApproved;
use bay_types::exec::ExecSpec;
use bay_types::policy::Origin;
use bay_types::principal::{Kind, Principal};
use bay_types::service::{HealthCheck, ServiceName, ServiceSpec};
use bay_types::{Action, ApprovalId, CoreError, ErrorCode, ExecId, Hint, HintBay};
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{execs, policy, questions};
use crate::approvals::{Key, NewQuestion, Parts, Question, Verdict};
use crate::daemon::Daemon;
use crate::registry::BayHandle;

/// How long another caller waits for an approval. Approvals usually expire much earlier.
const HELD_FOR: Duration = Duration::from_secs(48 * 3600);
/// How long a bay's own request waits for a person. The daemon answers one request of a bay at a time, so a waiting
/// request would delay the others. The bay repeats it, and finds the answer.
const HELD_FOR_BAY: Duration = Duration::ZERO;
/// The longest command that a person is asked about: its arguments, directory, user and variables, and the settings
/// of its service. The card shows all of it, but of an operator's variables only the names, and only these are
/// counted. A longer command is refused, because the person could not see what an allow covers.
const MAX_ASKED_BYTES: usize = 4096;

/// A command to run, once or as a service.
struct Command<'a> {
    argv: &'a [String],
    cwd: Option<&'a String>,
    user: Option<&'a String>,
    tool_call: Option<&'a String>,
    env: &'a [(String, String)],
    /// How a service runs it, as the card shows it.
    settings: Vec<String>,
    /// A hash over the whole command: the same command is the same question.
    digest: String,
    what: What<'a>,
}

enum What<'a> {
    Exec(ExecId),
    Service(&'a ServiceName),
}

impl<'a> Command<'a> {
    fn exec(spec: &'a ExecSpec) -> Result<Self, CoreError> {
        let same = ExecSpec { id: ExecId::NONE, ..spec.clone() };
        Ok(Self {
            argv: &spec.argv,
            cwd: spec.cwd.as_ref(),
            user: spec.user.as_ref(),
            tool_call: spec.tool_call.as_ref(),
            env: &spec.env,
            settings: Vec::new(),
            digest: digest(&same)?,
            what: What::Exec(spec.id),
        })
    }
}

impl Command<'_> {
    /// Its variables as the card shows them.
    fn shown_env(&self, caller: Principal) -> Vec<String> {
        let from_bay = caller.kind() == Kind::Bay;
        let shown = |(name, value): &(String, String)| {
            if from_bay { format!("{name}={value}") } else { name.clone() }
        };
        self.env.iter().map(shown).collect()
    }

    /// Refuses a command that is too long for a card.
    fn fits_on_a_card(&self, caller: Principal) -> Result<(), CoreError> {
        let env = self.shown_env(caller);
        let texts = self.argv.iter().chain(&env).chain(&self.settings).chain(self.cwd).chain(self.user);
        let bytes: usize = texts.map(|text| text.len() + 1).sum();
        if bytes <= MAX_ASKED_BYTES {
            return Ok(());
        }
        Err(CoreError::new(
            ErrorCode::Denied,
            format!(
                "the command was not started: a person must approve it, and it has {bytes} bytes, of which an approval \
                 card shows {MAX_ASKED_BYTES}"
            ),
            "put the long part into a file in the workspace and give the command the name of the file",
        ))
    }
}

/// How a service runs its command, one line for each setting.
fn settings(spec: &ServiceSpec) -> Vec<String> {
    let mut lines = vec![format!("restart: {}", spec.restart)];
    if let Some(health) = &spec.health {
        let every = Duration::from_millis(health.interval_ms).as_secs_f64();
        lines.push(format!("health check: {} every {every} s", health.check));
    }
    if !spec.needs.is_empty() {
        let names: Vec<String> = spec.needs.iter().map(ToString::to_string).collect();
        lines.push(format!("needs: {}", names.join(", ")));
    }
    lines
}

fn digest(of: &impl Serialize) -> Result<String, CoreError> {
    let bytes = serde_json::to_vec(of).map_err(|error| CoreError::internal(&error))?;
    Ok(hex::encode(Sha256::digest(&bytes)))
}

/// Returns when the command may start. With `wanted`, it needs an approval even if no rule asks.
pub(crate) async fn pass(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    spec: &ExecSpec,
    wanted: bool,
    caller: Principal,
) -> Result<(), CoreError> {
    let check = || spec.check().map_err(Into::into);
    let command = Command::exec(spec)?;
    loop {
        match decide(daemon, handle, &command, wanted, caller, check).await? {
            Decision::Free => return Ok(()),
            Decision::Allowed(question) => {
                if use_allow(daemon, handle, &command, &question, caller).await? {
                    return Ok(());
                }
            }
        }
    }
}

/// Returns when a service may be defined: its command, and the command of its health check. An allow is used only
/// when all are there: a bay that repeats its request needs the first allow again while the second question is open.
pub(crate) async fn pass_service(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    name: &ServiceName,
    spec: &ServiceSpec,
    caller: Principal,
) -> Result<(), CoreError> {
    let health = match spec.health.as_ref().map(|health| &health.check) {
        Some(HealthCheck::Command { argv }) => Some(argv),
        _ => None,
    };
    let mut commands = Vec::new();
    for argv in std::iter::once(&spec.argv).chain(health.filter(|argv| **argv != spec.argv)) {
        commands.push(Command {
            argv,
            cwd: spec.cwd.as_ref(),
            user: spec.user.as_ref(),
            tool_call: None,
            env: &spec.env,
            settings: settings(spec),
            digest: digest(&(name, argv, spec))?,
            what: What::Service(name),
        });
    }
    'again: loop {
        let mut allowed = Vec::new();
        for command in &commands {
            match decide(daemon, handle, command, false, caller, || Ok(())).await? {
                Decision::Free => {}
                Decision::Allowed(question) => allowed.push((command, question)),
            }
        }
        for (command, question) in allowed {
            if !use_allow(daemon, handle, command, &question, caller).await? {
                continue 'again;
            }
        }
        return Ok(());
    }
}

/// Why a command may start.
enum Decision {
    /// No approval is needed.
    Free,
    /// A person allowed it. The caller must still use the allow.
    Allowed(Arc<Question>),
}

/// Decides on a command by the rules, and asks a person if they say so.
async fn decide(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    command: &Command<'_>,
    wanted: bool,
    caller: Principal,
    check: impl Fn() -> Result<(), CoreError>,
) -> Result<Decision, CoreError> {
    let held_for = if caller.kind() == Kind::Bay { HELD_FOR_BAY } else { HELD_FOR };
    loop {
        let compiled = policy::effective(daemon, handle).await;
        let rule = decide_exec(&compiled, command.argv).cloned();
        match &rule {
            Some(rule) if rule.outcome == Outcome::Deny => return Err(refused(rule)),
            None if !wanted => return Ok(Decision::Free),
            _ => {}
        }
        if let What::Exec(id) = command.what {
            if daemon.approvals.passed(handle.id, id) {
                return Ok(Decision::Free);
            }
            // A recorded exec was let through before it was recorded.
            if daemon.store.exec_get(handle.id, id).await.map_err(|e| e.to_api())?.is_some() {
                return Ok(Decision::Free);
            }
        }
        check()?;
        command.fits_on_a_card(caller)?;
        execs::must_run(handle)?;
        let new = question_about(daemon, handle, command, rule.as_ref(), caller);
        match questions::ask(daemon, handle, &new, Instant::now() + held_for).await? {
            Verdict::Allowed(question) => return Ok(Decision::Allowed(question)),
            Verdict::Denied(why) => {
                return Err(CoreError::new(
                    ErrorCode::Denied,
                    format!("the command was not started: {why}"),
                    Hint::new("{} lists all approvals with their answers", [Action::ListAllApprovals]),
                ));
            }
            Verdict::Waiting(question) if caller.kind() == Kind::Bay => {
                return Err(CoreError::new(
                    ErrorCode::ApprovalPending,
                    format!("the command needs the approval {}, which nobody has answered yet", question.id),
                    "repeat the command after the answer: it then uses this approval",
                ));
            }
            Verdict::Waiting(question) => {
                return Err(CoreError::new(
                    ErrorCode::Interrupted,
                    format!("the daemon is stopping, and nobody has answered {} yet", question.id),
                    "repeat the command: it then waits for the same approval",
                ));
            }
            Verdict::Reconsider => {}
            Verdict::Ending => {
                return Err(CoreError::new(
                    ErrorCode::Interrupted,
                    "the daemon is stopping, and makes no new approvals",
                    "repeat the command in a moment",
                ));
            }
        }
    }
}

/// Uses an allow for a command, with its event on the disk. `false` if the allow cannot be used any more.
async fn use_allow(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    command: &Command<'_>,
    question: &Question,
    caller: Principal,
) -> Result<bool, CoreError> {
    let (argv, left_out) = execs::event_argv(command.argv);
    let (approval, by) = (question.id.into(), caller.by());
    let draft = match command.what {
        What::Exec(id) => {
            Draft::of(ExecApproved { approval, exec: id.into(), argv, arguments_left_out: left_out, by })
        }
        What::Service(name) => {
            let service = name.clone().into();
            Draft::of(ServiceApproved { approval, service, argv, arguments_left_out: left_out, by })
        }
    };
    let used = daemon.store.approval_use(question.id, handle.id, &draft).await;
    let Some((seq, used_up)) = used.map_err(|e| e.to_api())? else {
        daemon.approvals.forget(question);
        return Ok(false);
    };
    daemon.store.event_durable(seq).await.map_err(|e| e.to_api())?;
    if used_up {
        daemon.approvals.forget(question);
    }
    if let What::Exec(id) = command.what {
        daemon.approvals.pass(handle.id, id);
    }
    Ok(true)
}

fn refused(rule: &ExecRule) -> CoreError {
    let why = rule.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    CoreError::new(
        ErrorCode::Denied,
        format!("the command was not started: rule {} at {} denies it{why}", rule.id, rule.origin),
        Hint::new("{} shows the rules that apply", [Action::ShowPolicy(HintBay::OfRequest)]),
    )
}

fn question_about(
    daemon: &Daemon,
    handle: &BayHandle,
    command: &Command<'_>,
    rule: Option<&ExecRule>,
    caller: Principal,
) -> NewQuestion {
    let asked_at = Timestamp::now();
    let card = Approval {
        id: ApprovalId::generate(),
        bay: handle.id,
        bay_name: handle.name.to_string(),
        state: ApprovalState::Open,
        asked_at,
        expires: daemon.approvals.until(asked_at),
        asked: Asked::Exec(AskedExec {
            argv: command.argv.to_vec(),
            cwd: command.cwd.cloned(),
            user: command.user.cloned(),
            service: match command.what {
                What::Exec(_) => None,
                What::Service(name) => Some(name.to_string()),
            },
            env: command.shown_env(caller),
            settings: command.settings.clone(),
            by: caller.by(),
        }),
        by: None,
        exec_number: None,
        exec_argv: Vec::new(),
        tool_call: command.tool_call.cloned(),
        rule: rule.map(|rule| AskingRule {
            id: rule.id.clone(),
            origin: Origin {
                layer: rule.origin.layer.to_string(),
                file: rule.origin.file.clone(),
                line: rule.origin.line as u64,
            },
            reason: rule.reason.clone(),
        }),
        secrets: Vec::new(),
        warnings: Vec::new(),
        saved_as: None,
        digest: command.digest.clone(),
        differs: None,
        checkpoint: None,
        held: 0,
        answer: None,
    };
    // An answer to the operator's question does not answer the bay's, and vice versa.
    let asker = if caller.kind() == Kind::Bay { "inside " } else { "" };
    NewQuestion {
        key: Key(format!("command {asker}{}", command.digest)),
        card,
        parts: Parts::default(),
        checkpoint: rule.is_some_and(|rule| rule.checkpoint),
    }
}
