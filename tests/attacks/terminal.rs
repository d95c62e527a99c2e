//! The text of a bay on the terminal of a person: it may set colours, and nothing else that a terminal obeys.

use bay_tests::{CliRun, Daemon, until};
use bay_text::invisible::misleads;

/// Sets the clipboard and the title, clears the screen, sets colours, and hides text in several ways, for a shell's
/// printf.
const EVIL: &str = r"\033]52;c;aGk=\007 \033]0;title\007 \033[2J\033[H \033[1;31mred \302\2332J \2332J \342\200\256rtl \342\201\240 evil\010\010\010\010good \033[8mconcealed rm -rf /\recho hello\n";

fn write_evil(daemon: &Daemon, bay: &str) {
    let script = format!("printf '{EVIL}'; printf '{EVIL}' >&2; printf '{EVIL}' > /workspace/evil");
    let _ran = daemon.bay(&["exec", bay, "--", "sh", "-c", &script]).ok();
}

/// The first sequence that a terminal would obey, apart from colours.
fn obeyed(seen: &[u8]) -> Option<String> {
    let Ok(text) = std::str::from_utf8(seen) else { return Some("bytes that are not UTF-8".to_owned()) };
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let colour = after.strip_prefix('[').and_then(|after| {
            let end = after.find(|c: char| !c.is_ascii_digit() && c != ';' && c != ':')?;
            after[end..].starts_with('m').then(|| (&after[..end], &after[end + 1..]))
        });
        rest = match (c, colour) {
            ('\n' | '\t', _) => after,
            ('\r', _) if after.starts_with(['\r', '\n']) => after,
            ('\u{1b}', Some((numbers, after))) if !numbers.split(';').any(|number| number == "8") => after,
            (c, _) if misleads(c) => {
                return Some(format!("{c:?} before {:?}", after.chars().take(9).collect::<String>()));
            }
            _ => after,
        };
    }
    None
}

#[track_caller]
fn harmless(ran: &CliRun) -> String {
    assert_eq!(obeyed(&ran.stdout), None, "{ran}");
    ran.text()
}

#[test]
fn ui_output_no_terminal_obeys_the_kept_output_of_a_command_or_a_service() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    daemon.empty_bay("c");
    write_evil(&daemon, "b");
    let script = format!("printf '{EVIL}'; printf '{EVIL}' >&2; exec sleep 1000");
    let _added = daemon.bay(&["services", "add", "b", "web", "--", "sh", "-c", &script]).ok();
    let log = ["services", "logs", "b", "web"];
    until("the service to write", || daemon.bay(&log).ok().stdout.ends_with(b"hello\n").then_some(()));
    // On standard error a progress bar moves the cursor legitimately, so only standard output is checked.
    let compare = format!(r#"compare b c --run "printf '{EVIL}'; printf '{EVIL}' >&2""#);
    for (line, shows) in [
        ("logs b 1", 2),
        ("logs b 1 --follow", 2),
        ("logs b 1 --since-offset 1", 1),
        ("services logs b web", 2),
        ("exec b -- cat evil", 1),
        (r#"exec b -- sh -c "cat evil >&2""#, 1),
        ("cp b:evil -", 1),
        (compare.as_str(), 0),
        ("execs ls b", 0),
        ("execs show b 1", 0),
        ("timeline b", 0),
        ("diff b --from base 2>/dev/null", 0),
        ("diff b --from base --root 2>/dev/null", 0),
        ("review b --from base 2>/dev/null", 0),
        ("audit export", 0),
        ("show b", 0),
    ] {
        let seen = harmless(&daemon.on_a_terminal(line, ""));
        assert!(seen.matches("\\x1b]52;c;aGk=\\x07").count() >= shows, "{line}: {seen}");
        if shows > 0 {
            let hidden = "\\u{9b}2J \\x9b2J \\u{202e}rtl \\u{2060} evil\\x08\\x08\\x08\\x08good \\x1b[8mconcealed rm -rf /\\r";
            assert!(seen.contains(hidden) && seen.contains("\u{1b}[1;31mred"), "{line}: {seen}");
            assert!(
                seen.trim_end().ends_with("\u{1b}[0m"),
                "colours end with the output of {line}: {seen:?}"
            );
        }
    }
}

#[test]
fn ui_output_is_exact_off_a_terminal_and_with_raw() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    write_evil(&daemon, "b");
    let exact = std::process::Command::new("printf").arg(EVIL).output().unwrap().stdout;
    let piped = daemon.bay(&["logs", "b", "1", "--split"]).ok();
    assert_eq!((&piped.stdout, &piped.stderr), (&exact, &exact));
    assert_eq!(daemon.bay(&["exec", "b", "--", "cat", "evil"]).ok().stdout, exact);
    assert_eq!(daemon.bay(&["cp", "b:evil", "-"]).ok().stdout, exact);
    // The terminal of `script` turns every line break into two characters.
    let through: Vec<u8> = exact.split(|byte| *byte == b'\n').collect::<Vec<_>>().join(&b"\r\n"[..]);
    for line in ["logs b 1 --raw", "exec b --raw -- cat evil", "exec b -t -- cat evil"] {
        let seen = daemon.on_a_terminal(line, "").ok().stdout;
        assert!(
            seen.windows(through.len()).any(|part| part == through),
            "{line}: {}",
            String::from_utf8_lossy(&seen)
        );
    }
}

#[test]
fn ui_output_a_sequence_in_many_pieces_is_filtered_while_following() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "for part in '\\033' ']52;c' ';aGk=' '\\007' '\\033[' '31m' 'red' '\\342' '\\200' '\\256' '\\r' 'end'; do printf \"$part\"; sleep 0.05; done; until test -e /tmp/go; do sleep 0.05; done";
    let _begun = daemon.bay(&["exec", "b", "-d", "--", "sh", "-c", script]).ok();
    let seen = std::thread::scope(|scope| {
        let follow = scope.spawn(|| daemon.on_a_terminal("logs b 1 --follow", ""));
        until("the command to write all of it", || {
            daemon.bay(&["logs", "b", "1"]).ok().stdout.ends_with(b"end").then_some(())
        });
        let _went_on = daemon.bay(&["exec", "b", "--", "touch", "/tmp/go"]).ok();
        harmless(&follow.join().unwrap())
    });
    assert!(seen.contains("\\x1b]52;c;aGk=\\x07\u{1b}[31mred\\u{202e}\\r"), "{seen:?}");
    assert!(seen.trim_end().ends_with("end\u{1b}[0m"), "{seen:?}");
}

#[test]
fn ui_output_invisible_characters_of_a_bay_are_escaped_everywhere() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    // A word joiner, a soft hyphen, tag characters that spell "rm", a variation selector.
    let odd = "a\u{2060}b\u{ad}c\u{e0072}\u{e006d}d\u{fe0f}\u{e0101}";
    let _ran = daemon.bay(&["exec", "b", "--tool-call", odd, "--", "sh", "-c", "exit 3", odd]).exits(3);
    let script = "echo \"$1\" > \"/workspace/$1\"; git -C /workspace init -q 2>/dev/null || true";
    let _made = daemon.bay(&["exec", "b", "--", "sh", "-c", script, "sh", odd]).ok();
    let _made = daemon.bay(&["checkpoint", "b", "--files-only", "-m", odd]).ok();
    for args in [
        &["timeline", "b"][..],
        &["diff", "b", "--from", "base"],
        &["diff", "b", "--from", "base", "--stat"],
        &["diff", "b", "--from", "base", "--root"],
        &["checkpoints", "ls", "b"],
        &["execs", "ls", "b"],
        &["execs", "show", "b", "1"],
        &["review", "b", "--from", "base"],
        &["timeline", "b", "--json"],
        &["checkpoints", "ls", "b", "--json"],
        &["diff", "b", "--from", "base", "--json"],
    ] {
        let ran = daemon.bay(args);
        let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), ran.errors());
        let hidden = said.chars().find(|c| misleads(*c) && !matches!(c, '\n' | '\t'));
        assert_eq!(hidden, None, "{ran}");
        if !args.contains(&"--root") {
            let (plain, json) = ("a\\u{2060}b", "a\\u2060b");
            assert!(said.contains(plain) || said.contains(json), "{ran}");
        }
    }
}
