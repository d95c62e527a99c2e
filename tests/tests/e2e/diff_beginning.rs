//! Changes since the work began, whatever became of the checkpoints, and without what the repository ignores.

use bay_tests::{Daemon, Repository, SMALL, leaks, until};
use bay_types::ErrorCode;
use serde_json::Value;

/// The changed files of a bay with their kinds of change, and the last line: the sums.
fn changed(daemon: &Daemon, args: &[&str]) -> (Vec<String>, Value) {
    let text = daemon.bay(&[&["diff", "--json"], args].concat()).ok().text();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_file = |line: &&Value| line["line"] == "entry" && line["after"]["kind"] != "directory";
    let entry = |line: &Value| [&line["change"], &line["path"]].map(|part| part.as_str().unwrap()).join(" ");
    let files = lines.iter().filter(is_file).map(entry).collect();
    (files, lines.last().unwrap().clone())
}

fn files(daemon: &Daemon, args: &[&str]) -> Vec<String> {
    changed(daemon, args).0
}

/// A bay of a repository with a change that is not committed.
fn with_a_draft(daemon: &Daemon) -> Repository {
    let repo = Repository::sample();
    repo.write("README.md", "# not committed\n");
    repo.write("draft", "not committed\n");
    let _up = daemon.bay(&["up", &repo.arg(), "--name", "web", "--image", SMALL]).ok();
    repo
}

#[test]
fn uncommitted_changes_that_came_along_are_not_the_agents() {
    let daemon = Daemon::start();
    let _repo = with_a_draft(&daemon);
    assert!(files(&daemon, &["web"]).is_empty());
    assert_eq!(files(&daemon, &["web", "--from", "base"]), ["modified README.md", "added draft"]);
    let _changed = daemon.sh("web", "echo more >> draft; echo new > new").ok();
    assert_eq!(files(&daemon, &["web"]), ["modified draft", "added new"]);
    let review = daemon.bay(&["review", "web", "--json"]).ok().json();
    assert_eq!(
        (&review["from"], &review["summary"]["modified"]),
        (&"beginning".into(), &1.into()),
        "{review}"
    );
    let compared = daemon.bay(&["compare", "web", "--run", "true", "--json"]).ok().json();
    assert_eq!(compared["bays"][0]["diff"]["files"], 2, "{compared}");
    let story = daemon.bay(&["story", "web", "--json"]).ok().json();
    assert_eq!(
        (&story["changed"]["added"], &story["changed"]["modified"]),
        (&1.into(), &1.into()),
        "{story}"
    );
}

#[test]
fn after_checkpoints_restores_and_promotions_a_diff_says_what_was_done_since_the_beginning() {
    let daemon = Daemon::start();
    let _repo = with_a_draft(&daemon);
    let _one = daemon.sh("web", "echo one > one").ok();
    let _v1 = daemon.bay(&["checkpoint", "web", "--files-only"]).ok();
    assert_eq!(files(&daemon, &["web"]), ["added one"], "after a checkpoint");
    let _two = daemon.sh("web", "echo two > two; echo more >> one").ok();
    assert_eq!(files(&daemon, &["web"]), ["added one", "added two"]);
    assert_eq!(files(&daemon, &["web", "--from", "v1"]), ["modified one", "added two"]);
    // `restore` makes an automatic checkpoint first.
    let before = daemon.bay(&["restore", "web", "v1", "--json"]).ok().json()["before"]["name"].clone();
    let before = before.as_str().unwrap().to_owned();
    assert_eq!(files(&daemon, &["web"]), ["added one"], "after a restore");
    let _back = daemon.bay(&["restore", "web", &before]).ok();
    assert_eq!(files(&daemon, &["web"]), ["added one", "added two"]);
    let _gone = daemon.bay(&["replace", "web"]).ok();
    assert_eq!(files(&daemon, &["web"]), ["added one", "added two"], "after a new root");

    // A fork has its parent's beginning, and `base` is the fork's own.
    let _forked = daemon.bay(&["fork", "web", "--name", "child", "--files-only"]).ok();
    let _three = daemon.sh("child-1", "echo three > three; rm draft").ok();
    let all = ["deleted draft", "added one", "added three", "added two"];
    assert_eq!(files(&daemon, &["child-1"]), all);
    assert_eq!(files(&daemon, &["child-1", "--from", "base"]), ["deleted draft", "added three"]);
    let _promoted = daemon.bay(&["promote", "child-1", "--into", "web"]).ok();
    assert_eq!(files(&daemon, &["web"]), all, "after a promotion");
    let _forked = daemon.bay(&["fork", "child-1", "--name", "grandchild", "--files-only"]).ok();
    assert_eq!(files(&daemon, &["grandchild-1"]), all, "of a fork of a fork");

    // Without any checkpoint, and without the bays that it came from.
    let names = daemon.bay(&["checkpoints", "ls", "web", "--json"]).ok().json();
    for checkpoint in names.as_array().unwrap() {
        let _removed = daemon.bay(&["checkpoints", "rm", "web", checkpoint["name"].as_str().unwrap()]).ok();
    }
    assert_eq!(files(&daemon, &["web"]), all, "without checkpoints");
    for bay in ["web", "child-1"] {
        let _removed = daemon.bay(&["rm", "--yes", bay]).ok();
    }
    assert_eq!(files(&daemon, &["grandchild-1"]), all, "without the parent");
    daemon.bay(&["diff", "grandchild-1", "--from", "base"]).fails_with(ErrorCode::CheckpointNotFound);
}

#[test]
fn a_bay_from_before_beginnings_were_kept_begins_at_its_base() {
    let daemon = Daemon::start();
    let _repo = with_a_draft(&daemon);
    let id = daemon.show("web")["id"].as_str().unwrap().to_owned();
    leaks::delete_tree(&leaks::corner(&daemon.pool, daemon.id()).join("bays").join(id).join("beginning"));
    let begin = |args: &[&str]| {
        let text = daemon.bay(&[&["diff", "web", "--json"], args].concat()).ok().text();
        serde_json::from_str::<Value>(text.lines().next().unwrap()).unwrap()["from"].clone()
    };
    assert_eq!((begin(&[]), begin(&["--from", "beginning"])), ("base".into(), "base".into()));
    assert_eq!(files(&daemon, &["web"]), ["modified README.md", "added draft"]);
    let _v1 = daemon.bay(&["checkpoint", "web", "--files-only"]).ok();
    let _changed = daemon.sh("web", "echo x > new").ok();
    assert_eq!(files(&daemon, &["web", "--from", "v1"]), ["added new"]);
}

#[test]
fn an_empty_bay_and_a_kept_workspace_begin_with_what_they_were_made_from() {
    let daemon = Daemon::start();
    daemon.empty_bay("empty");
    let _made = daemon.sh("empty", "echo x > f").ok();
    let _v1 = daemon.bay(&["checkpoint", "empty", "--files-only"]).ok();
    assert_eq!(files(&daemon, &["empty"]), ["added f"]);
    let _forked = daemon.bay(&["fork", "empty", "--name", "fork", "--files-only"]).ok();
    assert_eq!(files(&daemon, &["fork-1"]), ["added f"], "the fork of a bay that began empty");
    let _removed = daemon.bay(&["rm", "--yes", "--keep-workspace", "empty"]).ok();
    let kept =
        daemon.bay(&["workspaces", "ls", "--json"]).ok().json()[0]["name"].as_str().unwrap().to_owned();
    let _up = daemon.bay(&["up", "--workspace", &kept, "--name", "again", "--image", SMALL]).ok();
    assert!(files(&daemon, &["again"]).is_empty());
    let _more = daemon.sh("again", "echo y >> f").ok();
    assert_eq!(files(&daemon, &["again"]), ["modified f"]);
}

#[test]
fn ignored_files_are_left_out_counted_and_shown_on_request() {
    let daemon = Daemon::start();
    let repo = Repository::sample();
    repo.write(".gitignore", "*.log\n/build/\n");
    repo.write("kept.log", "tracked\n");
    repo.git(&["add", "--force", "kept.log"]);
    repo.commit("rules");
    let _up = daemon.bay(&["up", &repo.arg(), "--name", "b", "--image", SMALL]).ok();
    let script = "echo more >> kept.log; echo x > new.log; echo x > src/new; mkdir -p build/deep venv; \
                  for n in $(seq 1 1200); do echo $n > build/deep/$n; done; \
                  echo '*' > venv/.gitignore; echo x > venv/lib";
    let _changed = daemon.sh("b", script).ok();
    let (shown, sums) = changed(&daemon, &["b"]);
    assert_eq!(shown, ["modified kept.log", "added src/new"]);
    assert_eq!((&sums["ignored"], &sums["ignored_by_new_rules"]), (&1203.into(), &2.into()), "{sums}");
    let line =
        "1,203 ignored files left out (2 by rules that came after the work began): --ignored shows them";
    for args in [&["diff", "b"][..], &["diff", "b", "--stat"]] {
        let said = daemon.bay(args).ok();
        assert!(said.errors().lines().any(|said| said.ends_with(line)), "{args:?}: {said}");
    }
    let (shown, sums) = changed(&daemon, &["b", "--ignored"]);
    assert_eq!((shown.len(), &sums["ignored"]), (1205, &0.into()), "{sums}");
    assert!(shown.iter().any(|file| file == "added build/deep/7"));

    // Between later moments too: a file of an earlier moment is not the repository's.
    let _v1 = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    let _changed =
        daemon.sh("b", "echo y >> new.log; rm build/deep/7; echo y >> src/new; echo y >> kept.log").ok();
    let (shown, sums) = changed(&daemon, &["b", "--from", "v1"]);
    assert_eq!(
        (shown, &sums["ignored"]),
        (vec!["modified kept.log".into(), "modified src/new".into()], &2.into())
    );

    let run = |more: &[&str]| {
        let args = [&["compare", "b", "--run", "true", "--json"], more].concat();
        daemon.bay(&args).ok().json()["bays"][0]["diff"].clone()
    };
    let (without, with) = (run(&[]), run(&["--ignored"]));
    assert_eq!((&without["files"], &without["ignored"]), (&2.into(), &1202.into()), "{without}");
    assert_eq!((&with["files"], &with["ignored"]), (&1204.into(), &0.into()), "{with}");
    let compared = daemon.bay(&["compare", "b", "--run", "true"]).ok();
    assert!(compared.errors().contains("1,202 ignored files not in DIFF"), "{compared}");
    // What only the agent's rules ignore is reviewed.
    let review = daemon.bay(&["review", "b", "--json"]).ok().json();
    assert_eq!(review["ignored"], 1200, "{review}");
    let review = daemon.bay(&["review", "b", "--ignored", "--json"]).ok().json();
    assert_eq!((&review["ignored"], &review["summary"]["added"]), (&0.into(), &1203.into()), "{review}");
    let inside = daemon.bay(&["exec", "b", "--", "bay-ctl", "diff", "--stat"]).ok();
    assert!(inside.errors().contains("1,202 ignored files left out"), "{inside}");
}

#[test]
fn ignore_rules_that_cannot_be_used_hide_nothing_and_are_named() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "mkdir large link odd; echo x > large/a.o; echo x > link/a.o; echo x > odd/a.o; \
                  yes '*.o' | head -c 10485760 > large/.gitignore; \
                  echo '*.o' > rules; ln -s ../rules link/.gitignore; \
                  printf '\\377[\\n*.o\\0\\r\\n[\\n\\\\\\n' > odd/.gitignore";
    let _made = daemon.sh("b", script).ok();
    let (shown, sums) = changed(&daemon, &["b"]);
    for file in ["added large/.gitignore", "added large/a.o", "added link/.gitignore", "added link/a.o"] {
        assert!(shown.iter().any(|shown| shown == file), "{file}: {shown:?}");
    }
    assert_eq!(sums["ignored"], 1, "{sums}");
    let said = daemon.bay(&["diff", "b", "--stat"]).ok();
    for line in [
        "the ignore rules of large/.gitignore were not used: it is longer than 64 KiB",
        "the ignore rules of link/.gitignore were not used: it is not a regular file",
    ] {
        assert!(said.errors().contains(line), "{line}: {said}");
    }
}

#[test]
fn one_command_shows_what_changed_while_it_ran_without_ignored_files() {
    let daemon = Daemon::start();
    let repo = Repository::sample();
    repo.write(".gitignore", "*.log\n/build/\n");
    repo.write("kept.log", "tracked\n");
    repo.git(&["add", "--force", "kept.log"]);
    repo.commit("rules");
    let _up = daemon.bay(&["up", &repo.arg(), "--name", "b", "--image", SMALL]).ok();
    let script = "mkdir -p build/deep; for n in $(seq 1 30); do echo $n > build/deep/$n; done; \
                  echo x > new.log; echo x > new; echo more >> kept.log";
    let _changed = daemon.sh("b", script).ok();
    let show = || daemon.bay(&["execs", "show", "b", "1", "--json"]).ok().json()["files"].clone();
    let files = until("the summary", || Some(show()).filter(|files| !files.is_null()));
    assert_eq!((&files["created"], &files["changed"]), (&1.into(), &1.into()), "{files}");
    // Thirty files in two directories, and one file.
    assert_eq!(files["ignored"], 33, "{files}");
    let shown = daemon.bay(&["execs", "show", "b", "1"]).ok().text();
    assert!(shown.contains("1 created, 1 changed") && shown.contains("33 ignored"), "{shown}");
    let mut names: Vec<&str> = files["names"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["kept.log", "new"]);
}
