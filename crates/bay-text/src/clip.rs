//! Shortens texts that are too long.

/// Shortens `text` to `limit` characters, which must be at least 1. If something was cut, the last of them is an
/// ellipsis.
#[must_use]
pub fn clip(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some(_) => text.chars().take(limit.saturating_sub(1)).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

/// Divides `text` into its first and last `end` characters and the number of characters between them. Returns `None` if the
/// text has at most `limit` characters. `limit` must be at least twice `end`.
///
/// For text whose end can matter as much as its beginning, such as a path or a command line.
#[must_use]
pub fn ends(text: &str, limit: usize, end: usize) -> Option<(&str, usize, &str)> {
    debug_assert!(limit >= 2 * end, "the two ends would overlap");
    text.char_indices().nth(limit)?;
    let (begins_until, _) = text.char_indices().nth(end)?;
    let ends_from = match end {
        0 => text.len(),
        end => text.char_indices().nth_back(end - 1)?.0,
    };
    let left_out = text.get(begins_until..ends_from)?.chars().count();
    Some((&text[..begins_until], left_out, &text[ends_from..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn clipping_counts_characters() {
        assert_eq!(clip("größe", 5), "größe");
        assert_eq!(clip("größer", 5), "größ…");
        assert_eq!(clip("größer", 0), "…");
    }

    #[test]
    fn both_ends_of_a_long_text_are_kept() {
        assert_eq!(ends("größer", 6, 3), None);
        assert_eq!(ends("ägrößerü", 6, 3), Some(("ägr", 2, "erü")));
        assert_eq!(ends("abc", 0, 0), Some(("", 3, "")));
    }

    proptest! {
        #[test]
        fn no_character_is_lost_without_being_counted(text in "\\PC{0,40}", end in 0_usize..8) {
            let limit = 2 * end;
            let count = text.chars().count();
            match ends(&text, limit, end) {
                None => prop_assert!(count <= limit),
                Some((begin, left_out, last)) => {
                    prop_assert!(count > limit);
                    prop_assert!(text.starts_with(begin) && text.ends_with(last));
                    prop_assert_eq!((begin.chars().count(), last.chars().count()), (end, end));
                    prop_assert_eq!(left_out, count - limit);
                }
            }
        }
    }
}
