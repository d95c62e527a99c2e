//! Git over SSH: commands, which are parsed and never run, repositories, fetching and pushing.

use bay_policy::explain::Remedy;
use bay_policy::lint::FindingCode;
use bay_policy::{
    CanonicalRequest, GitService, GitSsh, Host, Layer, Places, Route, could_permit_host, explain, learn,
    lint, parse, route,
};

use proptest::prelude::*;

use super::{decided, now, outcome, policy, request};

const TEAM: &str = r#"
[[rule]]
id = "app"
outcome = "allow"
kind = "git-ssh"
host = "git.test"
path = ["/team/app", "/team/lib.git", "/tools/*"]
match = ["FETCH ssh://git@git.test/team/app.git", "ssh://git.test/team/lib"]
not_match = ["PUSH ssh://git.test/team/app.git", "FETCH ssh://git.test:2222/team/app.git", "GET https://git.test/team/app"]

[[rule]]
id = "notes"
outcome = "allow"
kind = "git-ssh"
host = "git.test"
method = ["FETCH", "PUSH"]
path = "/team/notes"

[[rule]]
id = "asked"
outcome = "ask"
kind = "git-ssh"
host = "git.test"
method = "PUSH"
path = "/tools/**"
"#;

#[test]
fn rules_decide_which_repositories_are_fetched_from_and_pushed_to() {
    let policy = policy(TEAM);
    for (line, wanted) in [
        ("FETCH ssh://git.test/team/app.git", "allow"),
        ("FETCH ssh://git.test/team/app", "allow"),
        ("FETCH ssh://git.test/team/lib", "allow"),
        ("FETCH ssh://git.test/tools/make.git", "allow"),
        ("FETCH ssh://git.test/tools/deep/make.git", "deny"),
        ("FETCH ssh://git.test/team/app.git.git", "deny"),
        ("FETCH ssh://git.test/team/App", "deny"),
        ("FETCH ssh://git.test/team", "deny"),
        ("FETCH ssh://other.test/team/app", "deny"),
        ("FETCH ssh://git.test:2222/team/app", "deny"),
        ("PUSH ssh://git.test/team/app", "deny"),
        ("PUSH ssh://git.test/team/notes.git", "allow"),
        ("PUSH ssh://git.test/tools/make", "ask"),
        ("GET https://git.test/team/app", "deny"),
        ("tcp://git.test:22", "deny"),
        ("FETCH ssh://git.test/", "refused"),
        ("FETCH ssh://git.test/team/../app", "refused"),
        ("FETCH ssh://git.test/team/app?x", "refused"),
        ("FETCH ssh://git.test/~me/app", "refused"),
        ("FETCH ssh://root@git.test/team/app", "refused"),
        ("DELETE ssh://git.test/team/app", "refused"),
        ("GET ssh://git.test/team/app", "refused"),
    ] {
        assert_eq!(outcome(&policy, line), wanted, "{line}");
    }
    assert!(decided(&policy, "FETCH ssh://git.test/team/app").credentials);
}

#[test]
fn rules_by_branch_decide_on_pushes_over_ssh_as_over_https() {
    let rules = |kind: &str| {
        let rule = |outcome: &str, branch: &str| {
            format!(
                "[[rule]]\nid = \"{outcome}\"\noutcome = \"{outcome}\"\nhost = \"git.test\"\n{kind}{branch}\n"
            )
        };
        policy(
            &[
                rule("allow", "branch = \"agent/**\""),
                rule("ask", "branch = [\"main\", \"refs/tags/*\"]"),
                rule("deny", "branch = \"agent/locked\""),
            ]
            .concat(),
        )
    };
    let ssh = rules("kind = \"git-ssh\"\npath = \"/team/app\"\n");
    let https = rules("path = \"/team/app.git/**\"\n");
    for (refs, wanted) in [
        ("refs/heads/agent/x", "allow"),
        ("refs/heads/main", "ask"),
        ("refs/heads/MAIN", "ask"),
        ("refs/tags/v1", "ask"),
        ("refs/heads/agent/x,refs/heads/main", "ask"),
        ("refs/heads/agent/locked", "deny"),
        ("refs/heads/agent/x,refs/heads/agent/locked", "deny"),
        ("refs/heads/other", "deny"),
        ("refs/heads/main,refs/heads/other", "deny"),
        // Before a push the client needs the server's refs. Which ones it will change is not known yet.
        ("nothing yet", "allow"),
    ] {
        let line = format!("PUSH ssh://git.test/team/app.git pushing {refs}");
        assert_eq!(outcome(&ssh, &line), wanted, "{line}");
        assert_eq!(request(&request(&line).to_string()), request(&line));
        let line = format!("POST https://git.test/team/app.git/git-receive-pack pushing {refs}");
        assert_eq!(outcome(&https, &line), wanted, "{line}");
    }
    let before = "GET https://git.test/team/app.git/info/refs?service=git-receive-pack";
    assert_eq!(outcome(&https, before), "allow");
    // A push whose refs are unknown counts as the worst case. Fetching is not allowed by this rule either.
    assert_eq!(outcome(&ssh, "PUSH ssh://git.test/team/app"), "deny");
    assert_eq!(outcome(&ssh, "FETCH ssh://git.test/team/app"), "deny");
    assert_eq!(outcome(&ssh, "FETCH ssh://git.test/team/app pushing refs/heads/agent/x"), "refused");
}

#[test]
fn git_push_options_are_allowed_by_no_rule_on_branches() {
    let rule = |outcome: &str, branch: &str| {
        format!(
            "[[rule]]\nid = \"{outcome}\"\noutcome = \"{outcome}\"\nkind = \"git-ssh\"\nhost = \"git.test\"\npath = \"/team/app\"\n{branch}\n"
        )
    };
    let allow = rule("allow", "branch = \"agent/**\"");
    let plain = request("PUSH ssh://git.test/team/app.git pushing refs/heads/agent/x");
    let with = request("PUSH ssh://git.test/team/app.git pushing refs/heads/agent/x (2 push options)");
    assert_eq!((plain.push_options(), with.push_options()), (0, 2));
    assert_eq!(request(&with.to_string()), with);
    let only = policy(&allow);
    assert_eq!(outcome(&only, &plain.to_string()), "allow");
    assert_eq!(outcome(&only, &with.to_string()), "deny");
    let decision = decided(&only, &with.to_string());
    let explained = explain(&only, &with, &decision, now());
    assert!(explained.line().contains("the push has 2 push options, and no rule by branch allows those"));
    assert!(explained.would_allow.is_empty(), "no rule by branch would: {explained:?}");
    assert_eq!(explained.near_misses[0].why, "it is for pushes of refs/heads/agent/** without push options");
    // Every ask and deny by branch matches a push with options, as it matches a push of unknown refs.
    let more =
        "PUSH ssh://git.test/team/app.git pushing refs/heads/agent/x,refs/heads/agent/y (1 push option)";
    for (wanted, branch) in [("ask", "branch = \"main\""), ("deny", "branch = \"main\"")] {
        let both = policy(&(allow.clone() + &rule(wanted, branch)));
        assert_eq!(outcome(&both, &plain.to_string()), "allow");
        assert_eq!(outcome(&both, &with.to_string()), wanted);
        assert_eq!(outcome(&both, more), wanted);
    }
    // A rule without branches matches every push.
    assert_eq!(outcome(&policy(&rule("allow", "method = \"PUSH\"")), &with.to_string()), "allow");
    for odd in ["(0 push options)", "(x push options)", "(2 push options", "(2 things)", "(99 push options)"]
    {
        let line = format!("PUSH ssh://git.test/team/app.git pushing refs/heads/agent/x {odd}");
        assert_eq!(outcome(&only, &line), "refused", "{odd}");
    }
}

#[test]
fn an_ask_about_pushes_leads_to_an_approval_that_shows_the_refs() {
    let ask = |more: &str| policy(&format!("[[rule]]\noutcome = \"ask\"\nhost = \"git.test\"\n{more}"));
    let by_branch = ask("path = \"/team/app.git/**\"\nbranch = \"main\"");
    let before = "GET https://git.test/team/app.git/info/refs?service=git-receive-pack";
    assert_eq!(outcome(&by_branch, before), "allow");
    assert_eq!(
        outcome(&by_branch, "GET https://git.test/team/app.git/info/refs?service=git-upload-pack"),
        "deny"
    );
    // An ask without branches matches the request before a push over HTTPS as it matches any other.
    assert_eq!(outcome(&ask("path = \"/team/app.git/**\""), before), "ask");
    let ssh = ask("kind = \"git-ssh\"\npath = \"/team/app\"\nmethod = \"PUSH\"");
    assert_eq!(outcome(&ssh, "PUSH ssh://git.test/team/app pushing nothing yet"), "allow");
    assert_eq!(outcome(&ssh, "PUSH ssh://git.test/team/app"), "ask");
    assert_eq!(outcome(&ssh, "PUSH ssh://git.test/team/app pushing refs/heads/x"), "ask");
    // A deny already refuses the request before the push.
    let denied = policy(
        "otherwise = \"ask\"\n[[rule]]\noutcome = \"deny\"\nkind = \"git-ssh\"\nhost = \"git.test\"\nmethod = \"PUSH\"",
    );
    assert_eq!(outcome(&denied, "PUSH ssh://git.test/team/app pushing nothing yet"), "deny");
    assert_eq!(outcome(&denied, "PUSH ssh://other.test/team/app pushing nothing yet"), "allow");
    assert_eq!(outcome(&denied, "PUSH ssh://other.test/team/app pushing refs/heads/x"), "ask");
}

#[test]
fn of_rules_for_other_kinds_only_a_deny_for_all_kinds_matches_git() {
    let wide = "[[rule]]\noutcome = \"allow\"\nhost = \"*\"\nport = \"*\"\nmethod = \"*\"\n[[rule]]\noutcome = \"allow\"\nkind = \"tcp\"\nhost = \"*\"\nport = \"*\"\n";
    assert_eq!(outcome(&policy(wide), "FETCH ssh://git.test/team/app"), "deny");
    let denied =
        |more: &str| policy(&format!("{TEAM}\n[[rule]]\noutcome = \"deny\"\nhost = \"*.test\"\n{more}"));
    let line = "FETCH ssh://git.test/team/app";
    assert_eq!(outcome(&denied(""), line), "deny");
    assert_eq!(outcome(&denied("port = 22"), line), "deny");
    assert_eq!(outcome(&denied("port = 443"), line), "allow");
    assert_eq!(outcome(&denied("kind = \"git-ssh\"\npath = \"/TEAM/app\""), line), "deny");
    assert_eq!(outcome(&denied("kind = \"git-ssh\"\nmethod = \"PUSH\""), line), "allow");
    assert_eq!(outcome(&denied("path = \"/team/**\""), line), "allow", "that is for http");
}

#[test]
fn a_connection_is_answered_as_ssh_if_a_rule_is_for_git() {
    let host = Host::parse("git.test").unwrap();
    let team = policy(TEAM);
    assert_eq!(route(&team, &host, 22, now()), Route::GitSsh);
    assert!(matches!(route(&team, &host, 2222, now()), Route::Refuse { .. }));
    assert!(could_permit_host(&team, &host, now()));
    // A rule that names the host is more specific than one that forwards everything.
    let open =
        policy(&format!("{TEAM}[[rule]]\noutcome = \"allow\"\nkind = \"tcp\"\nhost = \"*\"\nport = \"*\""));
    assert_eq!(route(&open, &host, 22, now()), Route::GitSsh);
    assert!(matches!(route(&open, &Host::parse("x.test").unwrap(), 22, now()), Route::Tcp { .. }));
}

#[test]
fn git_commands_are_parsed_strictly() {
    let read =
        |command: &str| -> Option<(GitService, String)> { GitSsh::read_command(command.as_bytes()).ok() };
    let fetch = |path: &str| Some((GitService::Fetch, path.to_owned()));
    assert_eq!(read("git-upload-pack 'team/app.git'"), fetch("/team/app.git"));
    assert_eq!(read("git-upload-pack '/team/app.git/'"), fetch("/team/app.git"));
    assert_eq!(read("git-upload-pack team/app"), fetch("/team/app"));
    assert_eq!(read("git upload-pack 'team/app'"), fetch("/team/app"));
    assert_eq!(read("git-receive-pack 'a'"), Some((GitService::Push, "/a".to_owned())));
    for other in [
        "",
        "git-upload-pack",
        "git-upload-pack'a'",
        "git-upload-archive 'a'",
        "git-lfs-authenticate a download",
        "/usr/bin/git-upload-pack 'a'",
        " git-upload-pack 'a'",
        "git-upload-pack  'a'",
        "git-upload-pack 'a' 'b'",
        "git-upload-pack 'a'b'",
        "git-upload-pack 'a\\'",
        "git-upload-pack \"a\"",
        "git upload-pack --strict 'a'",
    ] {
        assert!(read(other).is_none(), "{other}");
    }
    assert!(GitSsh::read_command(&[b'a'; 1 << 20]).is_err());
    assert!(GitSsh::read_command(b"git-upload-pack '\xff'").is_err());
    for odd in
        ["/a;b", "/a b", "/a\nb", "/a%2fb", "/$x", "/a|b", "/a`b`", "/é", "/a/./b", "/a//b", "/-/..", ""]
    {
        assert!(CanonicalRequest::git_ssh("git.test", 22, GitService::Fetch, odd).is_err(), "{odd}");
    }
    let made = CanonicalRequest::git_ssh("Git.test.", 22, GitService::Push, "/a/b.git").unwrap();
    assert_eq!(made.git().unwrap().command(), "git-receive-pack '/a/b.git'");
    assert_eq!(made.to_string(), "PUSH ssh://git.test/a/b.git");
    assert_eq!(request(&made.to_string()), made);
}

#[test]
fn a_rule_that_lacks_a_key_is_reported_with_that_key() {
    for (rule, problem) in [
        ("host = \"git.test\"", "no path"),
        ("path = \"/a\"", "no host"),
        ("host = \"git.test\"\npath = \"/a\"\nmethod = \"GET\"", "FETCH"),
        ("host = \"git.test\"\npath = \"/a\"\nscheme = \"https\"", "scheme"),
        ("host = \"git.test\"\npath = \"/a\"\nquery = \"none\"", "query"),
        ("host = \"git.test\"\npath = \"/a\"\nheader = \"x\"", "header"),
        ("place = \"https://git.test/\"", "place"),
    ] {
        let text = format!("[[rule]]\noutcome = \"allow\"\nkind = \"git-ssh\"\n{rule}");
        let problems = parse(Layer::Bay, "bay.toml", &text, &Places::default()).unwrap_err();
        assert!(problems.to_string().contains(problem), "{rule}: {problems}");
    }
}

#[test]
fn refused_git_requests_are_explained_and_learned() {
    let before = policy(TEAM);
    for line in [
        "PUSH ssh://git.test/team/app.git",
        "PUSH ssh://git.test/team/app.git pushing refs/heads/main",
        "FETCH ssh://new.test:2222/a/b",
        "FETCH ssh://git.test/x",
    ] {
        let explanation = explain(&before, &request(line), &decided(&before, line), now());
        let Some(Remedy::AddRule { toml, .. }) = explanation.would_allow.first() else {
            panic!("{explanation:?}")
        };
        assert_eq!(outcome(&policy(toml), line), "allow", "{line}: {toml}");
        let lesson = learn(&before, &[request(line)], Layer::Bay, now());
        let after = policy(&lesson.toml);
        assert_eq!(outcome(&after, line), "allow", "{}", lesson.toml);
        assert_eq!(lesson.rules[0].matcher, after.rules().next().unwrap().matcher, "{}", lesson.toml);
    }
    let differs = |line: &str| {
        let explanation = explain(&before, &request(line), &decided(&before, line), now());
        explanation.near_misses.first().map(|miss| miss.differs_in)
    };
    assert_eq!(differs("PUSH ssh://git.test/team/app.git"), Some("method"));
    assert_eq!(differs("FETCH ssh://git.test/none"), Some("path"));
    assert_eq!(differs("FETCH ssh://git.test:2222/team/app"), Some("port"));
    assert_eq!(differs("GET https://git.test/team/app"), Some("kind"));
}

#[test]
fn a_rule_for_every_repository_is_too_wide() {
    let codes = |text: &str| -> Vec<FindingCode> {
        lint(&policy(text), now()).into_iter().map(|finding| finding.code).collect()
    };
    let rule = |path: &str| {
        format!("[[rule]]\noutcome = \"allow\"\nkind = \"git-ssh\"\nhost = \"git.test\"\npath = \"{path}\"")
    };
    assert_eq!(codes(&rule("/**")), [FindingCode::TooWide]);
    assert!(codes(&rule("/team/app")).is_empty());
    let shadowed = format!("{}\n[[rule]]\noutcome = \"deny\"\nhost = \"git.test\"", rule("/team/app"));
    assert!(codes(&shadowed).contains(&FindingCode::Shadowed));
}

proptest! {
    #[test]
    fn any_accepted_command_is_sent_as_one_service_of_one_repository(
        command in prop_oneof![
            "(git-upload-pack|git-receive-pack|git upload-pack) '?[a-zA-Z0-9/._~;$`|&\\\\ '\"%-]{0,24}'?",
            "\\PC{0,40}",
        ]
    ) {
        let Ok((service, path)) = GitSsh::read_command(command.as_bytes()) else { return Ok(()) };
        let Ok(asked) = CanonicalRequest::git_ssh("git.test", 22, service, &path) else { return Ok(()) };
        let sent = asked.git().unwrap().command();
        let inner = sent.strip_suffix('\'').unwrap().split_once(" '").unwrap().1;
        prop_assert!(inner.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+@~,:=".contains(&byte)), "{sent}");
        prop_assert!(!inner.split('/').any(|part| part == ".." || part == "."), "{sent}");
        prop_assert_eq!(GitSsh::read_command(sent.as_bytes()).unwrap(), (service, inner.to_owned()));
        prop_assert_eq!(request(&asked.to_string()), asked);
    }
}
