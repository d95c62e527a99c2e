//! docs/cli.md: the `--help` text of every verb. A test compares it with the binary.

use std::fmt::Write;
use std::path::Path;

use clap::{Command, CommandFactory};

use crate::cli::Cli;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");

/// Width of the page's lines, independent of the terminal.
const WIDTH: usize = 100;

/// The heading of the options that all verbs share.
const COMMON: &str = "Common options:";

const OPENING: &str = "# The command line\n\n\
    What `bay VERB --help` says, for every verb; the common options are those of `bay` itself. This page is made from\n\
    the binary: a test fails when they differ, and `BAY_BLESS=1 cargo test -p bay-cli reference` writes it anew.\n";

/// The page that the binary generates.
fn page() -> String {
    let mut root = Cli::command().term_width(WIDTH).disable_help_subcommand(true);
    root.build();
    let mut page = OPENING.to_owned();
    section(&mut page, root, 2);
    page
}

fn section(page: &mut String, mut verb: Command, level: usize) {
    let name = verb.get_bin_name().unwrap_or_else(|| verb.get_name()).to_owned();
    let mut help = String::new();
    let mut common = false;
    for line in verb.render_long_help().to_string().lines() {
        // The common options appear once, at the top.
        common = level > 2 && (line == COMMON || (common && (line.is_empty() || line.starts_with(' '))));
        if !common {
            // No trailing blanks: editors and reviews stumble over them.
            help.push_str(line.trim_end());
            help.push('\n');
        }
    }
    let _ = write!(page, "\n{} `{name}`\n\n```text\n{}\n```\n", "#".repeat(level), help.trim_end());
    let inner: Vec<Command> = verb.get_subcommands().filter(|inner| !inner.is_hide_set()).cloned().collect();
    for inner in inner {
        section(page, inner, level + 1);
    }
}

#[test]
fn the_reference_of_the_command_line_matches_the_binary() {
    let now = page();
    if std::env::var_os("BAY_BLESS").is_some_and(|bless| bless == "1") {
        std::fs::write(PAGE, now).unwrap();
        return;
    }
    let written = std::fs::read_to_string(Path::new(PAGE)).unwrap_or_default();
    let differing = now.lines().zip(written.lines()).find(|(now, written)| now != written);
    assert!(
        now == written,
        "docs/cli.md differs from the binary, first at (binary, page): {differing:?}\n\
         write it anew with: BAY_BLESS=1 cargo test -p bay-cli reference"
    );
}

#[test]
fn the_reference_has_a_section_for_every_verb() {
    let page = page();
    for verb in ["bay up", "bay exec", "bay images import", "bay repos sync", "bay serve", "bay completions"]
    {
        assert!(page.contains(&format!("# `{verb}`\n")), "{verb}");
    }
}
