//! A buffer whose size follows the traffic, because most connections are idle and few carry much.

/// Size at rest. A process holds two of them for each connection.
const SMALLEST: usize = 8 << 10;
/// Size under load. Larger ones gain nothing: a unix socket takes about 200 KiB at once.
const LARGEST: usize = 128 << 10;

/// A buffer for one read at a time.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
}

impl Buffer {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; SMALLEST] }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Adapts the size after a read of `read` bytes into `room` bytes.
    pub(crate) fn adapt(&mut self, read: usize, room: usize) {
        let now = self.bytes.len();
        if read == room && now < LARGEST {
            self.bytes = vec![0; now * 2];
        } else if read < room / 8 && now > SMALLEST {
            self.bytes = vec![0; SMALLEST];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_follows_the_traffic_within_its_bounds() {
        let mut buffer = Buffer::new();
        for _ in 0..10 {
            let full = buffer.bytes().len();
            buffer.adapt(full, full);
        }
        assert_eq!(buffer.bytes().len(), LARGEST);
        buffer.adapt(LARGEST / 2, LARGEST);
        assert_eq!(buffer.bytes().len(), LARGEST);
        buffer.adapt(1, LARGEST);
        assert_eq!(buffer.bytes().len(), SMALLEST);
        buffer.adapt(1, SMALLEST);
        assert_eq!(buffer.bytes().len(), SMALLEST);
    }
}
