//! Text as part of an HTML or SVG document.

/// The text with its markup escaped, for content and for attribute values in quotes.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_text_is_markup() {
        assert_eq!(super::escape("a<b c=\"d\" e='f'>&"), "a&lt;b c=&quot;d&quot; e=&#39;f&#39;&gt;&amp;");
    }
}
