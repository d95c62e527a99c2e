//! Parsers for arguments of the command line: bays, paths in bays, mounts, variables, signals, repositories.

use std::path::{Path, PathBuf};

use bay_client::invalid;
use bay_types::bay::Mount;
use bay_types::environment::EnvironmentFrom;
use bay_types::guest::WORKSPACE;
use bay_types::{ApiError, BayId, BayName, ErrorCode};

use bay_text::clip;

/// Most characters of a bad argument that an error quotes.
const QUOTED: usize = 64;

/// Checks that an argument can be a bay's name or id, before a request is sent.
pub(crate) fn bay(given: &str) -> Result<&str, ApiError> {
    if given.parse::<BayId>().is_ok() {
        return Ok(given);
    }
    match given.parse::<BayName>() {
        Ok(_) => Ok(given),
        Err(error) => {
            Err(ApiError::new(ErrorCode::InvalidName, error.to_string(), "`bay ls` lists the bays"))
        }
    }
}

/// Parses `BAY` or `BAY:CHECKPOINT`.
pub(crate) fn environment(given: &str) -> Result<EnvironmentFrom, ApiError> {
    let (name, checkpoint) = match given.split_once(':') {
        None => (given, None),
        Some((name, checkpoint)) => {
            let parsed = checkpoint.parse().map_err(|e: bay_types::id::ParseIdError| {
                let next = match bay(name) {
                    Ok(name) => format!("`bay checkpoints ls {name}` lists the bay's checkpoints"),
                    Err(_) => "write BAY:CHECKPOINT, such as web:v3".to_owned(),
                };
                ApiError::new(ErrorCode::InvalidName, e.to_string(), next)
            })?;
            (name, Some(parsed))
        }
    };
    Ok(EnvironmentFrom { bay: bay(name)?.to_owned(), checkpoint })
}

/// One side of `bay cp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Local(PathBuf),
    /// Standard input or output.
    Stream,
    /// A path in a bay, made absolute: `NAME:src` is relative to the workspace.
    Bay {
        bay: String,
        path: String,
    },
}

/// Parses `NAME:/path`, `-`, or a path of the caller. A path that contains a colon must be written as `./a:b`.
pub(crate) fn place(given: &str) -> Place {
    if given == "-" {
        return Place::Stream;
    }
    let Some((before, after)) = given.split_once(':') else {
        return Place::Local(given.into());
    };
    if before.parse::<BayName>().is_err() && before.parse::<BayId>().is_err() {
        return Place::Local(given.into());
    }
    let path = match after {
        "" => WORKSPACE.to_owned(),
        absolute if absolute.starts_with('/') => absolute.to_owned(),
        relative => format!("{WORKSPACE}/{relative}"),
    };
    Place::Bay { bay: before.to_owned(), path }
}

/// Parses `K=V`, or `K` alone for the caller's own value.
pub(crate) fn variable(given: &str) -> Result<(String, String), ApiError> {
    let bad =
        |why: &str| invalid(format!("--env {:?}: {why}", clip(given, QUOTED)), "write --env NAME=VALUE");
    let (key, value) = match given.split_once('=') {
        Some((key, value)) => (key, value.to_owned()),
        None => match std::env::var(given) {
            Ok(value) => (given, value),
            Err(_) => return Err(bad("there is no '=' and no such variable in this environment")),
        },
    };
    if key.is_empty() || key.contains('\0') || value.contains('\0') {
        return Err(bad("the name is empty, or the name or value contains a NUL byte"));
    }
    Ok((key.to_owned(), value))
}

/// Parses `SRC:DST[:ro]`. Makes the source absolute, because the daemon does not know the caller's directory.
pub(crate) fn mount(given: &str) -> Result<Mount, ApiError> {
    let next = "write --mount /host/path:/path/in/bay:ro";
    let bad = |why: &str| invalid(format!("--mount {:?}: {why}", clip(given, QUOTED)), next);
    let spec = match given.rsplit_once(':') {
        Some((rest, "ro")) => rest,
        Some((_, "rw")) => {
            return Err(bad("host paths are always mounted read-only; `bay cp` copies results out"));
        }
        _ => given,
    };
    let Some((source, target)) = spec.split_once(':') else {
        return Err(bad("it must name a source and a target"));
    };
    if source.is_empty() || !target.starts_with('/') {
        return Err(bad("the target must be an absolute path in the bay"));
    }
    if target.split('/').any(|part| part == "..") {
        return Err(bad("the target must not contain '..'"));
    }
    if target.trim_end_matches('/').is_empty() {
        return Err(bad("the target cannot be the bay's root"));
    }
    let source = absolute(Path::new(source))?;
    Ok(Mount { source, target: PathBuf::from(target) })
}

/// An image in the form that the daemon expects: paths after `dir:` and `tar:` are made absolute.
pub(crate) fn image(given: &str) -> Result<String, ApiError> {
    for kind in ["dir:", "tar:"] {
        if let Some(path) = given.strip_prefix(kind) {
            let path = absolute(&home(path))?;
            return match path.to_str() {
                Some(path) => Ok(format!("{kind}{path}")),
                None => Err(invalid("the image's path is not UTF-8", "give the file another name")),
            };
        }
    }
    Ok(given.to_owned())
}

/// A path that must exist, absolute and without links.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, ApiError> {
    path.canonicalize().map_err(|error| bay_client::local(&format!("looking at {}", path.display()), &error))
}

/// Expands `~/x` if the shell did not.
pub(crate) fn home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(path),
    }
}

/// `TERM`, `SIGTERM` or `15`.
pub(crate) fn signal(given: &str) -> Result<i32, ApiError> {
    const NAMES: [(&str, i32); 20] = [
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("ILL", 4),
        ("TRAP", 5),
        ("ABRT", 6),
        ("BUS", 7),
        ("FPE", 8),
        ("KILL", 9),
        ("USR1", 10),
        ("SEGV", 11),
        ("USR2", 12),
        ("PIPE", 13),
        ("ALRM", 14),
        ("TERM", 15),
        ("CHLD", 17),
        ("CONT", 18),
        ("STOP", 19),
        ("TSTP", 20),
        ("WINCH", 28),
    ];
    const LAST: i32 = 64;
    let upper = given.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let number = match name.parse::<i32>() {
        Ok(number) => Some(number),
        Err(_) => NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number),
    };
    match number {
        Some(number @ 1..=LAST) => Ok(number),
        _ => Err(invalid(
            format!("{:?} is not a signal", clip(given, QUOTED)),
            "name one, such as TERM, INT, KILL or HUP, or give its number",
        )),
    }
}

/// The argument of `bay up`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Path(PathBuf),
    Url(String),
}

/// Distinguishes a path from a remote repository. `exists` says whether the caller has a file of that name.
pub(crate) fn target(given: &str, exists: impl Fn(&Path) -> bool) -> Target {
    if let Some(path) = given.strip_prefix("file://") {
        // The daemon opens no repository at a path of a caller. The CLI streams a local one.
        return Target::Path(path.into());
    }
    if let Some((scheme, _)) = given.split_once("://")
        && !scheme.is_empty()
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+.-".contains(&b))
    {
        return Target::Url(given.to_owned());
    }
    let path = Path::new(given);
    if exists(path) || given.starts_with(['/', '.', '~']) {
        return Target::Path(home(given));
    }
    let before_slash = given.split('/').next().unwrap_or_default();
    if let Some((host, _)) = before_slash.split_once(':')
        && !host.is_empty()
        && !host.starts_with('-')
    {
        return Target::Url(given.to_owned());
    }
    if given.ends_with(".git") && before_slash.contains('.') && given.contains('/') {
        return Target::Url(format!("https://{given}"));
    }
    Target::Path(path.to_owned())
}

/// The name that a clone of this URL would get.
pub(crate) fn name_of_url(url: &str) -> BayName {
    let path = url.trim_end_matches('/');
    let last = path.rsplit(['/', ':']).next().unwrap_or(path);
    BayName::slug(last.strip_suffix(".git").unwrap_or(last))
}

/// A URL without credentials.
pub(crate) fn without_credentials(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let host_end = rest.find('/').unwrap_or(rest.len());
    match rest[..host_end].rfind('@') {
        Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused_before_any_request() {
        for odd in ["", "..", "a/b", "A", "a b", "-x", "x\u{1b}[0m", "\u{202e}", &"x".repeat(4096)] {
            let error = bay(odd).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidName);
            assert!(error.message.len() < 400, "{}", error.message.len());
        }
        assert!(bay("web-1").is_ok());
        assert!(bay(&BayId::generate().to_string()).is_ok());
    }

    #[test]
    fn an_environment_is_that_of_a_bay_or_of_one_of_its_checkpoints() {
        let of = |given: &str| environment(given).map(|from| (from.bay, from.checkpoint.map(|c| c.number())));
        assert_eq!(of("web").unwrap(), ("web".to_owned(), None));
        assert_eq!(of("web:v3").unwrap(), ("web".to_owned(), Some(3)));
        for odd in ["", ":v3", "web:", "web:3", "web:v0", "Web:v3", "web:v3:v4", "\u{1b}:\u{1b}"] {
            assert_eq!(of(odd).unwrap_err().code, ErrorCode::InvalidName, "{odd}");
        }
        let error = environment("web:latest").unwrap_err();
        assert!(error.next.contains("bay checkpoints ls web"), "{error:?}");
    }

    #[test]
    fn a_colon_makes_a_path_in_a_bay_only_after_a_name() {
        let in_bay = |path: &str| Place::Bay { bay: "web".into(), path: path.into() };
        assert_eq!(place("web:/etc/hosts"), in_bay("/etc/hosts"));
        assert_eq!(place("web:src/a:b"), in_bay("/workspace/src/a:b"));
        assert_eq!(place("web:"), in_bay("/workspace"));
        assert_eq!(place("./web:/x"), Place::Local("./web:/x".into()));
        assert_eq!(place("plain"), Place::Local("plain".into()));
        assert_eq!(place("-"), Place::Stream);
    }

    #[test]
    fn variables_keep_everything_after_the_first_equals_sign() {
        assert_eq!(variable("A=b=c").unwrap(), ("A".into(), "b=c".into()));
        assert_eq!(variable("A=").unwrap(), ("A".into(), String::new()));
        assert!(variable("=x").is_err());
        assert!(variable("A_VARIABLE_NOBODY_HAS_SET").is_err());
    }

    #[test]
    fn mounts_are_read_only_and_absolute() {
        let expected = Mount { source: "/".into(), target: "/host".into() };
        assert_eq!(mount("/:/host:ro").unwrap(), expected);
        assert_eq!(mount("/:/host").unwrap(), expected);
        for bad in ["/:/host:rw", "/", "/:relative:ro", "/:/a/../b:ro", "/:/:ro", ":/x:ro"] {
            assert_eq!(mount(bad).unwrap_err().code, ErrorCode::InvalidInput, "{bad}");
        }
        assert_eq!(mount("/no/such/place:/x:ro").unwrap_err().code, ErrorCode::PathNotFound);
    }

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!(signal("TERM").unwrap(), 15);
        assert_eq!(signal("sigint").unwrap(), 2);
        assert_eq!(signal("9").unwrap(), 9);
        assert!(signal("0").is_err());
        assert!(signal("NOPE").is_err());
    }

    #[test]
    fn urls_and_paths_are_distinguished() {
        let nothing = |_: &Path| false;
        let url = |u: &str| Target::Url(u.into());
        let path = |p: &str| Target::Path(p.into());
        assert_eq!(target("https://example.org/a/b", nothing), url("https://example.org/a/b"));
        assert_eq!(target("ssh://git@example.org:22/a", nothing), url("ssh://git@example.org:22/a"));
        assert_eq!(target("git@example.org:a/b.git", nothing), url("git@example.org:a/b.git"));
        assert_eq!(target("example.org:a/b", nothing), url("example.org:a/b"));
        assert_eq!(target("example.org/a/b.git", nothing), url("https://example.org/a/b.git"));
        assert_eq!(target("file:///srv/a.git", nothing), path("/srv/a.git"));
        assert_eq!(target(".", nothing), path("."));
        assert_eq!(target("./x:y", nothing), path("./x:y"));
        assert_eq!(target("project", nothing), path("project"));
        assert_eq!(target("repo.git", nothing), path("repo.git"));
        assert_eq!(target("-oProxyCommand=x:y", nothing), path("-oProxyCommand=x:y"));
        assert_eq!(target("a:b", |_| true), path("a:b"));
        assert_eq!(target("example.org/a/b.git", |_| true), path("example.org/a/b.git"));
    }

    #[test]
    fn names_come_from_the_last_part_of_a_url() {
        assert_eq!(name_of_url("https://example.org/a/My.Repo.git/").as_str(), "my-repo");
        assert_eq!(name_of_url("git@example.org:tool.git").as_str(), "tool");
    }

    #[test]
    fn credentials_are_not_shown() {
        assert_eq!(without_credentials("https://me:secret@example.org/a@b"), "https://example.org/a@b");
        assert_eq!(without_credentials("https://example.org/a"), "https://example.org/a");
        assert_eq!(without_credentials("git@example.org:a"), "git@example.org:a");
    }
}
