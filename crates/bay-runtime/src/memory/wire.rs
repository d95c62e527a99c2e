//! As much of protocol buffers as CRIU's requests, answers and one of its images need.

/// A message being written.
#[derive(Debug, Default, Clone)]
pub(super) struct Message(Vec<u8>);

const VARINT: u64 = 0;
const BYTES: u64 = 2;

impl Message {
    pub(super) fn number(&mut self, field: u64, value: u64) -> &mut Self {
        self.varint(field << 3 | VARINT);
        self.varint(value);
        self
    }

    pub(super) fn flag(&mut self, field: u64) -> &mut Self {
        self.number(field, 1)
    }

    pub(super) fn bytes(&mut self, field: u64, value: &[u8]) -> &mut Self {
        self.varint(field << 3 | BYTES);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub(super) fn message(&mut self, field: u64, value: &Self) -> &mut Self {
        self.bytes(field, &value.0)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// One field of a message that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, up to the first that is not understood.
pub(super) fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut found = Vec::new();
    while let Some(field) = field(&mut bytes) {
        found.push(field);
    }
    found
}

fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let key = varint(bytes)?;
    let value = match key & 7 {
        VARINT => Value::Number(varint(bytes)?),
        BYTES => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            let (value, rest) = bytes.split_at_checked(length)?;
            *bytes = rest;
            Value::Bytes(value)
        }
        _ => return None,
    };
    Some((key >> 3, value))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_again() {
        let mut inner = Message::default();
        inner.number(2, 883_359_744).flag(3);
        let mut outer = Message::default();
        outer.number(1, u64::MAX).message(2, &inner).bytes(40, b"words");
        let read = fields(outer.as_bytes());
        assert_eq!(read[0], (1, Value::Number(u64::MAX)));
        assert_eq!(read[2], (40, Value::Bytes(b"words")));
        let Value::Bytes(bytes) = read[1].1 else { panic!("{read:?}") };
        assert_eq!(fields(bytes), [(2, Value::Number(883_359_744)), (3, Value::Number(1))]);
    }

    #[test]
    fn broken_messages_end_where_they_break() {
        assert_eq!(fields(&[0x08]), []);
        assert_eq!(fields(&[0x12, 0x05, 1, 2]), []);
        assert_eq!(fields(&[0x08, 1, 0x0d, 0, 0, 0, 0]), [(1, Value::Number(1))]);
        assert_eq!(fields(&[0xff; 32]), []);
    }
}
