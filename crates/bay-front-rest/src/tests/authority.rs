//! Every handler checks the principal: each route of the API refuses a principal that may do nothing.

use bay_types::principal::{Door, Principal, Who};

use super::*;

/// A valid body for each path that takes one.
fn body(method: &str, path: &str) -> Value {
    let exec = || json!(exec());
    match (method, path) {
        ("POST", "/v1/bays") => json!({ "source": { "kind": "empty" } }),
        ("POST", "/v1/bays/web/checkpoints") => json!({}),
        ("PUT", "/v1/bays/web/reach") => json!({ "ports": [] }),
        ("PATCH", "/v1/bays/web/limits") => json!({}),
        ("POST", "/v1/bays/web/restore") => json!({ "checkpoint": "v1" }),
        ("POST", "/v1/bays/web/forks") => json!({ "count": 1 }),
        ("POST", "/v1/bays/web/promote") => json!({ "from": "web" }),
        ("POST", "/v1/approvals/one/allow") => json!({ "reach": "once" }),
        ("POST", "/v1/approvals/one/deny") => json!({}),
        ("POST", "/v1/notify") => json!({ "url": "https://hooks.test/x" }),
        ("PUT", "/v1/policy/host" | "/v1/bays/web/policy" | "/v1/bays/web/policy/project")
        | ("POST", "/v1/bays/web/policy/diff") => json!({ "name": "coding" }),
        ("POST", "/v1/bays/web/policy/check") => json!({ "request": "GET https://a.test/" }),
        ("POST", "/v1/bays/web/grants") => json!({ "request": "GET https://a.test/", "for_s": 60 }),
        ("PUT", "/v1/secrets/one") => json!({ "source": { "value": "a" }, "uses": [] }),
        ("POST", "/v1/secrets/one/rotate") => json!({}),
        ("POST", "/v1/bays/web/execs" | "/v1/bays/web/execs/ask") => exec(),
        ("POST", "/v1/bays/web/execs/one/signal") => json!({ "signal": 15, "tree": false }),
        ("PUT", "/v1/bays/web/services/one") => json!({ "argv": ["true"] }),
        ("POST", "/v1/images/prune" | "/v1/pool/prune" | "/v1/bays/web/forwards") => json!({}),
        ("POST", "/v1/bays/web/work") => json!({
            "route": "branch", "branch": "b", "commit": "a".repeat(40), "commits": 1, "files": 1, "uncommitted": false
        }),
        ("POST", "/v1/images") => json!({ "source": "host" }),
        ("POST", "/v1/repos/offer") => json!({ "location": "/x", "commit": "a".repeat(40) }),
        ("POST", "/v1/repos/sync") => json!({ "repo": "one" }),
        _ => Value::Null,
    }
}

/// Every method of every path, parsed from the sources of this front.
fn routes() -> Vec<(String, String)> {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap();
    let files = files.map(|file| file.unwrap().path()).filter(|path| path.is_file());
    let source: String = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let source = source.replace(char::is_whitespace, "");
    let mut routes = Vec::new();
    for route in source.split(".route(\"").skip(1) {
        let (path, rest) = route.split_once('"').unwrap();
        // Up to the end of the function.
        let methods = rest.split('}').next().unwrap();
        let path = path
            .replace("{bay}", "web")
            .replace("{event}", "1")
            .replace("{verb}", "stop")
            .replace("{port}", "1");
        let path: String = path
            .split('/')
            .map(|part| if part.starts_with('{') { "one" } else { part })
            .collect::<Vec<_>>()
            .join("/");
        for method in ["get", "put", "post", "patch", "delete"] {
            if methods.starts_with(&format!(",{method}(")) || methods.contains(&format!(").{method}(")) {
                routes.push((method.to_uppercase(), path.clone()));
            }
        }
    }
    routes
}

fn query(path: &str) -> &'static str {
    match path {
        "/v1/bays/web/files" | "/v1/bays/web/archive" | "/v1/bays/web/stat" | "/v1/bays/web/watch" => {
            "?path=/x"
        }
        "/v1/audit/consistency" => "?old=1",
        _ => "",
    }
}

#[tokio::test]
async fn every_route_except_attach_refuses_a_principal_that_may_do_nothing() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    let who = Principal { who: Who::Task, door: Door::Task };
    let (routes, mut wrong) = (routes(), Vec::new());
    assert!(routes.len() > 80, "only {} routes were found", routes.len());
    for (method, path) in &routes {
        // These switch protocols, which needs a connection. Their verb is the same as that of the route without a
        // client.
        if path.ends_with("/attach") {
            continue;
        }
        let given = body(method, path);
        let given = if given.is_null() { Body::empty() } else { Body::from(given.to_string()) };
        let response = rig.send_as(who, method, &format!("{path}{}", query(path)), given).await;
        let (status, bytes) = (response.status(), response.into_body().collect().await.unwrap().to_bytes());
        let text = String::from_utf8_lossy(&bytes);
        // Operations with progress answer in lines; the last one has the error.
        if !text.contains("\"not-permitted\"") {
            wrong.push(format!("{method} {path}: {status} {text}"));
        }
    }
    assert!(wrong.is_empty(), "not refused:\n{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_bay_principal_reaches_its_own_bay_and_no_other() {
    let rig = rig().await;
    let own = rig.bay("web", State::Running).await;
    rig.bay("api", State::Running).await;
    let who = Principal::bay(own.id);
    let list = async |bay: &str| {
        let path = format!("/v1/bays/{bay}/checkpoints");
        rig.send_as(who, "GET", &path, Body::empty()).await.status().as_u16()
    };
    assert_eq!(list("web").await, 200);
    // It cannot distinguish an existing bay from a missing one.
    assert_eq!((list("api").await, list("none").await), (403, 403));
}
