//! The rules of the project that a compiler does not check, such as: which crate may use which, what fronts may name,
//! where `unsafe` may be, that the index of errors is complete, that the documents agree with the source
//! ([`documents`]), and that no file of end-to-end tests is left out.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bay_types::ErrorCode;
use bay_types::event::EventBody;
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

#[path = "architecture/documents.rs"]
mod documents;

/// Which of our crates may use which others. Dependencies point downward; a new edge is a decision, made here.
const MAY_USE: &[(&str, &[&str])] = &[
    ("bay-text", &[]),
    ("bay-types", &["bay-text"]),
    ("bay-sys", &["bay-types"]),
    ("bay-tunnel", &[]),
    ("bay-policy", &["bay-types", "bay-text"]),
    ("bay-gateway", &["bay-types", "bay-text", "bay-policy"]),
    ("bay-ledger", &[]),
    ("bay-store", &["bay-types", "bay-text", "bay-ledger"]),
    ("bay-story", &["bay-types", "bay-text"]),
    ("bay-diff", &["bay-types", "bay-text", "bay-sys"]),
    ("bay-git", &["bay-types", "bay-text", "bay-sys"]),
    ("bay-backend", &["bay-types"]),
    ("bay-pool", &["bay-types", "bay-text", "bay-sys", "bay-git", "bay-backend"]),
    ("bay-runtime", &["bay-types", "bay-sys"]),
    ("bay-backend-local", &["bay-types", "bay-sys", "bay-pool", "bay-runtime", "bay-backend"]),
    ("bay-backend-gvisor", &["bay-types", "bay-backend", "bay-backend-local"]),
    ("bay-guest", &["bay-types", "bay-text", "bay-sys", "bay-tunnel"]),
    (
        "bay-core",
        &[
            "bay-types",
            "bay-text",
            "bay-sys",
            "bay-tunnel",
            "bay-policy",
            "bay-gateway",
            "bay-ledger",
            "bay-store",
            "bay-story",
            "bay-diff",
            "bay-pool",
            "bay-runtime",
            "bay-backend",
            "bay-guest",
        ],
    ),
    ("bay-cli-words", &["bay-types"]),
    ("bay-front-rest", &["bay-types", "bay-core", "bay-cli-words"]),
    (
        "bay-daemon",
        &[
            "bay-types",
            "bay-text",
            "bay-store",
            "bay-pool",
            "bay-backend",
            "bay-backend-local",
            "bay-backend-gvisor",
            "bay-core",
            "bay-cli-words",
        ],
    ),
    ("bay-client", &["bay-types", "bay-text"]),
    (
        "bay-bench",
        &["bay-types", "bay-text", "bay-client", "bay-policy", "bay-pool", "bay-runtime", "bay-store"],
    ),
    (
        "bay-cli",
        &[
            "bay-types",
            "bay-text",
            "bay-client",
            "bay-cli-words",
            "bay-bench",
            "bay-sys",
            "bay-tunnel",
            "bay-git",
            "bay-policy",
            "bay-ledger",
            "bay-pool",
            "bay-runtime",
            "bay-diff",
            "bay-story",
        ],
    ),
    (
        "bay",
        &[
            "bay-types",
            "bay-client",
            "bay-cli",
            "bay-cli-words",
            "bay-bench",
            "bay-pool",
            "bay-runtime",
            "bay-guest",
            "bay-front-rest",
            "bay-daemon",
        ],
    ),
    ("bay-tests", &["bay-types", "bay-text", "bay-sys"]),
];

fn metadata() -> Metadata {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .unwrap()
}

#[test]
fn dependencies_between_our_crates_point_downward() {
    let metadata = metadata();
    let allowed: BTreeMap<&str, BTreeSet<&str>> =
        MAY_USE.iter().map(|(name, uses)| (*name, uses.iter().copied().collect())).collect();
    let ours: BTreeSet<&str> = metadata.packages.iter().map(|package| package.name.as_str()).collect();
    assert_eq!(ours, allowed.keys().copied().collect(), "a crate came or went: give it its row in MAY_USE");
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        for dependency in &package.dependencies {
            let name = dependency.name.as_str();
            let counts = dependency.kind != DependencyKind::Development && ours.contains(name);
            if counts && !allowed[package.name.as_str()].contains(name) {
                wrong.push(format!("{} -> {name}", package.name));
            }
        }
    }
    assert!(wrong.is_empty(), "edges that MAY_USE does not allow: {wrong:?}");
}

#[test]
fn the_table_of_edges_has_no_cycle() {
    let order: Vec<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    for (at, (name, uses)) in MAY_USE.iter().enumerate() {
        for used in *uses {
            let below = order.iter().position(|other| other == used).unwrap();
            assert!(below < at, "{name} uses {used}, which stands above it");
        }
    }
}

#[test]
fn only_bay_sys_may_hold_unsafe_code() {
    let metadata = metadata();
    for package in metadata.packages.iter().filter(|package| package.name != "bay-sys") {
        for target in &package.targets {
            let root = fs::read_to_string(&target.src_path).unwrap();
            assert!(
                root.contains("#![forbid(unsafe_code)]"),
                "{} does not forbid unsafe code",
                target.src_path
            );
        }
    }
}

#[test]
fn every_crate_opens_with_an_overview() {
    for package in &metadata().packages {
        for target in package.targets.iter().filter(|target| !target.is_custom_build()) {
            let root = fs::read_to_string(&target.src_path).unwrap();
            assert!(root.starts_with("//! "), "{} has no overview", target.src_path);
        }
    }
}

/// The text of a source file without its tests.
fn without_tests(source: &str) -> &str {
    source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default()
}

/// Sources in a directory that are not tests, with their text.
fn sources(directory: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if name.contains("tests") {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            let source = fs::read_to_string(&path).unwrap();
            found.push((path, without_tests(&source).to_owned()));
        }
    }
}

/// Texts that look like an event kind and are not, and where.
const NO_EVENT: &[(&str, &str)] = &[("otlp/span.rs", "\"exec.signal\"")];

#[test]
fn only_bay_types_knows_the_kinds_of_events_as_text() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut found = Vec::new();
    for entry in fs::read_dir(crates).unwrap().map(Result::unwrap) {
        if entry.file_name() != "bay-types" {
            sources(&entry.path().join("src"), &mut found);
        }
    }
    assert!(
        found.iter().any(|(path, source)| path.ends_with("reconcile.rs") && source.contains("Draft::of("))
    );
    let kinds = EventBody::AREAS.iter().flat_map(|(_, _, kinds)| kinds.iter());
    let kinds: Vec<String> = kinds.map(|kind| format!("{:?}", kind.kind)).collect();
    assert!(kinds.len() > 60, "{kinds:?}");
    let mut wrong = Vec::new();
    for (path, source) in &found {
        let untyped = kinds.iter().map(String::as_str).chain(["OtherEvent::new(", "OtherEvent {"]);
        for text in untyped.filter(|text| source.contains(text)) {
            if !NO_EVENT.iter().any(|(file, name)| path.ends_with(file) && *name == text) {
                wrong.push(format!("{}: {text}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "events are written and matched by their types (bay_types::event): {wrong:#?}");
}

#[test]
fn every_file_of_end_to_end_tests_is_a_module_of_their_binary() {
    for (directory, root) in [("tests/e2e", "main"), ("attacks", "mod")] {
        let directory = format!("{}/{directory}", env!("CARGO_MANIFEST_DIR"));
        let listed = fs::read_to_string(format!("{directory}/{root}.rs")).unwrap();
        for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let Some(module) = name.strip_suffix(".rs").filter(|module| *module != root) else { continue };
            let line = format!("mod {module};");
            assert!(listed.lines().any(|other| other == line), "{directory}/{root}.rs does not say `{line}`");
        }
    }
}

/// The items of the core that a front may use. The compiler closes its fields and inner modules to other crates.
const OPEN_TO_FRONTS: &[&str] =
    &["Answer", "Daemon", "ProgressReporter", "byte_stream", "plain_text", "verbs"];

#[test]
fn fronts_name_nothing_below_the_verbs() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for package in metadata().packages.iter().filter(|package| package.name.starts_with("bay-front-")) {
        let ours = package.dependencies.iter().filter(|dependency| {
            dependency.kind == DependencyKind::Normal
                && dependency.name.starts_with("bay-")
                && !["bay-types", "bay-text", "bay-core", "bay-cli-words"].contains(&dependency.name.as_str())
        });
        wrong.extend(ours.map(|dependency| format!("{} depends on {}", package.name, dependency.name)));
        let source = package.manifest_path.parent().unwrap().join("src");
        for entry in fs::read_dir(&source).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if !name.ends_with(".rs") || name == "tests.rs" {
                continue;
            }
            seen += 1;
            let text = fs::read_to_string(entry.path()).unwrap();
            for (at, _) in text.match_indices("bay_core::") {
                let rest = &text[at + "bay_core::".len()..];
                let path: String = rest.chars().take_while(|c| !matches!(c, ';' | '(' | '<')).collect();
                let first = path.trim_start_matches('{').split("::").next().unwrap();
                let names = first.split(',').map(|name| name.trim().trim_end_matches('}'));
                let closed = names.filter(|name| !name.is_empty() && !OPEN_TO_FRONTS.contains(name));
                wrong.extend(closed.map(|closed| format!("{}/{name} uses bay_core::{closed}", package.name)));
            }
        }
    }
    assert!(seen > 0, "there is no front");
    assert!(
        wrong.is_empty(),
        "a front may only parse, call a verb of `bay_core::verbs` and encode. Move what needs these into a verb, so that \
         it holds for every door:\n{}",
        wrong.join("\n")
    );
}

/// Modules that use the whole core: the verbs, the reconcilers that carry out desired states, and what assembles both.
/// All other modules take the parts that they use.
const CARRY_THE_CORE: &[&str] =
    &["adopt", "assemble", "daemon", "egress", "follow", "lib", "reconcile", "testing", "verbs"];

#[test]
fn nothing_below_the_verbs_carries_the_whole_core() {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/bay-core/src"));
    let mut files = Vec::new();
    sources(source, &mut files);
    assert!(!files.is_empty(), "there is no core");
    let carries = files.iter().filter(|(path, text)| {
        let below = path.strip_prefix(source).unwrap();
        let module = below.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        !CARRY_THE_CORE.contains(&module) && text.contains("crate::daemon")
    });
    let carries: Vec<_> = carries.map(|(path, _)| path.display().to_string()).collect();
    assert!(
        carries.is_empty(),
        "these use the whole core. Give them the parts that they need:\n{}",
        carries.join("\n")
    );
}

/// Crates at the edge of the CLI: the CLI itself, what it runs for the person before it, and the front whose clients use
/// it. Their words are commands.
const SPEAK_CLI: &[&str] = &[
    "bay",
    "bay-bench",
    "bay-cli",
    "bay-cli-words",
    "bay-client",
    "bay-daemon",
    "bay-front-rest",
    "bay-tests",
];

/// Files below the fronts that name commands all the same. The list only gets shorter.
const NAME_COMMANDS: &[(&str, &str)] = &[
    (
        "bay-gateway/src/postgres/session.rs",
        "an answer to a client in the bay, whose protocol has a place for advice",
    ),
    ("bay-gateway/src/secrets/examine.rs", "an answer to a client in the bay"),
    ("bay-runtime/src/mounts.rs", "a message of the helper, which has no hints"),
    ("bay-types/src/event/reference.rs", "a page for people, made by a test"),
];

#[test]
fn only_fronts_name_the_commands_of_the_cli() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let below = MAY_USE.iter().map(|(name, _)| *name).filter(|name| !SPEAK_CLI.contains(name));
    let (mut naming, mut seen) = (BTreeSet::new(), 0);
    for name in below {
        let mut files = Vec::new();
        sources(&crates.join(name).join("src"), &mut files);
        seen += files.len();
        for (path, text) in files {
            let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            if code.any(|line| line.contains("`bay ")) {
                naming.insert(path.strip_prefix(&crates).unwrap().display().to_string());
            }
        }
    }
    assert!(seen > 300, "only {seen} files were looked at");
    let known: BTreeSet<String> = NAME_COMMANDS.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(
        naming, known,
        "files below the fronts that name commands (left) and NAME_COMMANDS (right) differ. Point at a \
         `bay_types::Action`, and let the front find the words: docs/decisions/hints-belong-to-the-front.md"
    );
}

#[test]
fn the_index_of_errors_lists_every_code_and_nothing_else() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/errors.md")).unwrap();
    let heading = |line: &str| Some(line.strip_prefix("### `")?.strip_suffix('`')?.to_owned());
    let indexed: Vec<String> = page.lines().filter_map(heading).collect();
    let codes: Vec<String> = ErrorCode::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(
        indexed, codes,
        "docs/errors.md (left) and ErrorCode (right) differ, or stand in another order"
    );
    for code in ErrorCode::ALL {
        let start = page.find(&format!("### `{code}`\n")).unwrap();
        let section = &page[start..];
        let section = &section[..section[4..].find("\n### ").map_or(section.len(), |at| at + 4)];
        let exit = format!("exit code {}", code.exit_code());
        assert!(section.contains(&exit), "the section of {code} does not say `{exit}`");
        let status = format!("HTTP {}", code.http_status());
        assert!(section.contains(&status), "the section of {code} does not say `{status}`");
        assert!(section.contains("**Do:**"), "the section of {code} does not say what to do");
    }
}
