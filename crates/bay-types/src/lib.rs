//! The types that the other crates share: ids, nouns, API bodies, the guest protocol and error codes.
//!
//! Nothing here does I/O. The types of Workbay's own protocols (CLI ↔ daemon, daemon ↔ guest, daemon ↔ runtime
//! helper) live here, so that both sides are compiled from one definition.
//!
//! | module      | crosses                                              |
//! |-------------|------------------------------------------------------|
//! | [`id`]      | everything: typed ids and bay names                  |
//! | [`error`]   | daemon → caller: code, message, what to do next      |
//! | [`backend`] | daemon → CLI: what a backend can do                  |
//! | [`bay`]     | CLI ↔ daemon: bays, their states, limits, mounts     |
//! | [`checkpoint`] | CLI ↔ daemon: points in a bay's life, restores and forks |
//! | [`blame`]   | daemon → CLI: what may have made a command fail       |
//! | [`exec`]    | CLI ↔ daemon ↔ guest: commands and their results     |
//! | [`forward`] | CLI ↔ daemon: ports of a bay that are reached from outside |
//! | [`frame`]   | CLI ↔ guest: the byte stream of an attached exec     |
//! | [`output`]  | guest → daemon → CLI: hashes of output, and the result of checking them later |
//! | [`guest`]   | daemon ↔ guest: the rest of the guest protocol       |
//! | [`sparse`]  | guest → CLI: sparse files in archives                |
//! | [`service`] | CLI ↔ daemon ↔ guest: commands that a bay keeps running |
//! | [`settings`]| CLI ↔ daemon: settings that can change while a bay exists |
//! | [`runtime`] | daemon ↔ `bay __runtime`                             |
//! | [`usage`]   | guest → daemon → CLI: what one exec used and cost    |
//! | [`trace`]   | caller → daemon → guest: the W3C trace context       |
//! | [`stats`]   | host → CLI: what a bay uses, as the host measures it |
//! | [`inside`]  | a bay's own processes ↔ guest; ports and activity    |
//! | [`watch`]   | guest → daemon → CLI: what changes below a directory |
//! | [`top`]     | daemon → CLI: all bays at one moment                 |
//! | [`work`]    | CLI → daemon: work that a client took out of a bay   |
//! | [`image`], [`repo`], [`environment`] | CLI ↔ daemon: what bays are made from |
//! | [`disk`], [`pool`] | CLI ↔ daemon: where the disk goes, corners of gone daemons |
//! | [`reach`]   | CLI → daemon: services of the host that a bay may use |
//! | [`traffic`] | daemon → CLI: a bay's egress and its recorded traffic |
//! | [`installation`] | daemon → `bay uninstall`, in a file             |
//! | [`mib`]     | nothing: sizes as people type them                   |
//! | [`diff`]    | daemon → CLI: the differences between two points, and findings in them |
//! | [`egress`]  | backend → daemon → CLI: who is behind a connection   |
//! | [`event`]   | the hashed record of everything decided and done     |
//! | [`timeline`]| daemon → CLI: one bay's life, line by line           |
//! | [`story`]   | daemon → CLI: what happened in a bay, on one page    |
//! | [`approval`] | CLI ↔ daemon: approvals and their answers |
//! | [`notify`]  | CLI ↔ daemon: webhooks that announce approvals       |
//! | [`policy`]  | CLI ↔ daemon: what may leave a bay, and why          |
//! | [`secret`]  | CLI ↔ daemon ↔ guest: credentials that bays never hold |
//! | [`hint`]    | nothing: what an error advises, before a front puts it into words |
//! | [`principal`] | nothing: who makes a request, and by which door    |
//! | [`progress`]| daemon → caller, during long work                    |
#![forbid(unsafe_code)]

pub mod approval;
pub mod backend;
pub mod bay;
pub mod blame;
pub mod checkpoint;
pub mod diff;
pub mod disk;
pub mod durability;
pub mod egress;
pub mod environment;
pub mod error;
pub mod event;
pub mod exec;
pub mod forward;
pub mod frame;
pub mod guest;
pub mod hint;
pub mod id;
pub mod image;
pub mod inside;
pub mod installation;
pub mod mib;
pub mod notify;
pub mod output;
pub mod package_manager;
pub mod policy;
pub mod pool;
pub mod principal;
pub mod progress;
pub mod reach;
pub mod repo;
pub mod runtime;
pub mod secret;
pub mod service;
pub mod service_state;
pub mod settings;
pub mod sparse;
pub mod stats;
pub mod story;
mod text_enum;
pub mod timeline;
pub mod top;
pub mod trace;
pub mod traffic;
pub mod usage;
pub mod watch;
pub mod work;

pub use error::{ApiError, CoreError, ErrorCode};
pub use hint::{Action, Hint, HintBay};
pub use id::{ApprovalId, BayId, BayName, CheckpointName, ExecId, ForwardId, ImageId, InputId, RepoId};

/// The version of the product, printed by `bay --version`. `bay doctor` compares that of the CLI with the daemon's.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
