//! The rules of the project that a compiler does not check: which crate may use which, where `unsafe` may be, that
//! the index of errors is complete, that the documents agree with the source, and that no end-to-end test is left out.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bay_types::ErrorCode;
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// Which of our crates each of our crates may use. Dependencies point downward; a new edge is a decision, made here.
const MAY_USE: &[(&str, &[&str])] = &[
    ("bay-types", &[]),
    ("bay-sys", &["bay-types"]),
    ("bay-policy", &["bay-types"]),
    ("bay-gateway", &["bay-types", "bay-policy"]),
    ("bay-ledger", &[]),
    ("bay-store", &["bay-types", "bay-ledger"]),
    ("bay-diff", &["bay-types", "bay-sys"]),
    ("bay-pool", &["bay-types", "bay-sys"]),
    ("bay-runtime", &["bay-types", "bay-sys"]),
    ("bay-backend", &["bay-types", "bay-sys", "bay-pool", "bay-runtime"]),
    ("bay-guest", &["bay-types", "bay-sys"]),
    (
        "bay-server",
        &[
            "bay-types",
            "bay-sys",
            "bay-policy",
            "bay-gateway",
            "bay-ledger",
            "bay-store",
            "bay-diff",
            "bay-pool",
            "bay-runtime",
            "bay-backend",
            "bay-guest",
        ],
    ),
    (
        "bay",
        &[
            "bay-types",
            "bay-sys",
            "bay-policy",
            "bay-ledger",
            "bay-store",
            "bay-pool",
            "bay-runtime",
            "bay-backend",
            "bay-guest",
            "bay-diff",
            "bay-server",
        ],
    ),
    ("bay-tests", &["bay-types", "bay-sys"]),
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
fn the_table_of_edges_has_no_circle() {
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

/// The directory of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file below a directory whose name ends so, without build outputs.
fn files_below(directory: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            if entry.file_name() != "target" {
                files_below(&path, ending, found);
            }
        } else if path.to_str().unwrap().ends_with(ending) {
            found.push(path);
        }
    }
}

/// Every page that people read: those at the top of the repository, all below `docs`, and the contracts in the crates.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].iter().map(|name| root().join(name)).collect();
    files_below(&root().join("docs"), ".md", &mut pages);
    files_below(&root().join("crates"), ".md", &mut pages);
    pages
}

/// The cells of a table's rows, from below its head to its end. The head is the line that begins with `head`.
fn table(page: &str, head: &str) -> Vec<Vec<String>> {
    let from = page.find(&format!("\n{head}")).unwrap_or_else(|| panic!("no table begins with {head:?}"));
    let rows = page[from + 1..].lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// What stands between backticks in a text.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_readme_links_to_every_page_for_users() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for entry in fs::read_dir(root().join("docs")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let linked = readme.contains(&format!("](docs/{name})")) || !name.ends_with(".md");
        assert!(linked, "README.md does not link to docs/{name}");
    }
}

/// The anchor of each heading of a page, as renderers of Markdown make it.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|heading| {
            let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            text.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
        })
        .collect()
}

#[test]
fn pages_link_only_to_files_and_headings_that_exist() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{} links to {link}, which does not exist", page.display());
            if !anchor.is_empty() {
                let there = anchors(&fs::read_to_string(&target).unwrap()).contains(anchor);
                assert!(there, "{} links to {link}, and there is no such heading", page.display());
            }
        }
    }
}

#[test]
fn the_crate_table_of_the_architecture_page_is_the_list_of_edges() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let written: BTreeMap<String, BTreeSet<String>> = table(&page, "| crate |")
        .iter()
        .map(|row| {
            let [name, _, uses] = row.as_slice() else { panic!("a row without three cells: {row:?}") };
            let uses =
                uses.split(", ").filter(|used| *used != "–").map(|used| format!("bay-{used}")).collect();
            (name.trim_matches('`').to_owned(), uses)
        })
        .collect();
    let allowed: BTreeMap<String, BTreeSet<String>> = MAY_USE
        .iter()
        .map(|(name, uses)| ((*name).to_owned(), uses.iter().map(|used| (*used).to_owned()).collect()))
        .collect();
    assert_eq!(written, allowed, "the crate table of ARCHITECTURE.md (left) and MAY_USE (right) differ");
}

/// Names of tests are sentences, and no other name in these pages is one: four words or more in backticks.
#[test]
fn every_test_that_a_page_names_exists() {
    let mut sources = Vec::new();
    for directory in ["crates", "tests"] {
        files_below(&root().join(directory), ".rs", &mut sources);
    }
    let mut tests = BTreeSet::new();
    for source in sources {
        let text = fs::read_to_string(source).unwrap();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if let Some(rest) = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ") {
                if is_test {
                    tests.insert(rest.split(['(', '<']).next().unwrap().to_owned());
                }
                is_test = false;
            }
        }
    }
    let is_sentence = |name: &&str| {
        name.matches('_').count() >= 3
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    // The pages for users name things of other projects too.
    let mut about_the_source = vec![root().join("ARCHITECTURE.md"), root().join("CONTRIBUTING.md")];
    files_below(&root().join("docs/decisions"), ".md", &mut about_the_source);
    for page in about_the_source {
        let text = fs::read_to_string(&page).unwrap();
        for name in text.lines().flat_map(quoted).filter(is_sentence) {
            assert!(tests.contains(name), "{} names the test {name}, which does not exist", page.display());
        }
    }
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let invariants = table(&page, "| invariant |");
    assert!(invariants.len() >= 12, "ARCHITECTURE.md has {} invariants", invariants.len());
    for row in invariants {
        assert_eq!(quoted(&row[1]).filter(is_sentence).count(), 1, "not one test beside {:?}", row[0]);
    }
}

/// The paths that the page for contributors names. In a pattern a word in capitals stands for a name to choose.
#[test]
fn every_path_that_the_page_for_contributors_names_exists() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let is_path = |name: &&str| {
        ["crates/", "docs/", "tests/", "fuzz/"].iter().any(|top| name.starts_with(top)) && !name.contains(' ')
    };
    let paths: Vec<&str> = page.lines().flat_map(quoted).filter(is_path).collect();
    assert!(!paths.is_empty(), "CONTRIBUTING.md names no path");
    for path in paths {
        let fixed: PathBuf = Path::new(path)
            .iter()
            .take_while(|part| !part.to_str().unwrap().starts_with(|c: char| c.is_ascii_uppercase()))
            .collect();
        let whole = if path.ends_with("README.md") { PathBuf::from(path) } else { fixed };
        assert!(root().join(whole).exists(), "CONTRIBUTING.md names {path}, which does not exist");
    }
}

/// A decision is one page: short, in the same parts as the others, and found through the index.
#[test]
fn every_decision_is_one_short_page_of_the_index() {
    const MAX_LINES: usize = 40;
    let directory = root().join("docs/decisions");
    let index = fs::read_to_string(directory.join("README.md")).unwrap();
    let mut decisions = Vec::new();
    files_below(&directory, ".md", &mut decisions);
    for page in decisions {
        let name = page.file_name().unwrap().to_str().unwrap();
        if name == "README.md" {
            continue;
        }
        let text = fs::read_to_string(&page).unwrap();
        assert!(text.lines().count() <= MAX_LINES, "{name} is longer than {MAX_LINES} lines");
        for part in ["\nStatus: ", "\n## Context\n", "\n## Decision\n", "\n## Consequences\n"] {
            assert!(text.contains(part), "{name} has no part {:?}", part.trim());
        }
        let title = text.lines().next().unwrap().strip_prefix("# ").unwrap();
        let line = format!("- [{title}]({name})");
        assert!(index.lines().any(|other| other == line), "the index does not say {line:?}");
    }
}
