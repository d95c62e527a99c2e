//! How a bay's traffic is shown: `bay egress`, the timeline, metrics, and the view inside the bay.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Stdio};

use bay_tests::lab::{Lab, lab};
use bay_tests::until;
use serde_json::Value;

/// `bay egress --json`, entry by entry.
fn entries(lab: &Lab, args: &[&str]) -> Vec<Value> {
    let all: Vec<&str> = ["egress", "--json"].iter().chain(args).copied().collect();
    let text = lab.daemon.bay(&all).ok().text();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn until_ended(lab: &Lab, bay: &str, count: usize) {
    until("ends are on record", || (lab.record(bay, "egress.ended").len() >= count).then_some(()));
}

#[test]
fn every_request_is_shown_with_its_end_its_rule_and_its_sender() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &origin.allowed("path = \"/open/**\""));
    assert_eq!(lab.get("b", &origin.url("https", "/open/door")).0, 200);
    assert_eq!(lab.get("b", &origin.url("https", "/shut")).0, 403);
    let _closed = lab.daemon.sh("b", "nc -w 5 192.0.2.1 22 </dev/null");
    until("a refused port is on record", || {
        lab.record("b", "egress.refused").iter().any(|body| body["port"] == 22).then_some(())
    });
    until_ended(&lab, "b", 1);

    let all = entries(&lab, &["b"]);
    let find = |outcome: &str| {
        let found = all.iter().find(|entry| entry["outcome"] == outcome);
        found.unwrap_or_else(|| panic!("none is {outcome}: {all:#?}"))
    };
    let ended = find("ended");
    assert_eq!((&ended["status"], &ended["rule"]["id"]), (&200.into(), &"origin".into()), "{ended:#}");
    assert_eq!(ended["request"], format!("GET {}", origin.url("https", "/open/door")));
    assert_eq!(ended["exec_number"], 1, "{ended:#}");
    // The process is searched in parallel with the decision, and not always found in time; the exec always is.
    assert!(ended["exec_argv"][0].as_str().is_some_and(|word| word.contains("python")), "{ended:#}");
    assert!(ended["received"].as_u64().is_some_and(|bytes| bytes > 0), "{ended:#}");
    let denied = find("denied");
    assert_eq!(denied["exec_number"], 2);
    let explained = lab.daemon.bay(&["policy", "explain", "b", &denied["id"].to_string()]).ok().text();
    assert!(explained.contains("/shut"), "{explained}");
    assert_eq!(find("refused")["request"], "192.0.2.1:22");
    assert!(all.iter().all(|entry| entry["outcome"] != "looked-up"), "{all:#?}");

    let refused = entries(&lab, &["b", "--denied"]);
    assert!(refused.len() >= 2 && refused.iter().all(|entry| entry["outcome"] != "ended"), "{refused:#?}");
    assert_eq!(entries(&lab, &["b", "--denied", "--limit", "1"]), refused[refused.len() - 1..]);
    assert_eq!(entries(&lab, &["b", "--since", &all[0]["seq"].to_string()]), all[1..]);
    let names = entries(&lab, &["b", "--lookups"]);
    assert!(
        names.iter().any(|entry| entry["outcome"] == "looked-up" && entry["request"] == "origin.test"),
        "{names:#?}"
    );

    let ran = lab.daemon.bay(&["egress", "b"]).ok();
    let text = ran.text();
    let line = text.lines().find(|line| line.contains("/open/door")).unwrap();
    assert!(line.contains("  200  ") && line.contains("rule origin") && line.contains("exec 1: "), "{text}");
    assert!(text.lines().any(|line| line.contains("  deny  ") && line.contains("/shut")), "{text}");

    let timeline = lab.daemon.bay(&["timeline", "b"]).ok().text();
    assert!(timeline.contains("/open/door answered 200") && timeline.contains("/shut refused"), "{timeline}");
    assert!(!timeline.contains("looked-up") && !timeline.contains("/open/door allowed"), "{timeline}");
    let shown = lab.daemon.bay(&["show", "b"]).ok().text();
    assert!(shown.contains("b.toml (bay)") && shown.contains("open"), "{shown}");
    let metrics = lab.daemon.rest("GET", "/metrics", &Value::Null).body;
    let metrics = String::from_utf8_lossy(&metrics);
    for sample in [
        "workbay_egress_requests_total{outcome=\"allow\"} 1",
        "workbay_egress_requests_total{outcome=\"deny\"} 1",
        "workbay_egress_refused_total{what=\"connection\"} ",
        "workbay_bay_egress_dropped_total{bay=\"b\",protocol=\"udp\"} ",
    ] {
        assert!(metrics.contains(sample), "{sample}: {metrics}");
    }
}

/// The next entry of a running `bay egress --follow --json`.
fn next(lines: &mut BufReader<ChildStdout>) -> Value {
    let mut line = String::new();
    assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended");
    serde_json::from_str(&line).unwrap()
}

#[test]
fn a_follower_sees_refusals_immediately_and_a_removed_bays_traffic_stays_readable() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &origin.allowed("path = \"/open/**\""));
    let id = lab.daemon.show("b")["id"].as_str().unwrap().to_owned();
    let mut command = lab.daemon.command(&["egress", "b", "--follow", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(lab.get("b", &origin.url("https", "/shut")).0, 403);
    let denied = next(&mut lines);
    assert_eq!((&denied["outcome"], &denied["exec_number"]), (&"denied".into(), &1.into()), "{denied:#}");
    assert_eq!(lab.get("b", &origin.url("https", "/open/1")).0, 200);
    let mut entry = next(&mut lines);
    while entry["outcome"] == "under-way" {
        entry = next(&mut lines);
    }
    assert_eq!((&entry["outcome"], &entry["status"]), (&"ended".into(), &200.into()), "{entry:#}");
    let _removed = lab.daemon.bay(&["rm", "b"]).ok();
    assert!(child.wait().unwrap().success(), "the end of a bay is the end of its traffic, and no failure");
    let all = entries(&lab, &[&id]);
    assert_eq!(all.iter().filter(|entry| entry["outcome"] == "ended").count(), 1, "{all:#?}");
}

/// Asks one host several times over one connection. Refusals are answers.
const CALLS: &str = r#"
import http.client, ssl
calls = http.client.HTTPSConnection("update.googleapis.com", timeout=20, context=ssl.create_default_context())
for number in range(6):
    calls.request("GET", f"/service/update2?{number}")
    assert calls.getresponse().read()
"#;

#[test]
fn background_calls_of_a_browser_are_one_line_unless_all_are_wanted() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &origin.allowed("path = \"/open/**\""));
    // A program counts as a browser by its file.
    let browser = "home=$(python3 -c 'import sys; print(sys.prefix)') && mkdir -p /opt/chrome &&
        cp -L $(command -v python3) /opt/chrome/chrome && PYTHONHOME=$home /opt/chrome/chrome -c \"$1\"";
    let of_browser =
        |entry: &&Value| entry["by"]["process"]["exe"].as_str().is_some_and(|exe| exe.ends_with("/chrome"));
    let all = until("the calls are on record with their process", || {
        let _called = lab.daemon.bay(&["exec", "b", "--", "sh", "-c", browser, "sh", CALLS]).ok();
        let all = entries(&lab, &["b"]);
        (all.iter().filter(of_browser).count() > 3).then_some(all)
    });
    assert_eq!(lab.get("b", &origin.url("https", "/shut")).0, 403);
    let lines = |args: &[&str]| -> Vec<String> {
        let text = lab.daemon.bay(&[&["egress", "b"][..], args].concat()).ok().text();
        text.lines().map(str::to_owned).collect()
    };
    let short = lines(&[]);
    let told = short.iter().find(|line| line.contains("  browser  ")).unwrap_or_else(|| panic!("{short:#?}"));
    assert!(told.contains("background calls of a browser to update.googleapis.com ("), "{told}");
    assert!(told.contains(" refused)"), "{told}");
    assert!(short.iter().any(|line| line.contains("/shut")), "{short:#?}");
    let denied = lines(&["--denied"]);
    assert!(denied.iter().any(|line| line.contains("background calls")), "{denied:#?}");
    let long = lines(&["--all"]);
    let calls = |lines: &[String]| lines.iter().filter(|line| line.contains("/service/update2")).count();
    assert_eq!(calls(&long), all.iter().filter(|entry| entry["outcome"] == "denied").count(), "{long:#?}");
    assert!(
        calls(&short) < calls(&long) && !long.iter().any(|line| line.contains("background")),
        "{long:#?}"
    );
    // Each has its entry for programs.
    assert!(entries(&lab, &["b"]).len() > all.len(), "--json is as it was");
}

/// Moves into a control group with the name of an exec, and sends a request from there.
const FORGE: &str = r#"
import os, sys, urllib.request
groups = next(line.split()[1] for line in open("/proc/mounts") if line.split()[2] == "cgroup2")
forged = groups + "/execs/" + sys.argv[1]
os.makedirs(forged, exist_ok=True)
with open(forged + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
print(urllib.request.urlopen(sys.argv[2], timeout=20).status)
"#;

#[test]
fn a_bay_cannot_put_its_traffic_on_an_exec_of_another() {
    let lab = lab();
    let origin = lab.echo_for(&["a", "b"]);
    let other = lab.daemon.sh("a", "echo $BAY_EXEC_ID").ok().text().trim().to_owned();
    assert!(other.starts_with("exec_"), "{other}");
    let url = origin.url("https", "/x");
    let _sent = lab.daemon.bay(&["exec", "b", "--", "python3", "-c", FORGE, &other, &url]).ok();
    until_ended(&lab, "b", 1);
    let all = entries(&lab, &["b"]);
    assert!(all.iter().all(|entry| entry["by"]["exec"].is_null()), "{all:#?}");
    assert!(!serde_json::to_string(&lab.record("b", "egress.looked-up")).unwrap().contains(&other));
    assert!(entries(&lab, &["a"]).is_empty(), "the other bay sent nothing");
}

/// Becomes a program with a misleading name. It sends more than once, because a process is not always found in time.
const DISGUISED: &str = r#"
import os, sys
send = "import sys, urllib.request\nfor _ in range(5): urllib.request.urlopen(sys.argv[1], timeout=20).read()"
os.execv(sys.executable, ["evil\x1b]0;mine\x07\r\u202e", "-c", send, sys.argv[1]])
"#;

#[test]
fn a_terminal_obeys_no_text_in_the_traffic_of_a_bay() {
    let lab = lab();
    let origin = lab.echo_for(&["b"]);
    let url = origin.url("https", "/x");
    let _sent = lab.daemon.bay(&["exec", "b", "--", "python3", "-c", DISGUISED, &url]).ok();
    until_ended(&lab, "b", 5);
    for verb in [&["egress", "b"][..], &["egress", "b", "--json"], &["timeline", "b"]] {
        let text = lab.daemon.bay(verb).ok().text();
        assert!(text.contains("evil"), "{text}");
        assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text:?}");
    }
}

#[test]
fn a_bay_can_query_its_policy_but_nothing_about_the_host() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &origin.allowed("path = \"/open/**\""));
    let told = lab.daemon.sh("b", "bay-ctl egress").ok().text();
    assert!(
        told.contains("b.toml") && told.contains("origin.test") && told.contains("10.0.2.1:3128"),
        "{told}"
    );
    assert!(told.lines().any(|line| line.starts_with("deny") && line.contains("everything else")), "{told}");
    assert!(!told.contains("/outside-") && !told.contains("/tmp"), "{told}");
    lab.set("b", &origin.allowed("method = \"POST\""));
    let json = lab.daemon.sh("b", "bay-ctl --json egress").ok().json();
    assert_eq!(json["open"], true);
    assert!(json["rules"][0]["what"].as_str().is_some_and(|what| what.contains("POST")), "{json:#}");
    let readme = lab.daemon.sh("b", "cat /.bay/README.md").ok().text();
    assert!(readme.contains("bay-ctl egress") && readme.contains("http://10.0.2.1:3128"), "{readme}");
}
