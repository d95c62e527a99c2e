//! What may leave a bay: rules, the canonical form of requests, decisions and their explanation.
//!
//! Pure: it reads no files, no clock and no network, and keeps no state. The caller passes in the request, the time and
//! the text of the policy files.
//!
//! ```text
//!  policy files ── parse ──► LayerPolicy ─┐
//!  presets + places found ── parse ───────┼─ CompiledPolicy::new ──► CompiledPolicy ─┐
//!                                         │                                          ├─ decide ──► Decision
//!  bytes of a request ── canonicalise ──► CanonicalRequest ──────────────────────────┘      │
//!                             │                  └─ what is sent upstream                   ├─ explain
//!                             └─► Refusal: ambiguous, never sent, whatever rules say        └─ check_address(dialled)
//! ```
//!
//! A failure denies. A file with one mistake has no effect. A request with two readings must be allowed in both. A
//! policy without layers denies. An address that is not public must be named by every rule that the decision rests on.
//! The one exception to rules are ports of the host itself: the operator opens them for a bay
//! ([`CompiledPolicy::reaching`]), and no rule has to.
//!
//! | module        | for                                                                  |
//! |---------------|----------------------------------------------------------------------|
//! | [`canonical`] | one form for each request, or the reason why it has none             |
//! | [`pattern`]   | what rules compare requests with                                     |
//! | [`rule`], [`exec`] | rules, grants, and rules on commands |
//! | [`layer`]     | one layer of a policy                                                |
//! | [`mod@parse`] | policy files, and their mistakes with line and column                |
//! | [`compile`]   | layers made ready for deciding                                       |
//! | [`mod@decide`]| decisions, the route of a connection, the check of dialled addresses |
//! | [`push`]      | what a git push changes, and patterns for its refs                   |
//! | [`address`]   | classes of addresses and names                                       |
//! | [`reachable_hosts`] | which hosts can be reached at all                                |
//! | [`mod@explain`], [`mod@lint`], [`mod@diff`], [`mod@learn`], [`mod@show`] | policies that can be understood |
//! | [`preset`], [`place`], [`tool_settings`] | policies that ship, and the settings of tools that fill them |
//! | [`stars`]     | words with stars                                                     |
//! | [`write`]     | rules as text                                                        |
//! | [`bench`]     | policies of a size, for measuring                                    |
#![forbid(unsafe_code)]

pub mod address;
pub mod bench;
pub mod canonical;
pub mod compile;
pub mod decide;
pub mod diff;
pub mod exec;
pub mod explain;
mod index;
pub mod layer;
pub mod learn;
pub mod lint;
pub mod parse;
pub mod pattern;
pub mod place;
pub mod preset;
mod problem;
pub mod push;
pub mod reachable_hosts;
pub mod rule;
pub mod show;
pub mod stars;
pub mod tool_settings;
pub mod write;

pub use address::{AddressClass, classify};
pub use canonical::{
    CanonicalRequest, Connection, GitService, GitSsh, Host, RawRequest, Refusal, Scheme, canonicalise,
};
pub use compile::{CompiledPolicy, Layers, RuleHead, RuleRef, is_host_itself};
pub use decide::{
    AddressRefusal, Cause, Decision, HOST_LOOPBACK, Route, check_address, decide, decide_exec, route,
};
pub use diff::{PolicyDiff, diff};
pub use exec::ExecRule;
pub use explain::{Explanation, explain};
pub use layer::{LayerPolicy, Otherwise};
pub use learn::{Lesson, learn};
pub use lint::{Finding, lint};
pub use parse::parse;
pub use place::{Place, Places};
pub use preset::Preset;
pub use problem::{Problem, Problems};
pub use reachable_hosts::could_permit_host;
pub use rule::{Grant, Kind, Layer, Outcome, Rule};
pub use show::{Shown, show};
