//! The rig of the end-to-end suites: real daemons, real bays, a real pool, on this machine's kernel.
//!
//! | module     | for                                                                                      |
//! |------------|------------------------------------------------------------------------------------------|
//! | [`suite`]  | the one directory everything of a test run is below, its shared pool, skips              |
//! | [`image`]  | the small image most bays of the suites start from                                       |
//! | [`daemon`] | a daemon of one test's own; dropping it removes its bays and fails the test on a leak    |
//! | [`lab`]    | a daemon whose bays can reach servers of the test: [`outside`], [`origin`]                |
//! | [`ran`]    | what a command printed and how it ended, with the assertions that tests want             |
//! | [`rest`]   | the daemon's socket without the CLI between                                              |
//! | [`repository`], [`remote`] | small git repositories to make bays from, also over HTTP                     |
//! | [`database`] | a PostgreSQL                                                                           |
//! | [`forge`]  | a server of repositories over SSH                                                        |
//! | [`machine`] | a virtual machine: a host of another kind than this one                               |
//! | [`stuck`]  | a filesystem that does not answer: processes in uninterruptible sleep                  |
//! | [`keeper`] | a process that shows whether memory and files are of one moment                          |
//! | [`leaks`]  | what a daemon or the whole suite left on the host                                        |
//! | [`sound`]  | what must hold of checkpoints whatever was killed                                        |
//! | [`wait`]   | waiting for an event with a deadline                                                     |
//! | [`chance`] | repeatable randomness                                                                    |
//! | [`canary`] | the value of a secret, and looking for it everywhere it must never be                   |
//! | [`questions`] | what waits for a person, and clients that wait for the answer                        |
//! | [`tools`]  | the host's package clients inside a bay                                                 |
//! | [`collector`] | an OpenTelemetry collector                                                            |
//! | [`archive`]| hostile tar archives                                                                     |
//!
//! Every test runs in a process of its own (cargo-nextest), so nothing here is shared in memory; what is shared on
//! disk is guarded by file locks. A test that fails still removes what it made, unless `BAY_KEEP` is set.
#![forbid(unsafe_code)]

pub mod archive;
pub mod canary;
pub mod chance;
pub mod collector;
pub mod daemon;
pub mod database;
pub mod disk;
pub mod forge;
pub mod image;
pub mod keeper;
pub mod lab;
pub mod leaks;
pub mod machine;
pub mod origin;
pub mod outside;
pub mod questions;
pub mod ran;
pub mod remote;
pub mod repository;
pub mod rest;
pub mod sound;
pub mod stuck;
pub mod suite;
pub mod tools;
pub mod wait;

pub use daemon::Daemon;
pub use ran::Ran;
pub use remote::Remote;
pub use repository::Repository;
pub use wait::until;

/// The name under which the small image is imported.
pub const SMALL: &str = "small";
