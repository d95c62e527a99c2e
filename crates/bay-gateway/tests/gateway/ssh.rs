//! Git over SSH: a real git and a real `ssh` as the bay, and a forge behind the gateway.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use bay_gateway::{Ending, Failure};
use bay_tests::forge::{SshForge, make_key, quiet_git};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::lab::{Entry, Lab, quick};

pub(crate) const NAME: &str = "git.ok.test";

/// Allows fetching from one repository.
pub(crate) const READING: &str = r#"
[[rule]]
id = "app"
outcome = "allow"
kind = "git-ssh"
host = "git.ok.test"
port = "*"
path = "/team/app"
"#;

/// The bay's side and a forge.
pub(crate) struct Rig {
    pub(crate) lab: Lab,
    pub(crate) forge: SshForge,
    pub(crate) dir: tempfile::TempDir,
    known: PathBuf,
}

impl Rig {
    pub(crate) async fn new(policy: &str) -> Self {
        Self::with(Lab::new(policy).await).await
    }

    pub(crate) async fn with(mut lab: Lab) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let forge = SshForge::new(&dir.path().join("forge"));
        forge.repository("team/app.git", "the app");
        forge.repository("team/other.git", "another");
        lab.net.lead(NAME, "192.0.2.10", forge.serve().await);
        let known = dir.path().join("bay_known_hosts");
        fs::write(&known, format!("* {}\n", lab.ssh_host_key)).unwrap();
        lab.open(NAME).await;
        let rig = Self { lab, forge, dir, known };
        rig.log_in(&rig.forge.known_hosts(NAME, rig.lab.port));
        rig
    }

    /// Sets the operator's login.
    pub(crate) fn log_in(&self, known_hosts: &str) {
        let login = ("git".to_owned(), self.forge.key_text(), known_hosts.to_owned());
        *self.lab.net.login.lock().unwrap() = Some(login);
    }

    /// The options of the real client as in a bay: it knows the gateway's host key and has no key of its own.
    fn options(&mut self) -> Vec<String> {
        let address = self.lab.address(NAME);
        let options = [
            "BatchMode=yes".to_owned(),
            "StrictHostKeyChecking=yes".to_owned(),
            format!("UserKnownHostsFile={}", self.known.display()),
            "GlobalKnownHostsFile=/dev/null".to_owned(),
            format!("HostName={}", address.ip()),
            format!("HostKeyAlias={NAME}"),
            format!("Port={}", address.port()),
        ];
        let words = options.into_iter().flat_map(|option| ["-o".to_owned(), option]);
        ["-F".to_owned(), "/dev/null".to_owned()].into_iter().chain(words).collect()
    }

    pub(crate) fn ssh(&mut self, args: &[&str]) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args(self.options()).args(args);
        ssh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        ssh
    }

    pub(crate) fn git(&mut self, dir: &Path, args: &[&str]) -> Command {
        let ssh = format!("ssh {}", self.options().join(" "));
        let mut git = Command::from(quiet_git(dir));
        git.env("GIT_SSH_COMMAND", ssh).env("GIT_SSH_VARIANT", "ssh").args(args);
        git.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        git
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("ssh://git@{NAME}/{path}")
    }

    /// Clones, and returns the directory.
    pub(crate) async fn clone(&mut self, path: &str) -> (PathBuf, Output) {
        let to = self.dir.path().join("clone").join(path);
        let (url, root) = (self.url(path), self.dir.path().to_owned());
        let done = self.git(&root, &["clone", "-q", &url, to.to_str().unwrap()]).output().await.unwrap();
        (to, done)
    }

    pub(crate) async fn decided(&self, with: &str) -> bool {
        self.lab
            .ledger
            .wait(|entry| match entry {
                Entry::Decided { request, allowed, .. } if request.contains(with) => Some(*allowed),
                _ => None,
            })
            .await
    }
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_repository_is_cloned_with_the_operators_key_and_every_step_is_on_record() {
    let mut rig = Rig::new(READING).await;
    let (to, done) = rig.clone("team/app.git").await;
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(fs::read_to_string(to.join("read.me")).unwrap(), "the app");
    let asked = rig.forge.asked();
    assert_eq!(asked.commands, ["git-upload-pack '/team/app.git'"]);
    assert_eq!(asked.users, ["git"]);
    assert_eq!(asked.variables, ["GIT_PROTOCOL=version=2"]);
    assert!(rig.decided(&format!("FETCH ssh://{NAME}:{}/team/app.git", rig.lab.port)).await);
    let ended = rig.lab.ledger.ended().await;
    assert_eq!(ended.ending, Ending::Closed);
    assert!(ended.received > 100 && ended.sent > 100, "{ended:?}");
    rig.lab.ledger.all_ended_once().await;
}

#[tokio::test]
async fn both_forms_of_an_ssh_address_are_one_repository() {
    let mut rig = Rig::new(READING).await;
    for url in [format!("git@{NAME}:team/app"), format!("git@{NAME}:/team/app.git/"), rig.url("team/app")] {
        let root = rig.dir.path().to_owned();
        let done = rig.git(&root, &["ls-remote", &url]).output().await.unwrap();
        assert!(done.status.success(), "{url}: {}", said(&done));
        assert!(String::from_utf8_lossy(&done.stdout).contains("refs/heads/main"), "{url}");
    }
}

#[tokio::test]
async fn pushing_needs_a_rule_that_allows_it() {
    let mut rig = Rig::new(READING).await;
    let (work, done) = rig.clone("team/app.git").await;
    assert!(done.status.success(), "{}", said(&done));
    fs::write(work.join("more"), "more").unwrap();
    for args in [&["add", "."][..], &["commit", "-q", "-m", "more"]] {
        assert!(rig.git(&work, args).status().await.unwrap().success());
    }
    let push = ["push", "-q", "origin", "main"];
    let refused = rig.git(&work, &push).output().await.unwrap();
    assert!(!refused.status.success());
    let said_so = said(&refused);
    assert!(said_so.contains("workbay: deny: PUSH ssh://git.ok.test"), "{said_so}");
    assert!(said_so.contains("to allow it, add a rule to bay.toml"), "{said_so}");
    assert_eq!(rig.forge.asked().commands.len(), 1, "the forge hears of the clone alone");
    assert!(!rig.decided("PUSH").await);

    rig.lab.set_policy(&READING.replace("path =", "method = [\"FETCH\", \"PUSH\"]\npath ="));
    let done = rig.git(&work, &push).output().await.unwrap();
    assert!(done.status.success(), "{}", said(&done));
    let (again, done) = {
        fs::remove_dir_all(&work).unwrap();
        rig.clone("team/app.git").await
    };
    assert!(done.status.success() && again.join("more").exists(), "{}", said(&done));
}

/// The commit of a ref at the forge.
fn at_forge(rig: &Rig, name: &str) -> String {
    let bare = rig.dir.path().join("forge/repos/team/app.git");
    let found = quiet_git(&bare).args(["rev-parse", "-q", "--verify", name]).output().unwrap();
    String::from_utf8(found.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn a_push_is_decided_by_its_refs_before_any_of_it_is_sent() {
    let rules = format!(
        "{READING}\n{}\n{}",
        READING.replace("\"app\"", "\"agents\"").replace("path =", "branch = \"agent/**\"\npath ="),
        READING
            .replace("\"app\"", "\"never\"")
            .replace("\"allow\"", "\"deny\"")
            .replace("path =", "branch = \"agent/locked\"\npath =")
    );
    let mut rig = Rig::new(&rules).await;
    let (work, done) = rig.clone("team/app.git").await;
    assert!(done.status.success(), "{}", said(&done));
    let first = at_forge(&rig, "refs/heads/main");
    fs::write(work.join("more"), "more").unwrap();
    for args in [&["add", "."][..], &["commit", "-q", "-m", "more"]] {
        assert!(rig.git(&work, args).status().await.unwrap().success());
    }
    let mut push = async |refs: &[&str]| {
        let args = [&["push", "-q", "origin"][..], refs].concat();
        rig.git(&work, &args).output().await.unwrap()
    };
    let done = push(&["HEAD:refs/heads/agent/x"]).await;
    assert!(done.status.success(), "{}", said(&done));
    for refs in [
        &["main"][..],
        &["HEAD:refs/heads/agent/y", "main"],
        &["HEAD:refs/heads/agent/locked"],
        &["HEAD:refs/tags/v1"],
        &["--delete", "main"],
    ] {
        let refused = push(refs).await;
        let told = said(&refused);
        assert!(
            !refused.status.success() && told.contains("workbay: deny: PUSH ssh://git.ok.test"),
            "{told}"
        );
        assert!(told.contains("pushing refs/"), "{told}");
    }
    // A push without changes needs no approval. Deleting a branch is a change.
    assert!(push(&["HEAD:refs/heads/agent/x"]).await.status.success());
    let gone = push(&["--delete", "agent/x"]).await;
    assert!(gone.status.success(), "{}", said(&gone));
    assert_eq!(at_forge(&rig, "refs/heads/main"), first);
    for name in ["refs/heads/agent/x", "refs/heads/agent/y", "refs/heads/agent/locked", "refs/tags/v1"] {
        assert_eq!(at_forge(&rig, name), "", "{name}");
    }
    rig.lab.ledger.all_ended_once().await;
    assert!(rig.decided("pushing refs/heads/agent/x").await);
}

#[tokio::test]
async fn git_push_options_over_ssh_are_allowed_by_no_rule_on_branches() {
    let agents = READING.replace("\"app\"", "\"agents\"").replace("path =", "branch = \"agent/**\"\npath =");
    let mut rig = Rig::new(&format!("{READING}\n{agents}")).await;
    let bare = rig.dir.path().join("forge/repos/team/app.git");
    let advertised = quiet_git(&bare).args(["config", "receive.advertisePushOptions", "true"]).status();
    assert!(advertised.unwrap().success());
    let (work, done) = rig.clone("team/app.git").await;
    assert!(done.status.success(), "{}", said(&done));
    let args = ["push", "-q", "-o", "merge_request.target=prod", "origin", "HEAD:refs/heads/agent/x"];
    let refused = rig.git(&work, &args).output().await.unwrap();
    let told = said(&refused);
    assert!(!refused.status.success() && told.contains("workbay: deny: PUSH ssh://git.ok.test"), "{told}");
    assert!(told.contains("1 push option"), "{told}");
    assert_eq!(at_forge(&rig, "refs/heads/agent/x"), "");
    let done = rig.git(&work, &["push", "-q", "origin", "HEAD:refs/heads/agent/x"]).output().await.unwrap();
    assert!(done.status.success(), "{}", said(&done));
}

#[tokio::test]
async fn a_push_that_cannot_be_parsed_counts_as_the_worst_case() {
    let by_branch = READING.replace("path =", "branch = \"**\"\npath =");
    let mut rig = Rig::new(&by_branch).await;
    let first = at_forge(&rig, "refs/heads/main");
    let zero = "0".repeat(40);
    let line = |text: &str| format!("{:04x}{text}", text.len() + 4);
    for odd in [
        "this is not what git sends".to_owned(),
        line(&format!("{first} {zero} refs/heads/../heads/main\0 report-status")) + "0000",
        line("push-cert\0 report-status") + "0000",
        line(&format!("{first} {zero} refs/heads/main\0 report-status")) + &"x".repeat(70 << 10),
        // A valid beginning that never continues.
        line(&format!("{first} {zero} refs/heads/main\0 report-status")),
    ] {
        let mut client = rig.ssh(&["git@x", "git-receive-pack 'team/app.git'"]);
        let mut client =
            client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = client.stdin.take().unwrap();
        input.write_all(odd.as_bytes()).await.ok();
        drop(input);
        let told = said(&client.wait_with_output().await.unwrap());
        assert!(told.contains("workbay: deny: PUSH ssh://git.ok.test"), "{odd:.40}: {told}");
        assert_eq!(at_forge(&rig, "refs/heads/main"), first);
    }
}

#[tokio::test]
async fn large_data_passes_both_ways_unchanged() {
    let mut rig = Rig::new(&READING.replace("path =", "method = \"*\"\npath =")).await;
    let (work, _) = rig.clone("team/app.git").await;
    let bytes: Vec<u8> = (0..24_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(work.join("large"), &bytes).unwrap();
    for args in [&["add", "."][..], &["commit", "-q", "-m", "large"], &["push", "-q", "origin", "main"]] {
        let done = rig.git(&work, args).output().await.unwrap();
        assert!(done.status.success(), "{}", said(&done));
    }
    fs::remove_dir_all(&work).unwrap();
    let (work, done) = rig.clone("team/app.git").await;
    assert!(done.status.success(), "{}", said(&done));
    assert!(fs::read(work.join("large")).unwrap() == bytes, "it came back as it was");
    rig.lab.ledger.all_ended_once().await;
}

#[tokio::test]
async fn the_servers_messages_and_status_reach_the_client() {
    let mut rig = Rig::new(&READING.replace("/team/app", "/team/**")).await;
    let done = rig.ssh(&["git@x", "git-upload-pack 'team/none.git'"]).output().await.unwrap();
    assert_eq!(done.status.code(), Some(128), "{}", said(&done));
    assert!(said(&done).contains("does not appear to be a git repository"), "{}", said(&done));
    assert_eq!(rig.lab.ledger.ended().await.ending, Ending::Closed);
}

#[tokio::test]
async fn keys_of_other_kinds_log_in_too() {
    for kind in ["rsa", "ecdsa"] {
        let mut rig = Rig::new(READING).await;
        for file in ["key", "host"] {
            make_key(&rig.dir.path().join("forge").join(file), kind);
        }
        rig.log_in(&rig.forge.known_hosts(NAME, rig.lab.port));
        let (_, done) = rig.clone("team/app.git").await;
        assert!(done.status.success(), "{kind}: {}", said(&done));
    }
}

/// A fetch that waits for its client.
async fn waiting(rig: &mut Rig) -> Child {
    use tokio::io::AsyncReadExt;
    let mut ssh = rig.ssh(&["git@x", "git-upload-pack 'team/app.git'"]);
    let mut child = ssh.stdin(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 4];
    child.stdout.as_mut().unwrap().read_exact(&mut first).await.unwrap();
    child
}

#[tokio::test]
async fn a_policy_change_ends_running_commands() {
    let mut rig = Rig::new(READING).await;
    let mut child = waiting(&mut rig).await;
    let input = child.stdin.take();
    rig.lab.set_policy("");
    let done = child.wait_with_output().await.unwrap();
    assert!(said(&done).contains("the policy changed"), "{}", said(&done));
    assert_eq!(done.status.code(), Some(128));
    assert_eq!(rig.lab.ledger.ended().await.ending, Ending::Revoked);
    drop(input);
}

#[tokio::test]
async fn the_connection_to_the_origin_ends_with_its_client() {
    let mut rig = Rig::new(READING).await;
    let mut child = waiting(&mut rig).await;
    child.kill().await.unwrap();
    assert_eq!(rig.lab.ledger.ended().await.ending, Ending::Abandoned);
    rig.lab.ledger.all_ended_once().await;
}

#[tokio::test]
async fn a_stalled_command_is_ended() {
    let mut timeouts = quick();
    timeouts.tunnel_idle = std::time::Duration::from_millis(300);
    let mut rig = Rig::with(Lab::with(READING, timeouts).await).await;
    let mut child = waiting(&mut rig).await;
    let input = child.stdin.take();
    let done = child.wait_with_output().await.unwrap();
    assert!(said(&done).contains("nothing moved for too long"), "{}", said(&done));
    assert_eq!(rig.lab.ledger.ended().await.ending, Ending::Failed { failure: Failure::Stalled });
    drop(input);
}
