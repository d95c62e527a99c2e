//! Refusals that clients of container registries can show.
//!
//! Docker, containerd and the like print the `errors` of a registry's own answers. For any other body they print that it
//! cannot be parsed. So the gateway's own answers to such a client, refusals and failures, have this list too.

use http::header::{ACCEPT, CONTENT_LENGTH, USER_AGENT};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::answers::{FAILURE_HEADER, LINE_HEADER, RECORD_HEADER};
use crate::body::{AnswerBody, full};

/// How the `User-Agent` of such a client begins, in lower case.
const CLIENTS: &[&str] = &[
    "docker/",
    "docker-client/",
    "containerd/",
    "buildkit/",
    "containers/",
    "podman/",
    "buildah/",
    "skopeo/",
    "go-containerregistry/",
    "crane/",
    "nerdctl/",
    "oras",
    "helm/",
];
/// Where a registry has its interface.
const INTERFACE: &str = "/v2";
/// How the media types of registries begin.
const MEDIA_TYPES: &[&str] = &["application/vnd.docker.", "application/vnd.oci."];
/// For `DENIED`, Docker says that the repository may not exist or needs a login. That would send the reader the wrong way.
const REFUSED: &str = "UNSUPPORTED";
/// The code for answers with status 502, 503 or 504: the client may try again.
const LATER: &str = "UNAVAILABLE";

/// Whether the client of a request is taken to show errors of registries: by its name, or by a path and media types
/// that registries have.
pub(crate) fn is_client<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    let known = text(headers, &USER_AGENT).is_some_and(|agent| {
        let agent = agent.to_ascii_lowercase();
        CLIENTS.iter().any(|client| agent.starts_with(client))
    });
    let path = request.uri().path();
    let below = path.strip_prefix(INTERFACE).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let wants = || {
        headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(|accepted| {
            accepted.split(',').any(|one| MEDIA_TYPES.iter().any(|media| one.trim().starts_with(media)))
        })
    };
    known || (below && wants())
}

fn text<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The gateway's own answer, with the errors of a registry added to its body.
pub(crate) async fn with_errors(answer: Response<AnswerBody>) -> Response<AnswerBody> {
    let (mut head, body) = answer.into_parts();
    let line = text(&head.headers, &LINE_HEADER_NAME).or_else(|| text(&head.headers, &FAILURE_HEADER_NAME));
    let (line, record) =
        (line.unwrap_or_default(), text(&head.headers, &RECORD_HEADER_NAME).unwrap_or_default());
    let code = match head.status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => LATER,
        _ => REFUSED,
    };
    let errors = json!([{
        "code": code,
        "message": format!("the gateway of this bay: {line}"),
        "detail": { "record": record },
    }]);
    // The body is one that the gateway wrote, so it is whole and short.
    let Ok(bytes) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return Response::from_parts(head, full(""));
    };
    let with_errors = match serde_json::from_slice(&bytes) {
        Ok(Value::Object(mut told)) => {
            told.insert("errors".to_owned(), errors);
            format!("{}\n", Value::Object(told)).into()
        }
        _ => bytes,
    };
    head.headers.remove(CONTENT_LENGTH);
    Response::from_parts(head, full(with_errors))
}

const LINE_HEADER_NAME: http::HeaderName = http::HeaderName::from_static(LINE_HEADER);
const FAILURE_HEADER_NAME: http::HeaderName = http::HeaderName::from_static(FAILURE_HEADER);
const RECORD_HEADER_NAME: http::HeaderName = http::HeaderName::from_static(RECORD_HEADER);

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        is_client(&request.body(()).unwrap())
    }

    #[test]
    fn clients_of_registries_are_known_by_their_name_or_by_what_they_accept() {
        let docker =
            "docker/27.3.1 go/go1.22.7 os/linux arch/amd64 UpstreamClient(Docker-Client/27.3.1 \\(linux\\))";
        assert!(asked("/v2/", &[("user-agent", docker)]));
        assert!(asked("/token?service=registry.docker.io", &[("user-agent", docker)]));
        assert!(asked("/v2/library/alpine/manifests/3", &[("user-agent", "containerd/2.0.0")]));
        let manifests = "application/vnd.oci.image.index.v1+json, */*";
        assert!(asked("/v2/a/manifests/1", &[("user-agent", "own/1"), ("accept", manifests)]));
        assert!(asked("/v2/a/manifests/1", &[("accept", "text/plain"), ("accept", manifests)]));
        assert!(!asked("/v2/a/manifests/1", &[("user-agent", "curl/8.5.0"), ("accept", "*/*")]));
        assert!(!asked("/v20/a", &[("accept", manifests)]));
        assert!(!asked("/", &[("user-agent", "not-docker/1")]));
        assert!(!asked("/v2/", &[]));
    }
}
