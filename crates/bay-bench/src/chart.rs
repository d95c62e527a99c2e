//! Results as a picture for a page: a bar for each contestant, as long as its median.
//!
//! Only contests in which the times of two contestants are compared are drawn: absolute numbers of one machine say
//! little to readers with another.

use std::fmt::Write;

use bay_text::markup::escape;

use crate::scoring::{Line, Scored, Unit};

/// Sizes in pixels.
const WIDTH: usize = 960;
const NAMES: usize = 290;
const BARS: f64 = 330.0;
const SHORTEST: f64 = 1.5;
const ROW: usize = 22;
const TITLE: usize = 34;
const MARGIN: usize = 14;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2328}.t{font-weight:600}.n{text-anchor:end}\
    .v{fill:#59636e}.ours{fill:#1a7f5a}.peer{fill:#afb8c1}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.v{fill:#9198a1}.ours{fill:#3fb68b}.peer{fill:#545d68}}";

/// The contests with such a comparison, as an SVG document.
pub(crate) fn svg(scored: &[Scored]) -> String {
    let drawn: Vec<&Scored> = scored.iter().filter(|contest| has_peer(contest)).collect();
    let rows: usize = drawn.iter().map(|contest| TITLE + ROW * comparable(contest).count()).sum();
    let height = rows + 2 * MARGIN + ROW;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"Medians of bay bench\">\n<style>{STYLE}</style>\n"
    );
    let mut y = MARGIN;
    for contest in drawn {
        contest_rows(&mut svg, contest, &mut y);
    }
    text(&mut svg, "v", MARGIN, y + ROW, "medians, contestants taking turns in one run; shorter is faster");
    svg.push_str("</svg>\n");
    svg
}

/// Whether one of its bars is the ratio to another contestant that took part.
fn has_peer(contest: &Scored) -> bool {
    comparable(contest).any(|line| ratio(line).is_some())
}

/// The contestants whose numbers are times.
fn comparable(contest: &Scored) -> impl Iterator<Item = &Line> {
    contest.lines.iter().filter(|line| matches!(line.unit, Unit::Milliseconds) && line.median.is_finite())
}

fn ratio(line: &Line) -> Option<(f64, &str)> {
    line.bars.iter().find_map(|bar| Some((bar.reached?, bar.against?)))
}

fn contest_rows(svg: &mut String, contest: &Scored, y: &mut usize) {
    *y += TITLE;
    text(svg, "t", MARGIN, *y - ROW / 2, &contest.title);
    let longest = comparable(contest).map(|line| line.median).fold(f64::MIN_POSITIVE, f64::max);
    for line in comparable(contest) {
        let class = if line.bars.is_empty() { "peer" } else { "ours" };
        let long = (line.median / longest * BARS).max(SHORTEST);
        text(svg, "n", NAMES, *y + 15, &line.name);
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{long:.1}\" height=\"{}\" rx=\"2\"/>",
            NAMES + 10,
            *y + 4,
            ROW - 7
        );
        let value = match ratio(line) {
            Some((ratio, peer)) => format!("{} · {ratio:.2} of {peer}", line.unit.show(line.median)),
            None => line.unit.show(line.median),
        };
        let _ = writeln!(
            svg,
            "<text class=\"v\" x=\"{:.1}\" y=\"{}\">{}</text>",
            NAMES as f64 + 18.0 + long,
            *y + 15,
            escape(&value)
        );
        *y += ROW;
    }
}

fn text(svg: &mut String, class: &str, x: usize, y: usize, what: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>", escape(what));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoring::{Bar, Series, score};

    fn contest(title: &str, ours: f64, peer: Option<f64>) -> Scored {
        let mut all = vec![Series::of("bay <exec>", Unit::Milliseconds, &[Bar::Of(0.5, "docker exec")])];
        all[0].was(ours);
        if let Some(took) = peer {
            let mut other = Series::of("docker exec", Unit::Milliseconds, &[]);
            other.was(took);
            all.push(other);
        }
        score(title, &all, Vec::new())
    }

    #[test]
    fn bars_are_as_long_as_their_medians() {
        let svg = svg(&[contest("a & b", 20.0, Some(80.0))]);
        assert!(svg.contains("class=\"ours\" x=\"300\" y=\"52\" width=\"82.5\""), "{svg}");
        assert!(svg.contains("class=\"peer\" x=\"300\" y=\"74\" width=\"330.0\""), "{svg}");
        assert!(svg.contains("20.0 ms · 0.25 of docker exec"), "{svg}");
        assert!(svg.contains("a &amp; b") && svg.contains("bay &lt;exec&gt;"), "{svg}");
    }

    #[test]
    fn a_contest_whose_peer_is_absent_is_left_out() {
        let svg = svg(&[contest("alone", 20.0, None), contest("both", 1.0, Some(2.0))]);
        assert!(!svg.contains("alone") && svg.contains("both"), "{svg}");
    }
}
