//! A policy and requests of a given size, for measuring [`decide`](crate::decide()) the same way everywhere.

use std::fmt::Write as _;

use crate::canonical::CanonicalRequest;
use crate::compile::{CompiledPolicy, Layers};
use crate::parse::parse;
use crate::place::Places;
use crate::rule::Layer;

/// How the rules are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Over many hosts, some of them `*.name`, as real policies are.
    OverHosts,
    /// All on one host, with a path each.
    OverPaths,
    /// All on one host, with paths that differ in their second segment.
    OverSegments,
    /// All on one host, with paths that differ within a segment, so that the index cannot rule any of them out.
    Alike,
}

impl Spread {
    pub const ALL: [Self; 4] = [Self::OverHosts, Self::OverPaths, Self::OverSegments, Self::Alike];
}

/// A policy with this number of rules in one layer.
#[must_use]
pub fn policy(rules: usize, spread: Spread) -> CompiledPolicy {
    let mut text = String::new();
    for at in 0..rules {
        let outcome = ["allow", "allow", "ask", "deny"][at % 4];
        let (host, path) = match spread {
            Spread::OverHosts if at.is_multiple_of(5) => {
                (format!("*.zone{at}.example.com"), "/api/**".to_owned())
            }
            Spread::OverHosts => (format!("host{at}.example.com"), "/api/v1/**".to_owned()),
            Spread::OverPaths => ("www.example.com".to_owned(), format!("/part{at}/**")),
            Spread::OverSegments => ("www.example.com".to_owned(), format!("/*/part{at}/**")),
            Spread::Alike => ("www.example.com".to_owned(), format!("/part{at}-*/**")),
        };
        let _ = writeln!(
            text,
            "[[rule]]\nid = \"r{at}\"\noutcome = \"{outcome}\"\nhost = \"{host}\"\nmethod = [\"GET\", \"POST\"]\npath = \"{path}\""
        );
    }
    let bay = parse(Layer::Bay, "bench", &text, &Places::default()).ok();
    CompiledPolicy::new(Layers { bay, ..Layers::default() })
}

/// Requests that such a policy allows, asks about, denies, and has no rule for.
#[must_use]
pub fn requests(rules: usize, spread: Spread) -> Vec<CanonicalRequest> {
    let line = |at: usize| match spread {
        Spread::OverHosts if at.is_multiple_of(5) => {
            format!("GET https://deep.below.zone{at}.example.com/api/v1/things/7")
        }
        Spread::OverHosts => format!("GET https://host{at}.example.com/api/v1/things/7?page=2"),
        Spread::OverPaths => format!("POST https://www.example.com/part{at}/things/7"),
        Spread::OverSegments => format!("POST https://www.example.com/any/part{at}/things/7"),
        Spread::Alike => format!("POST https://www.example.com/part{at}-x/things/7"),
    };
    let known = (0..rules).step_by((rules / 60).max(1)).map(line);
    let unknown = (0..4).map(|at| format!("GET https://www.nowhere{at}.example.net/api/v1/things"));
    known.chain(unknown).filter_map(|line| CanonicalRequest::from_line(&line).ok()).collect()
}
