//! Giving a bay the settings somebody asked for, running or not, all of them or none.
//!
//! ```text
//!  wanted ──► disk quota ──► groups of what runs ──► on record as those that hold
//!                 │                  │
//!                 └──── refused ─────┴──► the old ones put back, the wish forgotten, the caller told why
//! ```
//! A daemon killed on the way leaves the wish on record, and the next one begins anew.

use std::time::Duration;

use bay_backend::{BackendError, LimitSpec, Seen};
use bay_store::{BayRow, Draft};
use bay_types::CoreError;
use bay_types::bay::Limits;
use bay_types::event::bay::{BaySetRefused, BaySettingsSet};
use http::Method;

use super::Reconciler;
use crate::backends::refusal;
use crate::verbs::start_spec::started_with;

/// How long a guest may take to note its limits; somebody waits for the change.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

impl Reconciler {
    /// Gives the reason back when what was asked for could not be had.
    pub(super) async fn apply(&mut self, row: &BayRow, seen: Seen) -> Result<Option<CoreError>, CoreError> {
        self.settings_hold = true;
        let wanted = row.settings();
        let held = &row.spec.limits;
        if row.settings_wanted.is_none() {
            // Nobody asked for anything: what was found running is only made sure of.
            self.tell_limits(held, seen).await;
            if let Err(error) = self.set_groups(row, held, seen).await {
                tracing::warn!(bay = %row.name, message = %error.message, "the limits of a bay found running could not be set again");
            }
            return Ok(None);
        }
        let set = match self.set_quota(row, &wanted.limits).await {
            Ok(()) => self.set_groups(row, &wanted.limits, seen).await,
            Err(error) => Err(error),
        };
        if let Err(error) = set {
            for put_back in [self.set_quota(row, held).await, self.set_groups(row, held, seen).await] {
                if let Err(error) = put_back {
                    tracing::error!(bay = %row.name, message = %error.message, "an old limit could not be put back");
                }
            }
            let draft = Draft::of(BaySetRefused { code: error.code.into(), reason: error.message.clone() });
            self.update(draft, |row| {
                row.settings_wanted.take_if(|now| *now == wanted);
            })
            .await?;
            return Ok(Some(error));
        }
        let draft = Draft::of(BaySettingsSet {
            limits: wanted.limits.clone().into(),
            idle_stop_s: wanted.idle_stop_s,
        });
        self.update(draft, |row| {
            row.spec.limits = wanted.limits.clone();
            row.spec.idle_stop_s = wanted.idle_stop_s;
            // Somebody may have asked for more meanwhile.
            row.settings_wanted.take_if(|now| *now == wanted);
        })
        .await?;
        self.tell_limits(&wanted.limits, seen).await;
        Ok(None)
    }

    /// Lets a running bay know its limits, so that it can tell them to those inside. One that does not take the news has
    /// the limits all the same, and is told again by the next daemon and after a pause.
    pub(super) async fn tell_limits(&self, limits: &Limits, seen: Seen) {
        if seen != Seen::Running {
            return;
        }
        let body = serde_json::to_vec(&started_with(limits)).unwrap_or_default();
        let told = self.handle.guest.bytes(Method::PUT, "/v1/limits", body.into(), TOLD_WITHIN).await;
        if let Err(error) = told {
            tracing::debug!(bay = %self.handle.name, message = %error.message, "a bay was not told its limits");
        }
    }

    /// A disk that is not made yet is made with its quota.
    async fn set_quota(&self, row: &BayRow, limits: &Limits) -> Result<(), CoreError> {
        let (id, mib) = (row.id, limits.disk_mib);
        let asked =
            row.settings_wanted.as_ref().is_some_and(|now| now.limits.disk_mib != row.spec.limits.disk_mib);
        if !row.disk_ready || !asked {
            return Ok(());
        }
        self.handle.with_files(move |files| files.set_quota(id, mib)).await
    }

    /// What does not run gets its limits when it starts.
    async fn set_groups(&self, row: &BayRow, limits: &Limits, seen: Seen) -> Result<(), CoreError> {
        if seen == Seen::Gone {
            return Ok(());
        }
        let spec = LimitSpec { bay: row.id, id_base: row.id_base, limits: limits.clone() };
        self.handle.backend.set_limits(&spec).await.map_err(|error| match &error {
            BackendError::LimitInUse(held) => {
                CoreError { message: format!("{} holds {held}", row.name), ..refusal(&error) }
            }
            _ => refusal(&error),
        })
    }
}
