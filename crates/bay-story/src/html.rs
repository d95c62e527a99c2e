//! A story as one page of HTML that needs nothing else: no script, no font, no image.

use std::fmt::Write;

use bay_text::markup::escape;
use bay_types::story::Story;
use jiff::tz::TimeZone;

use crate::page::{heading, sections};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#1b1b1b;\
    background:#fff}h1{font-size:1.2em}h2{font-size:.8em;text-transform:uppercase;letter-spacing:.08em;color:#666;\
    margin:1.6em 0 .3em}li{list-style:none;margin:.15em 0;overflow-wrap:anywhere;\
    font:13px/1.5 ui-monospace,monospace}ul{padding:0;margin:0}\
    @media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}h2{color:#999}}";

/// The page. It loads nothing and runs nothing, whatever the texts of a bay contain.
#[must_use]
pub fn page(story: &Story, zone: &TimeZone) -> String {
    let title = escape(&heading(story, zone));
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>\n"
    );
    for section in sections(story, zone) {
        // Writing to a String cannot fail.
        let _ = write!(html, "<h2>{}</h2>\n<ul>\n", section.title);
        for line in &section.lines {
            let _ = writeln!(html, "<li>{}</li>", escape(line));
        }
        html.push_str("</ul>\n");
    }
    html.push_str("</html>\n");
    html
}
