//! The part of its policy that a bay may see: the names of its policies, its rules and grants on traffic, and the
//! ports of the host that are open to it. It learns no paths of the host, no places of rules, and no reasons that
//! an operator wrote for others. Rules on commands are left out.

use bay_policy::Outcome;
use bay_policy::show;
use bay_policy::show::{Effect, Shown, describe};
use bay_types::guest::{GATEWAY_V4, PROXY_PORT};
use bay_types::reach::HOST_NAME;
use bay_types::traffic::{InsideEgress, InsideRule};
use jiff::Timestamp;

use super::effective_with_origins;
use super::view::word;
use crate::channel::plain_text;
use crate::daemon::Daemon;
use crate::registry::BayHandle;

/// The most rules in an answer, those that permit first.
const MAX_RULES: usize = 500;

pub(crate) async fn inside(daemon: &Daemon, handle: &BayHandle) -> InsideEgress {
    let effective = effective_with_origins(daemon, handle).await;
    let open = handle.egress().is_some();
    visible(&show(&effective.policy, Timestamp::now()), open)
}

fn visible(shown: &Shown, open: bool) -> InsideEgress {
    let granted = shown.grants.iter().filter(|grant| grant.active).map(|grant| InsideRule {
        outcome: Outcome::Allow.to_string(),
        what: plain_text(&describe(&grant.grant.matcher)),
        expires: Some(grant.grant.expires),
    });
    let reached = shown.reach.iter().map(|port| InsideRule {
        outcome: Outcome::Allow.to_string(),
        what: format!("{HOST_NAME}:{port}, a service of the host"),
        expires: None,
    });
    let mut rules: Vec<InsideRule> = reached.chain(granted).collect();
    for wanted in [Outcome::Allow, Outcome::Ask, Outcome::Deny] {
        let all = shown.layers.iter().flat_map(|layer| &layer.rules);
        let fitting = all.filter(|one| one.effect == Effect::Active && one.rule.outcome == wanted);
        rules.extend(fitting.map(|one| InsideRule {
            outcome: wanted.to_string(),
            what: plain_text(&describe(&one.rule.matcher)),
            expires: one.rule.expires,
        }));
    }
    let more = rules.len() > MAX_RULES;
    rules.truncate(MAX_RULES);
    let otherwise = shown.layers.iter().map(|layer| word(&layer.otherwise)).collect::<Vec<_>>();
    InsideEgress {
        open,
        policies: shown.layers.iter().map(|layer| base(&layer.file)).collect(),
        otherwise: strictest(&otherwise),
        rules,
        more,
        proxy: format!("http://{GATEWAY_V4}:{PROXY_PORT}"),
        resolver: GATEWAY_V4.to_string(),
    }
}

/// The default of several layers together: the strictest one.
fn strictest(words: &[String]) -> String {
    let strict = ["deny", "ask"].into_iter().find(|word| words.iter().any(|one| one == word));
    strict.unwrap_or("deny").to_owned()
}

/// The last component of what may be a path of the host.
fn base(file: &str) -> String {
    plain_text(file.rsplit('/').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bay_sees_no_paths_of_the_host() {
        assert_eq!(base("/home/ann/secret-project/p.toml"), "p.toml");
        assert_eq!(base("coding"), "coding");
        assert_eq!(base("a\u{1b}[2J"), "a\u{fffd}[2J");
    }
}
