//! Uploads of the envd interface in pieces of any size: the parts are the same however they are cut, and hold together
//! no more than was sent.
#![no_main]

use std::io::{self, Read};

use libfuzzer_sys::fuzz_target;

struct Pieces<'a> {
    rest: &'a [u8],
    most: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.rest.len().min(self.most).min(buffer.len());
        buffer[..len].copy_from_slice(&self.rest[..len]);
        self.rest = &self.rest[len..];
        Ok(len)
    }
}

fuzz_target!(|input: (&str, &[u8], u8)| {
    let (kind, body, most) = input;
    for kind in [kind, "multipart/form-data; boundary=X"] {
        let (whole, complete) = bay_guest::fuzz::multipart(kind, body);
        let bytes: usize = whole.iter().map(|(_, _, content)| content.len()).sum();
        assert!(bytes <= body.len() + 2);
        let pieces = Pieces { rest: body, most: usize::from(most).max(1) };
        let (cut, also) = bay_guest::fuzz::multipart(kind, pieces);
        if complete {
            assert!(also);
            assert_eq!(cut, whole);
        }
    }
});
