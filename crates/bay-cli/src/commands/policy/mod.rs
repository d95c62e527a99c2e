mod evaluate;
mod policy_argument;
mod render;
#[cfg(test)]
mod tests;

use bay_client::{Client, bay_path, invalid};
use bay_types::bay::{BayView, State};
use bay_types::policy::{LayerSet, PolicySet, PolicyView};
use bay_types::{ApiError, ErrorCode};
use clap::{Args, Subcommand};
use jiff::Timestamp;

pub(crate) use policy_argument::forge_of_path;
pub(crate) use policy_argument::{Given, PolicyFlags, given};
pub(crate) use render::grant as grant_line;

use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::operator;
use crate::output::{data, json, talk};

/// Show, set and check what may leave a bay.
///
/// A policy is a preset (closed, coding, research, evaluation, autonomous, open) or a TOML file; docs/policy.md
/// describes the rules. The host, the bay's repository and the bay may each have one. The most restrictive of them
/// applies. A bay without one of its own has `closed`, whatever the other two allow.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay policy set web coding\n  bay policy set web policy.toml\n  bay policy set --host limits.toml\n  bay policy show web\n  bay policy check web \"POST https://api.example.com/v1/issues\"\n  bay policy learn web >> policy.toml\n\n`check` exits with 0 for allow and 1 for any other decision; `lint` with 1 if there is a warning."
)]
pub(crate) struct Policy {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the effective policy of a bay, each rule with its file and line.
    Show {
        /// Name or id of the bay. Omitted only with --host.
        #[arg(required_unless_present = "host")]
        name: Option<String>,
        /// Show the host's own layer instead, as it was set.
        #[arg(long, conflicts_with_all = ["project", "name"])]
        host: bool,
        /// Show the layer of the bay's repository instead, as it was set.
        #[arg(long)]
        project: bool,
    },
    /// Set a policy. It applies immediately, also to running processes.
    #[command(allow_missing_positional = true)]
    Set {
        /// Name or id of the bay. Omitted only with --host.
        #[arg(required_unless_present = "host")]
        name: Option<String>,
        /// A preset, a file, `-` for standard input, or `none` to remove the present one.
        #[arg(required = true, value_name = "PRESET|FILE")]
        policy: String,
        /// Set the layer of the host, which applies to every bay.
        #[arg(long, conflicts_with_all = ["project", "name"])]
        host: bool,
        /// Set the layer of the bay's repository, which applies to every bay made from it.
        #[arg(long)]
        project: bool,
        /// A URL that the preset `autonomous`, or a rule with `place = "@listed"`, may reach; repeatable.
        #[arg(long, value_name = "URL")]
        list: Vec<String>,
    },
    /// Show the decision on a request, without sending it. Exits with 0 for allow, 1 for any other decision.
    Check {
        /// Name or id of the bay.
        name: String,
        /// `METHOD https://HOST/PATH`, `FETCH ssh://HOST/REPOSITORY`, `tcp://HOST:PORT` or `tls://HOST`.
        request: String,
    },
    /// Explain why a recorded request was decided as it was, and what would change that.
    Explain {
        /// Name or id of the bay.
        name: String,
        /// The number of the decision, as `bay egress` shows it.
        id: u64,
    },
    /// Find rules that are shadowed, dead or probably too wide. Exits with 1 if there is a warning.
    Lint {
        /// Name or id of the bay. Omitted only with --file.
        #[arg(required_unless_present = "file")]
        name: Option<String>,
        /// A file with a policy that is not set.
        #[arg(long, value_name = "FILE", conflicts_with = "name")]
        file: Option<String>,
    },
    /// Show which rules, and which decisions on recorded requests, would change if this were the bay's own policy.
    /// Changes nothing.
    #[command(after_help = "Example:\n  bay policy diff web policy.toml")]
    Diff {
        /// Name or id of the bay.
        name: String,
        /// A preset, a file, or `-` for standard input.
        #[arg(value_name = "PRESET|FILE")]
        policy: String,
        /// A URL that the preset `autonomous`, or a rule with `place = "@listed"`, may reach; repeatable.
        #[arg(long, value_name = "URL")]
        list: Vec<String>,
    },
    /// Propose the narrowest rules that would have allowed the refused requests, as TOML.
    Learn {
        /// Name or id of the bay.
        name: String,
    },
}

/// The layer that a verb applies to.
enum Scope<'a> {
    Host,
    Project(&'a str),
    Bay(&'a str),
}

impl<'a> Scope<'a> {
    fn new(name: Option<&'a str>, host: bool, project: bool) -> Result<Self, ApiError> {
        match (host, name) {
            (true, _) => Ok(Self::Host),
            (false, Some(name)) if project => Ok(Self::Project(crate::naming::bay(name)?)),
            (false, Some(name)) => Ok(Self::Bay(crate::naming::bay(name)?)),
            (false, None) => Err(invalid("no bay was given", "name a bay, or give --host for all bays")),
        }
    }

    fn path(&self) -> String {
        match self {
            Self::Host => "/v1/policy/host".to_owned(),
            Self::Project(bay) => bay_path(bay, "/policy/project"),
            Self::Bay(bay) => bay_path(bay, "/policy"),
        }
    }

    fn bay(&self) -> Option<&'a str> {
        match self {
            Self::Host => None,
            Self::Project(bay) | Self::Bay(bay) => Some(bay),
        }
    }
}

impl Policy {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        match self.verb {
            Verb::Show { name, host, project } => {
                show(&mut client, Scope::new(name.as_deref(), host, project)?, global.json).await
            }
            Verb::Set { name, policy, host, project, list } => {
                let scope = Scope::new(name.as_deref(), host, project)?;
                set(&mut client, scope, &policy, &list, global.json).await
            }
            Verb::Check { name, request } => evaluate::check(&mut client, &name, request, global.json).await,
            Verb::Explain { name, id } => evaluate::explain(&mut client, &name, id, global.json).await,
            Verb::Lint { name: Some(name), .. } => evaluate::lint(&mut client, &name, global.json).await,
            Verb::Lint { name: None, file } => {
                evaluate::lint_file(file.as_deref().unwrap_or("-"), global.json).await
            }
            Verb::Diff { name, policy, list } => {
                evaluate::diff(&mut client, &name, &policy, &list, global.json).await
            }
            Verb::Learn { name } => evaluate::learn(&mut client, &name, global.json).await,
        }
    }
}

async fn show(client: &mut Client, scope: Scope<'_>, as_json: bool) -> Outcome {
    if let Scope::Bay(_) = scope {
        let view: PolicyView = client.get(&scope.path()).await?;
        if as_json {
            json(&view)?;
        } else {
            data(&render::policy(&view, Timestamp::now()))?;
        }
        return Ok(0);
    }
    let layer: LayerSet = client.get(&scope.path()).await?;
    match &layer.set {
        _ if as_json => json(&layer)?,
        Some(set) => data(&render::layer_text(&layer.scope, set))?,
        None => talk(&format!("{} has no policy", render::scope(&layer.scope))),
    }
    Ok(0)
}

async fn set(client: &mut Client, scope: Scope<'_>, policy: &str, list: &[String], as_json: bool) -> Outcome {
    if policy == "none" {
        let path = scope.path();
        let answer: serde_json::Value = client.delete(&path).await?;
        if as_json {
            json(&answer)?;
        } else if let Scope::Bay(bay) = scope {
            data(&format!("{bay} has no policy of its own now: nothing may leave it"))?;
        } else {
            data("the layer is removed: it no longer restricts anything")?;
        }
        return Ok(0);
    }
    let given = given(policy)?;
    let set = complete(client, &given, scope.bay(), list).await?;
    let told = |error| one_by_one(error, as_json);
    if let Scope::Bay(_) = scope {
        let view: PolicyView = client.put(&scope.path(), &set.policy).await.map_err(told)?;
        if as_json {
            json(&view)?;
        } else {
            data(&render::summary(&view, &set.policy.places))?;
        }
    } else {
        let layer: LayerSet = client.put(&scope.path(), &set.policy).await.map_err(told)?;
        if as_json {
            json(&layer)?;
        } else {
            data(&format!("{} is the policy of {} now", set.policy.name, render::scope(&layer.scope)))?;
        }
    }
    set.tell();
    Ok(0)
}

/// Prints each mistake of a file on its own line, for a person. The remaining error only says how many there are.
pub(crate) fn one_by_one(error: ApiError, as_json: bool) -> ApiError {
    let lines: Vec<&str> = error.message.lines().collect();
    if as_json || error.code != ErrorCode::PolicyInvalid || lines.len() < 2 {
        return error;
    }
    for line in &lines {
        talk(&bay_text::escape::message(line));
    }
    let message = format!("the policy has {} mistakes, listed above", lines.len());
    ApiError { message, ..error }
}

/// A policy with all destinations that it refers to.
pub(crate) struct Complete {
    pub(crate) policy: PolicySet,
    pub(crate) notes: Vec<String>,
}

impl Complete {
    pub(crate) fn tell(&self) {
        for note in &self.notes {
            talk(&format!("note: {}", bay_text::escape::one_line(note)));
        }
    }
}

/// Looks up the destinations that a policy refers to, for an existing bay.
pub(crate) async fn complete(
    client: &mut Client,
    given: &Given,
    bay: Option<&str>,
    list: &[String],
) -> Result<Complete, Failure> {
    let (mut forge, mut proposed, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    if let Some(bay) = bay
        && (operator::wants(given.text(), "@forge") || operator::wants(given.text(), "@proposed"))
    {
        let view: BayView = client.get(&bay_path(bay, "")).await?;
        if let Some(origin) = &view.origin {
            forge = policy_argument::forge_of(&origin.location).await;
        }
        let wanted = operator::wants(given.text(), "@proposed");
        if wanted && view.state == State::Running {
            proposed = operator::proposals(client, bay).await;
        } else if wanted {
            notes.push(format!(
                "{bay} is {}: the destinations that its repository's own files name are unknown, and not asked about",
                view.state
            ));
        }
    }
    let (mut places, more) = operator::places(given.text(), forge, list).await;
    places.proposed = proposed;
    notes.extend(more);
    Ok(Complete { policy: given.with(places)?, notes })
}
