//! Checks of the definition of a secret that a caller sets.

use bay_gateway::secrets::{Named, Slot};
use bay_types::secret::{MAX_PLACES, MAX_SECRET_NAME, MAX_USES, SENTINEL_MARK, SecretFile, SecretSet};
use bay_types::{CoreError, ErrorCode, Hint};
use serde::Deserialize;

use crate::channel::plain_text;

/// The settings of well-known services, by name.
const PRESETS: &str = include_str!("../../../../presets/secrets.toml");
/// The longest path of a file in bytes.
const MAX_FILE_PATH: usize = 1024;
/// The longest text of a file in bytes.
const MAX_FILE_TEXT: usize = 64 << 10;
/// The longest name of a variable.
const MAX_VARIABLE: usize = 128;
/// Variables that decide what a command runs, or as which user. Names that begin with `BAY_` or `LD_` are refused
/// too.
const OURS: [&str; 8] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "IFS", "ENV", "BASH_ENV"];
/// Directories in which a bay has no files of its own, and the workspace, whose content leaves the bay.
const NOT_THERE: [&str; 5] = ["/.bay", "/proc", "/sys", "/dev", "/workspace"];
/// The user name that git sends if the definition names none. Forges accept any name with a token.
pub(crate) const GIT_USER: &str = "x-access-token";

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Preset {
    uses: Vec<String>,
    env: Vec<String>,
    git: Vec<String>,
    literal_bodies: bool,
}

pub(crate) fn wrong(message: impl Into<String>, next: impl Into<Hint>) -> CoreError {
    CoreError::new(ErrorCode::SecretInvalid, message, next)
}

/// Checks whether this can be the name of a secret.
pub(crate) fn name(name: &str) -> Result<(), CoreError> {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if begins && name.len() <= MAX_SECRET_NAME && name.bytes().all(letters) {
        return Ok(());
    }
    Err(CoreError::new(
        ErrorCode::InvalidName,
        format!("{:?} is not a name of a secret", plain_text(name)),
        format!("use up to {MAX_SECRET_NAME} letters, digits, hyphens and underscores, such as GITHUB_TOKEN"),
    ))
}

fn presets() -> std::collections::BTreeMap<String, Preset> {
    // A test checks that this file, which is compiled in, can be parsed.
    toml::from_str(PRESETS).unwrap_or_default()
}

/// Replaces presets by their settings, and fills in defaults.
pub(crate) fn expand(name: &str, set: &mut SecretSet) {
    let presets = presets();
    let mut uses = Vec::new();
    let mut delivered = !(set.env.is_empty() && set.files.is_empty() && set.git.is_empty());
    for one in std::mem::take(&mut set.uses) {
        let Some(preset) = presets.get(one.trim()) else {
            uses.push(one);
            continue;
        };
        uses.extend(preset.uses.iter().cloned());
        set.literal_bodies |= preset.literal_bodies;
        if !delivered {
            set.env.clone_from(&preset.env);
            set.git.clone_from(&preset.git);
            delivered = true;
        }
    }
    set.uses = uses;
    if !delivered && variable(name).is_ok() {
        set.env = vec![name.to_owned()];
    }
}

/// Checks the parts of a definition, and returns its parsed uses. Whether hosts and rules exist is not checked.
pub(crate) fn check(set: &SecretSet) -> Result<Vec<Named>, CoreError> {
    if set.uses.is_empty() {
        let known = presets().into_keys().collect::<Vec<_>>().join(", ");
        return Err(wrong(
            "the secret has no use: nothing says to which hosts it may be sent",
            format!("add --for \"HOST/PATH as SLOT\", or one of the presets: {known}"),
        ));
    }
    let counts = [(set.uses.len(), MAX_USES, "uses"), (set.env.len(), MAX_PLACES, "variables")];
    let more = [(set.files.len(), MAX_PLACES, "files"), (set.git.len(), MAX_PLACES, "hosts for git")];
    for (count, most, what) in counts.into_iter().chain(more) {
        if count > most {
            return Err(wrong(
                format!("{count} {what} are more than a secret may have"),
                format!("give at most {most}"),
            ));
        }
    }
    if set.env.is_empty() && set.files.is_empty() && set.git.is_empty() {
        return Err(wrong(
            "no place for the secret in bays was given, and its name cannot be the name of a variable",
            "add --env NAME, --file PATH or --git HOST",
        ));
    }
    let mut named = Vec::new();
    for one in &set.uses {
        named.push(Named::parse(one).map_err(|error| {
            wrong(plain_text(&error.to_string()), "docs/secrets.md describes how to write uses")
        })?);
    }
    for one in &set.env {
        variable(one).map_err(|why| {
            wrong(
                format!("{:?} is not a variable for a sentinel: {why}", plain_text(one)),
                "use another name",
            )
        })?;
    }
    for one in &set.files {
        file(one).map_err(|why| {
            wrong(
                format!("{:?} is not a file for a sentinel: {why}", plain_text(&one.path)),
                "use another path",
            )
        })?;
    }
    for one in &set.git {
        git(one, &named)?;
    }
    Ok(named)
}

fn variable(name: &str) -> Result<(), String> {
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !begins || !letters || name.len() > MAX_VARIABLE {
        return Err("use letters, digits and underscores".to_owned());
    }
    let taken = OURS.contains(&name) || name.starts_with("BAY_") || name.starts_with("LD_");
    if taken { Err("it means something else to every command".to_owned()) } else { Ok(()) }
}

fn file(file: &SecretFile) -> Result<(), String> {
    let SecretFile { path, text } = file;
    let parts = path.strip_prefix('/').ok_or("it does not begin with a slash")?;
    if path.len() > MAX_FILE_PATH || path.chars().any(char::is_control) {
        return Err("it is too long, or has control characters".to_owned());
    }
    if parts.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("write it in full, without `.`, `..` and empty parts".to_owned());
    }
    let below =
        |dir: &str| path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if let Some(dir) = NOT_THERE.iter().find(|dir| below(dir)) {
        return Err(format!("no file of a secret can be below {dir}"));
    }
    if text.len() > MAX_FILE_TEXT {
        return Err(format!("its text is longer than {MAX_FILE_TEXT} bytes"));
    }
    if !text.contains(SENTINEL_MARK) {
        return Err(format!("its text has no {SENTINEL_MARK}, which stands for the sentinel"));
    }
    Ok(())
}

/// The parts of `[USER@]HOST[:PORT]`.
pub(crate) fn git_place(text: &str) -> (&str, &str) {
    text.split_once('@').unwrap_or((GIT_USER, text))
}

fn git(text: &str, named: &[Named]) -> Result<(), CoreError> {
    let (user, place) = git_place(text);
    let plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:[]".contains(&b))
    };
    if !plain(place) || !plain(user) || user.contains(':') {
        return Err(wrong(
            format!("{:?} is not a host for git", plain_text(text)),
            "write HOST, HOST:PORT or USER@HOST",
        ));
    }
    if git_slot(place, named).is_none() {
        return Err(wrong(
            format!("the secret has no use at {} in a form that git can send", plain_text(place)),
            format!("add --for \"{} as basic\"", plain_text(place)),
        ));
    }
    Ok(())
}

/// The slot in which git sends a secret.
pub(crate) fn git_slot<'a>(place: &str, named: &'a [Named]) -> Option<&'a Slot> {
    let fits = |one: &&'a Named| match one {
        Named::Place(one) => one.is_at(place),
        Named::Rule { .. } => false,
    };
    let slots = named.iter().filter(fits).filter_map(|one| match one {
        Named::Place(one) => Some(one.slot()),
        Named::Rule { .. } => None,
    });
    slots.into_iter().find(|slot| matches!(slot, Slot::Basic | Slot::Bearer | Slot::Token))
}

#[cfg(test)]
mod tests {
    use bay_types::secret::{SecretSource, SecretText};

    use super::*;

    fn set(uses: &[&str]) -> SecretSet {
        SecretSet {
            source: SecretSource::Value(SecretText::new("a-value-of-some-length".to_owned())),
            uses: uses.iter().map(|&one| one.to_owned()).collect(),
            env: Vec::new(),
            files: Vec::new(),
            git: Vec::new(),
            bays: Vec::new(),
            unmanaged: false,
            literal_bodies: false,
            allow_weak: false,
            expires: None,
        }
    }

    #[test]
    fn every_preset_that_ships_can_be_set() {
        let presets: std::collections::BTreeMap<String, Preset> = toml::from_str(PRESETS).unwrap();
        for known in ["github", "gitlab", "openai", "anthropic", "npm", "pypi", "cargo", "docker"] {
            assert!(presets.contains_key(known), "{known}");
        }
        for name in presets.keys() {
            let mut set = set(&[name]);
            expand("TOKEN", &mut set);
            check(&set).unwrap_or_else(|error| panic!("{name}: {}", error.message));
            assert!(!(set.env.is_empty() && set.git.is_empty()), "{name} is to be found by its tools");
        }
    }

    #[test]
    fn a_preset_for_a_model_says_where_its_key_goes_and_where_clients_look_for_it() {
        let models = [
            ("openai", "api.openai.com as bearer", "OPENAI_API_KEY"),
            ("anthropic", "api.anthropic.com as x-api-key", "ANTHROPIC_API_KEY"),
            ("gemini", "generativelanguage.googleapis.com as header x-goog-api-key", "GEMINI_API_KEY"),
            ("openrouter", "openrouter.ai/api/** as bearer", "OPENROUTER_API_KEY"),
            ("mistral", "api.mistral.ai as bearer", "MISTRAL_API_KEY"),
            ("deepseek", "api.deepseek.com as bearer", "DEEPSEEK_API_KEY"),
            ("groq", "api.groq.com as bearer", "GROQ_API_KEY"),
            ("xai", "api.x.ai as bearer", "XAI_API_KEY"),
        ];
        for (name, first_use, variable) in models {
            let mut set = set(&[name]);
            expand("KEY", &mut set);
            assert_eq!(set.uses.first().map(String::as_str), Some(first_use), "{name}");
            assert_eq!(set.env, [variable], "{name}");
            assert!(set.literal_bodies, "{name}: what an agent printed is part of what a model is sent");
        }
    }

    #[test]
    fn a_secret_named_like_a_variable_is_one_unless_its_definition_differs() {
        let mut plain = set(&["api.test as bearer"]);
        expand("API_KEY", &mut plain);
        assert_eq!(plain.env, ["API_KEY"]);
        let mut other = set(&["api.test as bearer"]);
        other.env = vec!["OTHER".to_owned()];
        expand("API_KEY", &mut other);
        assert_eq!(other.env, ["OTHER"]);
    }

    #[test]
    fn odd_places_are_refused() {
        let with = |change: fn(&mut SecretSet)| {
            let mut set = set(&["api.test as bearer", "git.test/x as header x-own"]);
            change(&mut set);
            check(&set)
        };
        with(|set| set.git.push("api.test".to_owned())).unwrap();
        for change in [
            (|set| set.env.push("LD_PRELOAD".to_owned())) as fn(&mut SecretSet),
            |set| set.env.push("A=B".to_owned()),
            |set| set.env.push("BAY_ID".to_owned()),
            |set| set.git.push("git.test".to_owned()),
            |set| set.git.push("other.test".to_owned()),
            |set| set.git.push("a b".to_owned()),
            |set| set.files.push(SecretFile { path: "/proc/self/x".to_owned(), text: "{}".to_owned() }),
            |set| set.files.push(SecretFile { path: "/root/../x".to_owned(), text: "{}".to_owned() }),
            |set| set.files.push(SecretFile { path: "relative".to_owned(), text: "{}".to_owned() }),
            |set| set.files.push(SecretFile { path: "/root/x".to_owned(), text: "none".to_owned() }),
            |set| set.uses.push("http://api.test as bearer".to_owned()),
            |set| set.uses.push("*.test as bearer".to_owned()),
            |set| set.uses.push("api.test".to_owned()),
            |set| set.uses.push("api.test as cookie".to_owned()),
            |set| set.uses.push("api.test as header host".to_owned()),
            |set| set.uses.clear(),
        ] {
            assert_eq!(with(change).unwrap_err().code, ErrorCode::SecretInvalid);
        }
    }
}
