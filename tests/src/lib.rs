//! What the end-to-end tests share: real daemons, real bays and a real pool on this machine's kernel.
//!
//! | module                     | contents                                                                   |
//! |----------------------------|----------------------------------------------------------------------------|
//! | [`suite`]                  | the one directory that holds everything of a test run, its shared pool, skips |
//! | [`image`]                  | the small image that most bays of the tests start from                     |
//! | [`daemon`]                 | a daemon for one test; dropping it removes its bays and fails the test on a leak |
//! | [`lab`]                    | a daemon whose bays can reach servers of the test                          |
//! | [`test_servers`], [`origin`] | those servers, and what they record of each request                      |
//! | [`cli_run`]                | what a run of the CLI printed and how it ended, with assertions            |
//! | [`rest`]                   | requests to the daemon's socket without the CLI                            |
//! | [`repository`], [`remote`] | small git repositories to make bays from, also over HTTP                   |
//! | [`forge`]                  | a server of git repositories over SSH                                      |
//! | [`database`]               | a PostgreSQL server                                                        |
//! | [`collector`]              | an OpenTelemetry collector                                                 |
//! | [`disk`]                   | a disk of a given size, made from a file                                   |
//! | [`virtual_machine`]        | a host of another kind than this one                                       |
//! | [`hanging_filesystem`]     | a filesystem that never answers a read: its readers sleep uninterruptibly  |
//! | [`consistency_probe`]      | a process that shows whether memory and files are of one moment            |
//! | [`checkpoint_invariants`]  | what holds of checkpoints after any process was killed                     |
//! | [`leaks`]                  | what a daemon or the whole suite left on the host                          |
//! | [`wait`]                   | waiting for an event with a deadline                                       |
//! | [`seeded_random`]          | repeatable randomness                                                      |
//! | [`canary`]                 | the value of a secret, and a search for it everywhere it must never be     |
//! | [`open_approvals`]         | open approvals, and clients that wait for the answer                       |
//! | [`tools`]                  | package clients of the host inside a bay                                   |
//! | [`archive`]                | hostile tar archives                                                       |
//!
//! Every test runs in a process of its own (cargo-nextest), so nothing here is shared in memory; what is shared on
//! disk is guarded by file locks. A test that fails still removes what it made, unless `BAY_KEEP` is set.
#![forbid(unsafe_code)]

pub mod archive;
pub mod canary;
pub mod checkpoint_invariants;
pub mod cli_run;
pub mod collector;
pub mod consistency_probe;
pub mod daemon;
pub mod database;
pub mod disk;
pub mod forge;
pub mod hanging_filesystem;
pub mod image;
pub mod lab;
pub mod leaks;
pub mod open_approvals;
pub mod origin;
pub mod remote;
pub mod repository;
pub mod rest;
pub mod seeded_random;
pub mod suite;
pub mod test_servers;
pub mod tools;
pub mod virtual_machine;
pub mod wait;

pub use cli_run::CliRun;
pub use daemon::Daemon;
pub use remote::Remote;
pub use repository::Repository;
pub use wait::until;

/// The name under which the small image is imported.
pub const SMALL: &str = "small";
