//! Real clients whose requests wait for a person: each ends well once it is allowed, and does nothing special for it.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use bay_tests::lab::{Lab, lab_with};
use bay_tests::origin::text;
use bay_tests::outside::Origin;
use bay_tests::suite::{self, Lack};
use bay_tests::wait::within;
use bay_tests::{Daemon, until};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::time::Duration;

/// Clients wait, are told to come again, and wait again.
const PATIENCE: Duration = Duration::from_secs(120);

/// The programs of the host, in the place where they are at home.
const AT_HOME: &str = "mount --bind /mnt/usr /usr && mount --bind /mnt/usr/lib /lib && mkdir -p /lib64 && mount --bind /mnt/usr/lib64 /lib64 && mkdir -p /etc/alternatives && export HOME=/tmp PATH=/usr/bin:/bin";

/// A wheel with nothing in it.
fn wheel(dir: &Path) -> Bytes {
    let script = "import sys, zipfile\n\
        z = zipfile.ZipFile(sys.argv[1], 'w')\n\
        z.writestr('demo.py', '')\n\
        z.writestr('demo-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n')\n\
        z.writestr('demo-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
        z.writestr('demo-1.0.dist-info/RECORD', '')\n\
        z.close()";
    std::fs::create_dir_all(dir).unwrap();
    let path = dir.join("demo.whl");
    let made = Command::new("python3").args(["-c", script]).arg(&path).status().unwrap();
    assert!(made.success());
    std::fs::read(path).unwrap().into()
}

/// An index of Python packages, an index of cargo, and a file.
fn registry(lab: &Lab) -> Origin {
    let wheel = wheel(&suite::fresh("wheel"));
    lab.outside.https("registry.test", move |request: Request<Incoming>| {
        let wheel = wheel.clone();
        async move {
            let host = request.headers().get("host").and_then(|host| host.to_str().ok()).map(str::to_owned);
            let authority = request.uri().authority().map(ToString::to_string).or(host).unwrap_or_default();
            let (kind, body): (&str, Bytes) = match request.uri().path() {
                "/simple/demo/" => (
                    "text/html",
                    "<!DOCTYPE html><html><body><a href=\"/demo-1.0-py3-none-any.whl\">demo-1.0-py3-none-any.whl</a></body></html>".into(),
                ),
                "/demo-1.0-py3-none-any.whl" => ("application/octet-stream", wheel),
                "/index/config.json" => {
                    ("application/json", json!({ "dl": format!("https://{authority}/dl") }).to_string().into())
                }
                "/index/de/mo/demo" => (
                    "text/plain",
                    json!({ "name": "demo", "vers": "1.0.0", "deps": [], "cksum": "0".repeat(64), "features": {}, "yanked": false })
                        .to_string()
                        .into(),
                ),
                "/file" => ("text/plain", "a file\n".into()),
                _ => {
                    let mut none = Response::new(text("none"));
                    *none.status_mut() = StatusCode::NOT_FOUND;
                    return none;
                }
            };
            let mut answer = Response::new(text(body));
            answer.headers_mut().insert("content-type", kind.parse().unwrap());
            answer
        }
    })
}

/// Where the host's cargo is, with what it needs.
fn toolchain() -> Option<PathBuf> {
    let found = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let path = PathBuf::from(String::from_utf8(found.stdout).ok()?.trim());
    path.join("bin/cargo").is_file().then_some(path)
}

/// Runs a client and allows everything that is asked about, but not before the client was told to come again if it is one
/// that does. What it said, and how often a client was told to.
fn run(lab: &Lab, bay: &str, name: &str, comes_again: bool, line: &str) -> String {
    let script = format!(
        "unshare -m sh -c '{AT_HOME} && ({line})' > /tmp/{name}.out 2>&1; echo \"exit $?\" >> /tmp/{name}.out; mv /tmp/{name}.out /tmp/{name}"
    );
    let _begun = lab.daemon.bay(&["exec", "--detach", bay, "--", "sh", "-c", &script]).ok();
    let mut allowed: BTreeSet<String> = BTreeSet::new();
    let said = within(PATIENCE, || {
        let open = lab.daemon.bay(&["approvals", "--json"]).ok().json();
        for card in open.as_array().into_iter().flatten() {
            let told = card["held"] == 0;
            // The first question of a client has to outlast one hold; the others are answered at once.
            if (allowed.is_empty() && comes_again && !told) || (allowed.is_empty() && !comes_again && told) {
                continue;
            }
            let id = card["id"].as_str().unwrap().to_owned();
            let _allowed = lab.daemon.bay(&["approvals", "allow", &id, "--exec"]).ok();
            allowed.insert(id);
        }
        let ran = lab.daemon.sh(bay, &format!("cat /tmp/{name} 2>/dev/null"));
        (ran.code == 0).then(|| ran.text())
    });
    let said = said.unwrap_or_else(|| {
        let out = lab.daemon.sh(bay, &format!("cat /tmp/{name}.out")).text();
        panic!("{name} did not end; {} questions were answered: {out}", allowed.len())
    });
    assert!(!allowed.is_empty(), "{name} was asked about nothing: {said}");
    said
}

#[test]
fn every_client_ends_well_when_a_person_allows_what_it_asks_for() {
    let lab = lab_with(Daemon::setup().argument("--ask-hold").argument("2s"));
    let origin = registry(&lab);
    let mut mounts = vec![json!({ "source": "/usr", "target": "/mnt/usr" })];
    let rust = toolchain();
    if let Some(rust) = &rust {
        mounts.push(json!({ "source": rust, "target": "/mnt/rust" }));
    }
    let create = json!({ "name": "b", "source": { "kind": "empty" }, "image": "small", "mounts": mounts });
    let made = lab.daemon.rest("POST", "/v1/bays", &create);
    assert!(made.status < 300, "{}", String::from_utf8_lossy(&made.body));
    let _running = until("the bay to run", || {
        Some(lab.daemon.rest("GET", "/v1/bays/b", &Value::Null).json())
            .filter(|bay| bay["state"] == "running")
    });
    lab.set("b", &origin.allowed("method = \"*\"").replace("\"allow\"", "\"ask\""));
    let url = |path: &str| origin.url("https", path);
    let mut skipped = Vec::new();
    let mut with = |program: &str, name: &str, comes_again: bool, line: &str, expected: &str| {
        if !Path::new(program).exists() {
            skipped.push(name.to_owned());
            return;
        }
        let said = run(&lab, "b", name, comes_again, line);
        assert!(said.contains(expected) && said.trim_end().ends_with("exit 0"), "{name}: {said}");
    };
    with("/usr/bin/curl", "curl", false, &format!("curl -sS {}", url("/file")), "a file");
    with("/usr/bin/wget", "wget", false, &format!("wget -q -O - {}", url("/file")), "a file");
    let pip = format!(
        "python3 -m pip download --no-deps --no-cache-dir --disable-pip-version-check -d /tmp/wheels --index-url {} demo",
        url("/simple/")
    );
    with("/usr/lib/python3/dist-packages/pip", "pip", true, &pip, "Saved");
    if rust.is_some() {
        let project = "mkdir -p /tmp/p/src /tmp/ch && cd /tmp/p && touch src/lib.rs && printf \"[package]\\nname = \\\"p\\\"\\nversion = \\\"0.1.0\\\"\\n[dependencies]\\ndemo = { version = \\\"1\\\", registry = \\\"lab\\\" }\\n\" > Cargo.toml";
        let cargo = format!(
            "{project} && export CARGO_HOME=/tmp/ch CARGO_REGISTRIES_LAB_INDEX=sparse+{} && /mnt/rust/bin/cargo generate-lockfile && cat Cargo.lock",
            url("/index/")
        );
        with("/", "cargo", true, &cargo, "name = \"demo\"");
    }
    if !skipped.is_empty() {
        suite::skip(Lack::Host, &format!("not on this host: {}", skipped.join(", ")));
    }
}
