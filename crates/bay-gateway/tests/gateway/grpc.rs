//! gRPC by the package most programs use, as client and as origin: `tests/python/grpc_calls.py`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use bay_tests::suite::{self, Lack};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::lab::{Lab, PATIENCE, POLICY};

fn script(python: &Path) -> Command {
    let mut command = Command::new(python);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python/grpc_calls.py");
    command.env_clear().args(["-I", "-B"]).arg(script).kill_on_drop(true);
    command
}

#[tokio::test]
async fn grpc_calls_of_every_kind_pass_with_trailers_and_a_refusal_reaches_the_program() {
    let python = std::env::var_os("BAY_TEST_GRPC").map(PathBuf::from).filter(|path| path.exists());
    let Some(python) = python else {
        return suite::skip(Lack::Installable, "the grpcio package is not there: ./test installs it");
    };
    let mut lab = Lab::new(POLICY).await;
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (certificate, key) = lab.origins.leaf_pem("ok.test");
    let mut origin = script(&python)
        .arg("serve")
        .args([file("leaf.pem", &certificate), file("key.pem", &key)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(origin.stdout.take().unwrap()).lines();
    let port = timeout(PATIENCE, told.next_line()).await.unwrap().unwrap().expect("it tells its port");
    lab.net.lead("ok.test", "192.0.2.10", format!("127.0.0.1:{port}").parse().unwrap());

    let door = lab.open("ok.test").await.to_string();
    let authority = pem::encode(&pem::Pem::new("CERTIFICATE", lab.bay_authority.to_vec()));
    let calls = script(&python)
        .args(["call", &door])
        .arg(file("authority.pem", &authority))
        .arg("ok.test")
        .output()
        .await
        .unwrap();
    let (told, errors) = (String::from_utf8_lossy(&calls.stdout), String::from_utf8_lossy(&calls.stderr));
    assert!(calls.status.success(), "{told}{errors}");
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(
        lines[..4],
        [
            "echo 100000 kept",
            "count 0 1 2 3 4",
            "talk heard 0, heard 1, heard 2",
            "/open/Refuse FAILED_PRECONDITION not like this: 100 %",
        ],
        "{told}{errors}"
    );
    // The gateway answers with a plain 403. The client's library makes this status of it.
    assert!(lines[4].starts_with("/closed/Echo PERMISSION_DENIED"), "{told}{errors}");
    lab.ledger.all_ended_once().await;
}
