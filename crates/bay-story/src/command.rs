//! What kind of work a command is, by rule, from its words alone.
//!
//! The rules know the usual tools. Any other command is [`Work::Other`], labelled with the name of its program. An agent
//! chooses the words, so a label is a description and no proof.

use bay_types::story::Work;

use crate::text::safe;

/// The most characters of a label.
pub const LABEL: usize = 48;
/// The most bytes of a script that are read.
const SCRIPT: usize = 4096;
/// The most commands of a script that are read.
const PARTS: usize = 32;
/// The most wrappers (`sudo env timeout 5 sh -c …`) that are taken off.
const WRAPPERS: usize = 8;

/// A command, as a person would call it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// `cargo test`, `pip install`, `curl`. It is safe to show.
    pub label: String,
    pub work: Work,
}

/// Programs whose first argument says what they do.
const WITH_VERBS: &[&str] = &[
    "apk",
    "apt",
    "apt-get",
    "bazel",
    "brew",
    "bun",
    "bundle",
    "cargo",
    "cmake",
    "composer",
    "deno",
    "dnf",
    "docker",
    "dotnet",
    "gem",
    "gh",
    "git",
    "go",
    "gradle",
    "gradlew",
    "just",
    "kubectl",
    "make",
    "mix",
    "mvn",
    "mvnw",
    "npm",
    "npx",
    "pdm",
    "pip",
    "pip3",
    "pnpm",
    "podman",
    "poetry",
    "rustup",
    "systemctl",
    "terraform",
    "uv",
    "yarn",
    "yum",
];
/// Programs of which only the program matters, by what they do.
const PROGRAMS: &[(&str, Work)] = &[
    ("pytest", Work::Testing),
    ("py.test", Work::Testing),
    ("jest", Work::Testing),
    ("vitest", Work::Testing),
    ("mocha", Work::Testing),
    ("rspec", Work::Testing),
    ("tox", Work::Testing),
    ("nox", Work::Testing),
    ("ctest", Work::Testing),
    ("phpunit", Work::Testing),
    ("playwright", Work::Testing),
    ("cypress", Work::Testing),
    ("make", Work::Building),
    ("ninja", Work::Building),
    ("cmake", Work::Building),
    ("meson", Work::Building),
    ("gcc", Work::Building),
    ("g++", Work::Building),
    ("cc", Work::Building),
    ("c++", Work::Building),
    ("clang", Work::Building),
    ("clang++", Work::Building),
    ("rustc", Work::Building),
    ("javac", Work::Building),
    ("tsc", Work::Building),
    ("webpack", Work::Building),
    ("vite", Work::Building),
    ("esbuild", Work::Building),
    ("bazel", Work::Building),
    ("mvn", Work::Building),
    ("mvnw", Work::Building),
    ("gradle", Work::Building),
    ("gradlew", Work::Building),
    ("curl", Work::Network),
    ("wget", Work::Network),
    ("ssh", Work::Network),
    ("scp", Work::Network),
    ("rsync", Work::Network),
    ("gh", Work::Network),
    ("claude", Work::Agent),
    ("codex", Work::Agent),
    ("gemini", Work::Agent),
    ("aider", Work::Agent),
    ("opencode", Work::Agent),
    ("goose", Work::Agent),
    ("amp", Work::Agent),
    ("cursor-agent", Work::Agent),
    ("copilot", Work::Agent),
    ("qwen", Work::Agent),
    ("crush", Work::Agent),
    ("droid", Work::Agent),
    ("openhands", Work::Agent),
];
/// Tools with verbs: which verbs are which work. A verb that is not listed has the work of its program.
const VERBS: &[(&str, &[&str], Work)] = &[
    ("cargo", &["test", "nextest", "bench"], Work::Testing),
    ("cargo", &["build", "check", "clippy", "doc", "run"], Work::Building),
    ("cargo", &["fetch", "install", "add", "update"], Work::Installing),
    ("npm", &["test", "t"], Work::Testing),
    ("npm", &["ci", "install", "i", "update", "add"], Work::Installing),
    ("pnpm", &["test", "t"], Work::Testing),
    ("pnpm", &["install", "i", "add", "update"], Work::Installing),
    ("yarn", &["test"], Work::Testing),
    ("yarn", &["install", "add", "upgrade"], Work::Installing),
    ("bun", &["test"], Work::Testing),
    ("bun", &["install", "i", "add"], Work::Installing),
    ("bun", &["build"], Work::Building),
    ("deno", &["test"], Work::Testing),
    ("deno", &["cache", "install"], Work::Installing),
    ("go", &["test"], Work::Testing),
    ("go", &["build", "vet", "generate", "run"], Work::Building),
    ("go", &["get", "install", "mod"], Work::Installing),
    ("pip", &["install", "download", "wheel"], Work::Installing),
    ("pip3", &["install", "download", "wheel"], Work::Installing),
    ("uv", &["pip", "sync", "add", "venv", "lock"], Work::Installing),
    ("poetry", &["install", "add", "update", "lock"], Work::Installing),
    ("pdm", &["install", "add", "sync"], Work::Installing),
    ("apt", &["install", "update", "upgrade"], Work::Installing),
    ("apt-get", &["install", "update", "upgrade", "dist-upgrade"], Work::Installing),
    ("apk", &["add", "update"], Work::Installing),
    ("dnf", &["install"], Work::Installing),
    ("yum", &["install"], Work::Installing),
    ("brew", &["install"], Work::Installing),
    ("gem", &["install"], Work::Installing),
    ("bundle", &["install", "update"], Work::Installing),
    ("composer", &["install", "require", "update"], Work::Installing),
    ("rustup", &["install", "toolchain", "component", "target", "update"], Work::Installing),
    ("docker", &["build", "buildx"], Work::Building),
    ("docker", &["pull", "push"], Work::Network),
    ("podman", &["build"], Work::Building),
    ("dotnet", &["test"], Work::Testing),
    ("dotnet", &["build", "publish"], Work::Building),
    ("dotnet", &["restore"], Work::Installing),
    ("mvn", &["test", "verify"], Work::Testing),
    ("mvnw", &["test", "verify"], Work::Testing),
    ("gradle", &["test", "check"], Work::Testing),
    ("gradlew", &["test", "check"], Work::Testing),
    ("bazel", &["test"], Work::Testing),
    ("mix", &["test"], Work::Testing),
    ("mix", &["compile"], Work::Building),
    ("mix", &["deps.get"], Work::Installing),
    ("make", &["test", "check", "tests"], Work::Testing),
    ("make", &["install-deps", "deps"], Work::Installing),
    ("just", &["test", "check"], Work::Testing),
    ("just", &["build"], Work::Building),
    ("git", &["clone", "fetch", "pull", "push", "ls-remote"], Work::Network),
];

/// What a command is.
#[must_use]
pub fn classify(argv: &[String]) -> Command {
    let words: Vec<&str> = argv.iter().take(PARTS * 2).map(String::as_str).collect();
    of_words(&words, 0)
}

/// The rules of one simple command, after its wrappers are taken off.
fn of_words(words: &[&str], depth: usize) -> Command {
    let words = unwrapped(words);
    let Some((program, rest)) = words.split_first() else {
        return Command { label: "(no command)".to_owned(), work: Work::Other };
    };
    let program = file_name(program);
    if is_shell(program) {
        return match script_of(rest) {
            Some(script) if depth < WRAPPERS => of_script(script, depth + 1),
            Some(_) => labelled(program, None, Work::Other),
            None => match rest.iter().find(|word| !word.starts_with('-')) {
                Some(file) => labelled(file_name(file), None, Work::Other),
                None => labelled(program, None, Work::Shell),
            },
        };
    }
    if let Some(module) = module_of(program, rest) {
        return of_module(program, module, rest, depth);
    }
    let verb = WITH_VERBS.contains(&program).then(|| verb_of(program, rest)).flatten();
    if program == "npx"
        && let Some(tool) = verb
    {
        return of_words(&[tool], depth);
    }
    if let ("uv" | "poetry" | "pdm" | "bundle", Some("run" | "exec")) = (program, verb)
        && depth < WRAPPERS
        && let Some(at) = rest.iter().position(|word| matches!(*word, "run" | "exec"))
        && !rest[at + 1..].is_empty()
    {
        return of_words(&rest[at + 1..], depth + 1);
    }
    if let ("npm" | "pnpm" | "yarn" | "bun", Some("run" | "run-script")) = (program, verb) {
        return of_package_script(program, rest);
    }
    // `yarn` alone installs.
    if program == "yarn" && verb.is_none() {
        return labelled("yarn install", None, Work::Installing);
    }
    let by_verb = verb.and_then(|verb| {
        VERBS.iter().find(|(tool, verbs, _)| *tool == program && verbs.contains(&verb)).map(|found| found.2)
    });
    let work = by_verb
        .or_else(|| PROGRAMS.iter().find(|(name, _)| *name == program).map(|found| found.1))
        .unwrap_or(Work::Other);
    labelled(program, verb, work)
}

fn labelled(program: &str, verb: Option<&str>, work: Work) -> Command {
    let label = match verb {
        Some(verb) => format!("{program} {verb}"),
        None => program.to_owned(),
    };
    let label = safe(&label, LABEL);
    Command { label: if label.is_empty() { "(no name)".to_owned() } else { label }, work }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn is_shell(program: &str) -> bool {
    matches!(program, "sh" | "bash" | "dash" | "zsh" | "ash" | "fish" | "-bash" | "-sh")
}

/// The script of `sh -c SCRIPT`, `bash -lc SCRIPT`.
fn script_of<'a>(rest: &[&'a str]) -> Option<&'a str> {
    let at = rest.iter().position(|word| {
        word.starts_with('-') && !word.starts_with("--") && word.ends_with('c') && word.len() <= 6
    })?;
    rest.get(at + 1).copied()
}

/// The module of `python -m MODULE`.
fn module_of<'a>(program: &str, rest: &[&'a str]) -> Option<&'a str> {
    if !program.starts_with("python") {
        return None;
    }
    let at = rest.iter().position(|word| *word == "-m")?;
    // Arguments of a script may contain `-m` too.
    rest[..at].iter().all(|word| word.starts_with('-')).then(|| rest.get(at + 1).copied())?
}

fn of_module(program: &str, module: &str, rest: &[&str], depth: usize) -> Command {
    let after = rest.iter().position(|word| *word == "-m").map_or(&[][..], |at| &rest[at + 1..]);
    match module {
        "pytest" | "pip" if depth < WRAPPERS => of_words(after, depth + 1),
        "unittest" => labelled("python -m unittest", None, Work::Testing),
        "venv" | "ensurepip" => labelled(&format!("python -m {module}"), None, Work::Installing),
        "build" | "compileall" => labelled(&format!("python -m {module}"), None, Work::Building),
        _ => labelled(program, Some(&format!("-m {module}")), Work::Other),
    }
}

/// A script of a package: `npm run test:unit`.
fn of_package_script(program: &str, rest: &[&str]) -> Command {
    let at = rest.iter().position(|word| matches!(*word, "run" | "run-script"));
    let script = at.and_then(|at| rest[at + 1..].iter().find(|word| !word.starts_with('-'))).copied();
    let work = match script.unwrap_or_default() {
        name if name.starts_with("test") || name.starts_with("e2e") => Work::Testing,
        name if name.starts_with("build") || name.starts_with("compile") => Work::Building,
        _ => Work::Other,
    };
    labelled(&format!("{program} run"), script, work)
}

/// The verb of a tool: its first argument that is no option.
fn verb_of<'a>(program: &str, rest: &[&'a str]) -> Option<&'a str> {
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        match *word {
            // Options of these tools that have a value.
            "-C" | "-c" | "--prefix" | "--manifest-path" | "--directory" | "-f" | "--git-dir" => {
                words.next();
            }
            // The number of jobs may be a word of its own.
            "-j" => {
                words.next();
            }
            toolchain if program == "cargo" && toolchain.starts_with('+') => {}
            option if option.starts_with('-') || option.contains('=') => {}
            verb => return Some(verb),
        }
    }
    None
}

/// The words without `sudo`, `env A=B`, `timeout 5` and the like.
fn unwrapped<'a, 'b>(mut words: &'b [&'a str]) -> &'b [&'a str] {
    for _ in 0..WRAPPERS {
        let Some((first, rest)) = words.split_first() else { return words };
        let is_assignment = first.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        });
        let skipped = match file_name(first) {
            _ if is_assignment => 0,
            "sudo" | "nohup" | "time" | "exec" | "command" | "setsid" | "xvfb-run" | "env" | "stdbuf"
            | "nice" | "ionice" | "unbuffer" => options(rest, 0),
            "timeout" => options(rest, 1),
            _ => return words,
        };
        // A wrapper of nothing is the command itself.
        let Some(inner) = rest.get(skipped..).filter(|inner| !inner.is_empty()) else { return words };
        words = inner;
    }
    words
}

/// How many words are options, and then `values` values.
fn options(words: &[&str], values: usize) -> usize {
    words.iter().take_while(|word| word.starts_with('-')).count() + values
}

/// The most telling command of a script: a test before a build, a build before an install, and so on.
fn of_script(script: &str, depth: usize) -> Command {
    let end = (0..=SCRIPT.min(script.len())).rev().find(|at| script.is_char_boundary(*at)).unwrap_or(0);
    let mut best: Option<Command> = None;
    for part in script[..end].split(['\n', ';', '|', '&', '(', ')', '{', '}']).take(PARTS) {
        let words: Vec<&str> = part
            .split_whitespace()
            .map(|word| word.trim_matches(['\'', '"', '`']))
            .filter(|word| !word.is_empty())
            .skip_while(|word| matches!(*word, "if" | "then" | "do" | "else" | "while" | "until" | "!"))
            .collect();
        let sets_up = matches!(
            words.first(),
            None | Some(
                &("cd" | "set" | "export" | "source" | "." | ":" | "true" | "for" | "done" | "fi" | "umask")
            )
        );
        // A part that is only an assignment runs nothing.
        if sets_up || words.iter().all(|word| word.contains('=') && !word.contains(' ')) {
            continue;
        }
        let found = of_words(&words, depth);
        if best.as_ref().is_none_or(|best| rank(found.work) > rank(best.work)) {
            best = Some(found);
        }
    }
    best.unwrap_or_else(|| {
        let first = script[..end].split_whitespace().next().unwrap_or("sh");
        labelled(first, None, Work::Other)
    })
}

/// How telling a kind of work is for a script.
fn rank(work: Work) -> u8 {
    match work {
        Work::Agent => 6,
        Work::Testing => 5,
        Work::Building => 4,
        Work::Installing => 3,
        Work::Network => 2,
        Work::Shell | Work::Other => 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(line: &[&str]) -> (String, Work) {
        let argv: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        let Command { label, work } = classify(&argv);
        (label, work)
    }

    #[track_caller]
    fn is(line: &[&str], label: &str, work: Work) {
        assert_eq!(of(line), (label.to_owned(), work), "{line:?}");
    }

    #[test]
    fn usual_tools_are_labelled_by_what_they_do() {
        is(&["cargo", "test", "--workspace"], "cargo test", Work::Testing);
        is(&["cargo", "+nightly", "-q", "build"], "cargo build", Work::Building);
        is(&["/usr/bin/pip", "install", "-q", "six"], "pip install", Work::Installing);
        is(&["python3", "-m", "pip", "install", "six"], "pip install", Work::Installing);
        is(&["python", "-m", "pytest", "-x"], "pytest", Work::Testing);
        is(&["npm", "ci"], "npm ci", Work::Installing);
        is(&["npm", "run", "test:unit"], "npm run test:unit", Work::Testing);
        is(&["yarn"], "yarn install", Work::Installing);
        is(&["make", "-j", "8"], "make", Work::Building);
        is(&["make", "CC=clang", "check"], "make check", Work::Testing);
        is(&["git", "-C", "/x", "push"], "git push", Work::Network);
        is(&["git", "status"], "git status", Work::Other);
        is(&["claude", "-p", "fix it"], "claude", Work::Agent);
        is(&["uv", "run", "pytest"], "pytest", Work::Testing);
        is(&["npx", "-y", "jest"], "jest", Work::Testing);
        is(&["./run.sh"], "run.sh", Work::Other);
    }

    #[test]
    fn wrappers_are_taken_off_and_scripts_are_looked_into() {
        is(&["sudo", "-E", "env", "A=b", "timeout", "60", "cargo", "test"], "cargo test", Work::Testing);
        is(&["bash", "-lc", "cd /workspace && npm ci && npm test 2>&1 | tail"], "npm test", Work::Testing);
        is(&["sh", "-c", "echo hi > f"], "echo", Work::Other);
        is(&["sh", "-c", "exit 3"], "exit", Work::Other);
        is(&["bash", "-c", "A=1\nB=2"], "A=1", Work::Other);
        is(&["bash"], "bash", Work::Shell);
        is(&["bash", "deploy.sh"], "deploy.sh", Work::Other);
        is(&["timeout", "5"], "timeout", Work::Other);
        is(&["python", "x.py", "-m", "pytest"], "python", Work::Other);
    }

    #[test]
    fn a_hostile_name_is_safe_and_short() {
        let (label, work) = of(&["\u{1b}]0;evil\u{7}", "x"]);
        assert!(!label.chars().any(char::is_control) && !label.is_empty(), "{label:?}");
        assert_eq!(work, Work::Other);
        assert_eq!(of(&[]).0, "(no command)");
        assert_eq!(of(&[""]).0, "(no name)");
        assert!(of(&[&"x".repeat(9000)]).0.chars().count() <= LABEL + 1);
    }

    proptest! {
        #[test]
        fn any_command_has_a_safe_label(argv in prop::collection::vec(
            prop_oneof!["\\PC{0,12}", any::<String>(), Just("sh".to_owned()), Just("-c".to_owned()), Just("env".to_owned()),
                Just("npx".to_owned()), Just("python".to_owned()), Just("-m".to_owned()), Just("uv".to_owned()), Just("run".to_owned())],
            0..8,
        )) {
            let found = classify(&argv);
            prop_assert!(!found.label.is_empty() && found.label.chars().count() <= LABEL + 1, "{:?}", found.label);
            prop_assert!(!found.label.chars().any(|c| c.is_control()), "{:?}", found.label);
        }
    }
}
