//! The verbs on policies and grants, for fronts.

use std::sync::Arc;

use bay_store::Scope;
use bay_types::policy::{
    Check, Explained, Finding, GrantAdd, GrantView, LayerSet, Lesson, PolicyChange, PolicySet, PolicyView,
    Recalled,
};
use bay_types::principal::Principal;
use bay_types::traffic::InsideEgress;
use bay_types::{Action, CoreError, ErrorCode, Hint};

use super::{evaluate, inside, recorded_decisions, set};
use crate::authorize::Verb;
use crate::background::to_the_end;
use crate::channel::plain_text;
use crate::daemon::Daemon;

/// The layer of a verb: the host's, or that of the project that a bay belongs to.
#[derive(Debug, Clone, Copy)]
pub enum LayerName<'a> {
    Host,
    ProjectOf(&'a str),
}

impl LayerName<'_> {
    fn scope(self, daemon: &Daemon, who: &Principal, host: Verb, project: Verb) -> Result<Scope, CoreError> {
        match self {
            Self::Host => daemon.permit(who, host).map(|()| Scope::Host),
            Self::ProjectOf(bay) => set::scope_of_project(&*daemon.bay_for(who, project, bay)?),
        }
    }
}

/// The policy in force for a bay, with its layers and grants.
pub async fn show(daemon: &Daemon, who: &Principal, bay: &str) -> Result<PolicyView, CoreError> {
    let handle = daemon.bay_for(who, Verb::PolicyShow, bay)?;
    Ok(set::show(daemon, &handle).await)
}

/// Sets the policy of one bay.
pub async fn set(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    given: PolicySet,
) -> Result<PolicyView, CoreError> {
    let handle = daemon.bay_for(who, Verb::PolicySet, bay)?;
    to_the_end(set::set_layer(Arc::clone(daemon), Scope::Bay(handle.id), given, *who)).await?;
    Ok(set::show(daemon, &handle).await)
}

/// Removes the policy of one bay, which leaves it closed.
pub async fn unset(daemon: &Arc<Daemon>, who: &Principal, bay: &str) -> Result<PolicyView, CoreError> {
    let handle = daemon.bay_for(who, Verb::PolicyUnset, bay)?;
    to_the_end(set::unset_layer(Arc::clone(daemon), Scope::Bay(handle.id), *who)).await?;
    Ok(set::show(daemon, &handle).await)
}

/// The policy of the host or of a project, as it was set.
pub async fn show_layer(
    daemon: &Daemon,
    who: &Principal,
    layer: LayerName<'_>,
) -> Result<LayerSet, CoreError> {
    let scope = layer.scope(daemon, who, Verb::HostPolicyShow, Verb::ProjectPolicyShow)?;
    set::layer(daemon, &scope).await
}

/// Sets the policy of the host or of a project.
pub async fn set_layer(
    daemon: &Arc<Daemon>,
    who: &Principal,
    layer: LayerName<'_>,
    given: PolicySet,
) -> Result<LayerSet, CoreError> {
    let scope = layer.scope(daemon, who, Verb::HostPolicySet, Verb::ProjectPolicySet)?;
    to_the_end(set::set_layer(Arc::clone(daemon), scope.clone(), given, *who)).await?;
    set::layer(daemon, &scope).await
}

/// Removes the policy of the host or of a project.
pub async fn unset_layer(
    daemon: &Arc<Daemon>,
    who: &Principal,
    layer: LayerName<'_>,
) -> Result<LayerSet, CoreError> {
    let scope = layer.scope(daemon, who, Verb::HostPolicyUnset, Verb::ProjectPolicyUnset)?;
    to_the_end(set::unset_layer(Arc::clone(daemon), scope.clone(), *who)).await?;
    set::layer(daemon, &scope).await
}

/// What a bay's policy decides about a request that is not sent, and why.
pub async fn check(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    asked: &Check,
) -> Result<Explained, CoreError> {
    let handle = daemon.bay_for(who, Verb::PolicyCheck, bay)?;
    evaluate::check(daemon, &handle, &asked.request).await
}

/// Why a recorded decision was made, and what the policy of now decides about the same request.
pub async fn explain(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    decision: &str,
) -> Result<Recalled, CoreError> {
    let handle = daemon.bay_for(who, Verb::PolicyExplain, bay)?;
    let number = decision.parse().map_err(|_| {
        CoreError::new(
            ErrorCode::InvalidInput,
            format!("{:?} is not the number of a decision", plain_text(decision)),
            Hint::new(
                "{} lists the decisions with their numbers",
                [Action::ListEgress((&handle.name).into())],
            ),
        )
    })?;
    recorded_decisions::explain(daemon, &handle, number).await
}

/// Likely mistakes in the policy in force for a bay.
pub async fn lint(daemon: &Daemon, who: &Principal, bay: &str) -> Result<Vec<Finding>, CoreError> {
    let handle = daemon.bay_for(who, Verb::PolicyLint, bay)?;
    evaluate::lint(daemon, &handle).await
}

/// What would change if a bay's own layer were another.
pub async fn diff(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    given: PolicySet,
) -> Result<PolicyChange, CoreError> {
    let handle = daemon.bay_for(who, Verb::PolicyDiff, bay)?;
    evaluate::diff(daemon, &handle, given).await
}

/// Rules that would allow the refused requests of a bay, and the requests that no rule covers.
pub async fn learn(daemon: &Daemon, who: &Principal, bay: &str) -> Result<Lesson, CoreError> {
    let handle = daemon.bay_for(who, Verb::PolicyLearn, bay)?;
    recorded_decisions::learn(daemon, &handle).await
}

pub async fn grant_list(daemon: &Daemon, who: &Principal, bay: &str) -> Result<Vec<GrantView>, CoreError> {
    let handle = daemon.bay_for(who, Verb::GrantList, bay)?;
    Ok(set::show(daemon, &handle).await.grants)
}

pub async fn grant_add(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    wanted: GrantAdd,
) -> Result<GrantView, CoreError> {
    let handle = daemon.bay_for(who, Verb::GrantAdd, bay)?;
    to_the_end(set::grant_add(Arc::clone(daemon), handle, wanted, *who)).await
}

pub async fn grant_delete(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    grant: String,
) -> Result<GrantView, CoreError> {
    let handle = daemon.bay_for(who, Verb::GrantDelete, bay)?;
    to_the_end(set::grant_rm(Arc::clone(daemon), handle, grant, *who)).await
}

/// The rules in force for a bay, as its own processes may see them.
pub(crate) async fn inside_rules(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
) -> Result<InsideEgress, CoreError> {
    let handle = daemon.bay_for(who, Verb::EgressRules, bay)?;
    Ok(inside::inside(daemon, &handle).await)
}
