use bay_types::policy::{HostWarning, LayerView, NearMiss, Origin, RuleView};

use super::evaluate::{changes, explained};
use super::*;

fn rule(id: &str, outcome: &str) -> RuleView {
    RuleView {
        id: id.to_owned(),
        origin: Origin { layer: "bay".to_owned(), file: "p.toml".to_owned(), line: 3 },
        outcome: outcome.to_owned(),
        kind: "http".to_owned(),
        what: "GET|HEAD https://\u{1b}[2Jdocs.example.com/**".to_owned(),
        toml: String::new(),
        reason: None,
        expires: None,
        effect: "active".to_owned(),
    }
}

#[test]
fn a_policy_is_shown_with_the_origin_of_each_rule_and_nothing_in_it_moves_the_cursor() {
    let now = Timestamp::now();
    let layer = LayerView {
        layer: "bay".to_owned(),
        name: "p.toml".to_owned(),
        description: Some("a\u{1b}b".to_owned()),
        extends: None,
        otherwise: "deny".to_owned(),
        set_at: None,
        sha256: None,
        problems: vec!["p.toml:1:1: broken\u{9b}".to_owned()],
        rules: vec![rule("docs", "allow")],
    };
    let view = PolicyView {
        bay: "web".to_owned(),
        ingress: false,
        reach: vec![5432],
        layers: vec![layer],
        grants: vec![],
    };
    let text = render::policy(&view, now);
    assert!(text.contains("[docs p.toml:3]") && text.contains("ingress is closed"), "{text}");
    assert!(text.contains("problem: p.toml:1:1: broken"), "{text}");
    assert!(!text.contains(['\u{1b}', '\u{9b}']), "{text:?}");
}

#[test]
fn a_decision_is_shown_with_what_would_change_it() {
    let told = bay_types::policy::Explained {
        request: "GET https://x.example.com/".to_owned(),
        outcome: "deny".to_owned(),
        reason: "no rule\u{1b}[31m covers it".to_owned(),
        would_allow: vec![bay_types::policy::Remedy::AddRule {
            layer: "bay".to_owned(),
            file: "p.toml".to_owned(),
            toml: "[[rule]]\nhost = \"x\u{1b}\"".to_owned(),
        }],
        near_misses: vec![NearMiss {
            rule: "docs".to_owned(),
            why: "it is for GET".to_owned(),
            ..NearMiss::default()
        }],
        warnings: vec![HostWarning::LooksLike { name: "y.example.com".to_owned() }],
        ..bay_types::policy::Explained::default()
    };
    let text = explained(&told);
    for part in ["deny ", "add to p.toml", "[[rule]]", "near miss:", "looks like y.example.com"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

#[test]
fn changes_are_shown_line_by_line_and_no_change_as_empty() {
    let mut change = bay_types::policy::PolicyChange {
        added: vec![],
        removed: vec![],
        changed: vec![],
        otherwise: vec![],
        ingress: None,
        decisions: vec![],
    };
    assert_eq!(changes(&change), "");
    change.added.push(rule("new", "allow"));
    change.removed.push(rule("old", "deny"));
    change.ingress = Some((true, false));
    let text = changes(&change);
    assert!(
        text.starts_with("- deny") && text.contains("\n+ allow") && text.contains("ingress: closed"),
        "{text}"
    );
}

#[test]
fn presets_files_and_invalid_arguments_are_distinguished() {
    assert!(matches!(given("coding"), Ok(Given::Preset(_))));
    let refused = given("codign").unwrap_err();
    assert!(refused.message.contains("neither a preset nor a file"), "{refused:?}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("my policy.toml");
    std::fs::write(&path, "otherwise = \"ask\"\n").unwrap();
    let file = given(path.to_str().unwrap()).unwrap();
    assert_eq!((file.name(), file.text()), ("my_policy.toml", "otherwise = \"ask\"\n"));
    std::fs::write(&path, [0xff]).unwrap();
    assert!(given(path.to_str().unwrap()).is_err());
    assert!(given(dir.path().to_str().unwrap()).is_err());
    let listed = |preset: &str| {
        let place = bay_types::policy::FoundPlace {
            url: "https://a.example.com/".to_owned(),
            from: String::new(),
            addresses: vec![],
        };
        let places = bay_types::policy::FoundPlaces { listed: vec![place], ..Default::default() };
        given(preset).unwrap().with(places)
    };
    assert!(listed("autonomous").is_ok());
    assert!(listed("coding").is_err(), "a list that nothing refers to would be a wish that is ignored");
}
