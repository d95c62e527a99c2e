//! Bytes as hexadecimal digits.

use data_encoding::HEXLOWER;

/// Returns two lower-case digits for each byte: the form of our hashes.
#[must_use]
pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    HEXLOWER.encode(bytes.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_two_digits() {
        assert_eq!(encode([0x00, 0x0f, 0xa5, 0xff]), "000fa5ff");
        assert_eq!(encode([]), "");
    }
}
