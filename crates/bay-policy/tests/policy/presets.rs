//! Presets, with the destinations that are found on a machine.

use bay_policy::tool_settings::{Tool, default_places};
use bay_policy::{
    CompiledPolicy, Host, Layer, Layers, Place, Places, Preset, Route, check_address, decide, lint, parse,
    route,
};

use super::{now, outcome, request};

fn places() -> Places {
    let place = |url: &str| Place::parse(url).unwrap();
    Places {
        registries: vec![
            place("https://packages.example.com/python/simple/"),
            place("http://mirror.example.org:8081/debian"),
        ],
        forge: vec![place("https://git.example.com/team/project.git")],
        proposed: vec![
            place("https://other.example.net/npm/"),
            place("https://packages.example.com/python/simple"),
        ],
        listed: vec![place("https://api.example.com/v1")],
    }
}

fn preset(preset: Preset) -> CompiledPolicy {
    let bay = preset.load(Layer::Bay, &places()).unwrap_or_else(|problems| panic!("{problems}"));
    CompiledPolicy::new(Layers { bay: Some(bay), ..Layers::default() })
}

#[test]
fn every_preset_is_found_by_its_name_and_loads_on_an_empty_machine() {
    for preset in Preset::ALL {
        assert_eq!(Preset::named(preset.name()), Some(preset));
        let policy =
            preset.load(Layer::Bay, &Places::default()).unwrap_or_else(|problems| panic!("{problems}"));
        assert!(policy.description.is_some(), "{}", preset.name());
    }
    assert_eq!(Preset::default(), Preset::Closed);
    assert_eq!(Preset::named("coder"), None);
}

#[test]
fn coding_reads_registries_fetches_the_repository_and_asks_about_proposals() {
    let policy = preset(Preset::Coding);
    for (line, wanted) in [
        ("GET https://packages.example.com/python/simple/requests/", "allow"),
        ("HEAD https://packages.example.com/python/simple/", "allow"),
        ("GET https://packages.example.com/python/simple/@scope%2fname", "allow"),
        ("GET http://mirror.example.org:8081/debian/dists/stable/InRelease", "allow"),
        ("POST https://packages.example.com/python/simple/upload", "deny"),
        ("PUT https://packages.example.com/python/simple/x", "deny"),
        ("GET https://packages.example.com/python/private/", "deny"),
        ("GET https://packages.example.com/", "deny"),
        ("GET https://git.example.com/team/project.git/info/refs?service=git-upload-pack", "allow"),
        ("GET https://git.example.com/team/project/info/refs?service=git-upload-pack", "allow"),
        ("POST https://git.example.com/team/project.git/git-upload-pack", "allow"),
        ("GET https://git.example.com/team/project.git/info/refs?service=git-receive-pack", "deny"),
        ("POST https://git.example.com/team/project.git/git-receive-pack", "deny"),
        ("GET https://git.example.com/team/other.git/info/refs?service=git-upload-pack", "deny"),
        ("GET https://git.example.com/team/project.git/config", "deny"),
        ("GET https://other.example.net/npm/left-pad", "ask"),
        ("POST https://other.example.net/npm/-/user", "deny"),
        ("GET https://www.example.com/", "deny"),
    ] {
        assert_eq!(outcome(&policy, line), wanted, "{line}");
    }
}

#[test]
fn research_reads_the_public_web_and_sends_nothing() {
    let policy = preset(Preset::Research);
    assert_eq!(outcome(&policy, "GET https://any.example.org/x?q=1"), "allow");
    assert_eq!(outcome(&policy, "GET http://any.example.org/"), "allow");
    for line in [
        "POST https://any.example.org/",
        "GET http://10.0.0.1/",
        "GET http://metadata.google.internal/",
        "tcp://any.example.org:22",
        "GET https://192.0.2.1/dns-query",
    ] {
        assert_eq!(outcome(&policy, line), "deny", "{line}");
    }
}

#[test]
fn evaluation_and_closed_close_egress_and_autonomous_closes_ingress() {
    for name in [Preset::Closed, Preset::Evaluation] {
        for line in [
            "GET https://any.example.org/",
            "tcp://any.example.org:22",
            "GET https://packages.example.com/python/simple/",
        ] {
            assert_eq!(outcome(&preset(name), line), "deny");
        }
    }
    assert!(!preset(Preset::Evaluation).ingress() && !preset(Preset::Autonomous).ingress());
    assert!(preset(Preset::Closed).ingress() && preset(Preset::Coding).ingress());
    let autonomous = preset(Preset::Autonomous);
    assert_eq!(outcome(&autonomous, "POST https://api.example.com/v1/messages"), "allow");
    assert_eq!(outcome(&autonomous, "POST https://api.example.com/v2/messages"), "deny");
}

#[test]
fn open_permits_every_public_host() {
    let policy = preset(Preset::Open);
    for line in [
        "DELETE https://any.example.org/x",
        "GET https://192.0.2.1/",
        "tcp://db.example.org:5432",
        "tcp://192.0.2.1:22",
    ] {
        assert_eq!(outcome(&policy, line), "allow", "{line}");
    }
    for line in [
        "GET http://169.254.169.254/",
        "tcp://10.0.0.1:22",
        "tcp://127.0.0.1:5432",
        "GET http://localhost/",
        "tcp://[::ffff:127.0.0.1]:22",
    ] {
        assert_eq!(outcome(&policy, line), "deny", "{line}");
    }
    let host = Host::parse("www.example.org").unwrap();
    assert_eq!(route(&policy, &host, 443, now()), Route::Inspect);
    assert!(matches!(route(&policy, &host, 22, now()), Route::Tcp { .. }));
    assert!(!lint(&policy, now()).is_empty());
}

#[test]
fn a_file_can_begin_with_a_preset() {
    let text =
        "extends = \"coding\"\n[[rule]]\nid = \"docs\"\noutcome = \"allow\"\nhost = \"docs.example.com\"";
    let bay = parse(Layer::Bay, "bay.toml", text, &places()).unwrap();
    assert_eq!(bay.extends.as_deref(), Some("coding"));
    let origin = &bay.rules.iter().find(|rule| rule.id == "coding/registry-1").unwrap().origin;
    assert_eq!(origin.file, "preset:coding");
    let policy = CompiledPolicy::new(Layers { bay: Some(bay), ..Layers::default() });
    assert_eq!(outcome(&policy, "GET https://docs.example.com/"), "allow");
    assert_eq!(outcome(&policy, "GET https://packages.example.com/python/simple/x/"), "allow");
}

#[test]
fn no_destination_that_a_repository_names_becomes_an_allow() {
    let only_proposed = Places { proposed: places().proposed, ..Places::default() };
    let bay = Preset::Coding.load(Layer::Bay, &only_proposed).unwrap();
    assert!(!bay.rules.is_empty());
    assert!(bay.rules.iter().all(|rule| rule.outcome == bay_policy::Outcome::Ask));
}

#[test]
fn a_repository_may_be_fetched_from_its_origin() {
    for (location, wanted) in [
        ("https://git.example.com/team/x.git", Some("https://git.example.com/team/x.git/")),
        ("http://git.example.com:8080/x", Some("http://git.example.com:8080/x/")),
        ("https://me:secret@git.example.com/x", Some("https://git.example.com/x/")),
        ("git@git.example.com:team/x.git", Some("https://git.example.com/team/x.git/")),
        ("ssh://git@git.example.com:2222/team/x.git", Some("https://git.example.com/team/x.git/")),
        ("ssh://git@[2001:db8::1]:22/x", Some("https://[2001:db8::1]/x/")),
        ("/srv/x", None),
        ("file:///srv/x", None),
        ("git://git.example.com/x", None),
        ("", None),
    ] {
        assert_eq!(
            Place::of_repository(location).map(|place| place.to_string()).as_deref(),
            wanted,
            "{location}"
        );
    }
}

#[test]
fn every_tool_has_default_places() {
    for tool in Tool::ALL {
        let places = default_places(tool);
        assert!(!places.is_empty(), "{}", tool.name());
        assert!(places.iter().all(|place| place.host().name().is_some()), "{places:?}");
    }
}

#[test]
fn rules_name_the_address_of_an_operators_private_mirror_and_of_no_repositorys() {
    let place = |url: &str| Place::parse(url).unwrap();
    let address = |text: &str| text.parse().unwrap();
    let mirror = place("https://mirror.example.com/simple").resolving_to([
        address("10.0.0.5"),
        address("192.0.2.1"),
        address("169.254.169.254"),
        address("127.0.0.1"),
        address("100.100.100.200"),
    ]);
    assert_eq!(mirror.addresses(), [address("10.0.0.5")]);
    assert_eq!(mirror.above("simple").unwrap().to_string(), "https://mirror.example.com/");
    let places = Places {
        registries: vec![mirror.clone()],
        proposed: vec![
            // Nobody is asked about these: already known, at a special address, or on this host.
            place("https://mirror.example.com/simple"),
            place("http://169.254.169.254/latest"),
            place("http://10.0.0.1/"),
            place("http://localhost:8080/"),
            place("http://metadata.google.internal/"),
            place("https://other.example.net/").resolving_to([address("10.0.0.9")]),
        ],
        ..Places::default()
    };
    let bay = Preset::Coding.load(Layer::Bay, &places).unwrap();
    assert_eq!(bay.rules.len(), 2, "{bay:?}");
    let policy = CompiledPolicy::new(Layers { bay: Some(bay), ..Layers::default() });
    let allowed = request("GET https://mirror.example.com/simple/x/");
    let decision = decide(&policy, &allowed, now());
    assert!(check_address(&decision, &allowed, address("10.0.0.5"), &[]).is_ok());
    assert!(check_address(&decision, &allowed, address("10.0.0.6"), &[]).is_err());
    let asked = policy.rules().find(|rule| rule.id.starts_with("proposed")).unwrap();
    assert!(
        asked.matcher.addresses.is_empty(),
        "no rule names a private address for a repository's destination"
    );
}
