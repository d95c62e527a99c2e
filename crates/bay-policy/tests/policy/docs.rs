//! The page `docs/policy.md`: its examples parse, and decide as the page says.

use bay_policy::{Layer, Places, Preset, parse};

use super::outcome;

const PAGE: &str = include_str!("../../../../docs/policy.md");

/// The fenced blocks of the page in this language.
fn blocks(language: &str) -> impl Iterator<Item = &str> {
    let fence = format!("```{language}\n");
    PAGE.split("```")
        .collect::<Vec<_>>()
        .into_iter()
        .skip(1)
        .step_by(2)
        .filter_map(move |block| block.strip_prefix(fence.trim_start_matches("```")))
}

#[test]
fn every_example_of_the_page_is_a_policy() {
    let mut count = 0;
    for block in blocks("toml") {
        count += 1;
        parse(Layer::Bay, "docs/policy.md", block, &Places::default())
            .unwrap_or_else(|problems| panic!("{problems}\n{block}"));
    }
    assert!(count >= 6, "{count}");
}

#[test]
fn the_first_policy_of_the_page_decides_as_described() {
    let text = blocks("toml").next().unwrap();
    let policy = super::policy(text);
    let mut count = 0;
    for line in blocks("text").flat_map(str::lines).filter(|line| line.contains("→")) {
        let (request, said) = line.split_once('→').unwrap();
        assert_eq!(outcome(&policy, request.trim()), said.split_whitespace().next().unwrap(), "{line}");
        count += 1;
    }
    assert!(count >= 5, "{count}");
}

#[test]
fn the_page_names_every_preset_and_every_key() {
    for preset in Preset::ALL {
        assert!(PAGE.contains(&format!("`{}`", preset.name())), "{}", preset.name());
    }
    for key in [
        "outcome",
        "kind",
        "place",
        "scheme",
        "host",
        "port",
        "method",
        "path",
        "query",
        "header",
        "address",
        "reason",
        "expires",
        "match",
        "not_match",
        "otherwise",
        "ingress",
        "extends",
        "grant",
    ] {
        assert!(PAGE.contains(key), "{key}");
    }
}
