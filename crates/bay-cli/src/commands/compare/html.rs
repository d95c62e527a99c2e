//! A comparison as one page of HTML that needs nothing else: no script, no font, no image.

use std::fmt::Write;

use bay_text::escape::{message, one_line, visible};
use bay_text::markup::escape;

use super::run::Row;
use super::table::{Columns, Mark, Shown, columns, verdict};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:80em;margin:2em auto;padding:0 1em;color:#1b1b1b;\
    background:#fff}h1{font-size:1.2em}pre,td,th,li{font:13px/1.5 ui-monospace,monospace}pre{white-space:pre-wrap;\
    overflow-wrap:anywhere}table{border-collapse:collapse}th{color:#666;text-align:left}td,th{padding:.2em .8em .2em 0;\
    border-bottom:1px solid #8884}.n{text-align:right}.good{color:#157f3b}.best{color:#157f3b;font-weight:bold}\
    .bad{color:#b3261e}ul{padding:0}li{list-style:none;margin:.3em 0;overflow-wrap:anywhere}\
    @media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}th{color:#999}.good,.best{color:#6fcf8b}\
    .bad{color:#f2938c}}";

/// The page. It loads nothing and runs nothing, whatever the texts of a bay contain.
pub(super) fn page(command: &str, parallel: bool, rows: &[Row]) -> String {
    let title = format!("Comparison of {}", crate::output::count(rows.len() as u64, "bay"));
    let how = if parallel {
        "Several bays ran it at once: times cannot be compared."
    } else {
        "The bays ran it one after another."
    };
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>\n<pre>{}</pre>\n<p>{how}</p>\n",
        escape(&shown(command))
    );
    html.push_str(&table(&columns(rows)));
    // Writing to a String cannot fail.
    let _ = writeln!(html, "<p>{}</p>", escape(&verdict(rows)));
    let failed = rows.iter().filter_map(|row| Some((row, row.error.as_ref()?)));
    let errors: String = failed
        .map(|(row, error)| {
            let mut text =
                format!("{}: error[{}]: {}", one_line(&row.bay), error.code, message(&error.message));
            if !error.next.is_empty() {
                let _ = write!(text, " · next: {}", message(&error.next));
            }
            format!("<li class=\"bad\">{}</li>\n", escape(&text))
        })
        .collect();
    if !errors.is_empty() {
        let _ = write!(html, "<ul>\n{errors}</ul>\n");
    }
    html.push_str("</html>\n");
    html
}

/// The command with its own line breaks.
fn shown(command: &str) -> String {
    command.lines().map(visible).collect::<Vec<_>>().join("\n")
}

fn table(columns: &Columns) -> String {
    let mut html = "<table>\n<tr>".to_owned();
    for name in &columns.header {
        let _ = write!(html, "<th>{name}</th>");
    }
    html.push_str("</tr>\n");
    for line in &columns.lines {
        let cells: String = line.iter().map(cell).collect();
        let _ = writeln!(html, "<tr>{cells}</tr>");
    }
    html.push_str("</table>\n");
    html
}

fn cell(shown: &Shown) -> String {
    let look = match shown.mark {
        Mark::Plain => "",
        Mark::Best => "best",
        Mark::Succeeded => "good",
        Mark::Failed | Mark::Differs => "bad",
    };
    // Colours alone do not reach everybody.
    let sign = match shown.mark {
        Mark::Best => " *",
        Mark::Differs => " !",
        Mark::Plain | Mark::Succeeded | Mark::Failed => "",
    };
    let number = if shown.is_number { "n " } else { "" };
    format!("<td class=\"{number}{look}\">{}{sign}</td>", escape(&shown.text))
}

#[cfg(test)]
mod tests {
    use bay_types::{ApiError, ErrorCode};

    use super::super::table::tests::row;
    use super::*;

    #[test]
    fn a_page_has_the_command_the_values_and_the_best_of_them() {
        let html = page("make test", false, &[row("one", 0, 2.0, 5), row("two", 0, 1.5, 5)]);
        assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"), "{html}");
        for part in [
            "<pre>make test</pre>",
            "Comparison of 2 bays",
            "<td class=\"n best\">1.50 s *</td>",
            "<td class=\"n \">2.00 s</td>",
            "<td class=\"good\">0</td>",
            "one after another",
            "succeeded: one, two",
        ] {
            assert!(html.contains(part), "{part} is missing in\n{html}");
        }
    }

    #[test]
    fn no_text_becomes_markup_and_nothing_is_loaded() {
        let evil = "</pre><script src=//x>alert(1)</script><img src=x onerror=\"a\">&'\u{1b}[2J\u{202e}";
        let error = ApiError::new(ErrorCode::BayState, evil, evil);
        let html = page(evil, true, &[row(evil, 1, 1.0, 1), Row::without_result(evil, error)]);
        assert!(html.contains("default-src 'none'"), "{html}");
        for harm in ["<script", "<img", "onerror=\"", "\u{1b}", "\u{202e}", "</pre><"] {
            assert!(!html.contains(harm), "{harm:?} in\n{html}");
        }
        assert_eq!(html.matches("</pre>").count(), 1, "{html}");
    }
}
