//! The end-to-end tests: one module per capability, in one binary that is linked once.
//!
//! cargo-nextest runs every test in a process of its own, so no module disturbs another through memory or environment.
//! A file in this directory runs only if it is listed here; the architecture tests fail for one that is not.
#![forbid(unsafe_code)]

mod approvals;
mod approvals_binding;
mod approvals_cards;
mod approvals_clients;
mod approvals_commands;
mod approvals_push;
mod attacks;
#[path = "../../attacks/mod.rs"]
mod attacks_gateway;
mod attacks_inside;
mod attacks_memory;
mod attacks_record;
mod audit;
mod backends;
mod bays;
mod checkpoints;
mod clocks;
mod compare;
mod data_disk;
mod diff;
mod doors;
mod egress;
mod envd;
mod execs;
mod faults;
mod faults_checkpoints;
mod faults_long_work;
mod files;
mod gateway;
mod hosts;
mod images;
mod input;
mod inside;
mod isolation;
mod leaving;
mod leaving_hostile;
mod limits;
mod memory;
mod memory_faults;
mod memory_input;
mod memory_odds;
mod memory_postgres;
mod memory_room;
mod memory_sizes;
mod odd_files;
mod policy;
mod repos;
mod secrets;
mod secrets_guesses;
mod secrets_life;
mod secrets_postgres;
mod secrets_registries;
mod services;
mod ssh_relay;
mod stuck;
mod survival;
mod timeline;
mod traces;
mod ugly;
mod watch;
