//! Real clients in a copy of this machine, without any configuration by the test.

use std::collections::BTreeMap;

use bay_tests::suite::{self, Lack};
use bay_types::exec::ExecSpec;

use crate::harness::{Guest, Options, is_root, sh};
use crate::origin;

/// A client: its name here, the program that it needs (or a command that checks for it), how it is run, and the
/// expected path. `$BARE` runs a command without the bay's variables, as `sudo` or a daemon does.
struct Client(&'static str, &'static str, &'static str, &'static str);

/// Some clients retry without end what cannot succeed.
const CLIENT_TIME_S: u64 = 60;
const BARE: &str = "env -i PATH=\"$PATH\" HOME=\"$HOME\"";
const CLIENTS: [Client; 30] = [
    Client("curl", "curl", "curl -fsS https://origin.test/curl", "/curl"),
    Client("curl, bare", "curl", "$BARE curl -fsS https://origin.test/curl-bare", "/curl-bare"),
    Client("wget", "wget", "wget -qO- https://origin.test/wget", "/wget"),
    Client("wget, bare", "wget", "$BARE wget -qO- https://origin.test/wget-bare", "/wget-bare"),
    Client("git", "git", "! git ls-remote https://origin.test/git", "/git/info/refs?service=git-upload-pack"),
    Client(
        "git, bare",
        "git",
        "! $BARE git ls-remote https://origin.test/git-bare",
        "/git-bare/info/refs?service=git-upload-pack",
    ),
    Client(
        "git, by SSH",
        "git",
        "! git ls-remote git@origin.test:team/git-ssh",
        "/team/git-ssh/info/refs?service=git-upload-pack",
    ),
    Client(
        "openssl, by hash",
        "openssl",
        "printf 'GET /openssl HTTP/1.0\\r\\n\\r\\n' | $BARE openssl s_client -quiet -verify_return_error \
         -connect origin.test:443 -no-CAfile -CApath /etc/ssl/certs",
        "/openssl",
    ),
    Client(
        "python",
        "python3",
        "python3 -c 'import urllib.request as r; r.urlopen(\"https://origin.test/python\")'",
        "/python",
    ),
    Client(
        "python of the system, bare",
        "/usr/bin/python3",
        "$BARE /usr/bin/python3 -c 'import urllib.request as r; r.urlopen(\"https://origin.test/python-bare\")'",
        "/python-bare",
    ),
    Client(
        "requests",
        "pip",
        "python3 -c 'from pip._vendor import requests as r; r.get(\"https://origin.test/requests\").raise_for_status()'",
        "/requests",
    ),
    Client(
        "pip",
        "pip",
        "! pip download --retries 0 --no-cache-dir -d /tmp/none --index-url https://origin.test/pip/ nothing",
        "/pip/nothing/",
    ),
    Client(
        "uv",
        "uv",
        "! echo nothing | uv pip compile --no-cache --index-url https://origin.test/uv/ -",
        "/uv/nothing/",
    ),
    Client("node", "node", "node -e 'fetch(\"https://origin.test/node\").then(r => r.text())'", "/node"),
    Client("npm", "npm", "npm ping --fetch-retries 0 --registry https://origin.test/npm/", "/npm/-/ping"),
    Client("deno", "deno", "deno eval 'await fetch(\"https://origin.test/deno\")'", "/deno"),
    Client(
        "cargo",
        "cargo",
        "! cargo search --index sparse+https://origin.test/cargo/ nothing",
        "/cargo/config.json",
    ),
    Client("docker (Go)", "docker", "! $BARE docker manifest inspect origin.test/team/docker", "/v2/"),
    Client(
        "go",
        "go",
        "mkdir -p /tmp/go && cd /tmp/go && printf 'package main\nimport (\"net/http\"; \"os\")\nfunc main() { \
         if _, err := http.Get(\"https://origin.test/go\"); err != nil { os.Exit(1) } }\n' > ask.go && \
         $BARE CGO_ENABLED=0 GOCACHE=/tmp/go/cache go run ask.go",
        "/go",
    ),
    Client(
        "java",
        "java",
        "for java in $(ls -d /usr/lib/jvm/*/bin/java); do $BARE $java -cp /tmp/java Ask; done",
        "/java",
    ),
    Client(
        "keytool",
        "keytool",
        "$BARE keytool -list -cacerts -storepass changeit | grep -qi workbay && curl -fsS https://origin.test/keytool",
        "/keytool",
    ),
    Client(
        "perl",
        "perl -MIO::Socket::SSL -e 1",
        "perl -MHTTP::Tiny -e 'exit !HTTP::Tiny->new(verify_SSL => 1)->get(\"https://origin.test/perl\")->{success}'",
        "/perl",
    ),
    Client("ruby", "ruby", "ruby -ropen-uri -e 'URI.open(\"https://origin.test/ruby\").read'", "/ruby"),
    Client("php", "php", "php -r 'exit(file_get_contents(\"https://origin.test/php\") ? 0 : 1);'", "/php"),
    Client(
        "chromium",
        "chromium",
        "$BARE chromium --headless --no-sandbox --disable-gpu --dump-dom https://origin.test/chromium",
        "/chromium",
    ),
    Client(
        "chrome",
        "google-chrome",
        "$BARE google-chrome --headless --no-sandbox --disable-gpu --dump-dom https://origin.test/chrome",
        "/chrome",
    ),
    Client(
        "firefox",
        "firefox",
        "$BARE firefox --headless --screenshot /tmp/firefox.png https://origin.test/firefox",
        "/firefox",
    ),
    Client(
        "chromium without policies",
        "chromium-headless-shell",
        "$BARE chromium-headless-shell --no-sandbox --disable-gpu --dump-dom https://origin.test/shell",
        "/shell",
    ),
    Client(
        "the store of NSS is sound",
        "/usr/bin/python3 -c 'import sqlite3'",
        "/usr/bin/python3 -c 'import sqlite3, urllib.request as r; \
         db = sqlite3.connect(\"/root/.pki/nssdb/cert9.db\"); \
         assert db.execute(\"pragma integrity_check\").fetchall() == [(\"ok\",)]; \
         assert db.execute(\"select count(*) from nssPublic where id > 0\").fetchall() == [(2,)]; \
         r.urlopen(\"https://origin.test/sound\")'",
        "/sound",
    ),
    Client(
        "certutil",
        "certutil",
        "mkdir /tmp/own && cp /root/.pki/nssdb/cert9.db /tmp/own && \
         certutil -A -n other -t P,, -i $(ls /etc/ssl/certs/*.pem | grep -v workbay | head -n 1) -d sql:/tmp/own && \
         certutil -L -d sql:/tmp/own && certutil -L -d sql:/tmp/own | grep -q 'workbay-.*C,,' && curl -fsS https://origin.test/certutil",
        "/certutil",
    ),
];

/// Requests a page with Java's own trust, by a program for every Java.
const JAVA: &str = "mkdir -p /tmp/java && cd /tmp/java && cat > Ask.java <<'END'
public class Ask {
    public static void main(String[] none) throws Exception {
        new java.net.URL(\"https://origin.test/java\").openStream().readAllBytes();
    }
}
END
javac -nowarn --release 11 Ask.java";

/// Where `./test` installs a uv for this test.
fn own_uv() -> Option<String> {
    let python = std::env::var("BAY_TEST_UV").ok()?;
    Some(python.rsplit_once('/')?.0.to_owned())
}

fn script(text: &str) -> ExecSpec {
    let path = std::env::var("PATH").unwrap_or_default();
    ExecSpec {
        env: BTreeMap::from([("PATH".to_owned(), path)]).into_iter().collect(),
        timeout_s: Some(CLIENT_TIME_S),
        ..sh(&text.replace("$BARE", BARE))
    }
}

/// What `./test` installs, so a test run by it must find them.
const INSTALLED: [&str; 6] = ["certutil", "curl", "git", "openssl", "uv", "wget"];

/// Runs one client against a server whose authority is the bay's own, or another. None if the client is not installed.
async fn run(Client(name, needs, run, _): &Client, own: bool) -> Option<(Guest, Ran)> {
    let lacks = |lack, why: &str| {
        suite::skip(lack, &format!("{name}: {why}"));
        None
    };
    if !is_root() {
        return lacks(Lack::Host, "a copy of this machine needs mounts, and those need root");
    }
    if std::process::Command::new("ip").arg("-V").output().is_err() {
        return lacks(Lack::Installable, "a network of its own needs the program ip");
    }
    let guest = Guest::prepared(&Options { machine: true, ..Options::default() }, |root| {
        origin::certify(root.parent().unwrap(), own);
    });
    let own_uv = if *needs == "uv" { own_uv() } else { None };
    let script = |text: &str| match &own_uv {
        Some(dir) => script(&format!("PATH=$PATH:{dir}; {text}")),
        None => script(text),
    };
    let look = if needs.contains(' ') { (*needs).to_owned() } else { format!("command -v {needs}") };
    let there = guest.run(&script(&look)).await.code() == Some(0)
        && (*needs != "java" || guest.run(&script(JAVA)).await.code() == Some(0));
    if !there {
        let lack = if INSTALLED.contains(needs) { Lack::Installable } else { Lack::Host };
        return lacks(lack, &format!("{} is not installed", needs.split(' ').next().unwrap_or(needs)));
    }
    let ran = guest.run(&script(run)).await;
    let said = format!("{:?} {}{}", ran.exit, ran.out(), ran.err());
    Some((guest, Ran { well: ran.code() == Some(0), said }))
}

struct Ran {
    well: bool,
    said: String,
}

/// A client of this machine trusts the gateway without configuration, and trusts no other authority of the same name.
async fn trusts_its_own_alone(name: &str) {
    let client = CLIENTS.iter().find(|client| client.0 == name).unwrap();
    let Some((guest, Ran { well, said })) = run(client, true).await else { return };
    let asked = origin::asked(guest.dir());
    assert!(well && asked.lines().any(|line| line == client.3), "{name}: asked {asked:?}, {said}");
    drop(guest);
    let Some((guest, _)) = run(client, false).await else { return };
    assert_eq!(origin::asked(guest.dir()), "", "{name} trusts somebody else");
}

/// A test for each client.
macro_rules! clients {
    ($($test:ident: $name:literal,)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                trusts_its_own_alone($name).await;
            }
        )*
    };
}

clients! {
    trusted_by_curl: "curl",
    trusted_by_curl_bare: "curl, bare",
    trusted_by_wget: "wget",
    trusted_by_wget_bare: "wget, bare",
    trusted_by_git: "git",
    trusted_by_git_bare: "git, bare",
    trusted_by_git_asked_by_ssh: "git, by SSH",
    trusted_by_openssl: "openssl, by hash",
    trusted_by_python: "python",
    trusted_by_python_of_the_system_bare: "python of the system, bare",
    trusted_by_requests: "requests",
    trusted_by_pip: "pip",
    trusted_by_uv: "uv",
    trusted_by_node: "node",
    trusted_by_npm: "npm",
    trusted_by_deno: "deno",
    trusted_by_cargo: "cargo",
    trusted_by_docker: "docker (Go)",
    trusted_by_go: "go",
    trusted_by_java: "java",
    trusted_by_keytool: "keytool",
    trusted_by_perl: "perl",
    trusted_by_ruby: "ruby",
    trusted_by_php: "php",
    trusted_by_chromium: "chromium",
    trusted_by_chrome: "chrome",
    trusted_by_firefox: "firefox",
    trusted_by_chromium_without_policies: "chromium without policies",
    trusted_by_a_sound_store_of_nss: "the store of NSS is sound",
    trusted_by_certutil: "certutil",
}

#[test]
fn every_client_of_the_list_has_a_test() {
    let listed: Vec<&str> = CLIENTS.iter().map(|client| client.0).collect();
    assert_eq!(TESTED, listed);
}
