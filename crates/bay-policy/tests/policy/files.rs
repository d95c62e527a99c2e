//! Policy files: mistakes are reported with their line, their reason and a fix.

use bay_policy::write::{Base, file_with_rule, grant_to_toml, rule_to_toml};
use bay_policy::{Layer, Places, Preset, parse};

use super::{layer, policy};

/// Line, column and the whole message of each problem.
fn problems(text: &str) -> Vec<(usize, usize, String)> {
    let problems = parse(Layer::Bay, "p.toml", text, &Places::default()).expect_err(text);
    problems.0.into_iter().map(|problem| (problem.line, problem.column, problem.to_string())).collect()
}

#[track_caller]
fn one(text: &str, line: usize, column: usize, words: &str) {
    let problems = problems(text);
    let [(at_line, at_column, message)] = problems.as_slice() else { panic!("{problems:?}") };
    assert_eq!((*at_line, *at_column), (line, column), "{message}");
    assert!(message.contains(words), "{message}");
}

#[test]
fn unknown_keys_are_reported_with_their_position_and_a_suggestion() {
    one(
        "[[rule]]\noutcome = \"allow\"\nhsot = \"ok.test\"\nhost = \"ok.test\"",
        3,
        1,
        "did you mean `host`?",
    );
    one("ingres = \"deny\"", 1, 1, "did you mean `ingress`?");
    one("[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\n  colour = 1", 4, 3, "use one of id, outcome");
    one(
        "[[grant]]\nhost = \"ok.test\"\noutcome = \"allow\"\nexpires = 2030-01-01T00:00:00Z",
        3,
        1,
        "a grant has no such key",
    );
}

#[test]
fn wrong_values_are_reported_at_the_position_of_the_value() {
    let rule = |rest: &str| format!("[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\n{rest}");
    one("[[rule]]\noutcome = \"maybe\"\nhost = \"ok.test\"", 2, 11, "use allow, ask, deny");
    one("[[rule]]\nhost = \"ok.test\"", 1, 1, "no outcome");
    one("[[rule]]\noutcome = \"allow\"", 1, 1, "no host");
    one("[[rule]]\noutcome = \"allow\"\nhost = 7", 3, 8, "type integer");
    one("[[rule]]\noutcome = \"allow\"\nhost = [\"ok.test\", \"0x7f.1\"]", 3, 20, "different IPv4 addresses");
    one("[[rule]]\noutcome = \"allow\"\nhost = \"ok.*.test\"", 3, 8, "not a host of a rule");
    one("[[rule]]\noutcome = \"allow\"\nhost = \"10.0.0.1/8\"", 3, 8, "not a host of a rule");
    one("[[rule]]\noutcome = \"allow\"\nhost = []", 3, 8, "0 entries");
    one(&rule("path = \"/a/../b\""), 4, 8, "segment of dots");
    one(&rule("path = \"/a/**/b\""), 4, 8, "** before its end");
    one(&rule("path = \"/a*b*c\""), 4, 8, "two stars");
    one(&rule("path = \"a\""), 4, 8, "does not begin with a slash");
    one(&rule("port = 0"), 4, 8, "from 1 to 65535");
    one(&rule("port = 65536"), 4, 8, "neither a port nor a range");
    one(&rule("port = \"90-80\""), 4, 8, "neither a port nor a range");
    one(&rule("port = 0x1bb"), 4, 8, "type integer");
    one(&rule("method = \"get\""), 4, 10, "in capital letters");
    one(&rule("method = \"TRACE\""), 4, 10, "does not go through");
    one(&rule("method = [\"GET\", \"*\"]"), 4, 18, "not a method");
    one(&rule("scheme = \"ftp\""), 4, 10, "use https, http");
    one(&rule("query = \"some\""), 4, 9, "use none");
    one(&rule("query = {}"), 4, 9, "NAME");
    one(&rule("header = \"a b\""), 4, 10, "not a name of a header");
    one(&rule("header = \"a, b\""), 4, 10, "one by one");
    one(&rule("address = \"ok.test\""), 4, 11, "is a name");
    one(&rule("expires = 2030-01-01"), 4, 11, "offset from UTC");
    one(&rule("expires = 2030-01-01T00:00:00"), 4, 11, "offset from UTC");
    one(&rule("reason = \"a\\nb\""), 4, 10, "control characters");
    one(&rule("id = \"a b\""), 4, 6, "not an id");
    one(&rule("place = \"https://ok.test/\""), 1, 1, "and also `host`");
    one("[[rule]]\noutcome = \"allow\"\nplace = \"@mirrors\"", 3, 9, "@registries");
    one("[[rule]]\noutcome = \"allow\"\nplace = \"https://user:pw@ok.test/\"", 3, 9, "user name or password");
    one("[rule]\noutcome = \"allow\"", 1, 1, "[[rule]]");
    one("otherwise = \"allow\"", 1, 13, "use deny, ask, inherit");
    one("extends = \"codign\"", 1, 11, "closed, coding");
    one("version = 2", 1, 11, "version 1");
}

#[test]
fn each_kind_accepts_only_keys_that_the_gateway_can_check() {
    let rule = |rest: &str| format!("[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\n{rest}");
    one(&rule("kind = \"tcp\""), 1, 1, "has no port");
    one(&rule("kind = \"tcp\"\nport = 22\npath = \"/x\""), 6, 8, "host and the port only");
    one(&rule("kind = \"passthrough\"\nmethod = \"GET\""), 5, 10, "host and the port only");
    one(&rule("kind = \"passthrough\"\nheader = \"authorization\""), 5, 10, "host and the port only");
    one(
        "[[rule]]\noutcome = \"allow\"\nkind = \"passthrough\"\nhost = \"192.0.2.1\"",
        1,
        1,
        "no server name",
    );
}

#[test]
fn an_example_that_fails_is_an_error_at_its_line() {
    let text = "[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\npath = \"/ok/**\"\nmatch = [\n  \"GET https://ok.test/ok/1\",\n  \"GET https://ok.test/no\",\n]";
    one(text, 7, 3, "does not match `GET https://ok.test/no`");
    let text = "[[rule]]\noutcome = \"allow\"\nhost = \"*.ok.test\"\nnot_match = \"GET https://a.ok.test/\"";
    one(text, 4, 13, "which it must not");
    let text = "[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\nmatch = \"GET https://ok.test/a/../b\"";
    one(text, 4, 9, "no rule can match it");
    policy(
        "[[rule]]\noutcome = \"deny\"\nhost = \"ok.test\"\nmatch = [\"tcp://ok.test:1\", \"PUT https://ok.test/\"]\nnot_match = [\"GET https://not.test/\", \"GET https://ok.test//\"]",
    );
}

#[test]
fn grants_are_temporary_and_for_one_bay() {
    one("[[grant]]\nhost = \"ok.test\"", 1, 1, "grants are temporary");
    let problems = parse(Layer::Host, "p", "[[grant]]\nhost = \"ok.test\"", &Places::default()).unwrap_err();
    assert!(problems.to_string().contains("policy of the bay"), "{problems}");
    let problems = parse(Layer::Host, "p", "otherwise = \"inherit\"", &Places::default()).unwrap_err();
    assert!(problems.to_string().contains("nothing to inherit"), "{problems}");
}

#[test]
fn all_mistakes_are_reported_together_in_order_and_up_to_a_limit() {
    let text = "[[rule]]\noutcome = \"no\"\n[[rule]]\noutcome = \"allow\"\nhost = \"a b\"\n[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\nport = 0";
    let lines: Vec<usize> = problems(text).into_iter().map(|(line, _, _)| line).collect();
    assert_eq!(lines, [2, 5, 9]);
    assert_eq!(problems(&"[[rule]]\n".repeat(500)).len(), parse::MAX_PROBLEMS);
    one(
        "[[rule]]\nid = \"x\"\noutcome = \"allow\"\nhost = \"a.test\"\n[[rule]]\nid = \"x\"\noutcome = \"allow\"\nhost = \"b.test\"",
        5,
        1,
        "called `x`",
    );
    one("a = [", 1, 6, "not TOML");
    one(&"#".repeat((1 << 20) + 1), 1, 1, "longer than");
}

#[test]
fn written_rules_parse_to_the_same_rules() {
    let text = r#"
[[rule]]
id = "everything"
outcome = "ask"
host = ["a.test", "*.b.test", "192.0.2.0/24", "2001:db8::1"]
port = [443, "8000-8099"]
scheme = ["https", "http"]
method = ["GET", "POST"]
path = ["/a/*/c", "/x-*.json", "/caf%C3%A9/**"]
query = { service = ["a", "b\"c"], any = "*" }
header = ["x-reason"]
address = ["10.0.0.0/8", "fd00::1"]
reason = "a \"reason\""
expires = 2030-01-01T00:00:00Z
match = "GET https://a.test/a/b/c?service=a&any=1 with x-reason"
[[rule]]
id = "deny-all"
outcome = "deny"
host = "*"
[[rule]]
id = "deny-path"
outcome = "deny"
host = "*"
path = "/x"
query = "none"
[[rule]]
id = "tcp"
outcome = "allow"
kind = "tcp"
host = "db.test"
port = "*"
[[rule]]
id = "tls"
outcome = "allow"
kind = "passthrough"
host = "pinned.test"
[[rule]]
id = "any-method"
outcome = "allow"
host = "rw.test"
method = "*"
[[grant]]
id = "g"
host = "ok.test"
method = "PUT"
expires = 2030-01-01T00:00:00Z
"#;
    let read = layer(Layer::Bay, text);
    let mut written: String = read.rules.iter().map(rule_to_toml).collect();
    written.extend(read.grants.iter().map(grant_to_toml));
    let again = layer(Layer::Bay, &written);
    for (before, after) in read.rules.iter().zip(&again.rules) {
        assert_eq!((&before.id, &before.matcher), (&after.id, &after.matcher));
        assert_eq!(
            (before.outcome, before.expires, &before.reason),
            (after.outcome, after.expires, &after.reason)
        );
    }
    assert_eq!(read.grants[0].matcher, again.grants[0].matcher);
    assert_eq!(read.rules.len(), again.rules.len());
}

#[test]
fn a_file_with_one_more_rule_keeps_everything_before_it() {
    let parsed = |text: &str| parse(Layer::Bay, "p.toml", text, &Places::default()).expect(text);
    let added = parsed("[[rule]]\nid = \"new\"\noutcome = \"allow\"\nhost = \"new.test\"\n").rules.remove(0);
    let bases = [
        "",
        "# only a comment",
        "otherwise = \"ask\"",
        "extends = \"coding\"\n\n[[rule]]\noutcome = \"deny\"\nhost = \"a.test\" # the last word\n\n\n",
        "[[rule]]\noutcome = \"allow\"\nhost = [\n  \"a.test\",\n]",
        "[[exec]]\noutcome = \"ask\"\nargv = [\"rm\"]",
    ];
    for base in bases {
        let (before, text) = (parsed(base), file_with_rule(Base::File(base), "why\n[[rule]]", &added));
        let after = parsed(&text);
        assert!(text.starts_with(base.trim_end()), "{text}");
        assert_eq!(after.rules.len(), before.rules.len() + 1, "{text}");
        let last = after.rules.iter().find(|rule| rule.id == "new").expect(&text);
        assert_eq!((&last.matcher, last.outcome), (&added.matcher, added.outcome), "{text}");
        let others = |rules: &[bay_policy::Rule]| -> Vec<String> {
            rules.iter().filter(|rule| rule.id != "new").map(rule_to_toml).collect()
        };
        assert_eq!(others(&after.rules), others(&before.rules), "{text}");
    }
    let of_preset = parsed(&file_with_rule(Base::Preset(Preset::Coding), "why", &added));
    let preset = Preset::Coding.load(Layer::Bay, &Places::default()).unwrap();
    assert_eq!(of_preset.rules.len(), preset.rules.len() + 1);
    assert_eq!(parsed(&file_with_rule(Base::Nothing, "why", &added)).rules.len(), 1);
}
