//! Git pushes: decided by the refs that they change, shown as refs and commits, held while git waits.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use bay_tests::lab::{Lab, lab};
use bay_tests::origin::{Body, text};
use bay_tests::suite::Scratch;
use bay_tests::test_servers::Origin;
use bay_tests::{suite, until};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::io::AsyncWriteExt;

const BACKEND: &str = "/usr/lib/git-core/git-http-backend";

/// Runs git on the host, in a repository that this test made.
fn git(dir: &Path, args: &[&str]) -> String {
    let run = Command::new("git").current_dir(dir).args(args).output().unwrap();
    assert!(run.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

/// Answers through git's own server.
async fn serve_git(root: Arc<PathBuf>, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let header =
        |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
    let body = body.collect().await.unwrap().to_bytes();
    let mut child = tokio::process::Command::new(BACKEND)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("GIT_PROJECT_ROOT", root.as_path())
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("REMOTE_USER", "agent")
        .env("REQUEST_METHOD", head.method.as_str())
        .env("PATH_INFO", head.uri.path())
        .env("QUERY_STRING", head.uri.query().unwrap_or(""))
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeding = tokio::spawn(async move {
        stdin.write_all(&body).await.ok();
    });
    let out = child.wait_with_output().await.unwrap().stdout;
    feeding.await.unwrap();
    let end = out.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(0);
    let said = String::from_utf8_lossy(&out[..end]).into_owned();
    let mut answer = Response::new(text(out[end + 4..].to_vec()));
    for line in said.lines() {
        match line.split_once(": ") {
            Some(("Status", status)) => *answer.status_mut() = status[..3].parse().unwrap(),
            Some((name, value)) => {
                let name: http::HeaderName = name.parse().unwrap();
                answer.headers_mut().insert(name, value.parse().unwrap());
            }
            None => {}
        }
    }
    answer
}

struct Forge {
    lab: Lab,
    origin: Origin,
    bare: PathBuf,
    _files: Scratch,
}

/// A server with a repository that has one commit on `main`, and a bay with a clone of it.
fn forge() -> Forge {
    let lab = lab();
    let root = Scratch::new();
    let (work, bare) = (root.join("work"), root.join("srv/app.git"));
    std::fs::create_dir_all(&work).unwrap();
    std::fs::create_dir_all(&bare).unwrap();
    git(&bare, &["init", "-q", "--bare", "-b", "main"]);
    git(&bare, &["config", "http.receivepack", "true"]);
    git(&work, &["init", "-q", "-b", "main"]);
    let identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"];
    git(&work, &[&identity[..], &["commit", "-q", "--allow-empty", "-m", "Begin"]].concat());
    git(&work, &["push", "-q", bare.to_str().unwrap(), "main"]);
    let served = Arc::new(root.join("srv"));
    let origin = lab.servers.https("origin.test", move |request| serve_git(Arc::clone(&served), request));
    let rule = |id: &str, outcome: &str, more: &str| {
        origin
            .allowed(more)
            .replace("\"origin\"", &format!("{id:?}"))
            .replace("\"allow\"", &format!("{outcome:?}"))
    };
    let policy = [
        rule("fetch", "allow", "path = [\"/app.git/info/refs\"]\nquery = { service = \"git-upload-pack\" }"),
        rule("pack", "allow", "path = [\"/app.git/git-upload-pack\"]\nmethod = \"POST\""),
        rule("agents", "allow", "path = \"/app.git/**\"\nbranch = \"agent/**\""),
        rule("main", "ask", "path = \"/app.git/**\"\nbranch = \"main\""),
        rule("tags", "deny", "path = \"/app.git/**\"\nbranch = \"refs/tags/**\""),
    ]
    .concat();
    lab.bay("b", &policy);
    let url = origin.url("https", "/app.git");
    let clone = format!(
        "export HOME=/root; git config --global user.name Agent; git config --global user.email agent@example.org; \
         git clone -q {url} /workspace/app && cd /workspace/app && git commit -q --allow-empty -m 'Try something'"
    );
    let _cloned = lab.daemon.sh("b", &clone).ok();
    Forge { lab, origin, bare, _files: root }
}

impl Forge {
    fn push(&self, name: &str, refs: &str) {
        let script = format!(
            "export HOME=/root; cd /workspace/app; git push -q origin {refs} > /tmp/{name}.out 2>&1; \
             echo $? $(cat /tmp/{name}.out) > /tmp/{name}.new; mv /tmp/{name}.new /tmp/{name}"
        );
        let _begun = self.lab.daemon.bay(&["exec", "--detach", "b", "--", "sh", "-c", &script]).ok();
    }

    fn said(&self, name: &str) -> String {
        until("the push to be over", || {
            let ran = self.lab.daemon.sh("b", &format!("cat /tmp/{name} 2>/dev/null"));
            (ran.code == 0).then(|| ran.text())
        })
    }

    fn refs(&self) -> String {
        git(&self.bare, &["for-each-ref", "--format=%(refname)"])
    }

    fn question(&self) -> Value {
        let open = until("a question", || {
            let open = self.lab.daemon.bay(&["approvals", "--json"]).ok().json();
            open.as_array().filter(|open| !open.is_empty()).cloned()
        });
        open[0].clone()
    }
}

/// Whether git's client and server for HTTPS are installed.
fn has_git_over_https() -> bool {
    let there = Path::new(BACKEND).exists()
        && bay_tests::image::small().join("usr/lib/git-core/git-remote-https").exists();
    if !there {
        suite::skip(
            suite::Lack::Installable,
            "git's HTTP backend and its client for HTTPS are not both here",
        );
    }
    there
}

#[test]
fn approval_switch_an_allowed_push_delivers_only_the_commits_on_its_card() {
    if !has_git_over_https() {
        return;
    }
    let forge = forge();
    let shown = forge.lab.daemon.sh("b", "cd /workspace/app; git rev-parse HEAD").ok().text();
    // One command: a git that is killed pushes what the card shows. After the answer it pushes another commit, then the
    // first.
    let script = "export HOME=/root; cd /workspace/app; HEAD1=$(git rev-parse HEAD)
        setsid git push -q origin $HEAD1:refs/heads/main > /dev/null 2>&1 & push=$!
        until [ -e /tmp/leave ]; do sleep 0.05; done
        kill -- -$push; wait $push; touch /tmp/left
        until [ -e /tmp/go ]; do sleep 0.05; done
        git commit -q --allow-empty -m 'Something else'
        setsid git push -q origin HEAD:refs/heads/main & push=$!
        until [ -e /tmp/again ]; do sleep 0.05; done
        kill -- -$push; wait $push
        git push -q origin $HEAD1:refs/heads/main && touch /tmp/pushed";
    let _begun = forge.lab.daemon.bay(&["exec", "--detach", "b", "--", "sh", "-c", script]).ok();
    let reached = |file: &str| {
        until(file, || (forge.lab.daemon.sh("b", &format!("test -e {file}")).code == 0).then_some(()));
    };
    let card = forge.question();
    assert_eq!(card["asked"]["push"]["refs"][0]["new"], shown.trim(), "{card:#}");
    let _leave = forge.lab.daemon.sh("b", "touch /tmp/leave").ok();
    reached("/tmp/left");
    until("nobody to wait", || (forge.question()["held"] == 0).then_some(()));
    let _allowed = forge.lab.daemon.bay(&["approvals", "allow", card["id"].as_str().unwrap()]).ok();
    let _go = forge.lab.daemon.sh("b", "touch /tmp/go").ok();
    let other = forge.question();
    assert_eq!(other["differs"]["from"], card["id"], "{other:#}");
    let how = other["differs"]["how"][0].as_str().unwrap();
    assert!(how.starts_with("refs/heads/main: ") && how.contains(&shown[..12]), "{how}");
    let _again = forge.lab.daemon.sh("b", "touch /tmp/again").ok();
    reached("/tmp/pushed");
    assert_eq!(git(&forge.bare, &["rev-parse", "refs/heads/main"]).trim(), shown.trim());
}

#[test]
fn a_push_is_decided_on_by_its_branches_and_shown_as_refs_and_commits() {
    if !has_git_over_https() {
        return;
    }
    let forge = forge();
    forge.push("agent", "HEAD:refs/heads/agent/one");
    assert_eq!(forge.said("agent").trim(), "0", "a branch of the agent's own needs nobody");
    forge.push("tag", "HEAD:refs/tags/v1");
    assert!(!forge.said("tag").starts_with('0'), "tags are nobody's to push");

    let _work =
        forge.lab.daemon.sh("b", "cd /workspace/app; git commit -q --allow-empty -m 'Do the work'").ok();
    forge.push("main", "HEAD:refs/heads/main");
    let card = forge.question();
    let push = &card["asked"]["push"];
    assert_eq!(push["refs"][0]["name"], "refs/heads/main", "{card:#}");
    assert!(push["refs"][0]["old"].is_string() && push["refs"][0]["new"].is_string(), "{card:#}");
    assert_eq!(push["commits"][0]["subject"], "Do the work", "{card:#}");
    assert_eq!(push["commits"][0]["id"], push["refs"][0]["new"], "{card:#}");
    let saved = card["saved_as"].as_str().unwrap();
    assert!(saved.contains("branch = \"refs/heads/main\""), "{saved}");
    let text = forge.lab.daemon.bay(&["approvals", "show", card["id"].as_str().unwrap()]).ok().text();
    assert!(text.contains("refs/heads/main") && text.contains("Do the work"), "{text}");
    let _allowed = forge.lab.daemon.bay(&["approvals", "allow", card["id"].as_str().unwrap()]).ok();
    assert_eq!(forge.said("main").trim(), "0", "git waited and went on");
    assert_eq!(forge.refs().lines().collect::<Vec<_>>(), ["refs/heads/agent/one", "refs/heads/main"]);

    // One refused ref is enough, whatever else the push contains.
    forge.push("both", "HEAD:refs/heads/agent/two HEAD:refs/tags/v2");
    assert!(!forge.said("both").starts_with('0'));
    forge.push("delete", ":refs/heads/main");
    let card = forge.question();
    assert!(card["asked"]["push"]["refs"][0]["new"].is_null(), "{card:#}");
    let denied = ["approvals", "deny", card["id"].as_str().unwrap(), "-m", "keep it"];
    let _denied = forge.lab.daemon.bay(&denied).ok();
    assert!(!forge.said("delete").starts_with('0'));
    assert_eq!(forge.refs().lines().count(), 2);
    assert!(forge.origin.seen.lines().iter().any(|line| line.ends_with("/git-receive-pack")));
}
