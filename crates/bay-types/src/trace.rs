//! The W3C trace context, which links a caller's trace with an exec.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Name of the header of a request.
pub const TRACEPARENT: &str = "traceparent";
/// Name of the variable in an environment.
pub const TRACEPARENT_VARIABLE: &str = "TRACEPARENT";

/// The text is not a trace context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is not a W3C trace context")]
pub struct NotATrace;

/// The id of a trace: 32 hexadecimal digits, not all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceId(pub NonZeroU128);

/// The id of a span: 16 hexadecimal digits, not all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SpanId(pub NonZeroU64);

fn is_lower_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

macro_rules! hex_id {
    ($ty:ident, $number:ty, $nonzero:ty, $digits:literal, $format:literal) => {
        impl FromStr for $ty {
            type Err = NotATrace;
            fn from_str(text: &str) -> Result<Self, NotATrace> {
                if !is_lower_hex(text, $digits) {
                    return Err(NotATrace);
                }
                let number = <$number>::from_str_radix(text, 16).map_err(|_| NotATrace)?;
                <$nonzero>::new(number).map(Self).ok_or(NotATrace)
            }
        }
        impl fmt::Display for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
        impl TryFrom<String> for $ty {
            type Error = NotATrace;
            fn try_from(text: String) -> Result<Self, NotATrace> {
                text.parse()
            }
        }
        impl From<$ty> for String {
            fn from(id: $ty) -> Self {
                id.to_string()
            }
        }
    };
}

hex_id!(TraceId, u128, NonZeroU128, 32, "{:032x}");
hex_id!(SpanId, u64, NonZeroU64, 16, "{:016x}");

/// A `traceparent`: the caller's trace and span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traceparent {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    /// Whether the caller records this trace.
    pub sampled: bool,
}

impl FromStr for Traceparent {
    type Err = NotATrace;

    /// Of later versions, only the fields of this version are read, as the standard requires.
    fn from_str(text: &str) -> Result<Self, NotATrace> {
        let mut parts = text.splitn(5, '-');
        let mut part = || parts.next().ok_or(NotATrace);
        let (version, trace_id, span_id, flags) = (part()?, part()?, part()?, part()?);
        let more = parts.next().is_some();
        if !is_lower_hex(version, 2) || version == "ff" || (version == "00" && more) {
            return Err(NotATrace);
        }
        if !is_lower_hex(flags, 2) {
            return Err(NotATrace);
        }
        let flags = u8::from_str_radix(flags, 16).map_err(|_| NotATrace)?;
        Ok(Self { trace_id: trace_id.parse()?, span_id: span_id.parse()?, sampled: flags & 1 == 1 })
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

/// The trace and span of an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecTrace {
    pub trace_id: TraceId,
    /// The exec's own span; absent if the daemon exports no spans and only forwards the caller's context.
    pub span_id: Option<SpanId>,
    /// The caller's span.
    pub parent_span_id: Option<SpanId>,
    pub sampled: bool,
}

impl ExecTrace {
    /// The context for programs in the exec, so that their spans join the trace.
    #[must_use]
    pub fn inside(&self) -> Option<Traceparent> {
        let span_id = self.span_id.or(self.parent_span_id)?;
        Some(Traceparent { trace_id: self.trace_id, span_id, sampled: self.sampled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_reads_and_writes_the_same() {
        let parsed: Traceparent = GOOD.parse().unwrap();
        assert!(parsed.sampled);
        assert_eq!(parsed.to_string(), GOOD);
        let unsampled: Traceparent = GOOD.replace("-01", "-00").parse().unwrap();
        assert!(!unsampled.sampled);
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        let later = format!("{}-what-the-future-brings", GOOD.replacen("00", "cc", 1));
        assert_eq!(later.parse::<Traceparent>().unwrap().trace_id.to_string(), &GOOD[3..35]);
    }

    #[test]
    fn what_the_standard_forbids_is_no_context() {
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(bad.parse::<Traceparent>(), Err(NotATrace), "{bad}");
        }
    }

    #[test]
    fn programs_inside_are_told_the_exec_s_own_span_or_else_the_caller_s() {
        let caller: Traceparent = GOOD.parse().unwrap();
        let mut trace = ExecTrace {
            trace_id: caller.trace_id,
            span_id: None,
            parent_span_id: Some(caller.span_id),
            sampled: true,
        };
        assert_eq!(trace.inside(), Some(caller));
        trace.span_id = Some("00000000000000aa".parse().unwrap());
        assert!(trace.inside().unwrap().to_string().ends_with("-00000000000000aa-01"));
    }
}
