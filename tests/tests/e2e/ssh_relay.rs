//! Git over SSH from a bay: the gateway logs in with a key that the bay never has.

use std::fs;

use bay_tests::forge::{SshForge, make_key};
use bay_tests::lab::{Lab, lab_with};
use bay_tests::suite::Scratch;
use bay_tests::{CliRun, Daemon, image, until};
use tokio::runtime::Runtime;

/// A daemon with a key for a forge, and the forge.
struct Rig {
    lab: Lab,
    forge: SshForge,
    dir: Scratch,
    port: u16,
    _runtime: Runtime,
}

const HOST: &str = "origin.test";

impl Rig {
    fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let dir = Scratch::new();
        let forge = SshForge::new(dir.path());
        forge.repository("team/app.git", "the app");
        forge.repository("team/other.git", "another");
        let port = runtime.block_on(forge.serve()).port();
        let known = dir.join("known_hosts");
        fs::write(&known, forge.known_hosts(HOST, port)).unwrap();
        let key = forge.key().display().to_string();
        let setup = [
            "--ssh-key",
            &format!("{HOST}:{port}={key}"),
            "--ssh-key",
            &format!("github.com={key}"),
            "--ssh-known-hosts",
            known.to_str().unwrap(),
        ]
        .iter()
        .fold(Daemon::setup(), |setup, argument| setup.argument(argument));
        Self { lab: lab_with(setup), forge, dir, port, _runtime: runtime }
    }

    fn policy(&self, more: &str) -> String {
        format!(
            "[[rule]]\nid = \"app\"\noutcome = \"allow\"\nkind = \"git-ssh\"\nhost = \"{HOST}\"\nport = {}\n\
             path = \"/team/app\"\naddress = \"127.0.0.1\"\n{more}",
            self.port
        )
    }

    fn url(&self, path: &str) -> String {
        format!("ssh://git@{HOST}:{}/{path}", self.port)
    }

    fn clone(&self, path: &str, to: &str) -> CliRun {
        self.lab.daemon.sh("b", &format!("git clone -q {} {to}", self.url(path)))
    }

    fn ssh(&self, args: &str) -> CliRun {
        self.lab.daemon.sh("b", &format!("ssh -o BatchMode=yes -p {} {args} </dev/null", self.port))
    }
}

#[test]
fn a_bay_fetches_by_ssh_what_it_may_and_reaches_nothing_else() {
    if !image::with_ssh() {
        return;
    }
    let rig = Rig::new();
    rig.lab.bay("b", &rig.policy(""));
    let _cloned = rig.clone("team/app.git", "/workspace/app").ok();
    assert_eq!(rig.lab.daemon.sh("b", "cat /workspace/app/read.me").ok().text(), "the app");
    assert_eq!(rig.forge.asked().commands, ["git-upload-pack '/team/app.git'"]);

    // Pushes, another repository, a shell and port forwarding are refused with a message.
    let push = "cd /workspace/app && git -c user.name=a -c user.email=a@a.test commit -q --allow-empty -m x && \
                git push -q origin main";
    let refused = rig.lab.daemon.sh("b", push);
    assert!(refused.errors().contains("workbay: deny: PUSH"), "{}", refused.errors());
    let refused = rig.clone("team/other.git", "/workspace/other");
    assert!(refused.errors().contains("workbay: deny: FETCH"), "{}", refused.errors());
    let refused = rig.ssh(&format!("git@{HOST}"));
    assert!(refused.errors().contains("no shell goes through the gateway"), "{}", refused.errors());
    let refused = rig.ssh(&format!("-W 127.0.0.1:22 git@{HOST}"));
    assert!(refused.errors().contains("administratively prohibited"), "{}", refused.errors());
    assert_eq!(rig.forge.asked().commands.len(), 1, "the forge heard of the clone alone");

    // The record has each of them, with its exec.
    let ended = until("the end is on record", || rig.lab.record("b", "egress.ended").into_iter().next());
    assert_eq!(ended["ending"], "closed", "{ended:#}");
    let decided = rig.lab.record("b", "egress.decided");
    let of = |method: &str| {
        let wanted = format!("{method} ssh://{HOST}:{}/team/app.git", rig.port);
        let found = decided.iter().find(|body| body["request"].as_str().unwrap().starts_with(&wanted));
        found.unwrap_or_else(|| panic!("no {wanted}: {decided:#?}")).clone()
    };
    let (fetched, pushed) = (of("FETCH"), of("PUSH"));
    assert_eq!((&fetched["outcome"], &fetched["rule"]["id"]), (&"allow".into(), &"app".into()));
    assert_eq!(pushed["outcome"], "deny");
    for body in [&fetched, &pushed] {
        assert!(body["by"]["exec"].as_str().is_some_and(|exec| exec.starts_with("exec_")), "{body:#}");
    }
    let refused = rig.lab.record("b", "egress.refused");
    for why in ["a shell by SSH", "forwarding by SSH"] {
        let found = refused.iter().any(|body| body["why"].as_str().is_some_and(|text| text.contains(why)));
        assert!(found, "{why}: {refused:#?}");
    }
    let checked = rig.lab.daemon.bay(&["policy", "check", "b", &format!("PUSH {}", rig.url("team/app"))]);
    assert!(checked.exits(1).text().contains("deny"));

    // If a rule allows it, a push arrives.
    rig.lab.set("b", &rig.policy("method = [\"FETCH\", \"PUSH\"]"));
    let _pushed = rig.lab.daemon.sh("b", "cd /workspace/app && git push -q origin main").ok();
    assert_eq!(rig.forge.asked().commands[1..], ["git-receive-pack '/team/app.git'"]);
}

#[test]
fn a_push_by_ssh_waits_for_an_approval_and_follows_its_answer() {
    if !image::with_ssh() {
        return;
    }
    let rig = Rig::new();
    let daemon = &rig.lab.daemon;
    let asks =
        rig.policy("method = [\"PUSH\"]").replace("\"app\"", "\"push\"").replace("\"allow\"", "\"ask\"");
    rig.lab.bay("b", &format!("{}{asks}", rig.policy("")));
    let _cloned = rig.clone("team/app.git", "/workspace/app").ok();
    let push = "cd /workspace/app && git -c user.name=a -c user.email=a@a.test commit -q --allow-empty -m \"$SUBJECT\" && \
                git push -q origin main";
    let push = format!("SUBJECT='one more commit'; {push}");
    let first = rig.forge.tip("team/app.git", "main");
    let answered = |answer: &[&str]| {
        std::thread::scope(|scope| {
            let pushing = scope.spawn(|| daemon.sh("b", &push));
            let card = until("a question", || {
                let open = daemon.bay(&["approvals", "--json"]).ok().json();
                open.as_array().and_then(|open| open.first()).cloned()
            });
            // The forge was asked for its refs, but learns nothing about the push meanwhile.
            assert_eq!(rig.forge.tip("team/app.git", "main"), first);
            let change = &card["asked"]["push"]["refs"][0];
            assert_eq!(
                (&change["name"], &change["old"]),
                (&"refs/heads/main".into(), &first.as_str().into()),
                "{card:#}"
            );
            assert_eq!(card["asked"]["push"]["commits"][0]["subject"], "one more commit", "{card:#}");
            assert!(
                card["saved_as"].as_str().is_some_and(|rule| rule.contains("branch = \"refs/heads/main\"")),
                "{card:#}"
            );
            let shown = daemon.bay(&["approvals", "show", card["id"].as_str().unwrap()]).ok().text();
            let what = format!("PUSH ssh://{HOST}:{}/team/app.git pushing refs/heads/main", rig.port);
            assert!(shown.contains(&what) && shown.contains("one more commit"), "{shown}");
            let line = [&["approvals", answer[0], card["id"].as_str().unwrap()], &answer[1..]].concat();
            let _answer = daemon.bay(&line).ok();
            pushing.join().unwrap()
        })
    };
    let denied = answered(&["deny", "-m", "not on a Friday"]);
    assert!(denied.code != 0 && denied.errors().contains("not on a Friday"), "{denied}");
    assert_eq!(rig.forge.tip("team/app.git", "main"), first, "nothing of it arrived");
    let _pushed = answered(&["allow"]).ok();
    let own = daemon.sh("b", "git -C /workspace/app rev-parse HEAD").ok().text();
    assert_eq!(rig.forge.tip("team/app.git", "main"), own.trim());
}

#[test]
fn the_key_is_nowhere_in_the_bay_and_a_server_with_a_changed_key_gets_nothing() {
    if !image::with_ssh() {
        return;
    }
    let mut rig = Rig::new();
    rig.lab.bay("b", &rig.policy(""));
    let _cloned = rig.clone("team/app.git", "/workspace/app").ok();
    let key = rig.forge.key_text();
    // A line of the private key, as any copy of the file contains it, written so that the search does not find itself.
    let secret = key.lines().nth(2).unwrap();
    let (first, rest) = secret.split_at(1);
    let places = "/bin /etc /home /root /run /tmp /usr /var /workspace /.bay /proc/[0-9]*/environ /proc/[0-9]*/cmdline";
    let found = rig.lab.daemon.sh("b", &format!("grep -rl -e '[{first}]{rest}' {places} 2>/dev/null"));
    assert_eq!(found.text(), "", "the key is in the bay");

    // A bay accepts its gateway's host key after a restart of the daemon or of the bay.
    rig.lab.daemon.restart();
    rig.lab.until_open("b");
    let _again = rig.clone("team/app.git", "/workspace/again").ok();
    let _new = rig.lab.daemon.bay(&["replace", "b"]).ok();
    rig.lab.until_open("b");
    let _again = rig.clone("team/app.git", "/workspace/anew").ok();

    // Git uses SSH for hosts with a key, and HTTPS for others.
    let settings = rig.lab.daemon.sh("b", "cat /etc/gitconfig").ok().text();
    assert!(!settings.contains("git@github.com:") && settings.contains("git@gitlab.com:"), "{settings}");

    make_key(&rig.dir.join("host"), "ed25519");
    let (before, refused) = (rig.forge.asked(), rig.clone("team/app.git", "/workspace/no"));
    let said = refused.errors();
    assert!(said.contains("the host key of origin.test is not one that is known"), "{said}");
    assert!(!said.contains(rig.dir.path().to_str().unwrap()), "a bay is told no path of the host: {said}");
    assert_eq!(rig.forge.asked().users, before.users, "nobody logged in");
    let ended = until("it is on record", || {
        rig.lab.record("b", "egress.ended").into_iter().find(|body| body["ending"] == "failed")
    });
    assert_eq!(ended["failure"], "host-key");
}
