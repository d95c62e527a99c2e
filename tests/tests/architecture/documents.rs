//! The documents agree with the source: links lead to something, tables and names are those of the code, and every
//! command that a page shows exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::MAY_USE;

/// The directory of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file below a directory with this ending, without build outputs.
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

/// Every page for people: those at the top of the repository, all below `docs`, and the contracts in the crates.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].iter().map(|name| root().join(name)).collect();
    files_below(&root().join("docs"), ".md", &mut pages);
    files_below(&root().join("crates"), ".md", &mut pages);
    pages
}

/// The cells of a table's rows. `head` is the beginning of the line with the column titles.
fn table(page: &str, head: &str) -> Vec<Vec<String>> {
    let from = page.find(&format!("\n{head}")).unwrap_or_else(|| panic!("no table begins with {head:?}"));
    let rows = page[from + 1..].lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// The texts between backticks.
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

/// Names of tests are sentences, and no other name on these pages is one: four words or more in backticks.
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
    // The pages for users also name things of other projects.
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

/// The paths that the page for contributors names. A word in capitals stands for a name to choose.
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

/// A decision is one page: short, with the same parts as the others, and listed in the index.
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

/// The help of each verb in the reference of the command line, by the verb's full name.
fn help_by_verb() -> BTreeMap<String, String> {
    let reference = fs::read_to_string(root().join("docs/cli.md")).unwrap();
    let sections = reference.split("\n#").skip(1).filter_map(|section| {
        let (name, help) = section.trim_start_matches('#').strip_prefix(" `")?.split_once('`')?;
        Some((name.to_owned(), help.to_owned()))
    });
    sections.collect()
}

/// The commands that a page shows: example lines that begin with the program's name, and texts in backticks.
fn commands(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (part, text) in page.split("```").enumerate() {
        if part % 2 == 0 {
            let inline = quoted(text).filter(|quoted| quoted.starts_with("bay "));
            found.extend(inline.map(|quoted| quoted.replace('\n', " ")));
        } else {
            let lines = text.replace("\\\n", " ");
            let lines = lines.lines().map(|line| line.trim().trim_start_matches("$ "));
            // Two blanks or a comment sign separate the command from its description.
            let said = |line: &str| {
                line.split("  ").next().and_then(|line| line.split(" #").next()).map(str::to_owned)
            };
            found.extend(lines.filter(|line| line.starts_with("bay ")).filter_map(said));
        }
    }
    found
}

#[test]
fn every_command_that_a_page_shows_has_its_verb_and_flags() {
    let help = help_by_verb();
    let common = &help["bay"];
    let has = |help: &str, flag: &str| {
        help.match_indices(flag).any(|(at, _)| {
            let next = help[at + flag.len()..].chars().next();
            !next.is_some_and(|c| c == '-' || c.is_ascii_alphanumeric())
        })
    };
    let mut flags = 0;
    for page in pages().into_iter().filter(|page| !page.ends_with("docs/cli.md")) {
        for command in commands(&fs::read_to_string(&page).unwrap()) {
            let mut words = command.split_whitespace().peekable();
            let mut verb = words.next().unwrap().to_owned();
            while let Some(longer) =
                words.peek().map(|word| format!("{verb} {word}")).filter(|v| help.contains_key(v))
            {
                verb = longer;
                words.next();
            }
            let hidden = words.peek().is_some_and(|word| word.starts_with("__"));
            let named =
                verb != "bay" || words.peek().is_none_or(|word| word.starts_with('-') || *word == "VERB");
            assert!(named || hidden, "{} shows `{command}`, and there is no such verb", page.display());
            if hidden {
                continue;
            }
            for word in words.take_while(|word| *word != "--") {
                let word = word.trim_start_matches('[');
                if !word.starts_with("--") {
                    continue;
                }
                let end = word[2..]
                    .find(|c: char| c != '-' && !c.is_ascii_alphanumeric())
                    .map_or(word.len(), |at| at + 2);
                let flag = &word[..end];
                let known = has(&help[&verb], flag) || has(common, flag);
                assert!(known, "{} shows `{command}`, and `{verb}` has no {flag}", page.display());
                flags += 1;
            }
        }
    }
    assert!(flags > 100, "only {flags} flags were found in the pages: they are not read as they should be");
}
