use std::path::PathBuf;

use super::Field;
use super::area::area;
use crate::id::{ImageId, RepoId};

area! {
    /// Images, repositories and kept workspaces: what bays are made from. Each event is written before its act, which may
    /// fail; no event follows.
    Pool: PoolEvent;

    /// An image is about to be imported.
    ImageImport(ImageImported) = "image.import" {
        /// `host`, `dir:PATH` or `tar:PATH`.
        source: String,
        /// What it is to be called; derived from the source if nobody said.
        name: Option<String>,
        /// Directories of the host that are copied into the image too.
        add: Vec<PathBuf>,
        /// Who asked.
        by: String,
    }

    /// An image is about to be removed.
    ImageRemove(ImageRemoved) = "image.remove" {
        /// The image.
        image: Field<ImageId>,
        /// Its name.
        name: String,
        /// Who asked.
        by: String,
    }

    /// The corner of a daemon whose data directory is gone is about to be removed from the pool.
    PoolPrune(PoolPruned) = "pool.prune" {
        /// The id of that daemon.
        daemon: String,
        /// Where its data directory was.
        data_dir: PathBuf,
        /// How many bays had files in it.
        bays: u64,
        /// Who asked.
        by: String,
    }

    /// Commits are about to be added to a cached repository.
    RepoBundle(RepoBundled) = "repo.bundle" {
        /// The repository.
        repo: Field<RepoId>,
        /// Who asked.
        by: String,
    }

    /// A cached repository is about to be brought up to date.
    RepoSync(RepoSynced) = "repo.sync" {
        /// The repository.
        repo: Field<RepoId>,
        /// Who asked.
        by: String,
    }

    /// A cached repository is about to be removed.
    RepoRemove(RepoRemoved) = "repo.remove" {
        /// The repository.
        repo: Field<RepoId>,
        /// Its URL or path, without credentials.
        location: String,
        /// Who asked.
        by: String,
    }

    /// A workspace that outlived its bay is about to be removed.
    WorkspaceRemove(WorkspaceRemoved) = "workspace.remove" {
        /// Its name.
        workspace: String,
        /// Who asked.
        by: String,
    }
}
