//! Credentials that are not secrets of the bay. On a host whose secrets are managed, they would let the bay act as
//! somebody else. They are recognised by the names of headers and query parameters.

use bay_policy::CanonicalRequest;
use http::HeaderMap;
use http::header::HeaderName;

/// Headers that count as credentials.
const HEADERS: &[&str] = &[
    "api-key",
    "apikey",
    "authorization",
    "x-amz-security-token",
    "x-auth",
    "x-authorization",
    "x-jfrog-art-api",
    "x-registry-auth",
];
/// A header whose name has one of these endings counts as a credential, unless it is [`HARMLESS`].
const ENDINGS: &[&str] = &["-key", "-apikey", "-auth", "-token", "-secret", "-password", "-authorization"];
/// Headers with such an ending that identify nobody: they protect against cross-site requests or repetition, or belong
/// to a handshake.
const HARMLESS: &[&str] = &[
    "csrf-token",
    "idempotency-key",
    "sec-websocket-key",
    "x-csrf-token",
    "x-idempotency-key",
    "x-xsrf-token",
    "xsrf-token",
];
/// Words in a WebSocket's subprotocol that mark a credential. Scripts in browsers can set no other header there.
const SUBPROTOCOLS: &[&str] = &["api-key", "apikey", "auth", "bearer", "jwt", "token"];
/// Query parameters that count as credentials.
const PARAMETERS: &[&str] = &[
    "access_token",
    "api-key",
    "api_key",
    "apikey",
    "auth_token",
    "authorization",
    "client_secret",
    "jwt",
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

/// Query parameters that are credentials at some hosts and ordinary words at others. They count as credentials if
/// their value is as long as one.
const PERHAPS: &[&str] = &["auth", "key"];
const CREDENTIAL_CHARS: usize = 16;

fn is_parameter(name: &str, value: &str) -> bool {
    PARAMETERS.contains(&name) || (PERHAPS.contains(&name) && value.len() >= CREDENTIAL_CHARS)
}

fn is_credential(name: &HeaderName, value: &[u8]) -> bool {
    // Many servers read an underscore as a hyphen.
    let name = name.as_str().replace('_', "-");
    if name == "sec-websocket-protocol" {
        let value = String::from_utf8_lossy(value).to_ascii_lowercase();
        return SUBPROTOCOLS.iter().any(|word| value.contains(word));
    }
    HEADERS.contains(&name.as_str())
        || (ENDINGS.iter().any(|ending| name.ends_with(ending)) && !HARMLESS.contains(&name.as_str()))
}

/// The names that servers may read in one pair of a query: some also split at semicolons, or read `a[]` as `a`.
fn names_in<'a>(name: &'a str, value: &'a str) -> impl Iterator<Item = (String, &'a str)> {
    let more = value.split(';').skip(1).filter_map(|pair| pair.split_once('='));
    std::iter::once((name, value)).chain(more).map(|(name, value)| {
        let name = name.rsplit(';').next().unwrap_or(name).to_ascii_lowercase();
        (name.split('[').next().unwrap_or_default().to_owned(), value)
    })
}

/// Finds what looks like a credential outside the given places: headers with a secret attached, and the parameters that
/// are slots. Returns a description of its place.
pub(super) fn find(
    request: &CanonicalRequest,
    headers: &HeaderMap,
    attached: &[&HeaderName],
    slots: &[&HeaderName],
    parameters: &[&str],
) -> Option<String> {
    let named = headers.iter().filter(|(_, value)| !value.as_bytes().trim_ascii().is_empty());
    for (name, value) in named {
        if !attached.contains(&name) && (is_credential(name, value.as_bytes()) || slots.contains(&name)) {
            return Some(format!("the header {name}"));
        }
    }
    let mut pairs = request.http()?.query().pairs();
    pairs.find_map(|(name, value)| {
        let mut read = names_in(name, value);
        let own = parameters.contains(&name);
        let (found, _) = read.find(|(read, value)| {
            !value.is_empty() && is_parameter(read, value) && !(own && *read == name.to_ascii_lowercase())
        })?;
        Some(format!("the parameter {found}"))
    })
}
