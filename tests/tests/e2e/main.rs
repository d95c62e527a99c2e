//! The end-to-end tests: one module per capability, in one binary that is linked once.
//!
//! cargo-nextest runs every test in its own process, so no module affects another through memory or environment. A file
//! in this directory runs only if it is listed here; the architecture tests fail for one that is not.
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
mod bay_ctl;
mod bay_user;
mod bays;
mod blame;
mod checkpoints;
mod clock_jumps;
mod compare;
mod data_disk;
mod diff;
mod egress;
mod envd;
mod environments;
mod execs;
mod faults;
mod faults_checkpoints;
mod faults_long_requests;
mod files;
mod files_hostile;
mod forward;
mod gateway;
mod git_export;
mod git_export_hostile;
mod images;
mod installation;
mod invalid_input;
mod isolation;
mod limits;
mod memory;
mod memory_admission;
mod memory_faults;
mod memory_input;
mod memory_postgres;
mod memory_restore_edge_cases;
mod memory_sizes;
mod older_release;
mod policy;
mod repos;
mod resource_exhaustion;
mod secrets;
mod secrets_guessable;
mod secrets_lifecycle;
mod secrets_postgres;
mod secrets_registries;
mod services;
mod services_presets;
mod space;
mod ssh_relay;
mod story;
mod tcp_listener;
mod timeline;
mod traces;
mod uninterruptible_processes;
mod upgrades_and_bad_disks;
mod virtual_machine_hosts;
mod watch;
