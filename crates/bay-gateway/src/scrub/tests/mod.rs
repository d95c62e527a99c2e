//! Values are scrubbed, and everything else is passed on unchanged.

mod answers;
mod texts;

use super::{Hidden, Patterns};

const VALUE: &str = "ghp_Canary0123456789abcdefABCDEFxyzXYZ42";
const SENTINEL: &str = "ghp_Qw7RtYuIoPaSdFgHjKlZxCvBnM1234567890";

fn patterns(value: &[u8], sentinel: &[u8]) -> Patterns {
    Patterns::new(&[Hidden::new(value, sentinel)]).unwrap()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
