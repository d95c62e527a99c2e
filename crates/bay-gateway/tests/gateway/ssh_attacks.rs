//! Attacks over SSH: other commands, other repositories, forwarding, and servers with wrong identities.

use std::fs;
use std::time::Duration;

use bay_gateway::limits::MAX_SSH_CONNECTIONS;
use bay_gateway::{Ending, Failure};
use bay_tests::forge::make_key;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::lab::{Lab, PATIENCE, quick};
use crate::ssh::{NAME, READING, Rig, said};

#[tokio::test]
async fn no_other_command_and_no_other_repository_gets_to_the_server() {
    let mut rig = Rig::new(READING).await;
    for command in [
        "id",
        "git-upload-archive 'team/app.git'",
        "git-lfs-authenticate team/app.git download",
        "git-upload-pack",
        "git-upload-pack ''",
        "git-upload-pack '/'",
        "git-upload-pack 'team/other.git'",
        "git-upload-pack 'team/app.git' 'team/other.git'",
        "git-upload-pack 'team/app.git';id",
        "git-upload-pack 'team/app.git'\nid",
        "git-upload-pack 'team/app.git/../other.git'",
        "git-upload-pack 'team/./app.git'",
        "git-upload-pack 'team//app.git'",
        "git-upload-pack '~/team/app.git'",
        "git-upload-pack '~root/team/app.git'",
        "git-upload-pack --strict 'team/app.git'",
        "git-upload-pack '$(id)'",
        "git-upload-pack 'team/%61pp.git'",
        "git-upload-pack 'team/app.git\\'",
        "git-upload-pack \"team/app.git\"",
        "git-upload-pack 'team/app.git/info'",
        "git-upload-pack 'TEAM/APP.git'",
        "git upload-pack --exec=id 'team/app.git'",
        "GIT_TRACE=1 git-upload-pack 'team/app.git'",
        "git-receive-pack 'team/app.git'",
        "git receive-pack 'team/app.git'",
    ] {
        let done = rig.ssh(&["git@x", command]).output().await.unwrap();
        assert_eq!(done.status.code(), Some(128), "{command}: {}", said(&done));
        assert!(said(&done).contains("workbay: "), "{command}: {}", said(&done));
    }
    assert_eq!(rig.forge.asked().connections, 0, "the server heard of none of it");
}

#[tokio::test]
async fn a_shell_a_terminal_and_subsystems_are_refused_with_a_message() {
    let mut rig = Rig::new(READING).await;
    let done = rig.ssh(&["git@x"]).output().await.unwrap();
    assert_eq!(done.status.code(), Some(128));
    assert!(said(&done).contains("no shell goes through the gateway"), "{}", said(&done));
    rig.lab.ledger.refused("a shell by SSH").await;
    let done = rig.ssh(&["-tt", "git@x"]).output().await.unwrap();
    assert!(said(&done).contains("PTY allocation request failed"), "{}", said(&done));
    let done = rig.ssh(&["-s", "git@x", "sftp"]).output().await.unwrap();
    assert!(said(&done).contains("subsystem request failed"), "{}", said(&done));
    rig.lab.ledger.refused("subsystem").await;
    assert_eq!(rig.forge.asked().connections, 0);
}

#[tokio::test]
async fn ssh_port_forwarding_is_refused_in_both_directions() {
    let mut rig = Rig::new(READING).await;
    let done = rig.ssh(&["-W", "192.0.2.10:22", "git@x"]).output().await.unwrap();
    assert!(!done.status.success());
    assert!(said(&done).contains("administratively prohibited"), "{}", said(&done));
    rig.lab.ledger.refused("forwarding by SSH").await;
    let remote = ["-o", "ExitOnForwardFailure=yes", "-N", "-R", "0:127.0.0.1:1", "git@x"];
    let done = rig.ssh(&remote).output().await.unwrap();
    assert!(!done.status.success());
    assert!(said(&done).contains("remote port forwarding failed"), "{}", said(&done));
    assert_eq!(rig.forge.asked().connections, 0);
    // The client offers an agent, which nobody uses, and sends variables, which are not passed on.
    let args =
        ["-A", "-X", "-o", "SetEnv=GIT_TRACE=1 LD_PRELOAD=x", "git@x", "git-upload-pack 'team/app.git'"];
    let done = rig.ssh(&args).output().await.unwrap();
    assert_eq!(rig.forge.asked().commands, ["git-upload-pack '/team/app.git'"], "{}", said(&done));
    assert!(rig.forge.asked().variables.is_empty(), "{:?}", rig.forge.asked());
}

#[tokio::test]
async fn a_server_with_another_host_key_gets_no_login() {
    let mut rig = Rig::new(READING).await;
    let port = rig.lab.port;
    make_key(&rig.dir.path().join("forge/host"), "ed25519");
    let (_, done) = rig.clone("team/app.git").await;
    assert!(!done.status.success());
    assert!(said(&done).contains("the host key of git.ok.test is not one that is known"), "{}", said(&done));
    assert_eq!(rig.lab.ledger.ended().await.ending, Ending::Failed { failure: Failure::HostKey });

    // The key is known under another name, port or algorithm, or it is revoked.
    let right = rig.forge.known_hosts(NAME, port);
    let key = right.split_once(' ').unwrap().1.trim();
    let strangers = [
        String::new(),
        format!("{NAME} {key}\n"),
        format!("[other.test]:{port} {key}\n"),
        format!("{right}@revoked * {key}\n"),
        format!("@cert-authority * {key}\n"),
        format!("# {right}"),
    ];
    for known in strangers {
        rig.log_in(&known);
        let (_, done) = rig.clone("team/app.git").await;
        assert!(!done.status.success(), "{known}");
        assert!(said(&done).contains("host key"), "{known}: {}", said(&done));
    }
    assert!(rig.forge.asked().users.is_empty(), "nobody logged in");
    rig.log_in(&right);
    let (_, done) = rig.clone("team/app.git").await;
    assert!(done.status.success(), "{}", said(&done));
}

#[tokio::test]
async fn a_failed_login_is_reported() {
    let mut rig = Rig::new(READING).await;
    let done = rig.ssh(&["root@x", "git-upload-pack 'team/app.git'"]).output().await.unwrap();
    assert!(said(&done).contains("is for the user git; use ssh://git@"), "{}", said(&done));
    assert_eq!(rig.forge.asked().connections, 0);

    make_key(&rig.dir.path().join("stranger"), "ed25519");
    let stranger = fs::read_to_string(rig.dir.path().join("stranger")).unwrap();
    let known = rig.forge.known_hosts(NAME, rig.lab.port);
    *rig.lab.net.login.lock().unwrap() = Some(("git".to_owned(), stranger, known.clone()));
    let (_, done) = rig.clone("team/app.git").await;
    assert!(said(&done).contains("does not take the operator's key for git"), "{}", said(&done));

    *rig.lab.net.login.lock().unwrap() = Some(("git".to_owned(), "no key".to_owned(), known));
    let (_, done) = rig.clone("team/app.git").await;
    assert!(said(&done).contains("cannot be used"), "{}", said(&done));
    *rig.lab.net.login.lock().unwrap() = None;
    let (_, done) = rig.clone("team/app.git").await;
    assert!(said(&done).contains("no key for git.ok.test"), "{}", said(&done));
    assert!(rig.forge.asked().users.is_empty());
    rig.lab.ledger.all_ended_once().await;
}

#[tokio::test]
async fn a_name_that_resolves_to_a_private_address_is_not_dialled() {
    let mut rig = Rig::new(READING).await;
    let place = rig.forge.serve().await;
    rig.lab.net.lead(NAME, "10.0.0.7", place);
    let (_, done) = rig.clone("team/app.git").await;
    assert!(said(&done).contains("10.0.0.7"), "{}", said(&done));
    assert_eq!(rig.lab.ledger.ended().await.ending, Ending::Failed { failure: Failure::Address });
    assert_eq!(rig.forge.asked().connections, 0);
}

#[tokio::test]
async fn a_host_without_any_rule_is_answered_with_the_reason() {
    let mut rig = Rig::new("").await;
    let (_, done) = rig.clone("team/app.git").await;
    assert!(said(&done).contains("workbay: deny: FETCH ssh://git.ok.test"), "{}", said(&done));
    assert!(!rig.decided("FETCH").await);
    // HTTP rules do not cover SSH.
    rig.lab.set_policy("[[rule]]\noutcome = \"allow\"\nhost = \"git.ok.test\"\nport = \"*\"\nmethod = \"*\"");
    let (_, done) = rig.clone("team/app.git").await;
    assert!(said(&done).contains("workbay: deny: FETCH"), "{}", said(&done));
    assert_eq!(rig.forge.asked().connections, 0);
}

#[tokio::test]
async fn connections_are_bounded_and_idle_ones_are_ended() {
    let mut timeouts = quick();
    timeouts.head = Duration::from_millis(300);
    let rig = Rig::with(Lab::with(READING, timeouts).await).await;
    let mut open = Vec::new();
    for _ in 0..MAX_SSH_CONNECTIONS {
        let mut stream = TcpStream::connect(rig.lab.address(NAME)).await.unwrap();
        let mut greeting = [0; 8];
        timeout(PATIENCE, stream.read_exact(&mut greeting)).await.unwrap().unwrap();
        assert_eq!(&greeting, b"SSH-2.0-");
        open.push(stream);
    }
    let mut one_more = TcpStream::connect(rig.lab.address(NAME)).await.unwrap();
    let mut rest = Vec::new();
    timeout(PATIENCE, one_more.read_to_end(&mut rest)).await.unwrap().ok();
    assert!(rest.is_empty());
    rig.lab.ledger.refused("TooMany").await;
    // Clients without a greeting, and clients without a command.
    open[0].write_all(b"SSH-2.0-lab\r\n").await.unwrap();
    for mut stream in open {
        timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it is ended").ok();
    }
}

#[tokio::test]
async fn other_protocols_are_not_served_as_ssh() {
    let rig = Rig::with(Lab::with(READING, quick()).await).await;
    for junk in [&b"SSH-1.5-old\r\n"[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 4096], b"SSH-2.0-"] {
        let mut stream = TcpStream::connect(rig.lab.address(NAME)).await.unwrap();
        stream.write_all(junk).await.ok();
        let mut rest = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it is ended").ok();
    }
    assert_eq!(rig.forge.asked().connections, 0);
}
