//! Characters that a reader does not see, or that change how the rest of a line is displayed.
//!
//! This is the only such list in the workspace: terminal output, approval cards, messages and refusals use it, so that a
//! character that one of them escapes is not hidden by another.

/// Returns `true` for a character that must be escaped before a person reads the text: a control character (C0, DEL, C1)
/// or an [invisible](is_invisible) one.
#[must_use]
pub fn misleads(c: char) -> bool {
    c.is_control() || is_invisible(c)
}

/// Returns `true` for a character that takes no room, renders as nothing, or reorders the text around it.
///
/// The list is Unicode's `Default_Ignorable_Code_Point`, the line and paragraph separators, and the interlinear annotation
/// characters. It includes joiners and variation selectors: an emoji that is composed of several characters is displayed in its
/// parts, because the same characters can carry hidden text.
#[must_use]
pub fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{00ad}' // soft hyphen
        | '\u{034f}' // combining grapheme joiner
        | '\u{061c}' // Arabic letter mark
        | '\u{115f}'..='\u{1160}' // Hangul fillers
        | '\u{17b4}'..='\u{17b5}' // Khmer inherent vowels
        | '\u{180b}'..='\u{180f}' // Mongolian variation selectors and vowel separator
        | '\u{200b}'..='\u{200f}' // zero-width characters, direction marks
        | '\u{2028}'..='\u{202e}' // line and paragraph separators, bidirectional embeddings and overrides
        | '\u{2060}'..='\u{206f}' // word joiner, invisible operators, isolates, deprecated format characters
        | '\u{3164}' // Hangul filler
        | '\u{fe00}'..='\u{fe0f}' // variation selectors
        | '\u{feff}' // byte order mark
        | '\u{ffa0}' // half-width Hangul filler
        | '\u{fff0}'..='\u{fffb}' // unassigned ignorable characters, interlinear annotation
        | '\u{1bca0}'..='\u{1bca3}' // shorthand format controls
        | '\u{1d173}'..='\u{1d17a}' // musical format controls
        | '\u{e0000}'..='\u{e0fff}' // tag characters, further variation selectors
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_listed_and_letters_are_not() {
        for c in [
            '\u{1b}',
            '\u{7f}',
            '\u{9b}',
            '\u{ad}',
            '\u{2060}',
            '\u{202e}',
            '\u{feff}',
            '\u{e0041}',
            '\u{e0101}',
        ] {
            assert!(misleads(c), "{c:?}");
        }
        for c in "aß日本🦀 é\u{301}€\u{2800}\u{fffd}".chars() {
            assert!(!misleads(c), "{c:?}");
        }
    }
}
