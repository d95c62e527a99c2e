//! Answers that the gateway writes itself: refusals and failures, as JSON and as a plain line in a header.

use bay_policy::{AddressRefusal, Decision, Explanation, Refusal};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use serde::Serialize;

use crate::body::{AnswerBody, full};
use crate::decider::{Failure, RecordId, Ruling, Waiting};

/// The header with the reason of a refusal, or with the question that waits for a person, in one line of plain ASCII.
/// `curl -v` and logs show it.
pub const LINE_HEADER: &str = "x-workbay-refused";
/// The header with the reason of a failure in one line.
pub const FAILURE_HEADER: &str = "x-workbay-failed";
/// The header with the record id, which `bay policy explain` takes.
pub const RECORD_HEADER: &str = "x-workbay-record";
/// Longest line in a header.
const MAX_LINE_CHARS: usize = 1000;

/// The JSON body of an answer. Agents read it.
#[derive(Debug, Serialize)]
struct Told<'a> {
    error: &'static str,
    /// What was refused or failed, and why. If the decision was explained, also what would allow it.
    line: &'a str,
    record: &'a RecordId,
    #[serde(flatten)]
    details: Details<'a>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Details<'a> {
    Explained(&'a Explanation),
    Decided {
        decision: &'a Decision,
    },
    Waiting {
        question: &'a str,
        retry_after_s: u64,
        #[serde(flatten)]
        explained: Option<&'a Explanation>,
    },
    Form {
        refusal: &'a Refusal,
    },
    Address {
        address: &'a AddressRefusal,
    },
    Failed {
        failure: Failure,
    },
    None {},
}

pub(crate) fn decided(
    id: &RecordId,
    what: &str,
    decision: &Decision,
    explanation: Option<&Explanation>,
) -> Response<AnswerBody> {
    let line = match explanation {
        Some(explanation) => explanation.line(),
        None => match decision.rule() {
            Some(rule) => {
                format!("{}: {what}: rule {} at {} says so", decision.outcome, rule.id, rule.origin)
            }
            None => format!("{}: {what}: no rule allows it", decision.outcome),
        },
    };
    let details = explanation.map_or(Details::Decided { decision }, Details::Explained);
    answer(StatusCode::FORBIDDEN, LINE_HEADER, &Told { error: "refused", line: &line, record: id, details })
}

/// Answers a request about which a person was asked and has not decided. The client can send the same request again
/// later.
pub(crate) fn waiting(ruling: &Ruling, waiting: &Waiting, what: &str) -> Response<AnswerBody> {
    let (question, seconds) = (&waiting.question, waiting.retry_after.as_secs().max(1));
    let line = format!(
        "waiting: {what}: a person was asked ({question}) and has not answered; send it again in {seconds} s"
    );
    let explained = ruling.explanation.as_deref();
    let details = Details::Waiting { question, retry_after_s: seconds, explained };
    let told = Told { error: "waiting", line: &line, record: &ruling.id, details };
    let mut answer = answer(StatusCode::SERVICE_UNAVAILABLE, LINE_HEADER, &told);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    answer
}

pub(crate) fn malformed(id: &RecordId, refusal: &Refusal) -> Response<AnswerBody> {
    let line = format!("refused: {refusal}");
    let details = Details::Form { refusal };
    answer(StatusCode::FORBIDDEN, LINE_HEADER, &Told { error: "refused", line: &line, record: id, details })
}

pub(crate) fn plain(status: StatusCode, id: &RecordId, why: &str) -> Response<AnswerBody> {
    let line = format!("refused: {why}");
    let details = Details::None {};
    answer(status, LINE_HEADER, &Told { error: "refused", line: &line, record: id, details })
}

pub(crate) fn address(id: &RecordId, refusal: &AddressRefusal) -> Response<AnswerBody> {
    let line = format!("refused: {refusal}");
    let details = Details::Address { address: refusal };
    answer(StatusCode::FORBIDDEN, LINE_HEADER, &Told { error: "refused", line: &line, record: id, details })
}

pub(crate) fn failed(id: &RecordId, failure: Failure, why: &str) -> Response<AnswerBody> {
    let status = match failure {
        Failure::NameTimeout | Failure::ConnectTimeout | Failure::AnswerTimeout | Failure::Stalled => {
            StatusCode::GATEWAY_TIMEOUT
        }
        Failure::RequestBody => StatusCode::BAD_REQUEST,
        Failure::Secret => StatusCode::SERVICE_UNAVAILABLE,
        Failure::Sentinel | Failure::Override => StatusCode::FORBIDDEN,
        _ => StatusCode::BAD_GATEWAY,
    };
    let line = format!("failed: {why} ({})", failure.as_str());
    let details = Details::Failed { failure };
    answer(status, FAILURE_HEADER, &Told { error: "upstream", line: &line, record: id, details })
}

fn answer(status: StatusCode, line_header: &'static str, told: &Told<'_>) -> Response<AnswerBody> {
    // Serialising strings and numbers does not fail.
    let mut body = serde_json::to_vec(told).unwrap_or_default();
    body.push(b'\n');
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // The body repeats text of the bay. No browser may take it for a page.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(line_header, one_line(told.line));
    headers.insert(RECORD_HEADER, one_line(&told.record.0));
    response
}

/// Converts text to a header value: printable ASCII, one line, bounded.
fn one_line(text: &str) -> HeaderValue {
    let plain = text.chars().take(MAX_LINE_CHARS);
    let plain: String = plain.map(|char| if matches!(char, ' '..='~') { char } else { '?' }).collect();
    HeaderValue::from_str(&plain).unwrap_or(HeaderValue::from_static("refused"))
}
