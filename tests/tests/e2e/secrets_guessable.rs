//! Values that can be guessed, and values that a server repeats to other bays.

use bay_tests::canary::{
    CANARY, bearer, credentials, everything, files_with_canary, for_api, once_there, send, set,
};
use bay_tests::lab::{Lab, lab};
use bay_tests::origin::text;
use bay_tests::test_servers::Origin;
use bay_tests::until;
use bay_types::ErrorCode;
use http::{Request, Response};
use hyper::body::Incoming;
use serde_json::json;

/// A server that stores the first credential that it receives, and repeats it to every client.
fn keeping(lab: &Lab) -> Origin {
    let kept: std::sync::Arc<std::sync::Mutex<String>> = std::sync::Arc::default();
    lab.servers.https("origin.test", move |request: Request<Incoming>| {
        let kept = std::sync::Arc::clone(&kept);
        async move {
            let mut kept = kept.lock().unwrap();
            if let Some(sent) = request.headers().get("authorization") {
                *kept = sent.to_str().unwrap_or_default().to_owned();
            }
            Response::new(text(format!("kept: {kept}, and that is all")))
        }
    })
}

#[test]
fn cred_weak_a_value_that_can_be_guessed_is_refused_by_default() {
    let lab = lab();
    let origin = keeping(&lab);
    lab.bay("b", &everything(&origin));
    let uses = for_api(&origin);
    let line = ["secret", "set", "TOKEN", "-", "--for", uses.as_str()];
    for weak in
        ["Summer2024!", "password1234", "correct-horse-battery", "aaaaaaaaaaaaaaaaaaaa", "abcdefgh12345678"]
    {
        let refused = lab.daemon.bay_with_input(&line, weak.as_bytes());
        let said = refused.errors();
        let _refused = refused.fails_with(ErrorCode::SecretInvalid);
        assert!(said.contains("guess") && said.contains("--allow-weak"), "{weak}: {said}");
        assert!(!said.contains(weak), "{said}");
    }
    let insisting = [&line[..], &["--allow-weak"]].concat();
    let said = lab.daemon.bay_with_input(&insisting, b"Summer2024!").ok().text();
    assert!(said.contains("weak"), "{said}");
    for line in [&["secret", "ls"][..], &["secret", "show", "TOKEN"], &["audit", "export"]] {
        let said = lab.daemon.bay(line).ok().text();
        assert!(said.contains("weak") && !said.contains("Summer"), "{line:?}: {said}");
    }
    assert_eq!(lab.daemon.bay(&["secret", "show", "TOKEN", "--json"]).ok().json()["weak"], true);
    // An answer that contains the value is cut off, even if the request contained it.
    let _own = once_there(&lab, "b");
    let ran =
        lab.python("b", bay_tests::canary::SEND, &[&bearer(&origin.url("https", "/api/x")).to_string()]);
    assert_eq!(credentials(&origin), ["Bearer Summer2024!"]);
    assert!(ran.code != 0 && !ran.text().contains("kept"), "{ran}");
    // A new value that cannot be guessed is scrubbed again.
    let _strong = lab.daemon.bay_with_input(&["secret", "rotate", "TOKEN", "-"], CANARY.as_bytes()).ok();
    assert_eq!(lab.daemon.bay(&["secret", "show", "TOKEN", "--json"]).ok().json()["weak"], false);
    let refused = lab.daemon.bay_with_input(&["secret", "rotate", "TOKEN", "-"], b"Winter2025!");
    let _refused = refused.fails_with(ErrorCode::SecretInvalid);
    // A request that was in progress during the change may still be cut off.
    until("an answer that is scrubbed", || {
        let wanted = bearer(&origin.url("https", "/api/x")).to_string();
        let ran = lab.python("b", bay_tests::canary::SEND, &[&wanted]);
        (ran.code == 0 && ran.json()["status"] == 200).then_some(())
    });
}

#[test]
fn cred_other_bay_no_bay_reads_a_value_that_a_server_kept() {
    let mut lab = lab();
    let origin = keeping(&lab);
    lab.bay("holder", &everything(&origin));
    let _set = set(&lab, "TOKEN", &["--for", &for_api(&origin), "--bay", "holder"]).ok();
    let _own = once_there(&lab, "holder");
    lab.bay("other", &everything(&origin));
    let uses = send(&lab, "holder", &bearer(&origin.url("https", "/api/x")));
    assert_eq!(uses["status"], 200);
    assert_eq!(credentials(&origin), [format!("Bearer {CANARY}")]);
    let reads = |lab: &Lab, bay: &str, when: &str| {
        let answer = send(lab, bay, &json!({ "url": origin.url("https", "/anything") }));
        let said = answer.to_string();
        assert!(answer["status"] == 200 && said.contains("kept: "), "{when}: {said}");
        assert!(!said.contains(CANARY) && said.contains("REDACTED"), "{when}: {said}");
    };
    reads(&lab, "other", "without the secret");
    let _gone = lab.daemon.bay(&["secret", "rm", "TOKEN"]).ok();
    until("the sentinel to go", || (lab.daemon.sh("holder", "test -z \"$TOKEN\"").code == 0).then_some(()));
    reads(&lab, "holder", "after it was removed");
    reads(&lab, "other", "after it was removed");
    lab.daemon.restart();
    lab.until_open("holder");
    lab.until_open("other");
    reads(&lab, "holder", "after a restart");
    reads(&lab, "other", "after a restart");
    let mut found = Vec::new();
    files_with_canary(&lab.daemon.data_dir, &mut found);
    assert!(found.is_empty(), "{found:?}");
    // If a bay without the secret reads on, the host is closed for that bay.
    for bay in ["other", "holder"] {
        let closed = (0..20).any(|_| {
            let ran = lab.python(
                bay,
                bay_tests::canary::SEND,
                &[&json!({ "url": origin.url("https", "/anything") }).to_string()],
            );
            assert!(!ran.text().contains(CANARY));
            ran.code == 0 && ran.json()["status"] == 403
        });
        assert!(closed, "{bay}");
    }
}

#[test]
fn cred_rotated_a_former_value_is_scrubbed_after_a_change_of_value_and_hosts() {
    let mut lab = lab();
    let origin = keeping(&lab);
    lab.bay("b", &everything(&origin));
    let _set = set(&lab, "TOKEN", &["--for", &for_api(&origin)]).ok();
    let _own = once_there(&lab, "b");
    assert_eq!(send(&lab, "b", &bearer(&origin.url("https", "/api/x")))["status"], 200);
    // A new value, for another host. The server still has the first value.
    let line = ["secret", "set", "TOKEN", "-", "--for", "elsewhere.test as bearer"];
    let _other = lab.daemon.bay_with_input(&line, CANARY.replace("x9Xq", "y8Yr").as_bytes()).ok();
    let read = |lab: &Lab| send(lab, "b", &json!({ "url": origin.url("https", "/x") })).to_string();
    let said = read(&lab);
    assert!(said.contains("kept: ") && !said.contains(CANARY), "{said}");
    lab.daemon.restart();
    lab.until_open("b");
    let said = read(&lab);
    assert!(said.contains("kept: ") && !said.contains(CANARY), "{said}");
}
