//! One file per verb.

pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod execs;
pub(crate) mod images;
pub(crate) mod kill;
pub(crate) mod lifecycle;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod pause;
pub(crate) mod ports;
pub(crate) mod replace;
pub(crate) mod repos;
pub(crate) mod resume;
pub(crate) mod rm;
pub(crate) mod serve;
pub(crate) mod services;
pub(crate) mod set;
pub(crate) mod shell;
pub(crate) mod show;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod up;
pub(crate) mod watch;
pub(crate) mod workspaces;
