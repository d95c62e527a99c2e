//! Applying the settings that a caller requested, whether the bay runs or not: all of them or none.
//!
//! ```text
//!  requested ──► disk quota ──► control groups of the runtime ──► stored as the settings in force
//!                   │                      │
//!                   └────── refused ───────┴──► old settings restored, request dropped, error to the caller
//! ```
//! If an old setting cannot be restored, that is logged. If the daemon is killed on the way, the request stays
//! stored, and the next daemon begins again.

use std::time::Duration;

use bay_backend::{BackendError, LimitSpec, Seen};
use bay_store::{BayRow, Draft};
use bay_types::CoreError;
use bay_types::bay::Limits;
use bay_types::durability::Durability;
use bay_types::event::bay::{BaySetRefused, BaySettingsSet};
use http::Method;

use super::Reconciler;
use crate::backends::refusal;
use crate::durability::relaxed;
use crate::verbs::start_spec::started_with;

/// How long a guest may take to note its limits; a caller waits for the change.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

impl Reconciler {
    /// Returns why requested settings were refused, if they were.
    pub(super) async fn apply(&mut self, row: &BayRow, seen: Seen) -> Result<Option<CoreError>, CoreError> {
        self.settings_hold = true;
        let wanted = row.settings();
        let held = &row.spec.limits;
        if row.settings_wanted.is_none() {
            // Nobody requested settings. This makes sure that a runtime which an earlier daemon started has those on
            // record.
            self.send_settings(held, row.spec.durability, seen).await;
            if let Err(error) = self.set_groups(row, held, seen).await {
                tracing::warn!(bay = %row.name, message = %error.message, "the limits of an adopted bay could not be set again");
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
                    tracing::error!(bay = %row.name, message = %error.message, "an old limit could not be restored");
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
            durability: relaxed(wanted.durability),
        });
        self.update(draft, |row| {
            row.spec.limits = wanted.limits.clone();
            row.spec.idle_stop_s = wanted.idle_stop_s;
            row.spec.durability = wanted.durability;
            // A caller may have requested other settings meanwhile.
            row.settings_wanted.take_if(|now| *now == wanted);
        })
        .await?;
        self.send_settings(&wanted.limits, wanted.durability, seen).await;
        Ok(None)
    }

    /// Sends a running bay its settings: the guest shows the limits inside, and starts commands with the durability. If
    /// the guest does not take them, the next daemon, and a resume, send them again. Limits are in force all the same.
    pub(super) async fn send_settings(&self, limits: &Limits, durability: Durability, seen: Seen) {
        if seen != Seen::Running {
            return;
        }
        let limits = serde_json::to_vec(&started_with(limits)).unwrap_or_default();
        let durability = serde_json::to_vec(&durability).unwrap_or_default();
        for (path, body) in [("/v1/limits", limits), ("/v1/durability", durability)] {
            let told = self.handle.guest.bytes(Method::PUT, path, body.into(), TOLD_WITHIN).await;
            if let Err(error) = told {
                tracing::debug!(bay = %self.handle.name, path, message = %error.message, "a guest did not take a setting");
            }
        }
    }

    /// A disk that does not exist yet is made with its quota later.
    async fn set_quota(&self, row: &BayRow, limits: &Limits) -> Result<(), CoreError> {
        let (id, mib) = (row.id, limits.disk_mib);
        let asked =
            row.settings_wanted.as_ref().is_some_and(|now| now.limits.disk_mib != row.spec.limits.disk_mib);
        if !row.disk_ready || !asked {
            return Ok(());
        }
        self.handle.with_files(move |files| files.set_quota(id, mib)).await
    }

    /// A bay that does not run gets its limits at the next start.
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
