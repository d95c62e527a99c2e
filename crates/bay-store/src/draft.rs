//! Events that are about to be written.

use bay_types::BayId;
use bay_types::event::{EventBody, EventColumns};
use serde_json::Value;

/// Longest body of an event. A longer body is replaced by its size, so that a caller cannot inflate the record.
pub const MAX_BODY: usize = 16 * 1024;
/// Fields whose length a bay controls, least important first.
const LEAST_IMPORTANT: [&str; 6] =
    ["/explanation", "/by/process/argv", "/warnings", "/differs/how", "/by/process", "/by"];
/// The field of a shortened body that names the last emptied field.
const LEFT_OUT: &str = "left_out";

/// An event that is about to be written. The store adds its number, time and hash.
#[derive(Debug, Clone)]
pub struct Draft {
    kind: String,
    body: Value,
    columns: EventColumns,
}

/// An event as it is stored, without number, time and hash.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) bay: Option<String>,
    pub(crate) kind: String,
    pub(crate) body: String,
    pub(crate) columns: EventColumns,
}

impl Draft {
    #[must_use]
    pub fn of(event: impl Into<EventBody>) -> Self {
        let event = event.into();
        let (kind, body) = (event.kind().to_owned(), event.body());
        let columns = match event {
            EventBody::Other(_) => columns(&kind, &body),
            known => EventColumns::of(&known, &body),
        };
        Self { kind, body, columns }
    }

    /// Empties fields, least important first, until the body is short enough or none of them is left. The request
    /// and the decision stay.
    #[must_use]
    pub fn shortened(mut self) -> Self {
        for field in LEAST_IMPORTANT {
            if self.body_bytes() <= MAX_BODY {
                break;
            }
            if let Some(long) = self.body.pointer_mut(field) {
                *long = if long.is_array() { Value::Array(Vec::new()) } else { Value::Null };
                self.body[LEFT_OUT] = field.into();
            }
        }
        self
    }

    /// Length of the body in bytes.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.body.to_string().len()
    }

    #[must_use]
    pub fn body(&self) -> &Value {
        &self.body
    }

    /// The event as it is stored, on the record of `bay` or of the host.
    pub(crate) fn entry(&self, bay: Option<BayId>) -> Entry {
        let (bay, kind) = (bay.map(|bay| bay.to_string()), self.kind.clone());
        let body = self.body.to_string();
        if body.len() > MAX_BODY {
            let instead = serde_json::json!({ "left_out_bytes": body.len() });
            let columns = columns(&kind, &instead);
            return Entry { bay, kind, body: instead.to_string(), columns };
        }
        Entry { bay, kind, body, columns: self.columns }
    }

    /// A copy with one more field in its body, for what only the store knows.
    pub(crate) fn with(&self, key: &str, value: impl Into<Value>) -> Self {
        let mut draft = self.clone();
        if let Some(body) = draft.body.as_object_mut() {
            body.insert(key.to_owned(), value.into());
        }
        draft
    }
}

pub(crate) fn columns(kind: &str, body: &Value) -> EventColumns {
    EventColumns::of(&EventBody::read(kind, body), body)
}
