//! The caller's git identity, so that commits in a bay have it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use bay_types::bay::Author;

use super::safe_command::git;

/// `user.name` and `user.email` as git finds them in `dir`, from the caller's settings and those of the repository.
/// Under `sudo` the settings are root's, which rarely name an author; then `~/.gitconfig` of the user who ran sudo
/// counts. `None` if one of them is missing or not plain text: a bay works without an author.
pub(crate) async fn author(dir: &Path) -> Option<Author> {
    match named(dir, &[]).await {
        Some(author) => Some(author),
        None => {
            let user = std::env::var("SUDO_USER").ok()?;
            let settings = home_of(&user, &std::fs::read_to_string("/etc/passwd").ok()?)?.join(".gitconfig");
            named(Path::new("/"), &[OsStr::new("--file"), settings.as_os_str()]).await
        }
    }
}

async fn named(dir: &Path, from: &[&OsStr]) -> Option<Author> {
    let get = |key: &'static str| async move {
        let output = git(dir).arg("config").args(from).args(["--get", key]).output().await.ok()?;
        let value = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| value.trim().to_owned())
    };
    let (name, email) = tokio::join!(get("user.name"), get("user.email"));
    Some(Author { name: name?, email: email? }).filter(Author::is_plain)
}

pub(super) fn home_of(user: &str, accounts: &str) -> Option<PathBuf> {
    let line = accounts.lines().find(|line| line.split(':').next() == Some(user))?;
    line.split(':').nth(5).filter(|home| home.starts_with('/')).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_repositorys_author_has_precedence_and_no_program_of_its_settings_runs() {
        let temp = tempfile::tempdir().unwrap();
        let trap = temp.path().join("ran");
        let init = git(temp.path()).args(["init", "-q"]).status().await.unwrap();
        assert!(init.success());
        let own = temp.path().join(".git/config");
        let mut settings = std::fs::read_to_string(&own).unwrap();
        settings.push_str(&format!(
            "[user]\n\tname = Ann Example\n\temail = ann@example.invalid\n[core]\n\tpager = touch {0}\n\tfsmonitor = touch {0}\n",
            trap.display()
        ));
        std::fs::write(&own, &settings).unwrap();
        let expected = Author { name: "Ann Example".into(), email: "ann@example.invalid".into() };
        assert_eq!(author(temp.path()).await, Some(expected));
        assert!(!trap.exists());
    }

    #[tokio::test]
    async fn a_name_that_is_invalid_in_a_commit_counts_as_none() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("settings");
        std::fs::write(&file, "[user]\n\tname = \"two\\nlines\"\n\temail = a@b\n").unwrap();
        assert_eq!(named(temp.path(), &[OsStr::new("--file"), file.as_os_str()]).await, None);
        std::fs::write(&file, "[user]\n\tname = only a name\n").unwrap();
        assert_eq!(named(temp.path(), &[OsStr::new("--file"), file.as_os_str()]).await, None);
    }

    #[test]
    fn a_home_directory_is_found_by_the_full_user_name() {
        let accounts = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000:Ann:/home/ann:/bin/sh\n";
        assert_eq!(home_of("ann", accounts), Some(PathBuf::from("/home/ann")));
        assert_eq!(home_of("an", accounts), None);
    }
}
