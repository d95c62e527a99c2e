//! Words that people type because other tools have them, and what they mean here.
//!
//! The one table of these words is [`WORDS`]; [`INNER`] has those of nested commands, such as `bay images list`. A word
//! that means the same as a command becomes that command. For any other word the error names the command that does what
//! the person probably wants, with the person's own arguments.
//!
//! The table is consulted only for lines that the grammar refuses, so a word never hides a command.

use bay_text::shell::quoted;

/// What follows a word on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Given {
    /// No argument but flags.
    Nothing,
    /// First a directory or an address.
    Place,
    /// One argument, beside flags.
    One,
    Anything,
}

/// What a word means here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The same as these words of the grammar.
    Same(&'static str),
    /// Something else. The error says why, and names the command.
    Instead {
        /// `NAME` and `PLACE` are replaced by the first argument, `EXEC` by the second, `CMD…` by what follows the first,
        /// and `NAME…` by all.
        command: &'static str,
        why: &'static str,
    },
}

/// Words with the same meanings. The first meaning applies that fits what follows.
pub(crate) struct Words {
    pub(crate) words: &'static [&'static str],
    pub(crate) meanings: &'static [(Given, Meaning)],
}

const fn typed(words: &'static [&'static str], meanings: &'static [(Given, Meaning)]) -> Words {
    Words { words, meanings }
}

use Given::{Anything, Nothing, One, Place};
use Meaning::{Instead, Same};

pub(crate) const WORDS: &[Words] = &[
    // Lists and states.
    typed(&["bays", "containers"], &[(Anything, Same("ls"))]),
    typed(&["ps"], &[(Nothing, Same("ls")), (Anything, Same("execs ls"))]),
    typed(&["status", "state", "get"], &[(Nothing, Same("ls")), (Anything, Same("show"))]),
    typed(&["inspect", "info", "describe", "details"], &[(Nothing, Same("ls")), (Anything, Same("show"))]),
    typed(&["stats", "usage", "htop", "monitor"], &[(Anything, Same("top"))]),
    typed(&["du", "disk", "space"], &[(Anything, Same("df"))]),
    typed(&["version"], &[(Anything, Same("--version"))]),
    // Making and removing.
    typed(
        &["create", "new", "launch", "spawn"],
        &[
            (Nothing, Same("up")),
            (Place, Same("up")),
            (
                Anything,
                Instead {
                    command: "bay up --name NAME",
                    why: "a bay is made with `bay up`, whose argument is a directory or an address; the name is a flag",
                },
            ),
        ],
    ),
    typed(
        &["init"],
        &[
            (
                Place,
                Instead {
                    command: "bay up PLACE",
                    why: "a directory needs no preparation: `bay up` makes a bay for it",
                },
            ),
            (
                Anything,
                Instead {
                    command: "bay up",
                    why: "a directory needs no preparation: `bay up` makes a bay for it",
                },
            ),
        ],
    ),
    typed(
        &["clone", "duplicate"],
        &[
            (
                Place,
                Instead {
                    command: "bay up PLACE",
                    why: "`bay up` clones a repository, once for all bays, and makes a bay with it",
                },
            ),
            (Anything, Instead { command: "bay fork NAME", why: "a copy of a bay is a fork" }),
        ],
    ),
    typed(
        &["rename", "mv"],
        &[(
            Anything,
            Instead {
                command: "bay fork NAME --name NEW",
                why: "a bay keeps its name; a fork is a copy with another one",
            },
        )],
    ),
    typed(&["delete", "remove", "destroy", "del", "erase"], &[(Anything, Same("rm"))]),
    // Running and looking inside.
    typed(
        &["run"],
        &[
            (
                Place,
                Instead {
                    command: "bay up PLACE -- CMD…",
                    why: "a command runs in a bay: `bay up` makes one and runs it there, `bay exec` runs it in an existing one",
                },
            ),
            (
                Anything,
                Instead {
                    command: "bay exec NAME -- CMD…",
                    why: "a command runs in an existing bay with `bay exec`; `bay up . -- CMD` makes a bay for it",
                },
            ),
        ],
    ),
    typed(&["execute"], &[(Anything, Same("exec"))]),
    typed(
        &["ssh", "enter", "console", "connect", "bash", "zsh", "terminal"],
        &[(Nothing, Same("shell")), (One, Same("shell")), (Anything, Same("exec"))],
    ),
    typed(
        &["login", "logout", "auth"],
        &[(
            Anything,
            Instead {
                command: "bay shell NAME",
                why: "nothing logs in to Workbay: `bay shell` enters a bay, `bay secret set` gives bays a credential",
            },
        )],
    ),
    typed(&["commands", "jobs", "processes"], &[(Anything, Same("execs ls"))]),
    typed(&["log", "output"], &[(Anything, Same("logs"))]),
    typed(&["tail"], &[(Anything, Same("logs --follow"))]),
    typed(
        &["wait", "follow"],
        &[(
            Anything,
            Instead {
                command: "bay timeline NAME --follow",
                why: "the events of a bay can be followed as they happen",
            },
        )],
    ),
    // States of a bay.
    typed(
        &["restart", "reboot", "reload"],
        &[(
            Anything,
            Instead {
                command: "bay stop NAME… && bay start NAME…",
                why: "a restart is a stop and a start; for a service it is `bay services restart`",
            },
        )],
    ),
    typed(&["halt", "shutdown", "poweroff"], &[(Anything, Same("stop"))]),
    typed(
        &["kill-bay", "down", "killall", "terminate"],
        &[(
            Anything,
            Instead {
                command: "bay stop NAME…",
                why: "`bay stop` ends all processes of a bay and keeps its files; `bay rm` deletes the bay",
            },
        )],
    ),
    typed(&["boot"], &[(Anything, Same("start"))]),
    typed(&["suspend", "freeze"], &[(Anything, Same("pause"))]),
    typed(&["hibernate"], &[(Anything, Same("pause --to-disk"))]),
    typed(&["unpause", "unfreeze", "thaw", "wake", "continue"], &[(Anything, Same("resume"))]),
    typed(
        &["update", "config", "configure", "edit", "limit", "limits", "resize"],
        &[(
            Anything,
            Instead {
                command: "bay set NAME --memory-mib 4G",
                why: "what can be changed about a bay are its limits; `bay set --help` lists them",
            },
        )],
    ),
    typed(
        &["reset", "rebuild", "recreate", "refresh"],
        &[(
            Anything,
            Instead {
                command: "bay replace NAME…",
                why: "`bay replace` gives a bay a fresh root filesystem and keeps the workspace; `bay restore` returns to a checkpoint",
            },
        )],
    ),
    // Points in a bay's life, and its work.
    typed(&["snapshot"], &[(Anything, Same("checkpoint"))]),
    typed(
        &["snapshots"],
        &[(
            Anything,
            Instead {
                command: "bay checkpoints ls NAME",
                why: "the kept points of a bay are its checkpoints",
            },
        )],
    ),
    typed(
        &["save", "commit"],
        &[(
            Anything,
            Instead {
                command: "bay checkpoint NAME",
                why: "the state of a bay is kept as a checkpoint; its work leaves as a branch (`bay branch`)",
            },
        )],
    ),
    typed(&["rollback", "revert", "undo"], &[(Anything, Same("restore"))]),
    typed(&["changes", "patch"], &[(Anything, Same("diff"))]),
    typed(&["copy", "scp", "download", "upload"], &[(Anything, Same("cp"))]),
    typed(
        &["push", "publish"],
        &[(
            Anything,
            Instead {
                command: "bay branch NAME --push origin BRANCH",
                why: "the work of a bay leaves as a branch",
            },
        )],
    ),
    typed(
        &["merge", "export", "fetch"],
        &[(
            Anything,
            Instead {
                command: "bay branch NAME BRANCH",
                why: "the work of a bay leaves as a branch of your repository, or as a bundle (`bay bundle`)",
            },
        )],
    ),
    typed(&["summary", "report"], &[(Anything, Same("story"))]),
    typed(&["history", "events", "journal"], &[(Anything, Same("timeline"))]),
    // Images.
    typed(
        &["pull"],
        &[(
            Anything,
            Instead {
                command: "bay images import tar:FILE",
                why: "images come from no registry: they are the host's tools, a directory, or an archive that `docker export` wrote",
            },
        )],
    ),
    typed(
        &["build"],
        &[(
            Anything,
            Instead {
                command: "bay images import tar:FILE",
                why: "images are not built here: they are the host's tools, a directory, or an archive that `docker export` wrote",
            },
        )],
    ),
    typed(&["import", "load"], &[(Anything, Same("images import"))]),
    typed(
        &["prune", "gc", "cleanup", "clean"],
        &[(
            Anything,
            Instead {
                command: "bay images prune",
                why: "`bay df` shows what takes the space, and what removing each thing frees",
            },
        )],
    ),
    // The network, and who may do what.
    typed(
        &["port-forward", "portforward", "tunnel", "expose", "proxy"],
        &[(
            Anything,
            Instead {
                command: "bay forward NAME CMD…",
                why: "ports are forwarded with `bay forward`, where the bay's port comes first: PORT[:HOST_PORT]",
            },
        )],
    ),
    typed(
        &["open", "browse"],
        &[(
            Anything,
            Instead {
                command: "bay forward NAME --all",
                why: "`bay forward` makes the ports of a bay reachable, and prints their addresses",
            },
        )],
    ),
    typed(&["network", "net", "traffic", "requests"], &[(Anything, Same("egress"))]),
    typed(&["approve", "allow"], &[(Nothing, Same("approvals")), (Anything, Same("approvals allow"))]),
    typed(&["deny", "reject"], &[(Nothing, Same("approvals")), (Anything, Same("approvals deny"))]),
    // The other number of a noun.
    typed(&["image"], &[(Anything, Same("images"))]),
    typed(&["secrets", "credentials"], &[(Anything, Same("secret"))]),
    typed(&["service"], &[(Anything, Same("services"))]),
    typed(&["repo", "repository", "repositories"], &[(Anything, Same("repos"))]),
    typed(&["workspace"], &[(Anything, Same("workspaces"))]),
    typed(
        &["volume", "volumes"],
        &[(
            Anything,
            Instead { command: "bay workspaces ls", why: "the files that outlive a bay are kept workspaces" },
        )],
    ),
    typed(&["policies"], &[(Anything, Same("policy"))]),
    typed(&["grant"], &[(Anything, Same("grants"))]),
    typed(&["approval"], &[(Anything, Same("approvals"))]),
    typed(&["port"], &[(Anything, Same("ports"))]),
    typed(&["backend", "runtimes"], &[(Anything, Same("backends"))]),
    typed(&["webhook", "webhooks"], &[(Anything, Same("notify"))]),
    // The program itself.
    typed(
        &["daemon", "server", "start-daemon"],
        &[(
            Anything,
            Instead {
                command: "bay serve",
                why: "`bay serve` is the daemon; other commands start it by themselves",
            },
        )],
    ),
    typed(&["diagnose", "check", "preflight"], &[(Anything, Same("doctor"))]),
    typed(
        &["setup"],
        &[(
            Anything,
            Instead {
                command: "bay install",
                why: "`bay install` sets Workbay up for all users of this host",
            },
        )],
    ),
    typed(&["completion"], &[(Anything, Same("completions"))]),
    typed(&["man", "docs"], &[(Anything, Same("help"))]),
];

/// Words that a nested command may have another word for. The first applies whose command exists there.
pub(crate) const INNER: &[(&[&str], &str)] = &[
    (&["list", "all", "ps", "status"], "ls"),
    (&["remove", "delete", "del", "destroy", "unset"], "rm"),
    (&["inspect", "info", "get", "describe", "cat"], "show"),
    (&["create", "new", "define", "allow"], "add"),
    (&["create", "new", "add", "update", "put", "store"], "set"),
    (&["pull", "load", "add", "create", "build"], "import"),
    (&["gc", "clean", "cleanup"], "prune"),
    (&["fetch", "update", "pull", "refresh"], "sync"),
    (&["log", "tail", "output"], "logs"),
    (&["reload", "reboot"], "restart"),
    (&["kill", "down"], "stop"),
    (&["run", "up"], "start"),
    (&["approve", "accept", "yes", "grant"], "allow"),
    (&["reject", "refuse", "no"], "deny"),
    (&["check", "validate"], "lint"),
    (&["validate", "test"], "check"),
    (&["why"], "explain"),
    (&["apply", "use"], "set"),
    (&["check"], "verify"),
];

/// The meaning of a word before these arguments.
pub(crate) fn meaning(word: &str, arguments: &[String]) -> Option<Meaning> {
    let operands = operands(arguments);
    let fits = |given: Given| match given {
        Nothing => operands.is_empty(),
        Place => operands.first().is_some_and(|first| is_place(first)),
        One => operands.len() == 1,
        Anything => true,
    };
    let known = WORDS.iter().find(|known| known.words.contains(&word))?;
    known.meanings.iter().find(|(given, _)| fits(*given)).map(|(_, meaning)| *meaning)
}

/// The command, among those of a nested level, that a word means.
pub(crate) fn inner(word: &str, has: impl Fn(&str) -> bool) -> Option<&'static str> {
    let mut known = INNER.iter().filter(|(words, _)| words.contains(&word)).map(|(_, command)| *command);
    known.find(|command| has(command))
}

/// Every word of the table.
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    WORDS.iter().flat_map(|known| known.words.iter().copied())
}

/// A command of the table with the person's own arguments in place of the names in capitals.
pub(crate) fn filled(command: &str, arguments: &[String]) -> String {
    let operands = operands(arguments);
    let one = |at: usize, name: &str| operands.get(at).map_or_else(|| name.to_owned(), |given| quoted(given));
    let from = |at: usize, name: &str| match operands.get(at..) {
        Some(rest) if !rest.is_empty() => {
            rest.iter().map(|given| quoted(given)).collect::<Vec<_>>().join(" ")
        }
        _ => name.to_owned(),
    };
    let word = |word: &str| match word {
        "NAME" | "PLACE" => one(0, word),
        "EXEC" => one(1, word),
        "NAME…" => from(0, "NAME"),
        "CMD…" if command.starts_with("bay forward") => from(1, "PORT"),
        "CMD…" => from(1, "CMD"),
        other => other.to_owned(),
    };
    command.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// The arguments from the first that is no flag. What follows a command belongs to it, flags too.
fn operands(arguments: &[String]) -> Vec<String> {
    let from = arguments.iter().position(|argument| !argument.starts_with('-')).unwrap_or(arguments.len());
    let mut operands = arguments[from..].to_vec();
    // In `web -- make test` the command begins after the two dashes.
    if operands.get(1).is_some_and(|argument| argument == "--") {
        operands.remove(1);
    }
    operands
}

/// Whether an argument can only be a directory or an address of a repository, and no name of a bay.
fn is_place(argument: &str) -> bool {
    argument.contains(['/', ':', '~']) || argument.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_word_may_mean_something_else_with_other_arguments() {
        assert_eq!(meaning("ps", &[]), Some(Same("ls")));
        assert_eq!(meaning("ps", &line(&["-a"])), Some(Same("ls")));
        assert_eq!(meaning("ps", &line(&["web"])), Some(Same("execs ls")));
        assert_eq!(meaning("ssh", &line(&["web"])), Some(Same("shell")));
        assert_eq!(meaning("ssh", &line(&["web", "ls", "-la"])), Some(Same("exec")));
        assert_eq!(meaning("create", &line(&["."])), Some(Same("up")));
        assert!(matches!(meaning("create", &line(&["web"])), Some(Instead { .. })));
        assert_eq!(meaning("nonsense", &[]), None);
    }

    #[test]
    fn a_command_is_filled_with_the_persons_own_arguments() {
        let run = "bay exec NAME -- CMD…";
        assert_eq!(filled(run, &[]), "bay exec NAME -- CMD");
        assert_eq!(filled(run, &line(&["web"])), "bay exec web -- CMD");
        assert_eq!(
            filled(run, &line(&["-it", "web", "--", "sh", "-c", "a b"])),
            "bay exec web -- sh -c 'a b'"
        );
        assert_eq!(
            filled("bay stop NAME… && bay start NAME…", &line(&["a", "b"])),
            "bay stop a b && bay start a b"
        );
        assert_eq!(filled("bay logs NAME EXEC --follow", &line(&["web", "3"])), "bay logs web 3 --follow");
    }

    #[test]
    fn no_word_is_in_the_table_twice() {
        let words: Vec<&str> = all().collect();
        for (at, word) in words.iter().enumerate() {
            assert!(!words[at + 1..].contains(word), "{word}");
        }
    }
}
