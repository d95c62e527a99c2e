//! What happened in a bay, made readable by rules.
//!
//! ```text
//!                    ┌─► Filter ─► Fold ─► lines of a timeline
//!  typed events ─────┤
//!                    └─► Teller ─► Story ─► a page of text or HTML
//! ```
//!
//! Everything here is a pure function of the record and of what the caller passes: no I/O, no clock, no language
//! model. Programs in a bay choose many of the texts in its record. So every text of a story is shortened and
//! escaped, every list is bounded, and no event can make this code panic.
#![forbid(unsafe_code)]

pub mod command;
pub mod filter;
pub mod fold;
pub mod html;
pub mod page;
mod sender;
mod span;
pub mod teller;
mod text;

pub use filter::Filter;
pub use fold::{Fold, Item};
pub use sender::is_background;
pub use teller::{Changes, Situation, Teller};
