//! Puts secret values into their slots, after the decision and just before the request is built for the origin.

use bay_policy::CanonicalRequest;
use bay_text::percent::value_pieces;
use http::HeaderMap;
use http::header::COOKIE;
use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

use super::{Secrets, Slot};
use crate::scrub;

/// One value for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attachment {
    /// The index of the secret among the bay's secrets.
    pub(super) secret: usize,
    pub(super) slot: Slot,
}

/// The values that a request needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attachments {
    pub(super) found: Vec<Attachment>,
}

impl Attachments {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The names of the secrets and their incarnations, in the order in which `fill` takes their values.
    #[must_use]
    pub fn names(&self, secrets: &Secrets) -> Vec<(String, u64)> {
        let held = self.found.iter().filter_map(|one| secrets.held.get(one.secret));
        held.map(|held| (held.name.clone(), held.incarnation)).collect()
    }

    /// Puts the values into the headers. Returns the target if one of the values belongs there, and `None` if a value
    /// does not fit into its slot.
    pub(crate) fn fill(
        &self,
        request: &CanonicalRequest,
        headers: &mut HeaderMap,
        values: &[std::sync::Arc<SecretString>],
    ) -> Option<Option<Zeroizing<String>>> {
        let mut target = None;
        for (one, value) in self.found.iter().zip(values) {
            let value = value.expose_secret();
            match &one.slot {
                Slot::Query(name) => target = Some(with_parameter(request, name, value)?),
                slot => {
                    let name = slot.header()?;
                    let filled = slot.filled(headers.get(name)?, value)?;
                    headers.insert(name.clone(), filled);
                }
            }
        }
        (self.found.len() == values.len()).then_some(target)
    }
}

/// The target of a request with another value for a parameter.
fn with_parameter(request: &CanonicalRequest, name: &str, value: &str) -> Option<Zeroizing<String>> {
    let http = request.http()?;
    let mut target = Zeroizing::new(http.path().to_string());
    // The buffer must not be reallocated, because the old one would not be wiped.
    target.reserve(http.query().as_str().map_or(0, str::len) + value.len() * 3 + 2);
    for (at, pair) in http.query().as_str()?.split('&').enumerate() {
        target.push(if at == 0 { '?' } else { '&' });
        match pair.split_once('=') {
            Some((key, _)) if key == name => {
                target.push_str(key);
                target.push('=');
                value_pieces(value).for_each(|piece| target.push_str(piece));
            }
            _ => target.push_str(pair),
        }
    }
    Some(target)
}

impl Secrets {
    /// Changes the headers of a request so that its answer can be scrubbed, and removes cookies where the host's
    /// credentials are managed.
    pub(crate) fn prepare(&self, host: &str, headers: &mut HeaderMap) {
        if !self.scrubs(host) {
            return;
        }
        scrub::prepare(headers);
        if self.drops_cookies(host) {
            headers.remove(COOKIE);
        }
    }
}
