//! Rules for git over SSH.

use super::{Fields, read_paths};
use crate::canonical::{GitService, Scheme};
use crate::parse::reader::Reader;
use crate::pattern::{Methods, PathPattern, Ports, QueryPattern};
use crate::rule::{Kind, Matcher, Outcome};

impl Fields {
    /// Git over SSH: repositories of a host. The default is to allow fetching only.
    pub(super) fn git_ssh(
        self,
        reader: &mut Reader<'_>,
        at: usize,
        outcome: Outcome,
    ) -> Option<Vec<Matcher>> {
        let unfit = [
            self.schemes.as_ref().map(|(_, at)| ("scheme", *at)),
            self.places.as_ref().and_then(|words| words.first()).map(|word| ("place", word.at)),
            self.query.as_ref().map(|(_, at)| ("query", *at)),
            self.headers.as_ref().map(|(_, at)| ("header", *at)),
            self.secrets.as_ref().map(|_| ("secret", at)),
        ];
        if let Some((key, at)) = unfit.into_iter().flatten().next() {
            let why = "of `git-ssh` there are host, port, repositories, FETCH or PUSH, and the branches of a push only";
            reader.problem(
                at,
                format!("`{key}` does not fit the kind"),
                why,
                "leave it out, or use kind = \"http\"",
            );
            return None;
        }
        let Some(hosts) = self.hosts else {
            if !self.host_written {
                reader.problem(at, "a rule has no host", "it must say where to", "add host = \"NAME\"");
            }
            return None;
        };
        let deny = outcome == Outcome::Deny;
        let paths = match &self.paths {
            Some(words) => PathPattern::of_repositories(read_paths(reader, words, PathPattern::parse)?),
            None if deny => vec![PathPattern::parse("/**").ok()?],
            None => {
                reader.problem(
                    at,
                    "a `git-ssh` rule has no path",
                    "it must name the repositories, because the key for the host may open more",
                    "add path = \"/OWNER/NAME\"",
                );
                return None;
            }
        };
        let methods = match self.methods {
            Some((methods, at)) => git_methods(reader, methods, at)?,
            None if deny => Methods::Any,
            None if self.branches.is_some() => Methods::pushing(),
            None => Methods::fetching(),
        };
        let ports = self.ports.map_or(if deny { Ports::Any } else { Ports::Default }, |(ports, _)| ports);
        Some(vec![Matcher {
            kind: Kind::GitSsh,
            hosts,
            ports,
            schemes: vec![Scheme::Ssh],
            methods,
            paths,
            query: QueryPattern::default(),
            headers: Vec::new(),
            branches: self.branches.map(|(branches, _)| branches).unwrap_or_default(),
            secrets: None,
            addresses: self.addresses,
        }])
    }
}

/// Checks that every method is `FETCH` or `PUSH`.
fn git_methods(reader: &mut Reader<'_>, methods: Methods, at: usize) -> Option<Methods> {
    let known = |method: &String| GitService::from_method(method).is_some();
    match &methods {
        Methods::Set(set) if !set.iter().all(known) => {
            let why = "git has no other than FETCH and PUSH";
            reader.problem(
                at,
                "wrong value of `method`",
                why,
                "write \"FETCH\", \"PUSH\", both in a list, or \"*\"",
            );
            None
        }
        _ => Some(methods),
    }
}
