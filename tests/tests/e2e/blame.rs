//! What a failed command is blamed on: a refused request, a full disk, a service that is down, a missing program.

use bay_tests::lab::lab;
use bay_tests::{CliRun, Daemon, Repository, SMALL, until};
use bay_types::ErrorCode;
use serde_json::{Value, json};

/// The last command of a bay, as `bay execs show --json` prints it.
fn last(daemon: &Daemon, bay: &str) -> Value {
    let list = daemon.bay(&["execs", "ls", bay, "--json"]).ok().json();
    let number = list.as_array().unwrap().last().unwrap()["number"].to_string();
    daemon.bay(&["execs", "show", bay, &number, "--json"]).ok().json()
}

/// The two lines that `bay exec` adds to a command's error output: what happened, and what to do next.
fn note(ran: &CliRun) -> (String, String) {
    let errors = ran.errors();
    let lines: Vec<&str> = errors.lines().collect();
    let at = lines.iter().position(|line| line.contains("bay: ")).unwrap_or_else(|| panic!("no note: {ran}"));
    assert_eq!(lines.len(), at + 2, "one line and one next: line at the end: {ran}");
    let next = lines[at + 1].strip_prefix("next: ").unwrap_or_else(|| panic!("{ran}"));
    (lines[at].to_owned(), next.to_owned())
}

#[test]
fn a_command_that_the_gateway_refused_something_says_what_and_what_would_allow_it() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.daemon.empty_bay("b");
    lab.until_open("b");
    let script = format!(
        "import urllib.request, sys\ntry:\n urllib.request.urlopen({:?}, timeout=20)\nexcept Exception:\n pass\nsys.exit(int(sys.argv[1]))",
        origin.url("https", "/data")
    );
    let get = |flags: &[&str], code: &str| {
        let mut line = vec!["exec"];
        line.extend(flags);
        line.extend(["b", "--", "python3", "-c", &script, code]);
        lab.daemon.bay(&line)
    };
    let ran = get(&[], "3");
    assert_eq!(ran.code, 3, "{ran}");
    let (what, next) = note(&ran);
    assert!(what.contains("the gateway refused") && what.contains("origin.test"), "{ran}");
    assert!(next.contains("`bay policy set b coding`") && next.contains("`bay policy explain b "), "{ran}");
    let exec = last(&lab.daemon, "b");
    let blame = &exec["blame"][0];
    assert_eq!((&blame["cause"], &blame["fix"]), (&json!("refused"), &json!("set-policy")), "{exec:#}");
    let explained = lab.daemon.bay(&["policy", "explain", "b", &blame["decision"].to_string()]).ok().text();
    assert!(explained.contains("origin.test"), "{explained}");
    let shown = lab.daemon.bay(&["execs", "show", "b", &exec["number"].to_string()]).ok().text();
    assert!(shown.contains("may have failed because") && shown.contains("bay policy explain"), "{shown}");

    // A success needs no explanation, and a script gets it as JSON.
    let fine = get(&[], "0").ok();
    assert_eq!(fine.errors(), "", "{fine}");
    assert_eq!(last(&lab.daemon, "b")["blame"], json!([]));
    assert_eq!(get(&["--json"], "3").errors(), "");
    // The next command is not blamed for the refusals of this one.
    assert_eq!(lab.daemon.sh("b", "exit 4").errors(), "");

    // With a policy of its own, the explanation has the rule.
    lab.set("b", &origin.allowed("path = \"/open/**\""));
    let (what, next) = note(&get(&[], "3"));
    assert!(what.contains("GET ") && what.contains("/data"), "{what}");
    assert!(next.contains("`bay policy explain b ") && !next.contains("coding"), "{next}");
    // Removing the bay's rows does not remove the finding from the record.
    let timeline = lab.daemon.bay(&["timeline", "b", "--json"]).ok().text();
    assert!(timeline.contains("exec.end"), "{timeline}");
}

#[test]
fn a_full_disk_a_service_that_is_down_and_a_missing_program_are_named() {
    let daemon = Daemon::start();
    let body = json!({
        "name": "b", "source": { "kind": "empty" }, "image": SMALL, "limits": { "disk_mib": 64 },
    });
    assert!(String::from_utf8_lossy(&daemon.rest("POST", "/v1/bays", &body).body).contains("\"done\""));

    // An image with apt, and what `apt-get update` leaves.
    let lists = "mkdir -p /usr/bin /var/lib/apt/lists && touch /usr/bin/apt-get && \
                 printf 'Package: ripgrep\\n\\nPackage: jq\\n' > /var/lib/apt/lists/a_main_binary-amd64_Packages";
    let _image = daemon.sh("b", lists).ok();
    let ran = daemon.sh("b", "echo before; rg pattern");
    assert_eq!(ran.code, 127, "{ran}");
    let (what, next) = note(&ran);
    assert!(what.contains("rg is not installed in the bay"), "{ran}");
    assert!(next.contains("`bay exec b -- apt-get install -y ripgrep`"), "{ran}");
    let found = last(&daemon, "b");
    assert_eq!(found["blame"][0]["packages"], json!(["ripgrep"]), "{found:#}");
    // A program that the guest itself does not find.
    let (_, next) = daemon.bay(&["exec", "b", "--", "jq", "."]).fails_as(ErrorCode::CommandNotFound, 127);
    assert!(
        next.contains("`bay exec b -- apt-get install -y jq`") && next.contains("policy set b coding"),
        "{next}"
    );

    let add = ["services", "add", "b", "db", "--no-wait", "--", "sh", "-c", "echo gone; exit 1"];
    let _added = daemon.bay(&add);
    until("the service to fail", || {
        let state = daemon.bay(&["services", "show", "b", "db", "--json"]).ok().json()["state"].clone();
        // A service that backs off is started again in between.
        (state == "crash-loop").then_some(())
    });
    let (what, next) = note(&daemon.sh("b", "exit 3"));
    assert!(what.contains("the service db of the bay does not work"), "{what}");
    assert_eq!(next, "`bay services logs b db` shows what it printed");
    let _removed = daemon.bay(&["services", "rm", "b", "db"]).ok();

    let full = daemon.sh("b", "dd if=/dev/urandom of=/workspace/fill bs=64k 2>/dev/null; exit 5");
    assert_eq!(full.code, 5, "{full}");
    assert!(full.errors().contains("disk") && full.errors().contains("--disk-mib"), "{full}");
    assert_eq!(last(&daemon, "b")["blame"][0]["cause"], "disk");
}

#[test]
fn a_new_bay_without_a_policy_says_that_its_network_is_closed() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let up = |name: &str, flags: &[&str]| {
        let place = repository.arg();
        let mut line = vec!["up", &place, "--name", name, "--image", SMALL];
        line.extend(flags);
        daemon.bay(&line).ok().text()
    };
    let said = up("one", &[]);
    assert!(said.contains("network: closed; `bay policy set one coding`"), "{said}");
    assert!(!up("two", &["--policy", "coding"]).contains("network: closed"));
}
