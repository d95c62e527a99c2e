//! The parts of Protocol Buffers that are needed for CRIU's requests, its answers and some of its images.

/// A message that is being written.
#[derive(Debug, Default, Clone)]
pub(super) struct Message(Vec<u8>);

const VARINT: u64 = 0;
const EIGHT: u64 = 1;
const BYTES: u64 = 2;
const FOUR: u64 = 5;

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

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, up to the first one that cannot be parsed.
pub(super) fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut found = Vec::new();
    while let Some(field) = field(&mut bytes) {
        found.push(field);
    }
    found
}

/// All fields of a message. None if one cannot be parsed, because it could hide those after it.
pub(super) fn all_fields(mut bytes: &[u8]) -> Option<Vec<(u64, Value<'_>)>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        found.push(field(&mut bytes)?);
    }
    Some(found)
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

/// The message with other numbers at one path of fields, and otherwise unchanged. None if it cannot be parsed.
pub(super) fn replaced(message: &[u8], place: &[u64], number: &impl Fn(u64) -> u64) -> Option<Vec<u8>> {
    let (&here, below) = place.split_first()?;
    let mut written = Message::default();
    let mut rest = message;
    while !rest.is_empty() {
        let begun = rest;
        let key = varint(&mut rest)?;
        let length = match key & 7 {
            VARINT => {
                let value = varint(&mut rest)?;
                if key >> 3 == here && below.is_empty() {
                    written.number(here, number(value));
                    continue;
                }
                0
            }
            BYTES => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                if key >> 3 == here && !below.is_empty() {
                    let (inner, after) = rest.split_at_checked(length)?;
                    written.bytes(here, &replaced(inner, below, number)?);
                    rest = after;
                    continue;
                }
                length
            }
            EIGHT => 8,
            FOUR => 4,
            _ => return None,
        };
        rest = rest.get(length..)?;
        written.0.extend_from_slice(&begun[..begun.len() - rest.len()]);
    }
    Some(written.0)
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
    fn a_written_message_is_read_unchanged() {
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
    fn only_the_number_at_the_path_is_replaced() {
        let message = |value: u64| {
            let mut inner = Message::default();
            inner.number(9, value).number(2, 5);
            // Numbers of eight and four bytes, which are copied unchanged.
            inner.0.extend([(3 << 3 | 1), 1, 2, 3, 4, 5, 6, 7, 8, (4 << 3 | 5), 1, 2, 3, 4]);
            let mut outer = Message::default();
            outer.number(9, 5).message(3, &inner).bytes(4, b"words");
            outer.0
        };
        let larger = |old: u64| if old == 5 { 500 } else { old };
        assert_eq!(replaced(&message(5), &[3, 9], &larger).unwrap(), message(500));
        assert_eq!(replaced(&message(5)[..7], &[3, 9], &larger), None);
    }

    #[test]
    fn broken_messages_end_where_they_break() {
        assert_eq!(fields(&[0x08]), []);
        assert_eq!(fields(&[0x12, 0x05, 1, 2]), []);
        assert_eq!(fields(&[0x08, 1, 0x0d, 0, 0, 0, 0]), [(1, Value::Number(1))]);
        assert_eq!(fields(&[0xff; 32]), []);
    }
}
