//! Real clients whose requests need an approval: each succeeds once the request is allowed, without special settings.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bay_tests::Daemon;
use bay_tests::lab::{Lab, lab_with};
use bay_tests::origin::text;
use bay_tests::suite::{self, Lack, Scratch};
use bay_tests::test_servers::Origin;
use bay_tests::tools::{self, program, toolchain};
use bay_tests::wait::within;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected};
use hyper::body::Incoming;
use serde_json::{Value, json};

/// Clients wait, are told to retry, and wait again.
const PATIENCE: Duration = Duration::from_secs(120);

/// The packages of the lab's registry: a Python wheel and an npm package, both almost empty.
#[derive(Clone)]
struct Packages {
    wheel: Bytes,
    npm: Bytes,
}

fn packages() -> Packages {
    let script = "import io, sys, tarfile, zipfile\n\
        z = zipfile.ZipFile(sys.argv[1] + '/demo.whl', 'w')\n\
        z.writestr('demo.py', '')\n\
        z.writestr('demo-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n')\n\
        z.writestr('demo-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
        z.writestr('demo-1.0.dist-info/RECORD', '')\n\
        z.close()\n\
        t = tarfile.open(sys.argv[1] + '/demo.tgz', 'w:gz')\n\
        about = tarfile.TarInfo('package/package.json')\n\
        text = b'{\\\"name\\\": \\\"demo\\\", \\\"version\\\": \\\"1.0.0\\\"}'\n\
        about.size = len(text)\n\
        t.addfile(about, io.BytesIO(text))\n\
        t.close()";
    let dir = Scratch::new();
    let made = Command::new("python3").args(["-c", script]).arg(dir.path()).status().unwrap();
    assert!(made.success());
    let read = |name: &str| fs::read(dir.join(name)).unwrap().into();
    Packages { wheel: read("demo.whl"), npm: read("demo.tgz") }
}

/// One answer of a model, whole or as a stream.
fn chat(asked: &[u8]) -> (&'static str, Bytes) {
    let asked: Value = serde_json::from_slice(asked).unwrap_or_default();
    let about = json!({ "id": "chat-1", "created": 1, "model": asked["model"] });
    let with = |object: &str, choice: Value| {
        let mut answer = about.clone();
        answer["object"] = object.into();
        answer["choices"] = json!([choice]);
        answer.to_string()
    };
    if asked["stream"] == true {
        let part = |text: &str, end: Value| {
            let choice = json!({ "index": 0, "delta": { "role": "assistant", "content": text }, "finish_reason": end });
            format!("data: {}\n\n", with("chat.completion.chunk", choice))
        };
        let parts = [part("it is ", Value::Null), part("well", "stop".into()), "data: [DONE]\n\n".to_owned()];
        return ("text/event-stream", parts.concat().into());
    }
    let message = json!({ "role": "assistant", "content": "it is well" });
    let choice = json!({ "index": 0, "message": message, "finish_reason": "stop" });
    ("application/json", with("chat.completion", choice).into())
}

/// Indexes of Python, cargo and npm, GitHub's API, a model, and a file.
fn registry(lab: &Lab) -> Origin {
    let packages = packages();
    lab.servers.https("registry.test", move |request: Request<Incoming>| {
        let packages = packages.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
            let host = head.headers.get("host").and_then(|host| host.to_str().ok()).map(str::to_owned);
            let authority = head.uri.authority().map(ToString::to_string).or(host).unwrap_or_default();
            let (kind, body): (&str, Bytes) = match head.uri.path() {
                "/simple/demo/" => (
                    "text/html",
                    "<!DOCTYPE html><html><body><a href=\"/demo-1.0-py3-none-any.whl\">demo-1.0-py3-none-any.whl</a></body></html>".into(),
                ),
                "/demo-1.0-py3-none-any.whl" => ("application/octet-stream", packages.wheel),
                "/index/config.json" => {
                    ("application/json", json!({ "dl": format!("https://{authority}/dl") }).to_string().into())
                }
                "/index/de/mo/demo" => (
                    "text/plain",
                    json!({ "name": "demo", "vers": "1.0.0", "deps": [], "cksum": "0".repeat(64), "features": {}, "yanked": false })
                        .to_string()
                        .into(),
                ),
                "/npm/demo" => {
                    let dist = json!({ "tarball": format!("https://{authority}/npm/demo.tgz") });
                    let version = json!({ "name": "demo", "version": "1.0.0", "dist": dist });
                    let all = json!({ "name": "demo", "dist-tags": { "latest": "1.0.0" }, "versions": { "1.0.0": version } });
                    ("application/json", all.to_string().into())
                }
                "/npm/demo.tgz" => ("application/octet-stream", packages.npm),
                "/api/v3/user" => ("application/json", json!({ "login": "somebody" }).to_string().into()),
                "/v1/chat/completions" => chat(&body),
                "/file" => ("text/plain", "a file\n".into()),
                _ => {
                    let mut none = Response::new(text("none"));
                    *none.status_mut() = StatusCode::NOT_FOUND;
                    return none;
                }
            };
            // The server sends the body that it gets, and a response to HEAD must have none.
            let body = if head.method == Method::HEAD { Bytes::new() } else { body };
            let mut answer = Response::new(text(body));
            answer.headers_mut().insert("content-type", kind.parse().unwrap());
            answer
        }
    })
}

/// A Python package that `./test` installs.
struct Package {
    /// The Python that it was installed for.
    python: PathBuf,
    /// Its modules and their dependencies.
    modules: PathBuf,
    /// Its programs.
    programs: PathBuf,
}

fn package(variable: &str) -> Option<Package> {
    let python = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.exists())?;
    let script = "import site, sys; print(sys.base_prefix); print(site.getsitepackages()[0])";
    let said = Command::new(&python).args(["-I", "-c", script]).output().ok()?.stdout;
    let said = String::from_utf8(said).ok()?;
    let (prefix, modules) = said.trim_end().split_once('\n')?;
    Some(Package { python: prefix.into(), modules: modules.into(), programs: python.parent()?.to_owned() })
}

/// A bay with the host's programs. All of its requests to the registry need an approval.
struct Asked {
    lab: Lab,
    origin: Origin,
}

/// How a client gets its allowed request through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Its first request is allowed while it is held.
    Held,
    /// Its first request is allowed after the client was told to retry, and did.
    ComesAgain,
}

impl Asked {
    /// `hold` is how long clients that retry are held. `more` are directories of the host below `/mnt`.
    fn new(hold: &str, more: &[(&str, &Path)]) -> Self {
        let lab = lab_with(Daemon::setup().argument("--ask-hold").argument(hold));
        let origin = registry(&lab);
        tools::bay(&lab.daemon, "b", more);
        lab.set("b", &origin.allowed("method = \"*\"").replace("\"allow\"", "\"ask\""));
        Self { lab, origin }
    }

    fn url(&self, path: &str) -> String {
        self.origin.url("https", path)
    }

    fn open(&self) -> Vec<Value> {
        let open = self.lab.daemon.bay(&["approvals", "--json"]).ok().json();
        open.as_array().cloned().unwrap_or_default()
    }

    fn allow(&self, card: &Value) {
        let _allowed =
            self.lab.daemon.bay(&["approvals", "allow", card["id"].as_str().unwrap(), "--exec"]).ok();
    }

    /// Runs a client once and allows its requests: the first in the given way, later ones immediately. The client must
    /// succeed and print what is expected.
    fn run(&self, name: &str, way: Way, line: &str, expected: &str) {
        let script = format!(
            "{} > /tmp/{name}.out 2>&1; echo \"exit $?\" >> /tmp/{name}.out; mv /tmp/{name}.out /tmp/{name}",
            tools::at_home(line)
        );
        let begun = Instant::now();
        let _begun = self.lab.daemon.bay(&["exec", "--detach", "b", "--", "sh", "-c", &script]).ok();
        let output = |what: &str| self.lab.daemon.sh("b", &format!("cat /tmp/{name}{what} 2>/dev/null"));
        let over = || Some(output("")).filter(|ran| ran.code == 0).map(|ran| ran.text());
        // Whether the request is held: first yes, then no when the client was told to retry, then yes when it retried.
        let turns: &[bool] = if way == Way::Held { &[true] } else { &[true, false, true] };
        let (mut seen, mut question) = (Vec::new(), Value::Null);
        let first = within(PATIENCE, || {
            let open = self.open();
            assert!(open.len() <= 1, "{name} is asked about more than once at a time: {open:#?}");
            let held = open.first().is_some_and(|card| card["held"] != 0);
            if !held && let Some(said) = over() {
                panic!("{name} was not held as it is to be, but {seen:?}, and ended: {said}");
            }
            if turns[seen.len()] == held && !open.is_empty() {
                seen.push(held);
                // The approval stays open and answerable, however often the client retries.
                assert!(
                    seen.len() == 1 || question == open[0]["id"],
                    "{name} is asked about anew: {open:#?}"
                );
                question = open[0]["id"].clone();
                println!("{name}: held {held} after {:?}", begun.elapsed());
            }
            (seen.len() == turns.len()).then(|| open[0].clone())
        });
        let first =
            first.unwrap_or_else(|| panic!("{name} was not held as it is to be: {}", output(".out").text()));
        self.allow(&first);
        let said = within(PATIENCE, || {
            for card in self.open() {
                self.allow(&card);
            }
            over()
        });
        let said = said.unwrap_or_else(|| panic!("{name} did not end: {}", output(".out").text()));
        println!("{name}: over after {:?}", begun.elapsed());
        assert!(said.contains(expected) && said.trim_end().ends_with("exit 0"), "{name}: {said}");
    }
}

/// Shorter than the timeouts of all clients, and long enough to be observed.
const HOLD: &str = "2s";

#[test]
fn curl_continues_after_an_allow() {
    let Some(()) = program("/usr/bin/curl", Lack::Installable) else { return };
    let asked = Asked::new(HOLD, &[]);
    asked.run("curl", Way::Held, &format!("curl -sS {}", asked.url("/file")), "a file");
}

#[test]
fn wget_continues_after_an_allow() {
    let Some(()) = program("/usr/bin/wget", Lack::Installable) else { return };
    let asked = Asked::new(HOLD, &[]);
    asked.run("wget", Way::Held, &format!("wget -q -O - {}", asked.url("/file")), "a file");
}

#[test]
fn pip_retries_until_an_allow() {
    let Some(()) = program("/usr/lib/python3/dist-packages/pip", Lack::Host) else { return };
    let asked = Asked::new(HOLD, &[]);
    let pip = format!(
        "python3 -m pip download --no-deps --no-cache-dir --disable-pip-version-check -d /tmp/wheels --index-url {} demo",
        asked.url("/simple/")
    );
    asked.run("pip", Way::ComesAgain, &pip, "Saved");
}

#[test]
fn cargo_retries_until_an_allow() {
    let Some(rust) = toolchain() else {
        return suite::skip(Lack::Host, "cargo is not where rustc says that it is");
    };
    let asked = Asked::new(HOLD, &[("rust", &rust)]);
    let project = "mkdir -p /tmp/p/src /tmp/ch && cd /tmp/p && touch src/lib.rs && printf \"[package]\\nname = \\\"p\\\"\\nversion = \\\"0.1.0\\\"\\n[dependencies]\\ndemo = { version = \\\"1\\\", registry = \\\"lab\\\" }\\n\" > Cargo.toml";
    let cargo = format!(
        "{project} && export CARGO_HOME=/tmp/ch CARGO_REGISTRIES_LAB_INDEX=sparse+{} && /mnt/rust/bin/cargo generate-lockfile && cat Cargo.lock",
        asked.url("/index/")
    );
    asked.run("cargo", Way::ComesAgain, &cargo, "name = \"demo\"");
}

#[test]
fn uv_retries_until_an_allow() {
    let Some(uv) = package("BAY_TEST_UV") else {
        return suite::skip(Lack::Installable, "uv is not there: ./test installs it");
    };
    let asked = Asked::new(HOLD, &[("uv", &uv.programs)]);
    let uv = format!(
        "/mnt/uv/uv pip install --no-cache --link-mode copy --no-python-downloads --python /usr/bin/python3 --target /tmp/u --index-url {} demo",
        asked.url("/simple/")
    );
    asked.run("uv", Way::ComesAgain, &uv, "demo==1.0");
}

#[test]
fn npm_continues_after_an_allow_and_retries_by_itself() {
    let Some(()) = program("/usr/bin/npm", Lack::Host) else { return };
    let asked = Asked::new(HOLD, &[]);
    let npm = |home: &str, more: &str| {
        let registry = asked.url("/npm/");
        format!(
            "npm install --prefix /tmp/{home} --cache /tmp/{home} --no-audit --no-fund --no-update-notifier --registry {registry} {more} demo"
        )
    };
    asked.run("npm", Way::Held, &npm("n1", ""), "added 1 package");
    // It is held for minutes. Under another user agent it is not.
    asked.run("npm-renamed", Way::ComesAgain, &npm("n2", "--user-agent=another"), "added 1 package");
}

#[test]
fn gh_continues_after_an_allow() {
    let Some(()) = program("/usr/bin/gh", Lack::Installable) else { return };
    let asked = Asked::new(HOLD, &[]);
    let gh = format!("GH_TOKEN=nothing gh api {}", asked.url("/api/v3/user"));
    asked.run("gh", Way::Held, &gh, "somebody");
}

#[test]
fn a_model_client_continues_after_an_allow_and_retries_by_itself() {
    let Some(openai) = package("BAY_TEST_OPENAI") else {
        return suite::skip(Lack::Installable, "OpenAI's Python package is not there: ./test installs it");
    };
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let more = [("python", openai.python.as_path()), ("modules", &openai.modules), ("scripts", &scripts)];
    let asked = Asked::new(HOLD, &more);
    let chat = |more: &str| {
        let url = asked.url("/v1");
        // A Python that is not the system's may have its own libraries, which it expects at its original path.
        format!(
            "LD_LIBRARY_PATH=/mnt/python/lib PYTHONPATH=/mnt/modules /mnt/python/bin/python3 -B /mnt/scripts/openai_chat.py {url} {more}"
        )
    };
    asked.run("openai", Way::Held, &chat("whole"), "it is well");
    asked.run("openai-stream", Way::Held, &chat("stream"), "it is well");
    // It is held for minutes. Under another user agent it is not.
    asked.run("openai-renamed", Way::ComesAgain, &chat("whole another"), "it is well");
    asked.run("openai-stream-renamed", Way::ComesAgain, &chat("stream another"), "it is well");
}
