//! Object ids and ref names, validated before they become part of a command line or a path.

/// Longest name of a ref.
const MAX_NAME: usize = 1024;

/// A full object id: 40 hexadecimal digits, or 64 in a SHA-256 repository.
#[must_use]
pub fn is_object_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The rules of `git check-ref-format`, so that a name is safe as a path, in a settings file and on a command line.
#[must_use]
pub fn is_ref_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME
        && !name.starts_with(['-', '/'])
        && !name.ends_with(['/', '.'])
        && name != "@"
        && !name.contains("..")
        && !name.contains("//")
        && !name.contains("@{")
        && !name.chars().any(|c| c.is_control() || " ~^:?*[\\".contains(c))
        && name.split('/').all(|part| !part.starts_with('.') && !part.ends_with(".lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_be_misread_are_refused() {
        for name in ["main", "feature/x", "v1.0", "a-b_c", "über"] {
            assert!(is_ref_name(name), "{name}");
        }
        for name in [
            "", "-x", "a..b", "a b", "a\nb", "x.lock", "a/.b", "/a", "a/", "a~1", "a^", "a:b", "@", "a@{1}",
            "a//b", "a\\b",
        ] {
            assert!(!is_ref_name(name), "{name}");
        }
    }
}
