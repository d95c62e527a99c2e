//! Finds cycles in what services need.

use std::collections::{BTreeMap, BTreeSet};

use bay_types::service::ServiceName;

/// What each service needs.
pub(super) type Needs<'a> = BTreeMap<&'a ServiceName, &'a [ServiceName]>;

/// A path from a service back to itself, with that service at both ends.
pub(super) fn cycle(needs: &Needs<'_>, from: &ServiceName) -> Option<Vec<ServiceName>> {
    let mut seen = BTreeSet::new();
    let mut way = vec![from.clone()];
    find(needs, from, from, &mut seen, &mut way).then_some(way)
}

/// Recursive, at most as deep as there are services, which are few.
fn find<'a>(
    needs: &Needs<'a>,
    at: &ServiceName,
    goal: &ServiceName,
    seen: &mut BTreeSet<&'a ServiceName>,
    way: &mut Vec<ServiceName>,
) -> bool {
    for next in needs.get(at).copied().unwrap_or_default() {
        way.push(next.clone());
        if next == goal || (seen.insert(next) && find(needs, next, goal, seen, way)) {
            return true;
        }
        way.pop();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<ServiceName> {
        text.split_whitespace().map(|name| name.parse().unwrap()).collect()
    }

    fn find_in(lines: &[&str], from: &str) -> Option<String> {
        let all: Vec<Vec<ServiceName>> = lines.iter().map(|line| names(line)).collect();
        let needs = all.iter().map(|line| (&line[0], &line[1..])).collect();
        cycle(&needs, &from.parse().unwrap())
            .map(|way| way.iter().map(ServiceName::as_str).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_cycle_is_found_and_named() {
        assert_eq!(find_in(&["a a"], "a").unwrap(), "a a");
        assert_eq!(find_in(&["a b", "b c", "c a"], "b").unwrap(), "b c a b");
        assert_eq!(find_in(&["a b c", "b d", "c d", "d"], "a"), None);
        assert_eq!(find_in(&["a b", "b c", "c b"], "a"), None, "not one of its own");
        assert_eq!(find_in(&["a missing"], "a"), None);
    }

    #[test]
    fn many_paths_to_the_same_services_cost_nothing() {
        let lines: Vec<String> = (0..60).map(|n| format!("s{n} s{} s{}", n + 1, n + 2)).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        assert_eq!(find_in(&lines, "s0"), None);
    }
}
