//! Bodies that servers read as forms: a field in one may ask for another method than the one that was decided on.
//!
//! A form of up to [`MAX_LOOK_BYTES`](crate::limits::MAX_LOOK_BYTES) that comes in time is read before anything is sent. A longer
//! one is read as it passes and is cut off before the value: no server acts on a form that is not whole.

use bay_policy::CanonicalRequest;
use bay_policy::canonical::overrides::{FormOverride, FormScan};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};

pub(crate) const OVERRIDE_IN_FORM: &str = "the form in its body has a field, such as `_method`, that asks for another method than \
     the one that was decided on, or a part whose header is too long to be read; send the method that is meant, without the field";
pub(crate) const ENCODED_FORM: &str = "its body is a form with a Content-Encoding, which could hide a field that asks for another \
     method; send it without";

/// What has to read a request's body, if that is a form.
///
/// # Errors
/// The form is compressed, and cannot be read.
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
        // Nobody unpacks what it does not know the type of.
        false if types.is_empty() => Ok(None),
        false => Err(ENCODED_FORM),
    }
}

/// Reads a piece of the form; whether it may be passed on.
pub(crate) fn passes(scan: &mut FormScan, piece: &[u8]) -> bool {
    match scan.read(piece) {
        Ok(()) => true,
        Err(FormOverride::Method | FormOverride::PartHeader) => false,
    }
}
