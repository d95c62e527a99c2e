//! Commands in a bay: their input and output, how they end, and that nothing of it is lost.

use std::io::Read;
use std::process::Stdio;

use bay_tests::wait::{PATIENCE, within};
use bay_tests::{CliRun, Daemon, until};
use bay_types::{ErrorCode, ExecId};
use serde_json::{Value, json};

/// The id that `bay exec -d` prints, or the one in its JSON.
fn detached(daemon: &Daemon, bay: &str, script: &str) -> String {
    let ran = daemon.bay(&["exec", bay, "-d", "--json", "--", "sh", "-c", script]).ok();
    ran.json()["id"].as_str().expect("an exec id").to_owned()
}

fn exec_view(daemon: &Daemon, bay: &str, exec: &str) -> Value {
    daemon.rest("GET", &format!("/v1/bays/{bay}/execs/{exec}"), &Value::Null).json()
}

fn until_ended(daemon: &Daemon, bay: &str, exec: &str) -> Value {
    until("the exec to end", || Some(exec_view(daemon, bay, exec)).filter(|view| !view["exit"].is_null()))
}

#[test]
fn exit_codes_pass_through() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    for code in [0, 1, 2, 42, 124, 255] {
        assert_eq!(daemon.sh("b", &format!("exit {code}")).code, code);
    }
    assert_eq!(daemon.sh("b", "kill -TERM $$").code, 128 + 15);
    assert_eq!(daemon.sh("b", "kill -KILL $$").code, 128 + 9);
}

#[test]
fn our_own_failures_have_the_exit_codes_of_shells() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    daemon.bay(&["exec", "nobody", "--", "true"]).fails_as(ErrorCode::BayNotFound, 125);
    let (_, next) =
        daemon.bay(&["exec", "b", "--", "no-such-command"]).fails_as(ErrorCode::CommandNotFound, 127);
    // A bay has no network, so the hint must work without one.
    assert!(next.contains("bay images import host") && next.contains("bay replace"), "{next}");
    daemon.bay(&["exec", "b", "--", "/etc/passwd"]).fails_as(ErrorCode::ExecStart, 126);
    daemon.bay(&["exec", "b", "--cwd", "/nowhere", "--", "true"]).fails_as(ErrorCode::ExecStart, 126);
    let no_user = daemon.bay(&["exec", "b", "--user", "stranger", "--", "true"]);
    assert!(no_user.errors().contains(ErrorCode::ExecStart.as_str()), "{no_user}");
    assert_ne!(daemon.bay(&["exec", "b", "--"]).code, 0, "a command is needed");
}

#[test]
fn output_and_error_output_stay_separate_and_complete() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let ran = daemon.sh("b", "echo out; echo err >&2; printf 'no line break'").ok();
    assert_eq!(ran.stdout, b"out\nno line break");
    assert_eq!(ran.stderr, b"err\n");
    // Bytes that are not text, and enough of them for many frames.
    let many = daemon.sh("b", "dd if=/dev/urandom bs=1M count=8 2>/dev/null | tee /tmp/bytes").ok();
    assert_eq!(many.stdout.len(), 8 << 20);
    let sum = daemon.sh("b", "sha256sum < /tmp/bytes").ok().text();
    let here = daemon.bay_with_input(&["exec", "b", "--", "sha256sum"], &many.stdout).ok().text();
    assert_eq!(sum, here);
}

#[test]
fn standard_input_and_its_end_are_forwarded() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    assert_eq!(daemon.bay_with_input(&["exec", "b", "--", "wc", "-c"], b"hello").ok().text(), "5");
    assert_eq!(daemon.bay_with_input(&["exec", "b", "--", "cat"], b"").ok().stdout, b"");
    let large: Vec<u8> = (0..5_000_000_u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(daemon.bay_with_input(&["exec", "b", "--", "cat"], &large).ok().stdout, large);
    // A command that does not read its input ends nevertheless.
    assert_eq!(daemon.bay_with_input(&["exec", "b", "--", "true"], &large).code, 0);
}

#[test]
fn environment_directory_and_user_are_as_requested() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let ran =
        daemon.bay(&["exec", "b", "--env", "GREETING=a b=c", "--env", "EMPTY=", "--", "env"]).ok().text();
    assert!(ran.lines().any(|line| line == "GREETING=a b=c"), "{ran}");
    assert!(ran.lines().any(|line| line == "EMPTY="), "{ran}");
    assert!(
        !ran.contains("BAY_DATA_DIR") && !ran.contains("BAY_POOL"),
        "the caller's environment leaked:\n{ran}"
    );
    assert!(ran.lines().any(|line| line.starts_with("PATH=") && line.contains("/usr/bin")), "{ran}");
    assert!(ran.lines().any(|line| line == "HOME=/root"), "{ran}");

    assert_eq!(daemon.bay(&["exec", "b", "--cwd", "/tmp", "--", "pwd"]).ok().text(), "/tmp");
    let who = "id -u; id -g; echo $HOME; id -Gn";
    let as_user = daemon.bay(&["exec", "b", "--user", "user", "--", "sh", "-c", who]).ok().text();
    assert_eq!(as_user, "1000\n1000\n/home/user\nuser staff");
    assert_eq!(daemon.bay(&["exec", "b", "--user", "65534", "--", "id", "-u"]).ok().text(), "65534");
    assert_eq!(daemon.bay(&["exec", "b", "--", "id", "-u"]).ok().text(), "0");
}

#[test]
fn a_timeout_kills_the_whole_tree() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "sleep 1001 & (setsid sleep 1001 &) ; echo begun; sleep 1001";
    let ran = daemon.bay(&["exec", "b", "--timeout", "1", "--", "sh", "-c", script]);
    assert_eq!(ran.code, 124, "{ran}");
    assert_eq!(ran.text(), "begun");
    assert_eq!(daemon.sh("b", "ps -o args | grep -cx 'sleep 1001'").text(), "0");
}

#[test]
fn kill_ends_the_tree_including_detached_processes() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let exec = detached(
        &daemon,
        "b",
        "trap '' TERM HUP; (setsid setsid sh -c 'trap \"\" TERM; sleep 1002' &); sleep 1002; sleep 1002",
    );
    until("the tree to stand", || {
        (daemon.sh("b", "ps -o args | grep -cx 'sleep 1002'").text() == "2").then_some(())
    });
    let killed = daemon.bay(&["kill", "b", &exec]).ok().text();
    assert!(killed.contains("was ended, with every process in its control group"), "{killed}");
    let view = until_ended(&daemon, "b", &exec);
    assert_eq!(view["exit"]["reason"], "killed", "{view}");
    until("the tree to be gone", || {
        (daemon.sh("b", "ps -o args | grep -cx 'sleep 1002'").text() == "0").then_some(())
    });
}

#[test]
fn background_processes_of_a_command_do_not_delay_its_end() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let begun = std::time::Instant::now();
    let ran = daemon.sh("b", "sleep 300 > /dev/null 2>&1 & echo done").ok();
    assert_eq!(ran.text(), "done");
    assert!(begun.elapsed() < PATIENCE, "it waited for the background process");
}

#[test]
fn a_detached_command_is_listed_and_its_output_replayable_from_any_byte() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let exec = detached(&daemon, "b", "printf 0123456789; sleep 0.3; printf abcde >&2; exit 7");
    let view = until_ended(&daemon, "b", &exec);
    assert_eq!(view["exit"]["code"], 7);
    assert_eq!(view["output_bytes"], 15);
    let listed = daemon.bay(&["execs", "ls", "b", "--json"]).ok().json();
    let listed = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|each| each["id"] == exec.as_str())
        .expect("it is listed")
        .clone();
    assert_eq!(listed["argv"][0], "sh");
    let number = listed["number"].to_string();
    for name in [exec.as_str(), number.as_str(), &exec[exec.len() - 8..]] {
        let logs = daemon.bay(&["logs", "b", name]).ok();
        assert_eq!((logs.stdout.as_slice(), logs.stderr.as_slice()), (&b"0123456789abcde"[..], &b""[..]));
    }
    let part = daemon.bay(&["logs", "b", &exec, "--since-offset", "7", "--split"]).ok();
    assert_eq!((part.stdout.as_slice(), part.stderr.as_slice()), (&b"789"[..], &b"abcde"[..]));
    let end = daemon.bay(&["logs", "b", &exec, "--since-offset", "15"]).ok();
    assert_eq!((end.stdout.len(), end.stderr.len()), (0, 0));
    daemon.bay(&["logs", "b", "exec_00000000000000000000000000000000"]).fails_with(ErrorCode::ExecNotFound);
    daemon.bay(&["logs", "b", "999999"]).fails_with(ErrorCode::ExecNotFound);
}

#[test]
fn logs_show_the_last_lines_and_when_each_was_written() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "seq 1 30000; echo old; sleep 0.1; echo warned >&2; sleep 0.1; printf 'in '; sleep 0.1; echo pieces; echo new";
    let exec = detached(&daemon, "b", script);
    until_ended(&daemon, "b", &exec);
    let logs = |more: &[&str]| daemon.bay(&[&["logs", "b", exec.as_str()], more].concat()).ok();
    let as_ever = || {
        assert_eq!(logs(&["--tail", "3"]).text(), "warned\nin pieces\nnew");
        assert_eq!(logs(&["-n", "0"]).text(), "");
        let many = logs(&["--tail", "20000"]).text();
        assert!(many.starts_with("10005\n") && many.ends_with("\nnew"), "{}", many.len());
        assert_eq!(logs(&["--tail", "1000000"]).text().lines().count(), 30_004);

        let stamped = logs(&["--tail", "4", "--timestamps"]);
        assert_eq!(stamped.errors(), "");
        let text = stamped.text();
        let lines: Vec<(&str, &str)> = text.lines().map(|line| line.split_once(' ').unwrap()).collect();
        assert!(
            lines.iter().all(|(at, _)| at.starts_with("20") && at.ends_with('Z') && at.len() == 24),
            "{text}"
        );
        let names: Vec<&str> = lines.iter().map(|(_, line)| *line).collect();
        assert_eq!(names, ["old", "warned", "in pieces", "new"]);
        assert!(lines.is_sorted_by_key(|(at, _)| *at), "{text}");
        // The line with two pieces has the time of its first.
        assert!(lines[2].0 < lines[3].0, "{text}");
        let since = logs(&["--since", lines[3].0]).text();
        assert_eq!(since, "pieces\nnew");
        assert_eq!(logs(&["--since", "1h", "--tail", "1"]).text(), "new");
        let json = logs(&["--timestamps", "--json", "--tail", "1"]).text();
        assert!(
            json.starts_with("{\"stream\":\"stdout\",\"offset\":") && json.contains("\"time\":\"20"),
            "{json}"
        );
    };
    as_ever();
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    as_ever();
}

#[test]
fn output_without_recorded_times_is_shown_and_reported_as_such() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let exec = detached(&daemon, "b", "echo one; sleep 0.1; echo two >&2");
    until_ended(&daemon, "b", &exec);
    // As an earlier release leaves it, and as it may be if the bay was hostile.
    for harm in ["dd if=/dev/zero bs=1k count=1 of=$f", "rm $f"] {
        let script = format!("for f in /.bay/state/execs/{exec}/*.at; do [ -e $f ] && {harm}; done");
        let _harmed = daemon.sh("b", &script).ok();
        let ran = daemon.bay(&["logs", "b", &exec, "--timestamps", "--since", "10m"]).ok();
        assert_eq!(ran.text(), "- one\n- two", "{ran}");
        assert_eq!(ran.errors().matches("not on record").count(), 1, "{ran}");
        assert_eq!(daemon.bay(&["logs", "b", &exec]).ok().text(), "one\ntwo");
    }
}

#[test]
fn a_detached_command_prints_the_number_that_other_verbs_accept() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let ran = daemon.bay(&["exec", "b", "-d", "--", "echo", "hello"]).ok();
    let number = ran.text();
    assert_eq!(number, "1", "{ran}");
    assert!(ran.errors().contains("bay logs b 1") && ran.errors().contains("exec_"), "{ran}");
    assert_eq!(daemon.bay(&["logs", "b", &number, "--follow"]).ok().text(), "hello");
    let late = daemon.bay(&["kill", "b", &number]).ok().text();
    assert!(late.contains("had ended before"), "{late}");
}

#[test]
fn following_shows_output_as_it_arrives_and_ends_with_the_command() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let exec = detached(&daemon, "b", "echo first; while [ ! -e /tmp/go ]; do usleep 1000; done; echo last");
    let mut follow = daemon
        .command(&["logs", "b", &exec, "--follow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 6];
    follow.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"first\n");
    let _go = daemon.sh("b", "touch /tmp/go").ok();
    let rest = follow.wait_with_output().unwrap();
    assert_eq!(rest.stdout, b"last\n");
    assert!(rest.status.success());
}

#[test]
fn output_of_an_ended_command_outlives_the_stop_of_its_bay() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let exec = detached(&daemon, "b", "echo remembered");
    until_ended(&daemon, "b", &exec);
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    assert_eq!(daemon.bay(&["logs", "b", &exec]).ok().text(), "remembered");
    let _started = daemon.bay(&["start", "b"]).ok();
    let _replaced = daemon.bay(&["replace", "b"]).ok();
    assert_eq!(daemon.bay(&["logs", "b", &exec]).ok().text(), "remembered");
}

#[test]
fn a_command_that_ran_when_its_bay_stopped_is_reported_as_stopped() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let exec = detached(&daemon, "b", "echo begun; sleep 1000");
    until("output", || (exec_view(&daemon, "b", &exec)["output_bytes"] == 6).then_some(()));
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let view = exec_view(&daemon, "b", &exec);
    assert_eq!(view["exit"]["reason"], "stopped", "{view}");
    assert!(daemon.bay(&["execs", "ls", "b"]).ok().text().contains("stopped"));
    assert_eq!(daemon.bay(&["logs", "b", &exec]).ok().text(), "begun");
}

#[test]
fn the_same_exec_id_runs_once_and_with_another_command_is_a_conflict() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let id = ExecId::generate().to_string();
    let spec = json!({ "id": id, "argv": ["sh", "-c", "echo ran >> /tmp/count"] });
    let first = daemon.rest("POST", "/v1/bays/b/execs", &spec);
    assert_eq!(first.status, 201, "{:?}", String::from_utf8_lossy(&first.body));
    until_ended(&daemon, "b", &id);
    let second = daemon.rest("POST", "/v1/bays/b/execs", &spec);
    assert!(second.status == 200 || second.status == 201, "{}", second.status);
    assert_eq!(second.json()["id"], id.as_str());
    assert_eq!(daemon.sh("b", "wc -l < /tmp/count").ok().text(), "1");
    let other = daemon.rest("POST", "/v1/bays/b/execs", &json!({ "id": id, "argv": ["true"] }));
    assert_eq!((other.status, other.json()["code"].as_str()), (409, Some("exec-conflict")));
}

#[test]
fn a_terminal_is_a_terminal() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    assert_eq!(daemon.sh("b", "test -t 0 || echo no terminal").ok().text(), "no terminal");
    // `script` gives the CLI a terminal, as a person's shell would.
    let ran = daemon
        .on_a_terminal("exec b -t -- sh -c 'test -t 0 && test -t 1 && test -t 2 && tty && stty size'", "");
    assert!(ran.text().contains("/dev/pts/"), "{ran}");
    assert!(ran.text().contains("40 100"), "the size of the terminal is not passed on: {ran}");
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(daemon.on_a_terminal("exec b -t -- sh -c 'exit 9'", "").code, 9);
}

#[test]
fn a_terminal_without_input_reads_its_end_instead_of_waiting_forever() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    // Standard input is /dev/null here. A command that waits forever ends with 124.
    let twice = ["exec", "b", "-t", "--timeout", "30", "--", "sh", "-c", "cat; echo once; cat; echo twice"];
    let ran = daemon.bay(&twice).ok();
    assert_eq!(ran.text().replace('\r', ""), "once\ntwice", "{ran}");
    // A shell reads keys, not lines.
    let _ended = daemon.bay(&["exec", "b", "-t", "-n", "--timeout", "30", "--", "sh"]).ok();
    // A last line without a line break is not lost, and does not hide the end of the input.
    let args = ["exec", "b", "-t", "--timeout", "30", "--", "sh", "-c", "cat > read; wc -c < read"];
    let ran = daemon.bay_with_input(&args, b"first\nlast").ok();
    assert!(ran.text().trim_end().ends_with("10"), "{ran}");
}

#[test]
fn a_shell_takes_commands_and_control_keys() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let ran = daemon.on_a_terminal("shell b", "echo $((6*7))-answer\nsleep 1000\n\x03exit 5\n");
    assert!(ran.text().contains("42-answer"), "{ran}");
    assert_eq!(ran.code, 5, "Ctrl-C ends the sleep, not the shell: {ran}");
    assert_eq!(daemon.sh("b", "ps -o args | grep -cx 'sleep 1000'").text(), "0");
}

#[test]
fn a_killed_daemon_loses_no_output_and_no_exit_code() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "n=0; while [ $n -lt 2000 ]; do echo line $n; n=$((n+1)); [ -e /tmp/stop ] || usleep 2000; done; exit 3";
    let exec = detached(&daemon, "b", script);
    for _ in 0..3 {
        let before = exec_view(&daemon, "b", &exec)["output_bytes"].as_u64().unwrap();
        daemon.restart();
        until("more output", || {
            (exec_view(&daemon, "b", &exec)["output_bytes"].as_u64() > Some(before)).then_some(())
        });
    }
    let _hurry = daemon.sh("b", "touch /tmp/stop").ok();
    let view = until_ended(&daemon, "b", &exec);
    assert_eq!(view["exit"]["code"], 3, "{view}");
    let wanted: String = (0..2000).map(|n| format!("line {n}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&daemon.bay(&["logs", "b", &exec]).ok().stdout), wanted);
}

#[test]
fn an_attached_client_continues_across_a_daemon_restart_or_says_where_to_resume() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "echo one; while [ ! -e /tmp/go ]; do usleep 1000; done; echo two; exit 4";
    let mut client = daemon
        .command(&["exec", "b", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 4];
    client.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    daemon.restart();
    let _go = daemon.sh("b", "touch /tmp/go").ok();
    let rest = CliRun::new("exec".to_owned(), client.wait_with_output().unwrap());
    assert_eq!((rest.code, rest.text().as_str()), (4, "two"), "{rest}");
}

#[test]
fn a_command_that_ended_while_no_daemon_ran_has_its_exit_code_kept() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let script =
        ": > /tmp/go; echo $$ > /tmp/pid; while [ ! -s /tmp/go ]; do usleep 1000; done; echo late; exit 6";
    let exec = detached(&daemon, "b", script);
    let pid = until("the exec", || Some(daemon.sh("b", "cat /tmp/pid").text()).filter(|pid| !pid.is_empty()));
    let inside = format!("/proc/{}/root", daemon.host_pid("b"));
    let process = format!("{inside}/proc/{pid}");
    daemon.kill_9();
    // No daemon runs now. The command waited for that, and ends before the next daemon starts.
    assert!(std::fs::exists(&process).unwrap(), "the command ended before the daemon did");
    std::fs::write(format!("{inside}/tmp/go"), "go").unwrap();
    until("the command to end", || (!std::fs::exists(&process).unwrap()).then_some(()));
    daemon.launch();
    let view = until_ended(&daemon, "b", &exec);
    assert_eq!(view["exit"]["code"], 6, "{view}");
    assert_eq!(daemon.bay(&["logs", "b", &exec]).ok().text(), "late");
}

#[test]
fn a_reader_that_reads_nothing_blocks_neither_the_command_nor_the_bay() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "dd if=/dev/zero bs=1M count=24 2>/dev/null; echo finished > /tmp/finished";
    let mut lazy = daemon
        .command(&["exec", "b", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the command to finish unread", || (daemon.sh("b", "cat /tmp/finished").code == 0).then_some(()));
    let mut all = Vec::new();
    lazy.stdout.take().unwrap().read_to_end(&mut all).unwrap();
    assert!(lazy.wait().unwrap().success());
    assert_eq!(all.len(), 24 << 20, "everything that is kept comes after all");
}

#[test]
fn a_flood_of_output_is_bounded_on_disk_and_its_end_is_kept() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let exec = detached(&daemon, "b", "yes 0123456789abcdef | head -c 400000000; echo; echo THE END");
    let view =
        within(PATIENCE * 3, || Some(exec_view(&daemon, "b", &exec)).filter(|view| !view["exit"].is_null()));
    let view = view.expect("the flood to end");
    assert_eq!(view["output_bytes"], 400_000_000 + 1 + 8, "{view}");
    let logs = daemon.bay(&["logs", "b", &exec]).ok();
    assert!(logs.stdout.ends_with(b"THE END\n"));
    assert!(logs.stdout.len() < 300_000_000, "{} bytes were kept", logs.stdout.len());
    let state = daemon.show("b");
    assert_eq!(state["state"], "running");
}

/// A bay with these limits and an empty workspace.
fn limited_bay(daemon: &Daemon, name: &str, limits: &Value) {
    let body =
        json!({ "name": name, "source": { "kind": "empty" }, "image": bay_tests::SMALL, "limits": limits });
    let made = daemon.rest("POST", "/v1/bays", &body);
    assert!(
        String::from_utf8_lossy(&made.body).contains("\"done\""),
        "{}",
        String::from_utf8_lossy(&made.body)
    );
}

#[test]
fn a_bay_with_a_full_disk_shows_output_and_reports_what_is_not_kept() {
    let daemon = Daemon::start();
    limited_bay(&daemon, "b", &json!({ "disk_mib": 32 }));
    // Until not even a small file fits.
    let fill = "dd if=/dev/urandom of=fill bs=64k 2>/dev/null; n=0; \
                while n=$((n+1)); head -c 3000 /dev/urandom > more.$n; do sync; done 2>/dev/null; true";
    let _filled = daemon.sh("b", fill);
    let ran = daemon.bay(&["exec", "b", "--", "echo", "hello"]);
    assert_eq!((ran.code, ran.text().as_str()), (0, "hello"), "{ran}");
    let many = daemon.sh("b", "seq 1 50000; echo code >&2; exit 3");
    assert_eq!(many.code, 3, "{}", many.errors());
    assert_eq!(many.text().lines().count(), 50_000);
    let said = many.errors();
    assert_eq!(said.matches("the disk of the bay is full").count(), 1, "{said}");
    assert!(said.contains("bay exec b -- rm") && said.contains("--disk-mib"), "{said}");
    let list = daemon.bay(&["execs", "ls", "b", "--json"]).ok().json();
    let last = list.as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["limits_hit"], json!(["disk"]), "{last}");
    let exec = last["id"].as_str().unwrap().to_owned();
    // The output is still in memory, and reported as such. After a stop it is missing, and that is reported.
    let logs = daemon.bay(&["logs", "b", &exec]).ok();
    assert!(logs.errors().contains("the disk of the bay"), "{}", logs.errors());
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let logs = daemon.bay(&["logs", "b", &exec]).ok();
    assert!(logs.errors().contains("the disk of the bay was full"), "{}", logs.errors());
    let _started = daemon.bay(&["start", "b"]).ok();
    // With free space again, output is kept again.
    let _freed = daemon.sh("b", "rm -f fill more.*; sync").ok();
    let kept = until("output to be kept", || {
        let ran = daemon.sh("b", "seq 1 50000").ok();
        ran.errors().is_empty().then(|| daemon.bay(&["execs", "ls", "b", "--json"]).ok().json())
    });
    let last = kept.as_array().unwrap().last().unwrap()["number"].to_string();
    assert_eq!(daemon.bay(&["logs", "b", &last]).ok().text().lines().count(), 50_000);
}

#[test]
fn a_command_that_a_limit_of_its_bay_ended_is_reported_with_the_limit() {
    let daemon = Daemon::start();
    limited_bay(&daemon, "b", &json!({ "memory_mib": 48, "pids": 24 }));
    assert_eq!(daemon.sh("b", "exit 4").errors(), "", "no limit was reached");
    let greedy = daemon.sh("b", "exec dd if=/dev/zero of=/dev/null bs=200M count=1");
    assert_eq!(greedy.code, 137, "{greedy}");
    assert!(greedy.errors().contains("used up its memory"), "{greedy}");
    let forking = daemon.sh("b", "for n in $(seq 1 60); do sleep 30 & done 2>/dev/null; exit 9");
    assert_ne!(forking.code, 0, "{forking}");
    assert!(forking.errors().contains("as many processes as it may have"), "{forking}");
    let list = daemon.bay(&["execs", "ls", "b", "--json"]).ok().json();
    let hit: Vec<&Value> = list.as_array().unwrap().iter().map(|exec| &exec["limits_hit"]).collect();
    assert_eq!(hit[..3], [&json!([]), &json!(["memory"]), &json!(["pids"])]);
    assert!(daemon.bay(&["execs", "ls", "b"]).ok().text().contains("(memory limit)"));
}

#[test]
fn a_client_that_is_killed_leaves_the_command_running() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let mut client = daemon
        .command(&[
            "exec",
            "b",
            "--",
            "sh",
            "-c",
            "echo up; while [ ! -e /tmp/go ]; do usleep 1000; done; touch /tmp/went",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut up = [0; 3];
    client.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    let _go = daemon.sh("b", "touch /tmp/go").ok();
    until("the command to go on without its client", || {
        (daemon.sh("b", "ls /tmp/went").code == 0).then_some(())
    });
}

#[test]
fn orphaned_processes_are_reaped() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _orphans =
        daemon.sh("b", "n=0; while [ $n -lt 50 ]; do (sh -c 'sleep 0.01 &' &); n=$((n+1)); done").ok();
    until("no zombies", || (daemon.sh("b", "ps -o stat | grep -c '^Z'").text() == "0").then_some(()));
}

#[test]
fn many_commands_at_once_do_not_mix() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    std::thread::scope(|scope| {
        for n in 0..16 {
            let daemon = &daemon;
            scope.spawn(move || {
                let ran = daemon.sh("b", &format!("for i in 1 2 3; do echo {n}; done; exit {n}"));
                assert_eq!((ran.code, ran.text()), (n, format!("{n}\n{n}\n{n}")));
            });
        }
    });
    until("no exec to be open", || (daemon.show("b")["execs_running"] == 0).then_some(()));
}

#[test]
fn a_tool_call_is_kept_with_its_exec() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ran = daemon.bay(&["exec", "b", "--tool-call", "call_42", "--", "true"]).ok();
    let listed = daemon.bay(&["execs", "ls", "b", "--json"]).ok().json();
    assert_eq!(listed[0]["tool_call"], "call_42", "{listed}");
}

#[test]
fn terminal_escapes_in_a_command_line_are_not_passed_to_the_reader_of_a_list() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ran = daemon.bay(&["exec", "b", "--", "echo", "\u{1b}]52;c;aGk=\u{7}\u{1b}[2J"]).ok();
    let list = daemon.bay(&["execs", "ls", "b"]).ok();
    assert!(!list.stdout.contains(&0x1b) && !list.stdout.contains(&7), "{list}");
}

/// A command that reads a line, whose client is killed after the command printed `ready`.
fn orphaned(daemon: &Daemon, script: &str) -> String {
    let mut client = daemon
        .command(&["exec", "b", "-i", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    client.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"ready\n");
    client.kill().unwrap();
    client.wait().unwrap();
    let listed = daemon.bay(&["execs", "ls", "b", "--json"]).ok().json();
    listed.as_array().unwrap().last().unwrap()["number"].to_string()
}

#[test]
fn a_command_whose_client_died_is_attached_to_with_its_output_so_far() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let exec = orphaned(&daemon, "echo ready; seq 1 2000; read line; echo \"got $line\"; exit 7");
    let attached = daemon.bay_with_input(&["attach", "b", &exec, "--tail", "2"], b"hello\n");
    assert_eq!((attached.code, attached.text().as_str()), (7, "1999\n2000\ngot hello"), "{attached}");
    let (what, next) = daemon.bay(&["attach", "b", &exec]).fails_as(ErrorCode::InvalidInput, 125);
    assert!(what.contains("exited") && next.contains("bay logs b"), "{what} {next}");
    daemon.bay(&["attach", "b", "99"]).fails_as(ErrorCode::ExecNotFound, 125);

    // Without input to attach, the input of the command does not end.
    let exec = orphaned(&daemon, "echo ready; read line && echo \"got $line\"");
    let mut watching =
        daemon.command(&["attach", "b", &exec]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    watching.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let other = daemon.bay_with_input(&["attach", "b", &exec, "--tail", "0"], b"again\n").ok();
    assert_eq!(other.text(), "got again");
    let mut rest = String::new();
    watching.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), watching.wait().unwrap().code()), ("got again\n", Some(0)));
}

#[test]
fn the_keys_detach_from_a_terminal_and_the_command_draws_again_for_the_next() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "trap 'echo drawn $(stty size)' WINCH; echo begun; until [ -e /tmp/go ]; do sleep 0.05; done; echo over";
    let keys = "\n\u{10}\u{11}\n";
    let id = ExecId::generate().to_string();
    let spec =
        json!({ "id": id, "argv": ["sh", "-c", script], "stdin": true, "tty": { "cols": 80, "rows": 24 } });
    assert_eq!(daemon.rest("POST", "/v1/bays/b/execs", &spec).status, 201);
    let exec = id.as_str();
    let attached = daemon.on_a_terminal(&format!("attach b {exec}"), keys);
    assert_eq!(attached.code, 0, "{attached}");
    for word in ["begun", "drawn 40 100", "detached", "bay attach b"] {
        assert!(attached.text().contains(word), "{word}: {attached}");
    }
    assert_eq!(exec_view(&daemon, "b", exec)["state"], "running");
    let _go = daemon.sh("b", "touch /tmp/go").ok();
    let view = until_ended(&daemon, "b", exec);
    assert_eq!((&view["state"], &view["exit"]["code"]), (&json!("exited"), &json!(0)), "{view}");
}

#[test]
fn the_json_of_an_exec_has_its_state() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let state = |exec: &str| {
        let shown = daemon.bay(&["execs", "show", "b", exec, "--json"]).ok().json();
        let listed = daemon.bay(&["execs", "ls", "b", "--json"]).ok().json();
        let listed = listed.as_array().unwrap().iter().find(|one| one["id"] == exec).unwrap().clone();
        assert_eq!(listed["state"], shown["state"]);
        shown["state"].as_str().unwrap().to_owned()
    };
    let exec = detached(&daemon, "b", "sleep 1000");
    assert_eq!(state(&exec), "running");
    let _killed = daemon.bay(&["kill", "b", &exec]).ok();
    until_ended(&daemon, "b", &exec);
    assert_eq!(state(&exec), "killed");
    let exec = detached(&daemon, "b", "exit 3");
    until_ended(&daemon, "b", &exec);
    assert_eq!(state(&exec), "exited");
}
