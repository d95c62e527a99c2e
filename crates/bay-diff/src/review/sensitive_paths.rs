//! Files whose change always matters, recognised by their path.

use bay_types::diff::{Change, DiffEntry, Severity};

use super::Hit;
use crate::patch::{LineKind, patch_lines};

/// How a rule matches a path: in lower case, by whole components.
enum Pattern {
    /// A file of this name, anywhere.
    Name(&'static str),
    /// Anything in a directory of this name, anywhere.
    Under(&'static str),
    /// A file whose name ends with this, anywhere.
    Ending(&'static str),
    /// A file whose path ends with this.
    At(&'static str),
}

use Pattern::{At, Ending, Name, Under};

struct Rule {
    rule: &'static str,
    severity: Severity,
    why: &'static str,
    patterns: &'static [Pattern],
}

const RULES: &[Rule] = &[
    Rule {
        rule: "ci",
        severity: Severity::Warn,
        why: "a program of continuous integration: it runs elsewhere, with rights of its own",
        patterns: &[
            Under(".github/workflows"),
            Under(".github/actions"),
            Name(".gitlab-ci.yml"),
            Under(".gitlab/ci"),
            Under(".circleci"),
            Under(".buildkite"),
            Under(".forgejo/workflows"),
            Under(".gitea/workflows"),
            Under(".woodpecker"),
            Name(".woodpecker.yml"),
            Name("jenkinsfile"),
            Name("azure-pipelines.yml"),
            Name("bitbucket-pipelines.yml"),
            Name(".travis.yml"),
            Name(".drone.yml"),
            Name("appveyor.yml"),
            Name("cloudbuild.yaml"),
        ],
    },
    Rule {
        rule: "review-rules",
        severity: Severity::Warn,
        why: "it says who must review, or what is updated by itself",
        patterns: &[Name("codeowners"), Name("dependabot.yml"), Name("renovate.json")],
    },
    Rule {
        rule: "hook",
        severity: Severity::Warn,
        why: "a hook: git runs it for anybody who commits, checks out or pushes",
        patterns: &[
            Under(".git/hooks"),
            Under(".githooks"),
            Under(".husky"),
            Name(".pre-commit-config.yaml"),
            Name("lefthook.yml"),
            Name("lefthook.yaml"),
        ],
    },
    Rule {
        rule: "git-attributes",
        severity: Severity::Warn,
        why: "it names filters and drivers that git runs, or other repositories",
        patterns: &[Name(".gitattributes"), Name(".gitmodules"), At(".git/info/attributes")],
    },
    Rule {
        rule: "runs-code",
        severity: Severity::Warn,
        why: "editors, shells, agents or package managers run what it says without being asked",
        patterns: &[
            Under(".vscode"),
            Under(".idea"),
            Under(".devcontainer"),
            Name("devcontainer.json"),
            Under(".zed"),
            Name(".envrc"),
            Name(".mise.toml"),
            Name("mise.toml"),
            Name(".tool-versions"),
            Under(".claude"),
            Under(".cursor"),
            Under(".codex"),
            Under(".gemini"),
            Name(".mcp.json"),
            Name("mcp.json"),
            Name(".npmrc"),
            Name(".yarnrc"),
            Name(".yarnrc.yml"),
            Name(".pnpmfile.cjs"),
            Name("pip.conf"),
            Under(".cargo"),
            Name("sitecustomize.py"),
            Ending(".pth"),
            Name(".bazelrc"),
            Name("gradle-wrapper.properties"),
            Name("gradle-wrapper.jar"),
            Name("maven-wrapper.properties"),
        ],
    },
    Rule {
        rule: "agent-instructions",
        severity: Severity::Note,
        why: "agents follow what it says",
        patterns: &[
            Name("agents.md"),
            Name("claude.md"),
            Name("gemini.md"),
            Name(".cursorrules"),
            Name("copilot-instructions.md"),
        ],
    },
    Rule {
        rule: "build",
        severity: Severity::Note,
        why: "it runs when the project is built",
        patterns: &[
            Name("makefile"),
            Name("gnumakefile"),
            Name("justfile"),
            Name("build.rs"),
            Name("setup.py"),
            Name("conftest.py"),
            Name("dockerfile"),
            Ending(".dockerfile"),
            Name("docker-compose.yml"),
            Name("compose.yaml"),
            Name("compose.yml"),
            Name("cmakelists.txt"),
            Name("build.gradle"),
            Name("build.gradle.kts"),
            Name("rust-toolchain.toml"),
            Name("rust-toolchain"),
            Name("bay.toml"),
        ],
    },
    Rule {
        rule: "lock-file",
        severity: Severity::Note,
        why: "other code comes into the project; it should fit the change of the manifest beside it",
        patterns: LOCKS,
    },
];

const LOCKS: &[Pattern] = &[
    Name("cargo.lock"),
    Name("package-lock.json"),
    Name("npm-shrinkwrap.json"),
    Name("yarn.lock"),
    Name("pnpm-lock.yaml"),
    Name("bun.lock"),
    Name("bun.lockb"),
    Name("poetry.lock"),
    Name("uv.lock"),
    Name("pdm.lock"),
    Name("pipfile.lock"),
    Name("gemfile.lock"),
    Name("composer.lock"),
    Name("go.sum"),
    Name("flake.lock"),
    Name("mix.lock"),
    Name("pubspec.lock"),
    Name("package.resolved"),
    Name("deno.lock"),
    Name("gradle.lockfile"),
];

impl Pattern {
    fn matches(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        match self {
            Name(wanted) => name == *wanted,
            At(end) => path.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('/')),
            Ending(ending) => name.len() > ending.len() && name.ends_with(ending),
            Under(directory) => {
                let at_start = path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
                at_start
                    || path.match_indices(directory).any(|(at, _)| {
                        at > 0
                            && path.as_bytes()[at - 1] == b'/'
                            && path[at + directory.len()..].starts_with('/')
                    })
            }
        }
    }
}

/// Whether a path is a lock file: generated, and full of hashes.
pub(super) fn is_lock(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    LOCKS.iter().any(|pattern| pattern.matches(&lower))
}

/// Applies the first rule that matches the path.
pub(super) fn path(entry: &DiffEntry, hits: &mut Vec<Hit>) {
    let told = [Some(&entry.path), entry.from_path.as_ref()];
    for path in told.into_iter().flatten().map(|path| path.to_ascii_lowercase()) {
        // Git's own sample hooks do nothing.
        if path.contains(".git/hooks/") && path.ends_with(".sample") {
            continue;
        }
        let known = RULES.iter().find(|rule| rule.patterns.iter().any(|pattern| pattern.matches(&path)));
        if let Some(rule) = known {
            let why = format!("{}: {}", how(entry.change), rule.why);
            hits.push(Hit::new(rule.severity, rule.rule, why));
            return;
        }
    }
}

fn how(change: Change) -> &'static str {
    match change {
        Change::Added => "added",
        Change::Deleted => "deleted",
        Change::Modified => "changed",
        Change::Renamed => "moved",
        Change::Replaced => "replaced",
        Change::Unread => "unread",
    }
}

/// Scripts that package managers run automatically.
const INSTALL_SCRIPTS: &[&str] = &[
    "\"preinstall\"",
    "\"install\"",
    "\"postinstall\"",
    "\"prepare\"",
    "\"prepublish\"",
    "\"preprepare\"",
    "\"postprepare\"",
];
/// Git settings that name a program, or another settings file.
const GIT_SETTINGS: &[&str] = &[
    "hookspath",
    "fsmonitor",
    "sshcommand",
    "pager",
    "editor",
    "askpass",
    "helper",
    "clean",
    "smudge",
    "process",
    "external",
    "textconv",
    "program",
    "path",
    "insteadof",
    "pushinsteadof",
    "driver",
    "gitproxy",
    "cmd",
];
/// Text that makes a failing CI step pass.
const CI_BLINDERS: &[&str] = &["continue-on-error: true", "|| true", "allow_failure: true", "--no-verify"];

/// Applies rules for single lines of known files.
pub(super) fn lines(path: &str, patch: &str, hits: &mut Vec<Hit>) {
    let lower = path.to_ascii_lowercase();
    let name = lower.rsplit('/').next().unwrap_or(&lower);
    let added = || patch_lines(patch).filter(|line| line.kind == LineKind::Added);
    if name == "package.json" {
        let found = added().find(|line| INSTALL_SCRIPTS.iter().any(|script| line.text.contains(script)));
        if let Some(line) = found {
            let why = "a script that package managers run when the package is installed";
            hits.push(Hit::new(Severity::Warn, "runs-code", why).at(line.number));
        }
    }
    let in_git = lower.starts_with(".git/") || lower.contains("/.git/");
    if in_git && matches!(name, "config" | "config.worktree") {
        let runs = |text: &str| {
            let (key, value) = text.split_once('=').unwrap_or((text, ""));
            let key = key.trim().to_ascii_lowercase();
            GIT_SETTINGS.contains(&key.as_str()) || value.trim_start().starts_with('!')
        };
        for line in added().filter(|line| runs(line.text)).take(10) {
            let why = "a setting that makes git run a program, or read settings from elsewhere";
            hits.push(Hit::new(Severity::Warn, "git-config", why).at(line.number));
        }
    }
    let is_ci = RULES[0].patterns.iter().any(|pattern| pattern.matches(&lower));
    if is_ci {
        let blind = |text: &str| CI_BLINDERS.iter().any(|word| text.contains(word));
        for line in added().filter(|line| blind(line.text)).take(10) {
            let why = "a step that may now fail without anybody noticing";
            hits.push(Hit::new(Severity::Warn, "ci-weakened", why).at(line.number));
        }
    }
}
