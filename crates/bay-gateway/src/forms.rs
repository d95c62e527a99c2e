//! Request bodies that servers parse as forms. A field in a form may ask for another method than the one in the
//! decision.
//!
//! A form with a stated length of up to [`MAX_LOOK_BYTES`](crate::limits::MAX_LOOK_BYTES) that arrives in time is
//! read before anything is sent. Any other form is read in transit, and cut at the piece that shows such a field.
//! Servers are expected not to act on an incomplete form.

use bay_policy::CanonicalRequest;
use bay_policy::canonical::overrides::{FormOverride, FormScan};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};

pub(crate) const OVERRIDE_IN_FORM: &str = "the form in its body has a field, such as `_method`, that asks for another method than \
     the one that was decided on, or a part whose header is too long to be read; send the method that is meant, without the field";
pub(crate) const ENCODED_FORM: &str = "its body is a form with a Content-Encoding, which could hide a field that asks for another \
     method; send it without";

/// The scanner for a request's body, if the body is a form.
///
/// # Errors
/// The form has a `Content-Encoding`, so it cannot be read.
pub(crate) fn scan(
    request: &CanonicalRequest,
    headers: &HeaderMap,
) -> Result<Option<FormScan>, &'static str> {
    let Some(http) = request.http().filter(|http| !http.is_websocket()) else { return Ok(None) };
    let types: Vec<&[u8]> = headers.get_all(CONTENT_TYPE).iter().map(HeaderValue::as_bytes).collect();
    let Some(scan) = FormScan::new(http.method(), &types) else { return Ok(None) };
    let plain = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    match headers.get_all(CONTENT_ENCODING).iter().all(plain) {
        true => Ok(Some(scan)),
        // Such a body is not known to be a form, and servers are not expected to decompress it.
        false if types.is_empty() => Ok(None),
        false => Err(ENCODED_FORM),
    }
}

/// Reads a piece of the form. Returns whether the piece may be passed on.
pub(crate) fn passes(scan: &mut FormScan, piece: &[u8]) -> bool {
    match scan.read(piece) {
        Ok(()) => true,
        Err(FormOverride::Method | FormOverride::PartHeader) => false,
    }
}
