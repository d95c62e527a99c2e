//! Private registries with a secret that the bay never holds: real clients inside bays, and servers that require the
//! value. The files that a client stores of its login are searched for the value too.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bay_tests::canary::{CANARY, bay_is_clean, credentials, set};
use bay_tests::lab::{Lab, lab};
use bay_tests::origin::{Body, text};
use bay_tests::suite::{self, Lack, Scratch};
use bay_tests::test_servers::Origin;
use bay_tests::tools::{self, program, toolchain};
use bay_tests::{CliRun, image, until};
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use sha2::{Digest, Sha256};

const HOST: &str = "registry.test";
const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// Files by path, for clients with one credential.
#[derive(Default)]
struct Served {
    files: HashMap<String, Vec<u8>>,
    wanted: String,
    /// The challenge for clients without it.
    challenge: String,
}

impl Served {
    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let shown = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        let path = request.uri().path();
        let mut answer = match self.files.get(path) {
            _ if shown.unwrap_or_default() != self.wanted => {
                let mut answer = Response::new(text("who are you?"));
                *answer.status_mut() = StatusCode::UNAUTHORIZED;
                answer.headers_mut().insert("www-authenticate", self.challenge.parse().unwrap());
                answer
            }
            Some(file) if request.method() == http::Method::HEAD => {
                let mut answer = Response::new(text(""));
                answer.headers_mut().insert("content-length", file.len().into());
                answer
            }
            Some(file) => Response::new(text(file.clone())),
            None => {
                let mut answer = Response::new(text("no such file"));
                *answer.status_mut() = StatusCode::NOT_FOUND;
                answer
            }
        };
        let kind = match path {
            path if path.contains("/simple/") => "text/html",
            path if path.contains("/manifests/") => MANIFEST,
            _ => "application/octet-stream",
        };
        answer.headers_mut().insert("content-type", HeaderValue::from_static(kind));
        answer
    }
}

fn basic() -> String {
    format!("Basic {}", STANDARD.encode(format!("me:{CANARY}")))
}

/// A server whose files may contain its own address, `HOST:PORT`.
fn serve(lab: &Lab, name: &'static str, served: impl FnOnce(&str) -> Vec<Served>) -> Origin {
    let later: Arc<OnceLock<Vec<Served>>> = Arc::default();
    let asked = Arc::clone(&later);
    let origin = lab.servers.https(name, move |request: Request<Incoming>| {
        let all = asked.get().expect("it is served");
        // The part that has the file answers; if none has it, the last one.
        let of = all.iter().find(|one| one.files.contains_key(request.uri().path())).or(all.last());
        let answer = of.expect("something is served").answer(&request);
        async move { answer }
    });
    let made = served(&format!("{name}:{}", origin.port()));
    assert!(later.set(made).is_ok());
    origin
}

/// A registry that requires the value in one slot, and a bay with the host's programs that may use it.
struct Rig {
    lab: Lab,
    origin: Origin,
}

impl Rig {
    /// `more` says where the bay has the sentinel, with `PLACE` for the registry. `mounts` are directories of the host.
    fn new(
        slot: &str,
        more: &[&str],
        mounts: &[(&str, &Path)],
        wanted: &str,
        files: impl FnOnce(&str) -> HashMap<String, Vec<u8>>,
    ) -> Self {
        let lab = lab();
        let challenge = "Basic realm=\"lab\"".to_owned();
        let served = |place: &str| vec![Served { files: files(place), wanted: wanted.to_owned(), challenge }];
        let origin = serve(&lab, HOST, served);
        let rig = Self { lab, origin };
        tools::bay(&rig.lab.daemon, "b", mounts);
        rig.lab.set("b", &rig.origin.allowed("method = \"*\""));
        let place = rig.place();
        let more: Vec<String> = more.iter().map(|word| word.replace("PLACE", &place)).collect();
        let uses = format!("{place} as {slot}");
        let mut line = vec!["--for", uses.as_str()];
        line.extend(more.iter().map(String::as_str));
        let _set = set(&rig.lab, "TOKEN", &line).ok();
        rig
    }

    fn place(&self) -> String {
        format!("{HOST}:{}", self.origin.port())
    }

    /// Runs a client once the bay has the sentinel. `PLACE` is the registry.
    fn run(&self, line: &str) -> String {
        let line = tools::at_home(&line.replace("PLACE", &self.place()));
        client(&self.lab, &line)
    }

    /// Asserts that no other credential was sent to the registry.
    fn only_the_value_was_shown(&self) {
        let shown = credentials(&self.origin);
        assert!(!shown.is_empty());
        let value = shown.iter().all(|shown| shown.contains(CANARY) || *shown == basic());
        assert!(value, "{shown:?}");
        bay_is_clean(&self.lab, "b");
    }
}

/// Runs a client repeatedly until the bay has the sentinel.
fn client(lab: &Lab, line: &str) -> String {
    until("the sentinel in the environment", || {
        (lab.daemon.sh("b", "test -n \"$TOKEN\"").code == 0).then_some(())
    });
    let ran: CliRun = lab.daemon.sh("b", line);
    let said = format!("{}{}", ran.text(), ran.errors());
    assert!(!said.contains(CANARY), "{said}");
    assert_eq!(ran.code, 0, "{said}\n{:#?}", lab.record("b", "egress.refused"));
    said
}

fn local(dir: &Path, program: &str, args: &[&str]) {
    let ran = Command::new(program).args(args).current_dir(dir).output().unwrap();
    assert!(ran.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn files_below(root: &Path, prefix: &str, found: &mut HashMap<String, Vec<u8>>) {
    for entry in fs::read_dir(root).unwrap().flatten() {
        let name = format!("{prefix}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            files_below(&entry.path(), &name, found);
        } else {
            found.insert(name, fs::read(entry.path()).unwrap());
        }
    }
}

#[test]
fn git_and_curl_work_with_the_sentinel_of_a_password() {
    let made = Scratch::new();
    let dir = made.path();
    local(dir, "git", &["init", "-q", "-b", "main", "work"]);
    fs::write(dir.join("work/file"), "content of a private repository\n").unwrap();
    let who = ["-c", "user.name=a", "-c", "user.email=a@example.test"];
    local(&dir.join("work"), "git", &["add", "."]);
    local(&dir.join("work"), "git", &[&who[..], &["commit", "-qm", "one"]].concat());
    local(dir, "git", &["clone", "-q", "--bare", "work", "bare.git"]);
    local(&dir.join("bare.git"), "git", &["update-server-info"]);
    let rig = Rig::new("basic", &["--git", "me@PLACE", "--env", "TOKEN"], &[], &basic(), |_| {
        let mut files = HashMap::new();
        files_below(&dir.join("bare.git"), "/team/x.git", &mut files);
        files
    });
    // With the bay's settings; then with a password prompt.
    let url = "https://PLACE/team/x.git";
    assert!(
        rig.run(&format!("git clone -q {url} /tmp/told && cat /tmp/told/file"))
            .contains("private repository")
    );
    let helper = "credential.helper=!f() { echo username=me; echo password=$TOKEN; }; f";
    let asked = format!(
        "export GIT_CONFIG_SYSTEM=/dev/null; git -c \"{helper}\" clone -q {url} /tmp/asked && cat /tmp/asked/file"
    );
    assert!(rig.run(&asked).contains("private repository"));
    assert!(rig.run(&format!("curl -sSf -u \"me:$TOKEN\" {url}/HEAD")).contains("refs/heads/main"));
    rig.only_the_value_was_shown();
}

#[test]
fn pip_installs_from_an_index_that_requires_a_password() {
    let Some(()) = program("/usr/lib/python3/dist-packages/pip", Lack::Host) else { return };
    let made = Scratch::new();
    let wheel = "private_thing-1.0-py3-none-any.whl";
    let script = format!(
        "import zipfile\nwith zipfile.ZipFile({wheel:?}, 'w') as z:\n  z.writestr('private_thing.py', 'x = 1\\n')\n  d = 'private_thing-1.0.dist-info/'\n  z.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: private-thing\\nVersion: 1.0\\n')\n  z.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: lab\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n  z.writestr(d + 'RECORD', '')\n"
    );
    local(made.path(), "python3", &["-c", &script]);
    let rig = Rig::new("basic", &[], &[], &basic(), |_| {
        let link = format!("<a href=\"/files/{wheel}\">{wheel}</a>").into_bytes();
        let bytes = fs::read(made.join(wheel)).unwrap();
        HashMap::from([("/simple/private-thing/".to_owned(), link), (format!("/files/{wheel}"), bytes)])
    });
    let said = rig.run(
        "python3 -m pip install --no-cache-dir --disable-pip-version-check --target /tmp/t \
         --index-url \"https://me:$TOKEN@PLACE/simple/\" private-thing && cat /tmp/t/private_thing.py",
    );
    assert!(said.contains("x = 1"), "{said}");
    rig.only_the_value_was_shown();
}

#[test]
fn npm_installs_from_a_registry_that_requires_a_token() {
    let Some(()) = program("/usr/bin/npm", Lack::Host) else { return };
    let made = Scratch::new();
    fs::create_dir(made.join("package")).unwrap();
    fs::write(made.join("package/package.json"), r#"{"name":"private-thing","version":"1.0.0"}"#).unwrap();
    local(made.path(), "tar", &["czf", "thing.tgz", "package"]);
    let settings = "/root/.npmrc=registry=https://PLACE/\\n//PLACE/:_authToken={}\\n";
    let places = ["--file", settings, "--env", "TOKEN"];
    let rig = Rig::new("bearer", &places, &[], &format!("Bearer {CANARY}"), |place| {
        let tarball = format!("https://{place}/private-thing/-/private-thing-1.0.0.tgz");
        let version = json!({ "name": "private-thing", "version": "1.0.0", "dist": { "tarball": tarball } });
        let about = json!({ "name": "private-thing", "dist-tags": { "latest": "1.0.0" }, "versions": { "1.0.0": version } });
        let bytes = fs::read(made.join("thing.tgz")).unwrap();
        HashMap::from([
            ("/private-thing".to_owned(), about.to_string().into_bytes()),
            ("/private-thing/-/private-thing-1.0.0.tgz".to_owned(), bytes),
        ])
    });
    let said = rig.run(
        "HOME=/root npm install --prefix /tmp/n --cache /tmp/n-cache --no-audit --no-fund --no-update-notifier private-thing",
    );
    assert!(said.contains("added 1 package"), "{said}");
    rig.only_the_value_was_shown();
}

#[test]
fn cargo_fetches_from_a_registry_that_requires_a_token() {
    let Some(rust) = toolchain() else {
        return suite::skip(Lack::Host, "cargo is not where rustc says that it is");
    };
    let made = Scratch::new();
    let krate = made.join("private-thing-1.0.0");
    fs::create_dir_all(krate.join("src")).unwrap();
    let package =
        |name: &str| format!("[package]\nname = \"{name}\"\nversion = \"1.0.0\"\nedition = \"2021\"\n");
    fs::write(krate.join("Cargo.toml"), package("private-thing")).unwrap();
    fs::write(krate.join("src/lib.rs"), "").unwrap();
    local(made.path(), "tar", &["czf", "thing.crate", "private-thing-1.0.0"]);
    let project = made.join("project");
    fs::create_dir_all(project.join("src")).unwrap();
    fs::write(project.join("src/lib.rs"), "").unwrap();
    let needs = "[dependencies]\nprivate-thing = { version = \"1\", registry = \"lab\" }\n[workspace]\n";
    fs::write(project.join("Cargo.toml"), package("project") + needs).unwrap();
    let places = ["--env", "CARGO_REGISTRIES_LAB_TOKEN", "--env", "TOKEN"];
    let mounts = [("rust", rust.as_path()), ("project", &project)];
    let rig = Rig::new("header authorization", &places, &mounts, CANARY, |place| {
        let bytes = fs::read(made.join("thing.crate")).unwrap();
        let url = format!("https://{place}");
        let config = json!({ "dl": format!("{url}/dl"), "api": url, "auth-required": true });
        let line = json!({ "name": "private-thing", "vers": "1.0.0", "deps": [], "cksum": sha256(&bytes), "features": {}, "yanked": false });
        HashMap::from([
            ("/index/config.json".to_owned(), config.to_string().into_bytes()),
            ("/index/pr/iv/private-thing".to_owned(), format!("{line}\n").into_bytes()),
            ("/dl/private-thing/1.0.0/download".to_owned(), bytes),
        ])
    });
    let said = rig.run(
        "cp -r /mnt/project /tmp/p && cd /tmp/p && export PATH=/mnt/rust/bin:$PATH CARGO_HOME=/tmp/ch CARGO_NET_RETRY=0 && \
         export CARGO_REGISTRIES_LAB_INDEX=sparse+https://PLACE/index/ && \
         export CARGO_REGISTRY_GLOBAL_CREDENTIAL_PROVIDERS=cargo:token && \
         cargo fetch && cat Cargo.lock && ls /tmp/ch/registry/src/*/private-thing-1.0.0",
    );
    assert!(said.contains("name = \"private-thing\"") && said.contains("src"), "{said}");
    rig.only_the_value_was_shown();
}

/// An image of one layer with one file, in the format of a registry.
fn container_image(dir: &Path) -> HashMap<String, Vec<u8>> {
    fs::write(dir.join("greeting"), "hello from a private image\n").unwrap();
    local(dir, "tar", &["--owner=0", "--group=0", "-cf", "layer.tar", "greeting"]);
    let plain = sha256(&fs::read(dir.join("layer.tar")).unwrap());
    local(dir, "gzip", &["-n", "layer.tar"]);
    let layer = fs::read(dir.join("layer.tar.gz")).unwrap();
    let rootfs = json!({ "type": "layers", "diff_ids": [format!("sha256:{plain}")] });
    let config =
        json!({ "architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs }).to_string();
    let blob = |bytes: &[u8], kind: &str| json!({ "mediaType": kind, "size": bytes.len(), "digest": format!("sha256:{}", sha256(bytes)) });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(config.as_bytes(), "application/vnd.docker.container.image.v1+json"),
        "layers": [blob(&layer, "application/vnd.docker.image.rootfs.diff.tar.gzip")],
    })
    .to_string();
    let at = |bytes: &[u8]| format!("/v2/team/app/blobs/sha256:{}", sha256(bytes));
    HashMap::from([
        ("/v2/".to_owned(), b"{}".to_vec()),
        ("/v2/team/app/manifests/1".to_owned(), manifest.clone().into_bytes()),
        (format!("/v2/team/app/manifests/sha256:{}", sha256(manifest.as_bytes())), manifest.into_bytes()),
        (at(config.as_bytes()), config.into_bytes()),
        (at(&layer), layer),
    ])
}

/// Starts Docker's daemon in the bay as root.
const DOCKERD: &str = "(dockerd --storage-driver vfs --iptables=false --ip6tables=false --bridge none \
    > /tmp/dockerd.log 2>&1 &) ; for n in $(seq 100); do docker version > /dev/null 2>&1 && exit 0; sleep 0.2; done; \
    cat /tmp/dockerd.log; exit 1";

#[test]
fn dockers_own_error_says_why_a_pull_was_refused() {
    let Some(directory) = image::docker() else { return };
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.daemon.import(&directory, image::DOCKER);
    lab.daemon.bay_from("b", image::DOCKER);
    lab.set("b", &origin.allowed("path = \"/open/**\""));
    let _started = lab.daemon.sh("b", DOCKERD).ok();
    let pulled = lab.daemon.sh("b", "docker pull registry.test/team/app:1 2>&1");
    assert_ne!(pulled.code, 0, "{pulled}");
    let said = pulled.text();
    assert!(said.contains("the gateway of this bay: deny: GET https://registry.test/v2/"), "{said}");
    assert!(said.contains("to allow it"), "{said}");
    for misleading in ["error parsing", "docker login", "{\""] {
        assert!(!said.contains(misleading), "{misleading}: {said}");
    }
}

/// Docker sends the password to a token server, and the token to the registry.
#[test]
fn docker_pulls_with_a_token_that_it_got_for_a_password() {
    let Some(directory) = image::docker() else { return };
    let made = Scratch::new();
    let images = container_image(made.path());
    // Two hosts, as Docker Hub has them; then one host for both, where the token is another credential than the secret.
    for one_host in [false, true] {
        let lab = lab();
        let tokens = || Served {
            files: HashMap::from([("/token".to_owned(), br#"{"token":"for-an-hour"}"#.to_vec())]),
            wanted: basic(),
            challenge: "Basic realm=\"lab\"".to_owned(),
        };
        let registry = |tokens: &str| Served {
            files: images.clone(),
            wanted: "Bearer for-an-hour".to_owned(),
            challenge: format!("Bearer realm=\"https://{tokens}/token\",service=\"lab\""),
        };
        let other = serve(&lab, "other.test", |_| vec![tokens()]);
        let origin = serve(&lab, HOST, |place| match one_host {
            true => vec![tokens(), registry(place)],
            false => vec![registry(&format!("other.test:{}", other.port()))],
        });
        lab.daemon.import(&directory, image::DOCKER);
        lab.daemon.bay_from("b", image::DOCKER);
        let everything = "method = \"*\"";
        lab.set(
            "b",
            &format!(
                "{}{}",
                origin.allowed(everything),
                other.allowed(everything).replace("\"origin\"", "\"other\"")
            ),
        );
        let asked = if one_host { &origin } else { &other };
        let uses = format!("{}:{}/token as basic", asked.name, asked.port());
        let mut line = vec!["--for", uses.as_str()];
        line.extend(one_host.then_some("--unmanaged"));
        let _set = set(&lab, "TOKEN", &line).ok();

        let _started = client(&lab, DOCKERD);
        let place = format!("{HOST}:{}", origin.port());
        let login = format!("echo \"$TOKEN\" | docker login --username me --password-stdin {place}");
        assert!(client(&lab, &login).contains("Login Succeeded"));
        let said = client(&lab, &format!("docker pull {place}/team/app:1"));
        assert!(said.contains("Downloaded newer image"), "{said}");
        let packed = client(
            &lab,
            &format!(
                "docker save {place}/team/app:1 | tar -xO | tr -d '\\0' | grep -c 'hello from a private'"
            ),
        );
        assert_ne!(packed.trim(), "0");
        let shown = credentials(asked);
        assert!(shown.contains(&basic()), "{shown:?}");
        // Docker stores the sentinel as its login.
        assert!(client(&lab, "cat /root/.docker/config.json").contains("auth"));
        bay_is_clean(&lab, "b");
        let kept =
            client(&lab, "sed -n 's/.*\"auth\": \"\\(.*\\)\".*/\\1/p' /root/.docker/config.json | base64 -d");
        assert!(kept.starts_with("me:ghp_"), "{kept}");
    }
}
