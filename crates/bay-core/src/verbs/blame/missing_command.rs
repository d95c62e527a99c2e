//! The name of a program that a shell did not find, from the end of the shell's output.
//!
//! The output is the bay's, so the name is only shown and searched for: it is a plain word, or there is none.

/// Longest name of a program that is believed.
const MAX_NAME: usize = 64;

/// The name, if it can be the name of a program in `PATH`.
pub(super) fn plain_name(name: &str) -> Option<&str> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'+' | b'-');
    let fine =
        (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with(['-', '.']);
    fine.then_some(name)
}

/// The program that the last complaint of a shell is about.
pub(super) fn named_in(output: &str) -> Option<String> {
    output.lines().rev().find_map(|line| complaint(line.trim_end())).map(str::to_owned)
}

/// The program that one line of a shell, or of `env`, complains about.
fn complaint(line: &str) -> Option<&str> {
    // zsh: "zsh:1: command not found: rg"
    if let Some((_, name)) = line.split_once("command not found: ") {
        return plain_name(name);
    }
    // bash: "bash: line 1: rg: command not found"; dash: "sh: 1: rg: not found"; busybox: "sh: rg: not found"
    let named = line.strip_suffix(": command not found").or_else(|| line.strip_suffix(": not found"));
    if let Some(before) = named {
        return plain_name(before.rsplit_once(": ").map_or(before, |(_, name)| name));
    }
    // "env: 'node': No such file or directory", also with other quotes
    let before = line.strip_suffix(": No such file or directory")?;
    let (who, name) = before.rsplit_once(": ")?;
    let quotes = ['\'', '"', '`', '‘', '’'];
    who.ends_with("env").then(|| plain_name(name.trim_matches(quotes))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_complaints_of_common_shells_name_the_program() {
        for (output, name) in [
            ("sh: 1: rg: not found\n", "rg"),
            ("bash: line 1: pg_config: command not found", "pg_config"),
            ("sh: jq: not found\n", "jq"),
            ("./build.sh: line 12: g++: command not found\n", "g++"),
            ("zsh:1: command not found: fd\n", "fd"),
            ("/usr/bin/env: ‘node’: No such file or directory\n", "node"),
            ("env: 'python3.12': No such file or directory\n", "python3.12"),
            ("sh: 1: first: not found\nand then\nsh: 2: second: not found\n", "second"),
        ] {
            assert_eq!(named_in(output).as_deref(), Some(name), "{output}");
        }
    }

    #[test]
    fn what_is_no_name_of_a_program_is_not_believed() {
        for output in [
            "",
            "404 not found",
            "sh: 1: ./local: not found",
            "sh: 1: \u{1b}[2J: not found",
            "cat: notes: No such file or directory",
            "sh: 1: a b; reboot: not found",
            "sh: 1: --help: not found",
        ] {
            assert_eq!(named_in(output), None, "{output}");
        }
        assert_eq!(named_in(&format!("sh: 1: {}: not found", "x".repeat(MAX_NAME + 1))), None);
    }
}
