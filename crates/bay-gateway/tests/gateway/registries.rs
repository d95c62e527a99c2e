//! Real clients of private registries, with what stands for a secret: git, pip, npm, cargo, curl and skopeo of this host, through
//! the gateway, to servers that want the value.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bay_gateway::secrets::{Held, Named, Secrets};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use secrecy::SecretString;
use tempfile::TempDir;
use tokio::process::Command;

use crate::lab::origin::{self, Body, text};
use crate::lab::{Lab, POLICY};

const SENTINEL: &str = "ghp_sentinelSENTINELsentinelSENTINEL0000";
const CANARY: &str = "ghp_canaryCANARYcanaryCANARYcanaryCANARY";
const HOST: &str = "registry.ok.test";
const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// Files by path, for whoever shows one of these credentials.
struct Served {
    files: HashMap<String, Vec<u8>>,
    wanted: String,
    /// What others are told to show.
    challenge: String,
}

async fn serve(served: Arc<Served>, request: Request<Incoming>) -> Response<Body> {
    let shown =
        request.headers().get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut answer = if served.wanted != shown {
        let mut answer = Response::new(text("who are you?"));
        *answer.status_mut() = StatusCode::UNAUTHORIZED;
        answer.headers_mut().insert("www-authenticate", served.challenge.parse().unwrap());
        answer
    } else if let Some(file) = served.files.get(request.uri().path()) {
        Response::new(text(file.clone()))
    } else {
        let mut answer = Response::new(text("no such file"));
        *answer.status_mut() = StatusCode::NOT_FOUND;
        answer
    };
    let kind = match request.uri().path() {
        path if path.contains("/simple/") => "text/html",
        path if path.contains("/manifests/") => MANIFEST,
        _ => "application/octet-stream",
    };
    answer.headers_mut().insert("content-type", http::HeaderValue::from_static(kind));
    answer
}

/// A registry behind the gateway, and a place for its client.
struct Rig {
    lab: Lab,
    dir: TempDir,
}

impl Rig {
    /// `slot` is how the client shows its credential.
    async fn new(slot: &str, files: HashMap<String, Vec<u8>>, wanted: &str) -> Self {
        let challenge = "Basic realm=\"lab\"".to_owned();
        let rig = Self::with_secret_for(&format!("{HOST} as {slot}"), true).await;
        rig.serve(HOST, "192.0.2.20", Served { files, wanted: wanted.to_owned(), challenge }).await;
        rig
    }

    async fn serve(&self, host: &str, address: &str, served: Served) {
        let served = Arc::new(served);
        let answer = move |request| serve(served.clone(), request);
        let (place, _) = origin::serve(Some(self.lab.origins.server(host, |_| {})), answer).await;
        self.lab.net.lead(host, address, place);
    }

    /// Images at one host with the tokens for them.
    async fn serve_both(&self, host: &str, address: &str, images: Served, tokens: Served) {
        let (images, tokens) = (Arc::new(images), Arc::new(tokens));
        let answer = move |request: Request<Incoming>| {
            let which = if request.uri().path() == "/token" { &tokens } else { &images };
            serve(which.clone(), request)
        };
        let (place, _) = origin::serve(Some(self.lab.origins.server(host, |_| {})), answer).await;
        self.lab.net.lead(host, address, place);
    }

    async fn with_secret_for(place: &str, managed: bool) -> Self {
        let policy = POLICY.replace("path = \"/open/**\"", "path = \"/**\"");
        let lab = Lab::new(&policy).await;
        let Ok(Named::Place(one)) = Named::parse(place) else { panic!("{place}") };
        let held = Held {
            name: "TOKEN".to_owned(),
            incarnation: 1,
            uses: vec![*one],
            sentinels: vec![SENTINEL.to_owned()],
            values: vec![Arc::new(SecretString::from(CANARY.to_owned()))],
            managed,
            literal_bodies: false,
        };
        *lab.ledger.secrets.lock().unwrap() = Arc::new(Secrets::new(vec![held]));
        let dir = tempfile::tempdir().unwrap();
        let pem = pem::encode(&pem::Pem::new("CERTIFICATE", lab.bay_authority.to_vec()));
        std::fs::write(dir.path().join("ca.pem"), pem).unwrap();
        Self { lab, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A client that knows the gateway as a proxy, and nothing of this host's settings.
    async fn run(&self, program: &str, args: &[&str], env: &[(&str, &str)]) -> Output {
        let ca = self.path("ca.pem");
        let proxy = format!("http://{}", self.lab.proxy);
        let mut command = Command::new(program);
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
            command.env(name, &proxy);
        }
        for name in ["NO_PROXY", "no_proxy", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "npm_config_registry"] {
            command.env_remove(name);
        }
        for name in [
            "SSL_CERT_FILE",
            "GIT_SSL_CAINFO",
            "PIP_CERT",
            "REQUESTS_CA_BUNDLE",
            "CARGO_HTTP_CAINFO",
            "npm_config_cafile",
            "CURL_CA_BUNDLE",
        ] {
            command.env(name, &ca);
        }
        command
            .env("PIP_CONFIG_FILE", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0");
        command.envs(env.iter().copied());
        let ran = tokio::time::timeout(std::time::Duration::from_secs(120), command.output());
        let ran = ran.await.expect("the client ends").unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(!said.contains(CANARY), "{said}");
        assert!(ran.status.success(), "{program}: {said}\n{:#?}", self.lab.ledger.entries());
        ran
    }
}

fn there(program: &str) -> bool {
    let found = std::process::Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let there = found.is_ok_and(|status| status.success());
    if !there {
        eprintln!("skipped: there is no {program} here");
    }
    there
}

fn local(dir: &Path, program: &str, args: &[&str]) {
    let ran = std::process::Command::new(program).args(args).current_dir(dir).output().unwrap();
    assert!(ran.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

fn sha256(bytes: &[u8]) -> String {
    let sum = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn files_below(root: &Path, prefix: &str, found: &mut HashMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(root).unwrap().flatten() {
        let name = format!("{prefix}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            files_below(&entry.path(), &name, found);
        } else {
            found.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn git_clones_and_curl_fetches_with_what_stands_for_a_password() {
    if !there("git") || !there("curl") {
        return;
    }
    let made = tempfile::tempdir().unwrap();
    let dir = made.path();
    local(dir, "git", &["init", "-q", "-b", "main", "work"]);
    std::fs::write(dir.join("work/file"), "content of a private repository\n").unwrap();
    let who = ["-c", "user.name=a", "-c", "user.email=a@example.test"];
    local(&dir.join("work"), "git", &["add", "."]);
    local(&dir.join("work"), "git", &[&who[..], &["commit", "-qm", "one"]].concat());
    local(dir, "git", &["clone", "-q", "--bare", "work", "bare.git"]);
    local(&dir.join("bare.git"), "git", &["update-server-info"]);
    let mut files = HashMap::new();
    files_below(&dir.join("bare.git"), "/team/x.git", &mut files);
    let basic = |password: &str| format!("Basic {}", STANDARD.encode(format!("me:{password}")));
    let rig = Rig::new("basic", files, &basic(CANARY)).await;
    let header = format!("http.https://{HOST}/.extraHeader=Authorization: {}", basic(SENTINEL));
    let url = format!("https://{HOST}/team/x.git");
    rig.run("git", &["-c", &header, "clone", "-q", &url, "told"], &[]).await;
    assert!(rig.path("told/file").exists());
    // Asked for a password, git gives the sentinel.
    let helper = format!("credential.helper=!f() {{ echo username=me; echo password={SENTINEL}; }}; f");
    rig.run("git", &["-c", &helper, "clone", "-q", &url, "asked"], &[]).await;
    assert!(rig.path("asked/file").exists());
    let user = format!("me:{SENTINEL}");
    let head = rig.run("curl", &["-sf", "-u", &user, &format!("{url}/HEAD")], &[]).await;
    assert_eq!(head.stdout, b"ref: refs/heads/main\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pip_downloads_from_an_index_that_wants_a_password() {
    if !there("pip") || !there("python3") {
        return;
    }
    let made = tempfile::tempdir().unwrap();
    let wheel = "private_thing-1.0-py3-none-any.whl";
    let script = format!(
        "import zipfile\nwith zipfile.ZipFile({wheel:?}, 'w') as z:\n  z.writestr('private_thing.py', 'x = 1\\n')\n  d = 'private_thing-1.0.dist-info/'\n  z.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: private-thing\\nVersion: 1.0\\n')\n  z.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: lab\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n  z.writestr(d + 'RECORD', '')\n"
    );
    local(made.path(), "python3", &["-c", &script]);
    let files = HashMap::from([
        ("/simple/private-thing/".to_owned(), format!("<a href=\"/files/{wheel}\">{wheel}</a>").into_bytes()),
        (format!("/files/{wheel}"), std::fs::read(made.path().join(wheel)).unwrap()),
    ]);
    let basic = format!("Basic {}", STANDARD.encode(format!("me:{CANARY}")));
    let rig = Rig::new("basic", files, &basic).await;
    let index = format!("https://me:{SENTINEL}@{HOST}/simple/");
    let args = [
        "download",
        "--no-deps",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "-q",
        "-i",
        &index,
        "private-thing",
    ];
    rig.run("pip", &args, &[]).await;
    assert!(rig.path(wheel).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn npm_fetches_from_a_registry_that_wants_a_token() {
    if !there("npm") {
        return;
    }
    let made = tempfile::tempdir().unwrap();
    std::fs::create_dir(made.path().join("package")).unwrap();
    std::fs::write(made.path().join("package/package.json"), r#"{"name":"private-thing","version":"1.0.0"}"#)
        .unwrap();
    local(made.path(), "tar", &["czf", "thing.tgz", "package"]);
    let tarball = format!("https://{HOST}/private-thing/-/private-thing-1.0.0.tgz");
    let about = serde_json::json!({
        "name": "private-thing",
        "dist-tags": { "latest": "1.0.0" },
        "versions": { "1.0.0": { "name": "private-thing", "version": "1.0.0", "dist": { "tarball": tarball } } },
    });
    let files = HashMap::from([
        ("/private-thing".to_owned(), about.to_string().into_bytes()),
        (
            "/private-thing/-/private-thing-1.0.0.tgz".to_owned(),
            std::fs::read(made.path().join("thing.tgz")).unwrap(),
        ),
    ]);
    let rig = Rig::new("bearer", files, &format!("Bearer {CANARY}")).await;
    let settings = format!("registry=https://{HOST}/\n//{HOST}/:_authToken={SENTINEL}\n");
    std::fs::write(rig.path("npmrc"), settings).unwrap();
    let (settings, cache, home) = (rig.path("npmrc"), rig.path("cache"), rig.path("."));
    let env = [
        ("npm_config_userconfig", settings.to_str().unwrap()),
        ("npm_config_cache", cache.to_str().unwrap()),
        ("npm_config_update_notifier", "false"),
        ("HOME", home.to_str().unwrap()),
    ];
    rig.run("npm", &["pack", "--silent", "private-thing@1.0.0"], &env).await;
    assert!(rig.path("private-thing-1.0.0.tgz").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cargo_fetches_from_a_registry_that_wants_a_token() {
    if !there("cargo") {
        return;
    }
    let made = tempfile::tempdir().unwrap();
    let krate = made.path().join("private-thing-1.0.0");
    std::fs::create_dir_all(krate.join("src")).unwrap();
    std::fs::write(
        krate.join("Cargo.toml"),
        "[package]\nname = \"private-thing\"\nversion = \"1.0.0\"\nedition = \"2021\"\n",
    )
    .unwrap();
    std::fs::write(krate.join("src/lib.rs"), "").unwrap();
    local(made.path(), "tar", &["czf", "thing.crate", "private-thing-1.0.0"]);
    let bytes = std::fs::read(made.path().join("thing.crate")).unwrap();
    let sum = sha256(&bytes);
    let config =
        format!("{{\"dl\":\"https://{HOST}/dl\",\"api\":\"https://{HOST}\",\"auth-required\":true}}");
    let line = serde_json::json!({ "name": "private-thing", "vers": "1.0.0", "deps": [], "cksum": sum, "features": {}, "yanked": false });
    let files = HashMap::from([
        ("/index/config.json".to_owned(), config.into_bytes()),
        ("/index/pr/iv/private-thing".to_owned(), format!("{line}\n").into_bytes()),
        ("/dl/private-thing/1.0.0/download".to_owned(), bytes),
    ]);
    let rig = Rig::new("header authorization", files, CANARY).await;
    std::fs::create_dir_all(rig.path("project/src")).unwrap();
    std::fs::write(rig.path("project/src/lib.rs"), "").unwrap();
    let manifest = "[package]\nname = \"project\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\nprivate-thing = { version = \"1\", registry = \"lab\" }\n[workspace]\n";
    std::fs::write(rig.path("project/Cargo.toml"), manifest).unwrap();
    let home = rig.path("cargo-home");
    let index = format!("sparse+https://{HOST}/index/");
    let env = [
        ("CARGO_HOME", home.to_str().unwrap()),
        ("CARGO_REGISTRIES_LAB_INDEX", index.as_str()),
        ("CARGO_REGISTRIES_LAB_TOKEN", SENTINEL),
        ("CARGO_REGISTRY_GLOBAL_CREDENTIAL_PROVIDERS", "cargo:token"),
        ("CARGO_NET_RETRY", "0"),
    ];
    rig.run("cargo", &["fetch", "--manifest-path", "project/Cargo.toml"], &env).await;
    let lock = std::fs::read_to_string(rig.path("project/Cargo.lock")).unwrap();
    assert!(lock.contains("private-thing"), "{lock}");
}

/// The way of `docker pull`: a password for the server that gives out tokens, a token for the registry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_image_is_pulled_with_a_token_that_a_password_was_given_for() {
    if !there("skopeo") {
        return;
    }
    let config =
        br#"{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":[]}}"#;
    let layer = b"what a layer is, nobody looks at here";
    let blob = |bytes: &[u8], kind: &str| serde_json::json!({ "mediaType": kind, "size": bytes.len(), "digest": format!("sha256:{}", sha256(bytes)) });
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(config, "application/vnd.docker.container.image.v1+json"),
        "layers": [blob(layer, "application/vnd.docker.image.rootfs.diff.tar.gzip")],
    });
    let at = |bytes: &[u8]| format!("/v2/team/app/blobs/sha256:{}", sha256(bytes));
    let files = HashMap::from([
        ("/v2/".to_owned(), b"{}".to_vec()),
        ("/v2/team/app/manifests/1".to_owned(), manifest.to_string().into_bytes()),
        (at(config), config.to_vec()),
        (at(layer), layer.to_vec()),
    ]);
    // Two hosts, as Docker's own; then one host for both, where the token is another credential than the secret.
    for tokens in ["auth.ok.test", "both.ok.test"] {
        let registry = if tokens == "both.ok.test" { tokens } else { HOST };
        let rig = Rig::with_secret_for(&format!("{tokens}/token as basic"), registry != tokens).await;
        let challenge = format!("Bearer realm=\"https://{tokens}/token\",service=\"lab\"");
        let images = Served { files: files.clone(), wanted: "Bearer for-an-hour".to_owned(), challenge };
        let given = Served {
            files: HashMap::from([("/token".to_owned(), br#"{"token":"for-an-hour"}"#.to_vec())]),
            wanted: format!("Basic {}", STANDARD.encode(format!("me:{CANARY}"))),
            challenge: "Basic realm=\"lab\"".to_owned(),
        };
        if registry == tokens {
            rig.serve_both(tokens, "192.0.2.20", images, given).await;
        } else {
            rig.serve(registry, "192.0.2.20", images).await;
            rig.serve(tokens, "192.0.2.21", given).await;
        }
        let (who, image) = (format!("me:{SENTINEL}"), format!("docker://{registry}/team/app:1"));
        rig.run("skopeo", &["--insecure-policy", "copy", "--src-creds", &who, &image, "dir:pulled"], &[])
            .await;
        assert_eq!(std::fs::read(rig.path("pulled").join(sha256(layer))).unwrap(), layer);
    }
}
