//! Variables that every command of the bay has: its `/etc/environment`, as login programs read it.
//!
//! The file is the image's or the agent's: it is read up to a bound, and what says who or where a command is cannot be
//! changed by it.

use std::os::fd::BorrowedFd;

use crate::users;

/// Ours comes last: it hides nothing of the bay's.
pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/.bay/bin";
/// Most variables that are taken from the file, and how long they may be together: the kernel starts nothing with an
/// environment that is too long, and a file that says so must not keep anybody from running what mends it.
const MAX_VARIABLES: usize = 256;
const MAX_BYTES: usize = 64 << 10;
/// Set for each command by what it is.
const OURS: [&str; 4] = ["HOME", "USER", "LOGNAME", "SHELL"];

/// Puts the bay's own variables over the usual ones.
pub(crate) fn apply(environment: &mut Vec<(String, String)>, root: BorrowedFd<'_>) {
    for (key, value) in parse(&users::read(root, "etc/environment")) {
        match environment.iter_mut().find(|(k, _)| *k == key) {
            Some(slot) => slot.1 = value,
            None => environment.push((key, value)),
        }
    }
}

/// Where programs are looked for when a command does not say.
pub(crate) fn path(root: BorrowedFd<'_>) -> String {
    let mut all = vec![("PATH".to_owned(), DEFAULT_PATH.to_owned())];
    apply(&mut all, root);
    all.swap_remove(0).1
}

/// One variable of the bay's own, where it sets it.
pub(crate) fn value(root: BorrowedFd<'_>, name: &str) -> Option<String> {
    parse(&users::read(root, "etc/environment"))
        .into_iter()
        .rfind(|(key, _)| key == name)
        .map(|(_, value)| value)
}

fn parse(text: &str) -> Vec<(String, String)> {
    let variables = text.lines().filter_map(|line| {
        let line = line.trim();
        let (key, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
        let fits = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let quoted = |mark: char| value.strip_prefix(mark)?.strip_suffix(mark);
        let value = quoted('"').or_else(|| quoted('\'')).unwrap_or(value).replace('\0', "");
        (fits && !OURS.contains(&key) && !key.starts_with("BAY_")).then(|| (key.to_owned(), value))
    });
    let mut left = MAX_BYTES;
    let fits = |(key, value): &(String, String)| match left.checked_sub(key.len() + value.len()) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    variables.filter(fits).take(MAX_VARIABLES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_name_a_variable_are_taken_and_who_a_command_is_stays() {
        let text = "# a word\n\nPATH=\"/tools/bin:/bin\"\nexport A='b c'\n X=1 # kept as it is\nHOME=/x\nBAY_ID=y\n=z\nA B=c\nno\n";
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            parse(text),
            [pair("PATH", "/tools/bin:/bin"), pair("A", "b c"), pair("X", "1 # kept as it is")]
        );
        assert_eq!(parse(&"A=b\n".repeat(10_000)).len(), MAX_VARIABLES);
        let long = "x".repeat(MAX_BYTES);
        assert_eq!(parse(&format!("LONG={long}\nA=b\n")), [pair("A", "b")]);
    }

    #[test]
    fn the_bays_own_path_takes_the_place_of_the_usual_one() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("etc")).unwrap();
        let root = std::fs::File::open(temp.path()).unwrap();
        let usual = vec![("PATH".to_owned(), "/bin".to_owned())];
        let mut all = usual.clone();
        apply(&mut all, std::os::fd::AsFd::as_fd(&root));
        assert_eq!(all, usual);
        std::fs::write(temp.path().join("etc/environment"), "PATH=/tools/bin:/bin\n").unwrap();
        apply(&mut all, std::os::fd::AsFd::as_fd(&root));
        assert_eq!(all, [("PATH".to_owned(), "/tools/bin:/bin".to_owned())]);
    }
}
