//! Requests of any content: refused, or in a form that is at rest and that no server reads as another place.
#![no_main]

use bay_policy::canonical::CanonicalPath;
use bay_policy::{CanonicalRequest, Connection, Host, RawRequest, Scheme, canonicalise};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut parts = text.splitn(6, '\n');
    let mut next = || parts.next().unwrap_or("");
    let (destination, sni, authority, method, target, header) =
        (next(), next(), next(), next(), next(), next());
    if let Ok(host) = Host::parse(destination) {
        assert_eq!(Host::parse(&host.to_string()).expect("a host"), host);
        let _ = host.warnings(["example.com", "xn--bcher-kva.example"]);
    }
    if let Ok(path) = CanonicalPath::parse(target) {
        at_rest(&path);
    }
    for scheme in [Scheme::Http, Scheme::Https] {
        let raw = RawRequest {
            connection: Connection { destination, port: scheme.default_port(), sni: Some(sni) },
            scheme,
            method,
            target,
            authorities: &[authority],
            headers: &[header],
            websocket: false,
        };
        if let Ok(request) = canonicalise(&raw) {
            let sent = CanonicalRequest::from_line(&format!("{request} with {header}"))
                .expect("what is sent is canonical");
            assert_eq!(sent, request);
            at_rest(request.http().expect("http").path());
        }
    }
    let _ = CanonicalRequest::from_line(text);
});

/// Sent as it is, it is itself; and nothing in it moves up, however it is decoded.
fn at_rest(path: &CanonicalPath) {
    assert_eq!(CanonicalPath::parse(path.as_str()).expect("a path"), *path);
    assert!(path.as_str().bytes().all(|byte| byte.is_ascii_graphic() && !b"\\;#?".contains(&byte)), "{path}");
    let lower = path.as_str().to_ascii_lowercase();
    for up in ["/../", "/./", "//", "%2e", "%5c", "%3b", "%00", "%252e", "%252f", "%255c"] {
        assert!(!lower.contains(up), "{path}");
    }
}
