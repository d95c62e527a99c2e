//! The steps that change what a bay's files are: a new disk, the files of a checkpoint, a new root.

use bay_store::{BayRow, Draft};
use bay_types::CoreError;
use bay_types::bay::State;
use bay_types::event::bay::{BayReplaced, BayRestored, BayStart};
use bay_types::exec::EndReason;

use super::Reconciler;
use crate::fault::Point;
use crate::verbs::start_spec::begins_from;
use crate::verbs::{execs, images};

impl Reconciler {
    pub(super) async fn make_disk(&mut self, row: &BayRow) -> Result<(), CoreError> {
        let id = row.id;
        let disk_mib = row.spec.limits.disk_mib;
        let from = begins_from(row);
        self.handle
            .with_files(move |files| {
                match files.create(id, from.root, &from.workspace, disk_mib) {
                    Ok(()) => Ok(()),
                    Err(error) => {
                        // Nothing ran on it yet, so a half-made disk holds nothing that could be lost.
                        let _ = files.remove(id, None);
                        Err(error)
                    }
                }
            })
            .await?;
        self.daemon.fault.at(Point::AfterDisk);
        self.update(Draft::of(BayStart { reason: None }), |row| {
            row.disk_ready = true;
            row.state = State::Starting;
            row.reason = "its files are in place; it is starting".to_owned();
        })
        .await?;
        Ok(())
    }

    /// Replaces the files with those of a checkpoint.
    pub(super) async fn restore(&mut self, row: &BayRow) -> Result<(), CoreError> {
        let Some(point) = row.restore_wanted else { return Ok(()) };
        let (id, state) = (row.id, row.thaw_from.is_some());
        let restored = self.handle.with_files(move |files| files.restore(id, point, state)).await;
        if let Err(error) = restored {
            // The refused restore must not block other requests.
            self.handle.wake.notify_one();
            return Err(error);
        }
        self.daemon.fault.at(Point::AfterDisk);
        // For a bay that was paused on disk: the processes of these execs do not come back.
        execs::close_all(&self.daemon, &self.handle, EndReason::Stopped).await;
        let whose = match self.daemon.bays.find(&point.bay.to_string()) {
            Ok(other) if other.id != id => Some(other.name.clone()),
            _ => None,
        };
        let of = whose.clone();
        let whose = whose.map_or_else(String::new, |name| format!(" of {name}"));
        let reason = format!("its files are those of {}{whose}", point.checkpoint);
        self.update(
            Draft::of(BayRestored { checkpoint: point.checkpoint.into(), bay: point.bay.into(), of }),
            |row| {
                row.restore_wanted = None;
                if point.bay == id {
                    row.checkpoint = Some(point.checkpoint);
                }
                row.reason.clone_from(&reason);
            },
        )
        .await?;
        self.why = match (&row.thaw_from, point.bay == id) {
            (Some(_), _) => format!("restored; resumed from {}", point.checkpoint),
            (None, true) => format!("restored: {reason}; what ran before has ended"),
            (None, false) => format!("{reason}; what ran before has ended"),
        };
        Ok(())
    }

    pub(super) async fn replace_root(&mut self, row: &BayRow) -> Result<(), CoreError> {
        let Some(image) = row.replace_with else { return Ok(()) };
        if row.disk_ready {
            let id = row.id;
            self.handle.with_files(move |files| files.replace_root(id, image)).await?;
        }
        self.update(Draft::of(BayReplaced { image: image.into() }), |row| {
            row.image_id = image;
            row.replace_with = None;
            // Processes that were paused on disk ran on the root that is gone.
            row.thaw_from = None;
            row.reason = "its root was replaced".to_owned();
        })
        .await?;
        images::remove_superseded_soon(&self.daemon);
        execs::close_all(&self.daemon, &self.handle, EndReason::Stopped).await;
        self.why = "started with a fresh root".to_owned();
        Ok(())
    }
}
