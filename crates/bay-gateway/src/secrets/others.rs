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
    "x-jfrog-art-api",
    "x-registry-auth",
];
/// What else the name of a header that is one ends in.
const ENDINGS: &[&str] = &["-key", "-apikey", "-auth", "-token", "-secret", "-password", "-authorization"];
/// Headers with such an ending that protect against other sites, and identify nobody.
const HARMLESS: &[&str] = &[
    "csrf-token",
    "idempotency-key",
    "sec-websocket-key",
    "x-csrf-token",
    "x-idempotency-key",
    "x-xsrf-token",
    "xsrf-token",
];
/// Words of a WebSocket's subprotocol by which browsers send credentials, having no other way.
const SUBPROTOCOLS: &[&str] = &["api-key", "apikey", "auth", "bearer", "jwt", "token"];
/// Parameters of a query that are credentials by their meaning.
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

/// Parameters that are credentials at some hosts and ordinary words at others: they are where they are as long as one.
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

/// The names that servers may read in a pair of a query: some divide at semicolons too, and take `a[]` for `a`.
fn names_in<'a>(name: &'a str, value: &'a str) -> impl Iterator<Item = (String, &'a str)> {
    let more = value.split(';').skip(1).filter_map(|pair| pair.split_once('='));
    std::iter::once((name, value)).chain(more).map(|(name, value)| {
        let name = name.rsplit(';').next().unwrap_or(name).to_ascii_lowercase();
        (name.split('[').next().unwrap_or_default().to_owned(), value)
    })
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
