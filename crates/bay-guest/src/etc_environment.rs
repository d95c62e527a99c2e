//! Variables in the bay's `/etc/environment`, which every command gets, as from login programs.
//!
//! The file comes from the image or the agent. So it is read up to a bound, and it cannot change variables that say who
//! or where a command is.

use std::os::fd::BorrowedFd;

use crate::users;

/// The directory of Workbay's own programs is last, so it hides no program of the bay.
pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/.bay/bin";
/// Most variables that are taken from the file.
const MAX_VARIABLES: usize = 256;
/// Their greatest total length. The kernel starts nothing with an environment that is too long. A file that is too long
/// must not stop the commands that would fix it.
const MAX_BYTES: usize = 64 << 10;
/// Variables that the guest sets for each command.
const OURS: [&str; 4] = ["HOME", "USER", "LOGNAME", "SHELL"];

/// Adds the variables of the file; they replace those of the same name.
pub(crate) fn apply(environment: &mut Vec<(String, String)>, root: BorrowedFd<'_>) {
    for (key, value) in parse(&users::read(root, "etc/environment")) {
        match environment.iter_mut().find(|(k, _)| *k == key) {
            Some(slot) => slot.1 = value,
            None => environment.push((key, value)),
        }
    }
}

/// The `PATH` of a command that does not set its own.
pub(crate) fn path(root: BorrowedFd<'_>) -> String {
    let mut all = vec![("PATH".to_owned(), DEFAULT_PATH.to_owned())];
    apply(&mut all, root);
    all.swap_remove(0).1
}

/// The value of one variable in the file.
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
    fn lines_that_set_a_variable_are_used_but_cannot_change_the_user() {
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
    fn the_path_of_the_bay_replaces_the_usual_one() {
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
