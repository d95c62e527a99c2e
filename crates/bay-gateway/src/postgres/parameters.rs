//! The startup parameters that a client may send. All others are refused, because a parameter can turn the connection
//! into one that the secret is not for.
//!
//! With `replication` PostgreSQL makes the client a replica, which reads the files of every database, whatever
//! `database` says. All other names but `user`, `database` and `options` are settings. A client can change most
//! settings in SQL too. Some have effect only here: they load a library or turn a check off before the first query.

use super::wire::Failed;

const NOT_PRIVILEGED: &str = "42501";
/// The user and the database.
const LOGIN: [&str; 2] = ["user", "database"];
const OPTIONS: &str = "options";
const REPLICATION: &str = "replication";
/// Values of `replication` for a client that is not a replica.
const NO_REPLICA: [&str; 6] = ["false", "off", "no", "0", "f", "n"];
/// Settings that clients and drivers send with a login, in lower case. A session can also change each of them in SQL.
const SETTINGS: [&str; 21] = [
    "application_name",
    "bytea_output",
    "client_encoding",
    "client_min_messages",
    "datestyle",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "extra_float_digits",
    "geqo",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "intervalstyle",
    "lock_timeout",
    "role",
    "row_security",
    "search_path",
    "standard_conforming_strings",
    "statement_timeout",
    "timezone",
    "transaction_timeout",
    "work_mem",
];

/// The parameters for the database, or the error for the client.
pub(super) fn checked(
    parameters: &[(String, String)],
    may_replicate: bool,
) -> Result<Vec<(String, String)>, Failed> {
    let mut passed = Vec::with_capacity(parameters.len());
    for (name, value) in parameters {
        match name.as_str() {
            REPLICATION if NO_REPLICA.contains(&value.as_str()) => continue,
            REPLICATION if !may_replicate => {
                return Err(refused(
                    "the connection asks for replication, which reads every database, and the secret is not for that",
                    "connect without `replication`, or have the operator set the secret for `HOST as postgres USER with replication`",
                ));
            }
            REPLICATION => {}
            OPTIONS => options(value)?,
            name if LOGIN.contains(&name) || is_setting(name) => {}
            name => {
                return Err(refused(
                    format!("the connection sets {:?}, which no login with a secret may", shown(name)),
                    "leave it out of the connection, and SET it in SQL if the database allows that",
                ));
            }
        }
        passed.push((name.clone(), value.clone()));
    }
    Ok(passed)
}

fn refused(message: impl Into<String>, next: &str) -> Failed {
    Failed::new(NOT_PRIVILEGED, message, next)
}

fn is_setting(name: &str) -> bool {
    SETTINGS.contains(&name.to_ascii_lowercase().as_str())
}

/// A name from the client, shortened and printable.
fn shown(name: &str) -> String {
    name.chars().filter(|char| !char.is_control()).take(64).collect()
}

/// Checks command-line arguments for the database's process. Only settings are allowed: `-c NAME=VALUE` and
/// `--NAME=VALUE`.
fn options(text: &str) -> Result<(), Failed> {
    let mut words = words(text).into_iter();
    while let Some(word) = words.next() {
        let setting = match word.strip_prefix("--") {
            Some(rest) => Some(rest.to_owned()),
            None => match word.strip_prefix("-c") {
                Some("") => words.next(),
                Some(rest) => Some(rest.to_owned()),
                None => None,
            },
        };
        // The database reads a hyphen in a name as an underscore.
        let name =
            setting.as_deref().and_then(|text| text.split_once('=')).map(|(name, _)| name.replace('-', "_"));
        if !name.as_deref().is_some_and(is_setting) {
            return Err(refused(
                format!(
                    "the connection has {:?} in its options, which no login with a secret may",
                    shown(setting.as_deref().unwrap_or(&word))
                ),
                "leave it out, and SET it in SQL if the database allows that; `-c search_path=…` and the like are passed on",
            ));
        }
    }
    Ok(())
}

/// Splits at white space as the database does. A backslash escapes the next character.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut within, mut escaped) = (Vec::new(), String::new(), false, false);
    for char in text.chars() {
        match char {
            _ if escaped => {
                word.push(char);
                escaped = false;
            }
            '\\' => (escaped, within) = (true, true),
            // The characters of the database's own `isspace`.
            ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}' => {
                if std::mem::take(&mut within) {
                    words.push(std::mem::take(&mut word));
                }
            }
            _ => {
                word.push(char);
                within = true;
            }
        }
    }
    if within {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pairs: &[(&str, &str)], may_replicate: bool) -> Result<Vec<String>, String> {
        let pairs: Vec<_> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let passed = checked(&pairs, may_replicate).map_err(|failed| failed.message)?;
        Ok(passed.into_iter().map(|(name, _)| name).collect())
    }

    #[test]
    fn what_clients_send_is_passed_on_and_nothing_else() {
        let usual = [
            ("user", "app"),
            ("database", "app"),
            ("application_name", "psql"),
            ("client_encoding", "UTF8"),
            ("DateStyle", "ISO"),
            ("TimeZone", "UTC"),
            ("extra_float_digits", "2"),
            ("search_path", "own"),
            ("options", "-c search_path=own\\ one --statement-timeout=5s -cgeqo=off"),
        ];
        assert_eq!(check(&usual, false).unwrap().len(), usual.len());
        for name in [
            "session_preload_libraries",
            "local_preload_libraries",
            "ignore_system_indexes",
            "Replication",
            "User",
            "x",
            "",
        ] {
            assert!(check(&[("user", "app"), (name, "x")], true).is_err(), "{name}");
        }
    }

    #[test]
    fn pg_replication_only_a_secret_that_says_so_is_for_replicas() {
        for value in ["true", "on", "yes", "1", "database", "t", "TRUE", "tr", "", "False", "anything"] {
            assert!(check(&[("user", "app"), ("replication", value)], false).is_err(), "{value}");
            assert_eq!(
                check(&[("user", "app"), ("replication", value)], true).unwrap(),
                ["user", "replication"]
            );
        }
        // These values have no effect and are not passed on.
        assert_eq!(check(&[("user", "app"), ("replication", "false")], false).unwrap(), ["user"]);
    }

    #[test]
    fn pg_options_have_settings_and_no_other_arguments() {
        for odd in [
            "-c",
            "-c replication=true",
            "-c session_preload_libraries=x",
            "--local-preload-libraries=x",
            "-d 5",
            "-W 100",
            "-O",
            "-P",
            "-fs",
            "endpoint=other",
            "-c\\ search_path=x",
            "search_path=x",
            "--search_path",
            "-c search_path",
            "- c search_path=x",
        ] {
            assert!(check(&[("options", odd)], true).is_err(), "{odd}");
        }
        assert!(check(&[("options", "")], false).is_ok());
        assert!(check(&[("options", " \t-c  search_path=a\\ b ")], false).is_ok());
    }
}
