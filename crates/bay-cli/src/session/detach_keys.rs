//! The keys that end an attachment and leave the command running.

/// Ctrl-P, which begins the keys. Until the next key it is not known whether it is meant for the command.
const FIRST: u8 = 0x10;
/// Ctrl-Q.
const SECOND: u8 = 0x11;

/// Recognises Ctrl-P Ctrl-Q in typed input, also if the two keys arrive apart.
#[derive(Debug, Default)]
pub(super) struct DetachKeys {
    /// Ctrl-P was typed and held back.
    holds_first: bool,
}

impl DetachKeys {
    /// The input for the command, and whether the keys were pressed. What follows them is dropped.
    pub(super) fn pass(&mut self, typed: Vec<u8>) -> (Vec<u8>, bool) {
        if !self.holds_first && !typed.contains(&FIRST) {
            return (typed, false);
        }
        let mut input = Vec::with_capacity(typed.len() + 1);
        for key in typed {
            match (self.holds_first, key) {
                (true, SECOND) => return (input, true),
                (held, FIRST) => {
                    // Of two, the first was meant for the command.
                    input.extend(held.then_some(FIRST));
                    self.holds_first = true;
                }
                (held, key) => {
                    input.extend(held.then_some(FIRST));
                    input.push(key);
                    self.holds_first = false;
                }
            }
        }
        (input, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(pieces: &[&str]) -> (String, bool) {
        let (mut keys, mut all) = (DetachKeys::default(), Vec::new());
        for piece in pieces {
            let (input, detach) = keys.pass(piece.as_bytes().to_vec());
            all.extend(input);
            if detach {
                return (String::from_utf8(all).unwrap(), true);
            }
        }
        (String::from_utf8(all).unwrap(), false)
    }

    #[test]
    fn the_keys_detach_wherever_they_are_cut() {
        assert_eq!(pass(&["ls\r\x10\x11rest"]), ("ls\r".into(), true));
        assert_eq!(pass(&["ls\x10", "\x11"]), ("ls".into(), true));
        assert_eq!(pass(&["\x10\x10\x11"]), ("\x10".into(), true));
    }

    #[test]
    fn each_key_alone_reaches_the_command() {
        assert_eq!(pass(&["a\x11b"]), ("a\x11b".into(), false));
        assert_eq!(pass(&["a\x10", "b\x10c"]), ("a\x10b\x10c".into(), false));
        assert_eq!(pass(&["\x10x\x11"]), ("\x10x\x11".into(), false));
    }
}
