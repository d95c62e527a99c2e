//! `bay policy`, `bay grants` and `bay up --policy`: a policy applies, is shown with its origin, and survives restarts.
//! No request is sent here.

use std::fs;

use bay_tests::{CliRun, Daemon, Repository, SMALL};
use bay_types::ErrorCode;
use serde_json::Value;
use tempfile::TempDir;

const DOCS: &str = r#"description = "Documentation, one API"

[[rule]]
id = "docs"
outcome = "allow"
host = "docs.example.com"
path = "/guide/**"
match = ["GET https://docs.example.com/guide/install"]

[[rule]]
id = "issues"
outcome = "ask"
host = "api.example.com"
method = ["GET", "POST"]
path = "/v1/issues/*"
"#;

/// A directory with a policy file, and the path of the file.
fn file(text: &str) -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.toml");
    fs::write(&path, text).unwrap();
    (dir, path.to_str().unwrap().to_owned())
}

/// Runs `bay` as an operator with this home and no settings in the environment.
fn as_operator(daemon: &Daemon, home: &TempDir, args: &[&str]) -> CliRun {
    let mut command = daemon.command(args);
    for name in
        ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "NPM_CONFIG_REGISTRY", "npm_config_registry", "CARGO_HOME"]
    {
        command.env_remove(name);
    }
    let output = command.env("HOME", home.path()).output().unwrap();
    CliRun::new(format!("bay {}", args.join(" ")), output)
}

#[track_caller]
fn checks(daemon: &Daemon, bay: &str, wanted: &[(&str, &str)]) {
    for (request, outcome) in wanted {
        let exit = if *outcome == "allow" { 0 } else { 1 };
        let told = daemon.bay(&["policy", "check", bay, request, "--json"]).exits(exit).json();
        assert_eq!(told["outcome"], *outcome, "{request}: {told}");
    }
}

#[test]
fn a_policy_is_set_shown_checked_and_survives_restarts_of_daemon_and_bay() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let shown = daemon.bay(&["policy", "show", "b"]).ok().text();
    assert!(shown.contains("preset:closed") && shown.contains("because none was set"), "{shown}");
    checks(&daemon, "b", &[("GET https://docs.example.com/guide/a", "deny")]);

    let (_dir, path) = file(DOCS);
    let change = daemon.bay(&["policy", "diff", "b", &path]).ok().text();
    assert!(change.contains("+ allow GET|HEAD https://docs.example.com/guide/**"), "{change}");
    let set = daemon.bay(&["policy", "set", "b", &path]).ok().text();
    assert!(set.contains("policy.toml is the policy of b now: 2 rules"), "{set}");
    let asked = [
        ("GET https://docs.example.com/guide/a", "allow"),
        ("POST https://docs.example.com/guide/a", "deny"),
        ("POST https://api.example.com/v1/issues/7", "ask"),
        ("GET https://docs.example.com/guide/../admin", "refused"),
    ];
    checks(&daemon, "b", &asked);
    let why = daemon.bay(&["policy", "check", "b", "POST https://docs.example.com/guide/a"]).exits(1).text();
    assert!(why.contains("near miss: allow docs at policy.toml:3"), "{why}");
    assert!(why.contains("to allow it:") && why.contains("[[rule]]"), "{why}");
    let nothing = daemon.bay(&["policy", "diff", "b", &path]).ok();
    assert!(nothing.errors().contains("nothing would change"), "{}", nothing.errors());

    daemon.kill_9();
    daemon.launch();
    checks(&daemon, "b", &asked);
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let _started = daemon.bay(&["start", "b"]).ok();
    let _replaced = daemon.bay(&["replace", "b"]).ok();
    checks(&daemon, "b", &asked);
    let forked: Value = daemon.bay(&["fork", "b", "--name", "c", "--files-only", "--json"]).ok().json();
    let child = forked["bays"][0]["name"].as_str().unwrap().to_owned();
    checks(&daemon, &child, &asked);
    let shown = daemon.bay(&["policy", "show", "b", "--json"]).ok().json();
    assert_eq!(shown["layers"][0]["rules"][0]["origin"]["file"], "policy.toml");
    let told = daemon.bay(&["timeline", "b"]).ok().text();
    assert!(told.contains("policy"), "{told}");

    let _gone = daemon.bay(&["policy", "set", "b", "none"]).ok();
    checks(&daemon, "b", &[asked[0]].map(|(request, _)| (request, "deny")));
    checks(&daemon, &child, &asked);
}

#[test]
fn a_file_with_a_mistake_is_refused_with_its_line_and_lint_finds_problems() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let one = "[[rule]]\noutcome = \"allow\"\nhots = \"x\"\nhost = \"y.example.com\"\n";
    let (_dir, path) = file(one);
    let (what, _) = daemon.bay(&["policy", "set", "b", &path]).fails_with(ErrorCode::PolicyInvalid);
    assert!(what.contains("policy.toml:3:"), "{what}");
    let (_other, two) = file(&format!("{one}{one}"));
    let told = daemon.bay(&["policy", "set", "b", &two]).exits(2).errors();
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with("policy.toml:3:") && lines[1].starts_with("policy.toml:7:"), "{told}");
    assert!(lines[2].contains("error[policy-invalid]: the policy has 2 mistakes"), "{told}");
    let _ = daemon.bay(&["policy", "lint", "--file", &path]).fails_with(ErrorCode::PolicyInvalid);
    let _ = daemon.bay(&["policy", "set", "b", "codign"]).fails_with(ErrorCode::PathNotFound);
    let wide = format!("{DOCS}\n[[rule]]\nid = \"all\"\noutcome = \"allow\"\nhost = \"*\"\nmethod = \"*\"\n");
    let (_dir, path) = file(&wide);
    let found = daemon.bay(&["policy", "lint", "--file", &path]).exits(1).text();
    assert!(found.contains("warning[too-wide]"), "{found}");
    let _set = daemon.bay_with_input(&["policy", "set", "b", "-"], wide.as_bytes()).ok();
    let found = daemon.bay(&["policy", "lint", "b", "--json"]).exits(1).json();
    assert!(found.as_array().unwrap().iter().any(|finding| finding["code"] == "too-wide"), "{found}");
    let (_dir, path) = file(DOCS);
    let _clean = daemon.bay(&["policy", "lint", "--file", &path]).ok();
}

#[test]
fn layers_of_host_and_project_narrow_the_policies_of_bays() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let _made =
        daemon.bay(&["up", &repository.arg(), "--name", "p", "--image", SMALL, "--policy", "open"]).ok();
    daemon.empty_bay("other");
    let _open = daemon.bay(&["policy", "set", "other", "open"]).ok();
    let request = "GET https://docs.example.com/guide/a";
    let narrow =
        "otherwise = \"inherit\"\n[[rule]]\nid = \"no\"\noutcome = \"deny\"\nhost = \"docs.example.com\"\n";
    let (_dir, path) = file(narrow);
    let set = daemon.bay(&["policy", "set", "--project", "p", &path]).ok().text();
    assert!(set.contains("the project"), "{set}");
    checks(&daemon, "p", &[(request, "deny"), ("GET https://www.example.org/", "allow")]);
    checks(&daemon, "other", &[(request, "allow")]);
    let shown = daemon.bay(&["policy", "show", "p"]).ok().text();
    assert!(
        shown.contains("project layer: policy.toml") && shown.contains("bay layer: preset:open"),
        "{shown}"
    );
    let text = daemon.bay(&["policy", "show", "p", "--project"]).ok().text();
    assert!(text.contains("id = \"no\""), "{text}");
    let (what, _) =
        daemon.bay(&["policy", "set", "--project", "other", &path]).fails_with(ErrorCode::InvalidInput);
    assert!(what.contains("not made from a repository"), "{what}");

    let _host = daemon.bay(&["policy", "set", "--host", "research"]).ok();
    checks(&daemon, "other", &[(request, "allow"), ("POST https://docs.example.com/guide/a", "deny")]);
    let _gone = daemon.bay(&["policy", "set", "--host", "none"]).ok();
    let _gone = daemon.bay(&["policy", "set", "--project", "p", "none"]).ok();
    checks(&daemon, "p", &[(request, "allow")]);
    checks(&daemon, "other", &[("POST https://docs.example.com/guide/a", "allow")]);
}

#[test]
fn a_grant_covers_one_request_and_ends_with_its_runtime() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let request = "PUT https://files.example.com/report.pdf";
    let made = daemon.bay(&["grants", "add", "b", request, "--for", "10m", "--json"]).ok().json();
    let id = made["id"].as_str().unwrap().to_owned();
    checks(&daemon, "b", &[(request, "allow"), ("PUT https://files.example.com/other", "deny")]);
    let listed = daemon.bay(&["grants", "ls", "b"]).ok().text();
    assert!(listed.contains(&id) && listed.contains("files.example.com/report.pdf"), "{listed}");
    daemon.kill_9();
    daemon.launch();
    checks(&daemon, "b", &[(request, "allow")]);
    let _gone = daemon.bay(&["grants", "rm", "b", &id]).ok();
    checks(&daemon, "b", &[(request, "deny")]);
    let _ = daemon.bay(&["grants", "rm", "b", &id]).fails_with(ErrorCode::GrantNotFound);

    for verb in [&["stop", "b"][..], &["replace", "b"], &["restore", "b", "v1"]] {
        let _running = daemon.bay(&["start", "b"]).ok();
        let _added = daemon.bay(&["grants", "add", "b", request, "--id", "again"]).ok();
        checks(&daemon, "b", &[(request, "allow")]);
        let _done = daemon.bay(verb).ok();
        checks(&daemon, "b", &[(request, "deny")]);
        assert_eq!(
            daemon.bay(&["grants", "ls", "b", "--json"]).ok().json(),
            serde_json::json!([]),
            "{verb:?}"
        );
    }
}

#[test]
fn coding_allows_the_operators_registries_and_asks_about_those_of_the_repository() {
    let daemon = Daemon::start();
    let home = tempfile::tempdir().unwrap();
    fs::create_dir_all(home.path().join(".config/pip")).unwrap();
    let settings = "[global]\nindex-url = https://me:hunter2@packages.example.com/team/simple\n";
    fs::write(home.path().join(".config/pip/pip.conf"), settings).unwrap();
    fs::write(home.path().join(".npmrc"), "registry=https://10.20.30.40/npm/\n").unwrap();
    let repository = Repository::sample();
    repository
        .write(".npmrc", "registry=https://proposed.example.net/npm/\n@x:registry=http://169.254.169.254/\n");
    repository.commit("Name a registry");
    repository.git(&["remote", "add", "origin", "git@git.example.com:team/project.git"]);
    let up = ["up", &repository.arg(), "--name", "p", "--image", SMALL, "--policy", "coding"];
    let made = as_operator(&daemon, &home, &up).ok();
    assert!(made.text().contains("https://proposed.example.net/npm/ needs an approval"), "{}", made.text());
    checks(
        &daemon,
        "p",
        &[
            ("GET https://packages.example.com/team/simple/x/", "allow"),
            ("GET https://packages.example.com/team/files/x.whl", "allow"),
            ("GET https://packages.example.com/other", "deny"),
            ("PUT https://packages.example.com/team/simple/x/", "deny"),
            ("GET https://10.20.30.40/npm/left-pad", "allow"),
            ("GET https://git.example.com/team/project.git/info/refs?service=git-upload-pack", "allow"),
            ("GET https://git.example.com/team/project.git/info/refs?service=git-receive-pack", "deny"),
            ("GET https://proposed.example.net/npm/x", "ask"),
            ("GET http://169.254.169.254/", "deny"),
        ],
    );
    let again = as_operator(&daemon, &home, &["policy", "set", "p", "coding"]).ok().text();
    assert!(again.contains("reads from https://packages.example.com/team/  (pip: index-url in "), "{again}");
    assert!(again.contains("asks about https://proposed.example.net/npm/"), "{again}");
    let everything = daemon.bay(&["policy", "show", "p", "--json"]).ok().text();
    assert!(!everything.contains("hunter2") && !again.contains("hunter2"));
    let list = ["policy", "set", "p", "autonomous", "--list", "https://api.example.com/v1"];
    let _listed = as_operator(&daemon, &home, &list).ok();
    checks(
        &daemon,
        "p",
        &[("POST https://api.example.com/v1/x", "allow"), ("GET https://packages.example.com/team/", "deny")],
    );
    let data = fs::read(daemon.data_dir.join("bay.db")).unwrap();
    assert!(!data.windows(7).any(|window| window == b"hunter2"), "a credential was kept");
}
