//! Credentials that are nobody's secret here: on a host that a secret is for, they would let the bay act as somebody else.

use bay_policy::CanonicalRequest;
use http::HeaderMap;
use http::header::HeaderName;

/// Headers that are credentials by their meaning.
const HEADERS: &[&str] = &[
    "api-key",
    "apikey",
    "authorization",
    "x-amz-security-token",
    "x-auth",
    "x-authorization",
    "x-registry-auth",
];
/// What else the name of a header that is one ends in.
const ENDINGS: &[&str] = &["-api-key", "-apikey", "-token", "-secret", "-password", "-authorization"];
/// Headers with such an ending that protect against other sites, and identify nobody.
const HARMLESS: &[&str] = &["x-csrf-token", "x-xsrf-token", "csrf-token", "xsrf-token"];
/// Parameters of a query that are credentials by their meaning.
const PARAMETERS: &[&str] = &[
    "access_token",
    "api-key",
    "api_key",
    "apikey",
    "auth_token",
    "client_secret",
    "oauth_token",
    "password",
    "private_token",
    "sig",
    "signature",
    "token",
    "x-amz-credential",
    "x-amz-security-token",
    "x-amz-signature",
    "x-goog-credential",
    "x-goog-signature",
];

fn is_credential(name: &HeaderName) -> bool {
    let name = name.as_str();
    HEADERS.contains(&name)
        || (ENDINGS.iter().any(|ending| name.ends_with(ending)) && !HARMLESS.contains(&name))
}

/// A credential in the request that is in none of the places given, in words.
pub(super) fn find(
    request: &CanonicalRequest,
    headers: &HeaderMap,
    attached: &[&HeaderName],
    slots: &[&HeaderName],
    parameters: &[&str],
) -> Option<String> {
    let named = headers.iter().filter(|(_, value)| !value.as_bytes().trim_ascii().is_empty());
    for (name, _) in named {
        if !attached.contains(&name) && (is_credential(name) || slots.contains(&name)) {
            return Some(format!("the header {name}"));
        }
    }
    let mut pairs = request.http()?.query().pairs();
    pairs
        .find(|(name, value)| {
            !value.is_empty()
                && !parameters.contains(name)
                && PARAMETERS.contains(&name.to_ascii_lowercase().as_str())
        })
        .map(|(name, _)| format!("the parameter {}", name.to_ascii_lowercase()))
}
