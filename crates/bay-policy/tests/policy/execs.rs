//! Rules on commands.

use bay_policy::{Layer, Outcome, Places, decide_exec, parse};

use super::policy;

fn argv(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn exec_rules_match_the_words_of_a_command_and_deny_wins() {
    let policy = policy(
        "[[exec]]\nid = \"push\"\noutcome = \"ask\"\nargv = [\"git\", \"push\", \"**\"]\ncheckpoint = true\n\
         [[exec]]\noutcome = \"deny\"\nargv = [\"git\", \"push\", \"--force*\", \"**\"]\nreason = \"no\"\n",
    );
    let of = |line: &str| decide_exec(&policy, &argv(line)).map(|rule| rule.outcome);
    assert_eq!(of("git push"), Some(Outcome::Ask));
    assert_eq!(of("/usr/bin/git push origin main"), Some(Outcome::Ask));
    assert_eq!(of("git push --force-with-lease origin"), Some(Outcome::Deny));
    assert_eq!(of("git pull"), None);
    assert_eq!(of("git"), None);
}

#[test]
fn an_exec_rule_without_effect_is_a_mistake() {
    for odd in [
        "[[exec]]\noutcome = \"allow\"\nargv = \"ls\"\n",
        "[[exec]]\noutcome = \"ask\"\n",
        "[[exec]]\nargv = \"ls\"\n",
        "[[exec]]\noutcome = \"ask\"\nargv = [\"a\", \"**\", \"b\"]\n",
        "[[exec]]\noutcome = \"deny\"\nargv = \"ls\"\ncheckpoint = true\n",
        "[[exec]]\noutcome = \"ask\"\nargv = \"ls\"\nhost = \"x\"\n",
    ] {
        assert!(parse(Layer::Bay, "p.toml", odd, &Places::default()).is_err(), "{odd}");
    }
}
