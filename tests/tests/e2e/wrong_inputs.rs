//! Wrong inputs of people: typing errors, words of other tools, a wrong order, what does not exist, missing rights, no
//! daemon. Each is answered with a code, a reason and a next step, which names the command that was meant.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use bay_tests::{CliRun, Daemon};
use bay_types::ErrorCode;

/// Who types a line, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Root,
    /// A user of the host who may not use the daemon.
    Nobody,
    /// Root, where no daemon runs.
    RootWithoutDaemon,
}
use By::{Nobody, Root, RootWithoutDaemon};

/// A line without `bay`, the code of its error, and what the error names.
type Case = (By, &'static str, ErrorCode, &'static str);

/// The user that owns nothing.
const NOBODY: u32 = 65534;
/// At least so many lines are answered with the right command.
const LEAST_RIGHT: usize = 55;

const MISUSE: ErrorCode = ErrorCode::InvalidInput;

const CASES: [Case; 60] = [
    // Mistyped commands.
    (Root, "shwo web", MISUSE, "`bay show web`"),
    (Root, "exce web -- true", MISUSE, "`bay exec web -- true`"),
    (Root, "sotp web", MISUSE, "`bay stop web`"),
    (Root, "lss", MISUSE, "`bay ls`"),
    (Root, "checkpiont web", MISUSE, "`bay checkpoint web`"),
    (Root, "resotre web v1", MISUSE, "`bay restore web v1`"),
    (Root, "timline web", MISUSE, "`bay timeline web`"),
    (Root, "polcy show web", MISUSE, "`bay policy show web`"),
    (Root, "imags ls", MISUSE, "`bay images ls`"),
    (Root, "forwrad web 5173", MISUSE, "`bay forward web 5173`"),
    (Root, "DELETE web", MISUSE, "`bay rm web`"),
    (Root, "servces ls web", MISUSE, "`bay services ls web`"),
    (Root, "images imprt host", MISUSE, "`bay images import host`"),
    (Root, "services lst web", MISUSE, "`bay services ls web`"),
    (Root, "secret roate gh", MISUSE, "`bay secret rotate gh`"),
    // Mistyped flags and values.
    (Root, "ls --quite", MISUSE, "`bay ls --quiet`"),
    (Root, "up --nam web", MISUSE, "`bay up --name web`"),
    (Root, "set web --memory-mb 4G", MISUSE, "`bay set web --memory-mib 4G`"),
    (Root, "set web --cpu 2", MISUSE, "`bay set web --cpus 2`"),
    (Root, "exec --detatch web true", MISUSE, "`bay exec --detach web true`"),
    (Root, "rm web --yess", MISUSE, "`bay rm web --yes`"),
    (Root, "logs web 1 --folow", MISUSE, "`bay logs web 1 --follow`"),
    (Root, "set web --memory-mib lots", MISUSE, "`bay set --help`"),
    (Root, "set web --disk-mib 4X", MISUSE, "`bay set --help`"),
    // Words of other tools.
    (Root, "restart web", MISUSE, "`bay stop web && bay start web`"),
    (Root, "run web make test", MISUSE, "`bay exec web -- make test`"),
    (Root, "create web", MISUSE, "`bay up --name web`"),
    (Root, "attach web", MISUSE, "`bay attach web EXEC`"),
    (Root, "diff wbe", ErrorCode::BayNotFound, "did you mean web?"),
    (Root, "kill-bay web", MISUSE, "`bay stop web`"),
    (Root, "port-forward web 5173", MISUSE, "`bay forward web 5173`"),
    (Root, "clone web", MISUSE, "`bay fork web`"),
    (Root, "pull ubuntu", MISUSE, "`bay images import"),
    (Root, "login", MISUSE, "`bay shell NAME`"),
    (Root, "init", MISUSE, "`bay up`"),
    (Root, "push web", MISUSE, "`bay branch web --push"),
    // Something is missing, or in the wrong order.
    (Root, "show", MISUSE, "`bay show NAME`"),
    (Root, "exec web", MISUSE, "`bay exec web CMD`"),
    (Root, "kill web", MISUSE, "`bay kill web EXEC`"),
    (Root, "restore web", MISUSE, "`bay restore web CHECKPOINT`"),
    (Root, "cp web:file", MISUSE, "`bay cp web:file DST`"),
    (Root, "images", MISUSE, "`bay images ls`"),
    (Root, "web exec true", MISUSE, "`bay exec web true`"),
    (Root, "services web ls", MISUSE, "`bay services ls web`"),
    (Root, "ls images", MISUSE, "`bay images ls`"),
    (Root, "web", MISUSE, "`bay shell web`"),
    (Root, "make test", MISUSE, "`bay exec NAME -- make test`"),
    (Root, "logs 1 web", ErrorCode::BayNotFound, "`bay ls`"),
    // What does not exist.
    (Root, "show wbe", ErrorCode::BayNotFound, "did you mean web?"),
    (Root, "stop nothing-like-it", ErrorCode::BayNotFound, "`bay ls`"),
    (Root, "logs web 99", ErrorCode::ExecNotFound, "`bay execs ls web`"),
    (Root, "restore web v9", ErrorCode::CheckpointNotFound, "`bay checkpoints ls web`"),
    (Root, "services logs web db", ErrorCode::ServiceNotFound, "`bay services ls web`"),
    (Root, "images rm nothing", ErrorCode::ImageNotFound, "`bay images ls`"),
    // No rights, and no daemon.
    (Nobody, "ls", ErrorCode::NotRoot, "sudo"),
    (Nobody, "stop web", ErrorCode::NotRoot, "sudo"),
    (Nobody, "exec web true", ErrorCode::NotRoot, "sudo"),
    (RootWithoutDaemon, "ls", ErrorCode::DaemonUnreachable, "`bay serve`"),
    (RootWithoutDaemon, "rm web --yes", ErrorCode::DaemonUnreachable, "`bay serve`"),
    (RootWithoutDaemon, "exec web true", ErrorCode::DaemonUnreachable, "`bay serve`"),
];

/// Types a line.
fn typed(daemon: &Daemon, readable: &Path, by: By, line: &str, json: bool) -> CliRun {
    let mut words: Vec<&str> = if json { vec!["--json"] } else { Vec::new() };
    words.extend(line.split(' '));
    match by {
        Root => daemon.bay(&words),
        RootWithoutDaemon => daemon.bay(&[&["--data-dir", "/nonexistent/workbay"], &words[..]].concat()),
        Nobody => {
            // The executable under test may be in a directory that only root may enter.
            let mut command = std::process::Command::new(readable);
            command.env_clear().env("BAY_DATA_DIR", &daemon.data_dir).env("BAY_NO_AUTOSTART", "1");
            command.args(&words).current_dir("/").uid(NOBODY).gid(NOBODY);
            command.stdin(std::process::Stdio::null());
            CliRun::new(format!("(as nobody) {line}"), command.output().unwrap())
        }
    }
}

/// What is missing in the error of a person's terminal.
fn lacks(ran: &CliRun, code: ErrorCode) -> Option<&'static str> {
    let errors = ran.errors();
    let lines: Vec<&str> = errors.lines().collect();
    let [what, next] = lines[..] else { return Some("two lines") };
    let Some((found, reason)) = what.strip_prefix("error[").and_then(|rest| rest.split_once("]: ")) else {
        return Some("a code");
    };
    let exit =
        if ran.line.contains("exec web true") && code != MISUSE { 125 } else { i32::from(code.exit_code()) };
    match next.strip_prefix("next: ") {
        _ if found != code.as_str() => Some("the right code"),
        _ if ran.code != exit => Some("the exit code of its code"),
        _ if reason.trim().is_empty() => Some("a reason"),
        None | Some("") => Some("a next step"),
        Some(_) => None,
    }
}

#[test]
fn sixty_wrong_inputs_have_a_code_a_reason_and_the_right_next_step() {
    let daemon = Daemon::start();
    daemon.empty_bay("web");
    let public = tempfile::tempdir().unwrap();
    std::fs::set_permissions(public.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let readable = public.path().join("bay");
    std::fs::copy(bay_tests::suite::binary(), &readable).unwrap();
    std::fs::set_permissions(&readable, PermissionsExt::from_mode(0o755)).unwrap();

    let (mut incomplete, mut wrong) = (Vec::new(), Vec::new());
    for (by, line, code, names) in CASES {
        let ran = typed(&daemon, &readable, by, line, false);
        if let Some(lack) = lacks(&ran, code) {
            incomplete.push(format!("{lack} is missing:\n{ran}"));
        }
        if !ran.errors().lines().any(|line| line.starts_with("next: ") && line.contains(names)) {
            wrong.push(format!("wanted {names}:\n{ran}"));
        }
        // A program gets the same three parts.
        let error = typed(&daemon, &readable, by, line, true).api_error();
        if error.code != code || error.message.is_empty() || error.next.is_empty() {
            incomplete.push(format!("with --json: {line}: {error:?}"));
        }
    }
    assert!(incomplete.is_empty(), "{} lack something:\n{}", incomplete.len(), incomplete.join("\n"));
    let right = CASES.len() - wrong.len();
    println!(
        "{right} of {} wrong inputs are answered with the right command\n{}",
        CASES.len(),
        wrong.join("\n")
    );
    assert!(right >= LEAST_RIGHT, "only {right} name the right command:\n{}", wrong.join("\n"));
    assert_eq!(daemon.show("web")["state"], "running", "no wrong input did anything");
    assert_eq!(daemon.list().len(), 1);
}

#[test]
fn words_that_mean_the_same_work() {
    let daemon = Daemon::start();
    daemon.empty_bay("web");
    let bays = daemon.bay(&["ls", "--quiet"]).ok().text();
    assert_eq!(bays, "web");
    for line in [&["ps", "--quiet"][..], &["status", "--quiet"], &["list", "--quiet"], &["bays", "--quiet"]] {
        assert_eq!(daemon.bay(line).ok().text(), bays, "{line:?}");
    }
    assert!(daemon.bay(&["version"]).ok().text().starts_with("bay 0."));
    assert_eq!(daemon.bay(&["status", "web", "--json"]).ok().json()["name"], "web");
    assert_eq!(daemon.bay(&["inspect", "web", "--json"]).ok().json()["name"], "web");
    assert_eq!(daemon.bay(&["ssh", "web", "echo", "hello"]).ok().text(), "hello");
    let shell = daemon.bay(&["ssh", "web"]);
    assert!(shell.code == 125 && shell.errors().contains("a shell reads"), "{shell}");
    assert_eq!(daemon.bay(&["tail", "web", "1"]).ok().text(), "hello");
    let execs = daemon.bay(&["ps", "web", "--json"]).ok().json();
    assert_eq!(execs.as_array().map(Vec::len), Some(1), "{execs}");
    let _kept = daemon.bay(&["snapshot", "web", "--files-only"]).ok();
    assert!(daemon.bay(&["history", "web"]).ok().text().contains("checkpoint"));
    assert!(daemon.bay(&["images", "list"]).ok().text().contains("small"));
    let _removed = daemon.bay(&["delete", "web", "--yes"]).ok();
    assert_eq!(daemon.list().len(), 0);
}
