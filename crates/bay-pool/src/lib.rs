//! Disk: images, repositories, workspaces and roots on a copy-on-write pool.
//!
//! The pool is a btrfs: the directory it is given lies on one, or a file in that directory holds one ([`Pool::open`]
//! makes and mounts it). Images are shared by every daemon that uses the pool; everything else is in a daemon's own
//! corner.
//!
//! ```text
//!  images/<image>/{meta.json,root}                         read-only subvolumes
//!  corners/<daemon>/bays/<bay>/{root,workspace,state}      subvolumes of a bay
//!                              /checkpoints/…              read-only snapshots of the three above
//!                              /beginning/workspace        where the work began: a link or a snapshot
//!                  /repos/<repo>/{meta.json,git/,checkouts/<key>}
//!                  /programs/<hash>                        programs that bays execute
//!                  /kept/<name>-<time>                     workspaces that outlived their bays
//!                  /trash/  /tmp/                          the sweep empties both
//!
//!  source ── image_import ──► image ── snapshot ──► root      ┐
//!  remote ── repo_fetch ──┐                                   ├─ a bay's disk ── bay_remove ──► (gone) or kept/
//!  bundle ── repo_unbundle┴► repo ── repo_checkout ──► checkout ── snapshot ──► workspace ┘
//! ```
//!
//! Every change is made under another name and renamed into place, or is one atomic step. Every verb can be
//! repeated. If the daemon is killed at any line, the next [`Pool::open`] removes the leftovers. Nothing that
//! exists is ever formatted. The disk has errors of its own: full, read-only (including btrfs's switch to read-only
//! after an error), damaged.
//!
//! Files that a caller names are read with that caller's rights, which the kernel checks ([`image`]). Input from
//! outside (archives, bundles, git servers, repositories) is hostile: an archive cannot write outside of the image,
//! and git runs without settings and confined (`bay-git`).
//!
//! | module         | for                                                  |
//! |----------------|------------------------------------------------------|
//! | `pool`         | the open pool: layout, space                         |
//! | `open`         | opening a pool, the sweep                            |
//! | `backing`      | the pool file: make, mount, grow                     |
//! | `shrink`       | the pool file: give space back to the host           |
//! | `files`        | small files and directories of the pool's own        |
//! | `subvolume`    | subvolumes by path, trash                            |
//! | `sysfs`        | closing the pool's sysfs directory to bays           |
//! | `image`        | imports: host, directories, archives                 |
//! | `host_packages` | the host's package database, hashed                 |
//! | `bay`, `quota` | the files of bays, how much of the disk they may take |
//! | `beginning`    | where the work in a bay began                        |
//! | `changes`      | what changed in a workspace in a stretch of time      |
//! | `device`       | the disks below the pool                             |
//! | `checkpoint`   | snapshots of bays, restores                          |
//! | `diff`         | trees of bays for a comparison                       |
//! | `disk_usage`   | where the disk goes                                  |
//! | `kept_workspaces` | workspaces that outlived their bays               |
//! | `repo`         | cached repositories and their checkouts              |
//! | `corners`      | whose corner is whose, corners of daemons that are gone |
//! | `uninstall`    | removing what a daemon has in a pool                 |
//! | `git_network`  | the proxy and certificates that git gets             |
#![forbid(unsafe_code)]

mod backing;
mod bay;
mod bay_files;
mod beginning;
mod changes;
mod checkpoint;
mod corners;
mod device;
mod diff;
mod disk_usage;
mod error;
mod files;
mod git_network;
mod host_packages;
mod image;
mod kept_workspaces;
mod open;
mod pool;
mod quota;
mod repo;
mod shrink;
mod subvolume;
mod sysfs;
#[cfg(test)]
mod tests;
mod uninstall;

pub use bay_backend::files::{BayUsage, WorkspaceFrom};
pub use changes::{Flush, IsIgnored, Window, file_clock};
pub use diff::{DiffSide, Side};
pub use error::PoolError;
pub use git_network::GIT_VARIABLES;
pub use open::PoolOptions;
pub use pool::{BayDisk, Pool, PoolUsage};
pub use repo::{MAX_BUNDLE_BYTES, Resolved};
pub use uninstall::PoolContents;
