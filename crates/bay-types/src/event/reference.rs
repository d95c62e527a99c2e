//! Generates EVENTS.md: every kind of event with its fields and an example. A test compares the page.

use std::fmt::Write;
use std::path::Path;

use super::tests::shapes;
use super::{EventBody, FieldInfo, KindInfo, VERSION_KEY};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/EVENTS.md");

/// How the page names a Rust type. A type with fields is an object; the example shows them.
const TYPES: &[(&str, &str)] = &[
    ("bool", "true or false"),
    ("f64", "number"),
    ("i32", "number"),
    ("u16", "number"),
    ("u64", "number"),
    ("usize", "number"),
    ("String", "text"),
    ("IpAddr", "IP address"),
    ("PathBuf", "path"),
    ("Timestamp", "time"),
    ("ApprovalId", "id of an approval"),
    ("BayId", "id of a bay"),
    ("BayName", "name of a bay"),
    ("CheckpointName", "name of a checkpoint"),
    ("Durability", "`relaxed`"),
    ("ExecId", "id of an exec"),
    ("ForwardId", "id of a forward"),
    ("ImageId", "id of an image"),
    ("RepoId", "id of a repository"),
    ("ServiceName", "name of a service"),
    ("CheckpointKind", "`files` or `memory`"),
    ("Ending", "`answered`, `broken`, `failed`, `closed`, `abandoned` or `revoked`"),
    ("ErrorCode", "code of `docs/errors.md`"),
    ("LimitHit", "`memory`, `pids` or `disk`"),
    ("LookUpAnswer", "`answered`, `no-such-name`, `refused` or `too-many-names`"),
    ("Outcome", "`allow`, `ask` or `deny`"),
    ("Reach", "`once`, `exec`, `for` or `save`"),
    ("Refusal", "`connection`, `nameless`, `form`, `protocol`, `too-many`, `upgrade` or `secret`"),
    ("Reporter", "`guest` or `daemon`"),
    ("Restart", "`always`, `on-failure` or `never`"),
    ("WorkRoute", "`branch`, `push` or `bundle`"),
    ("ServiceState", "state of a service, as `bay services ls` shows it"),
];
const OBJECTS: &[&str] = &[
    "AskedBody",
    "AskingRule",
    "BayCost",
    "Blame",
    "BaySet",
    "BayUser",
    "Capabilities",
    "Differs",
    "Environment",
    "EgressRule",
    "Exit",
    "Limits",
    "Lineage",
    "Mount",
    "Origin",
    "OutputHash",
    "Point",
    "PolicySummary",
    "RuleCounts",
    "SecretMisuse",
    "Usage",
    "Value",
    "Who",
];

const OPENING: &str = "# Events\n\n\
    What the record of a daemon holds: every kind of event, what each says, and an example of it. The timeline, `bay egress`,\n\
    `bay audit export` and `GET /v1/events` show these bodies. This page is made from the types in `src/event/`: a test fails\n\
    when they differ, and `BAY_BLESS=1 cargo test -p bay-types reference` writes it anew.\n\n\
    Each event has a number (`seq`), a time (`at`), the bay it is about (`bay`, if there is one), a kind, a body and a hash.\n\
    The hash covers all of them; the body is hashed as it is written, so no release ever writes one anew.\n\n\
    Events are kept for ever. Fields and kinds are added; none is removed or changes its meaning. A field that can be\n\
    absent is absent in events of earlier releases too. If a kind ever has to change, its bodies get a `VERSION_KEY`,\n\
    which counts from 2; a body without one has version 1. A body of more than 16 KiB is replaced by\n\
    `{\"left_out_bytes\": N}`.\n\n\
    `by` is who asked: `uid N` (a user of the host, over the socket), `token`, `inside` (processes of the bay itself),\n\
    or `approval` (the daemon, because a rule has it ask a person).\n\n\
    Much of it was said by a bay: texts are to be made harmless before a terminal shows them.\n";

fn words(rust_type: &str) -> String {
    let inner = |outer: &str| rust_type.strip_prefix(outer)?.strip_prefix('<')?.strip_suffix('>');
    if let Some(inner) = inner("Field") {
        return words(inner);
    }
    if let Some(inner) = inner("Vec") {
        return format!("list of: {}", words(inner));
    }
    if let Some(inner) = inner("Option") {
        return format!("{}, or `null`", words(inner));
    }
    if OBJECTS.contains(&rust_type) {
        return "object".to_owned();
    }
    let found = TYPES.iter().find(|(name, _)| *name == rust_type);
    found
        .unwrap_or_else(|| panic!("the type {rust_type} has no words in EVENTS.md: add them to TYPES"))
        .1
        .to_owned()
}

fn field(field: &FieldInfo) -> String {
    let rust_type: String = field.rust_type.chars().filter(|c| !c.is_whitespace()).collect();
    let sometimes = field.attributes.contains("skip_serializing_if");
    // A field that is left out when empty is never `null`, unless its type is a nested `Option`.
    let written = match rust_type.strip_prefix("Option<").and_then(|inner| inner.strip_suffix('>')) {
        Some(inner) if sometimes => inner,
        _ => &rust_type,
    };
    let name = field.name.trim_start_matches("r#");
    let mark = if sometimes { " (can be absent)" } else { "" };
    let about: Vec<&str> = field.about.iter().map(|line| line.trim()).collect();
    format!("| `{name}` | {}{mark} | {} |\n", words(written), about.join(" "))
}

fn section(page: &mut String, kind: &KindInfo) {
    let about: Vec<&str> = kind.about.iter().map(|line| line.trim()).collect();
    let _ = write!(page, "\n### `{}`\n\n{}\n", kind.kind, about.join("\n"));
    if kind.version > 1 {
        let _ = write!(page, "\nIts version is {}.\n", kind.version);
    }
    if kind.fields.is_empty() {
        page.push_str("\nIts body is empty.\n");
        return;
    }
    page.push_str("\n| field | what it is | what it says |\n|---|---|---|\n");
    for one in kind.fields {
        page.push_str(&field(one));
    }
    let _ = write!(page, "\n```json\n{}\n```\n", shapes()[kind.kind]);
}

/// The page, generated from the types.
fn page() -> String {
    let mut page = OPENING.replace("VERSION_KEY", VERSION_KEY);
    for (area, about, kinds) in EventBody::AREAS {
        let about: Vec<&str> = about.iter().map(|line| line.trim()).collect();
        let _ = write!(page, "\n## {area}\n\n{}\n", about.join("\n"));
        for kind in *kinds {
            section(&mut page, kind);
        }
    }
    page
}

#[test]
fn the_reference_of_events_says_what_the_types_say() {
    let now = page();
    if std::env::var_os("BAY_BLESS").is_some_and(|bless| bless == "1") {
        std::fs::write(PAGE, now).unwrap();
        return;
    }
    let written = std::fs::read_to_string(Path::new(PAGE)).unwrap_or_default();
    let differing = now.lines().zip(written.lines()).find(|(now, written)| now != written);
    assert!(
        now == written,
        "EVENTS.md differs from the types, first at (types, page): {differing:?}\n\
         write it anew with: BAY_BLESS=1 cargo test -p bay-types reference"
    );
}

#[test]
fn the_reference_has_a_section_for_every_kind() {
    let page = page();
    for kind in shapes().keys() {
        assert!(page.contains(&format!("\n### `{kind}`\n")), "{kind}");
    }
}
