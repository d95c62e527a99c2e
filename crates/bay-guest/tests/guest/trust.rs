//! Real clients in a copy of this machine, none of them told anything by the test.

use std::collections::BTreeMap;

use bay_types::exec::ExecSpec;
use futures_util::future::join_all;

use crate::harness::{Guest, Options, is_root, sh};
use crate::origin;

/// A client: what it is called here, the program it needs (or a command that tells), how it is run, and what the server is
/// asked for. `$BARE` runs a command without the bay's variables, as `sudo` or a daemon does.
struct Client(&'static str, &'static str, &'static str, &'static str);

/// Some try again and again what cannot succeed.
const CLIENT_TIME_S: u64 = 40;
const BARE: &str = "env -i PATH=\"$PATH\" HOME=\"$HOME\"";
const CLIENTS: [Client; 28] = [
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
        "java",
        "java",
        "for java in $(ls -d /usr/lib/jvm/*/bin/java); do $BARE $java -cp /tmp/java Ask; done",
        "/java",
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

/// Asks with Java's own trust, by a program for every Java there is.
const JAVA: &str = "mkdir -p /tmp/java && cd /tmp/java && cat > Ask.java <<'END'
public class Ask {
    public static void main(String[] none) throws Exception {
        new java.net.URL(\"https://origin.test/java\").openStream().readAllBytes();
    }
}
END
javac -nowarn --release 11 Ask.java";

fn script(text: &str) -> ExecSpec {
    let path = std::env::var("PATH").unwrap_or_default();
    ExecSpec {
        env: BTreeMap::from([("PATH".to_owned(), path)]).into_iter().collect(),
        timeout_s: Some(CLIENT_TIME_S),
        ..sh(&text.replace("$BARE", BARE))
    }
}

/// Runs every client that is installed against a server whose authority is the bay's own, or is not.
async fn run_all(own: bool) -> Option<(Guest, Vec<Ran>)> {
    if !is_root() {
        eprintln!("skipped: a copy of this machine needs mounts, and those need root");
        return None;
    }
    if std::process::Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: a network of its own needs the program ip");
        return None;
    }
    let guest = Guest::prepared(&Options { machine: true, ..Options::default() }, |root| {
        origin::certify(root.parent().unwrap(), own);
    });
    let has_java = guest.run(&script(JAVA)).await.code() == Some(0);
    let runs = CLIENTS.iter().map(async |Client(name, needs, run, asked)| {
        let look = if needs.contains(' ') { (*needs).to_owned() } else { format!("command -v {needs}") };
        let there = guest.run(&script(&look)).await.code() == Some(0);
        if !there || (*needs == "java" && !has_java) {
            eprintln!("skipped: {name}: not installed");
            return None;
        }
        let ran = guest.run(&script(run)).await;
        let asked = origin::asked(guest.dir()).lines().any(|line| line == *asked);
        let said = format!("{:?} {}{}", ran.exit, ran.out(), ran.err());
        Some(Ran { name, asked, well: ran.code() == Some(0), said })
    });
    let ran: Vec<Ran> = join_all(runs).await.into_iter().flatten().collect();
    assert!(ran.len() > 3, "hardly a client was found");
    Some((guest, ran))
}

struct Ran {
    name: &'static str,
    /// The server was asked what this client asks.
    asked: bool,
    well: bool,
    said: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_this_machine_trust_the_gateway_without_being_told() {
    let Some((_guest, ran)) = run_all(true).await else { return };
    for Ran { name, asked, well, said } in ran {
        println!("{name}: asked {asked}, well {well}");
        assert!(asked && well, "{name}: asked {asked}, {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_this_machine_trust_no_other_authority() {
    let Some((guest, _)) = run_all(false).await else { return };
    assert_eq!(origin::asked(guest.dir()), "");
}
