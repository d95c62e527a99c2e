//! Commands that print values. They run as the user who set the secret, without the daemon's environment, for a
//! limited time and with limited output. What they print is never shown, not even in an error: it may be the value.

use std::process::Stdio;
use std::time::Duration;

use bay_types::secret::{MAX_SECRET_BYTES, MIN_SECRET_BYTES, SecretText};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use zeroize::Zeroizing;

/// How long a command may take.
pub(crate) const WITHIN: Duration = Duration::from_secs(15);
/// The longest output that is read: a value in JSON, with every byte escaped.
const MAX_OUTPUT: usize = 6 * MAX_SECRET_BYTES + 1024;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The longest list of users that is read.
const MAX_USERS: usize = 1 << 20;

/// What a command printed.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) value: SecretText,
    pub(crate) expires: Option<Timestamp>,
}

/// The form of output that has more than the value.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    value: SecretText,
    #[serde(default)]
    expires: Option<Timestamp>,
}

/// Runs a command and parses its output. The error says why there is no value.
pub(crate) async fn fetch(line: &str, uid: u32, within: Duration) -> Result<Fetched, String> {
    let user = user(uid)?;
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", line])
        .current_dir("/")
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", &user.home)
        .env("USER", &user.name)
        .env("LANG", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Standard error could contain a part of the value.
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    if uid != rustix::process::geteuid().as_raw() {
        command.uid(uid).gid(user.gid);
    }
    let mut child = command.spawn().map_err(|error| format!("its command could not be run: {error}"))?;
    let group = child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
    let mut output = Zeroizing::new(Vec::with_capacity(MAX_OUTPUT + 1));
    let reading = async {
        if let Some(stdout) = child.stdout.take() {
            let mut bounded = stdout.take(MAX_OUTPUT as u64 + 1);
            bounded
                .read_to_end(&mut output)
                .await
                .map_err(|error| format!("its command's output: {error}"))?;
        }
        if output.len() > MAX_OUTPUT {
            return Err(format!("its command printed more than {MAX_OUTPUT} bytes"));
        }
        let status = child.wait().await.map_err(|error| format!("its command: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("its command failed ({status})")) }
    };
    let outcome = tokio::time::timeout(within, reading).await;
    // Also ends processes that the command left behind in its group.
    if let Some(group) = group {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    match outcome {
        Ok(Ok(())) => read(&output),
        Ok(Err(why)) => Err(why),
        Err(_) => Err(format!("its command did not end within {} s", within.as_secs_f32())),
    }
}

/// Parses a value, or a JSON object with a value.
fn read(output: &[u8]) -> Result<Fetched, String> {
    let text = std::str::from_utf8(output)
        .map_err(|_| "its command printed something that is not text".to_owned())?;
    let text = text.trim_end_matches(['\n', '\r']);
    let fetched = if text.trim_start().starts_with('{') {
        let told: Told = serde_json::from_str(text)
            .map_err(|_| "its command printed JSON that is not {\"value\": …, \"expires\": …}".to_owned())?;
        Fetched { value: told.value, expires: told.expires }
    } else {
        Fetched { value: SecretText::new(text.to_owned()), expires: None }
    };
    fits(fetched.value.expose())
        .map_err(|why| format!("its command printed something else than a value: {why}"))?;
    if fetched.expires.is_some_and(|expires| expires <= Timestamp::now()) {
        return Err("its command printed a value that has ended already".to_owned());
    }
    Ok(fetched)
}

/// Checks whether this can be a value: printable ASCII without spaces, neither too short nor too long.
pub(crate) fn fits(value: &str) -> Result<(), String> {
    if value.len() < MIN_SECRET_BYTES {
        return Err(format!("it is shorter than {MIN_SECRET_BYTES} characters"));
    }
    if value.len() > MAX_SECRET_BYTES {
        return Err(format!("it is longer than {MAX_SECRET_BYTES} characters"));
    }
    if !value.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("it has spaces, line breaks or characters beyond ASCII in it".to_owned());
    }
    Ok(())
}

struct User {
    name: String,
    gid: u32,
    home: String,
}

fn user(uid: u32) -> Result<User, String> {
    let users = std::fs::read("/etc/passwd").map_err(|error| format!("/etc/passwd: {error}"))?;
    let users = String::from_utf8_lossy(&users[..users.len().min(MAX_USERS)]).into_owned();
    let found = users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, id, gid, _, home, _] = fields.as_slice() else { return None };
        (id.parse() == Ok(uid)).then_some((*name, gid.parse().ok()?, *home))
    });
    let (name, gid, home) =
        found.ok_or_else(|| format!("its command is to run as user {uid}, whom this host does not know"))?;
    Ok(User { name: name.to_owned(), gid, home: home.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(line: &str) -> Result<Fetched, String> {
        fetch(line, rustix::process::geteuid().as_raw(), WITHIN).await
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_ended_with_all_that_it_began() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let line = format!("sleep 1000 & echo $! >{}; sleep 1000", file.display());
        let uid = rustix::process::geteuid().as_raw();
        let told = fetch(&line, uid, Duration::from_secs(2)).await.unwrap_err();
        assert!(told.contains("did not end"), "{told}");
        let left: i32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        let left = rustix::process::Pid::from_raw(left).unwrap();
        let gone = async {
            while rustix::process::test_kill_process(left).is_ok() && !is_dead(left) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.expect("what it began ends too");
    }

    /// Whether the process is dead, although its parent has not waited for it yet.
    fn is_dead(pid: rustix::process::Pid) -> bool {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        stat.rsplit(')').next().is_none_or(|rest| rest.trim_start().starts_with('Z'))
    }

    #[tokio::test]
    async fn a_command_prints_a_value_or_json_with_one() {
        assert_eq!(run("echo a-plain-value").await.unwrap().value.expose(), "a-plain-value");
        let told = run(r#"echo '{"value":"in-some-json","expires":"2100-01-01T00:00:00Z"}'"#).await.unwrap();
        assert_eq!(told.value.expose(), "in-some-json");
        assert_eq!(told.expires, Some("2100-01-01T00:00:00Z".parse().unwrap()));
        let plain =
            run("test -z \"$SECRET_OF_THE_DAEMON\" && id -u | grep -q . && echo no-environment-of-ours")
                .await;
        assert!(plain.is_ok());
    }

    #[tokio::test]
    async fn a_command_that_fails_is_reported_without_its_output() {
        for (line, why) in [
            ("echo the-canary-value; exit 3", "failed"),
            ("printf 'the-canary-value\\nmore\\n'", "line breaks"),
            ("printf '\\377\\376the-canary-value'", "not text"),
            ("echo short", "shorter"),
            ("true", "shorter"),
            ("yes the-canary-value", "more than"),
            ("echo '{\"value\":1,\"the-canary-value\":2}'", "JSON"),
            ("echo '{\"value\":\"the-canary-value\",\"expires\":\"2001-01-01T00:00:00Z\"}'", "ended already"),
        ] {
            let told = run(line).await.unwrap_err();
            assert!(told.contains(why) && !told.contains("canary"), "{line}: {told}");
        }
    }
}
