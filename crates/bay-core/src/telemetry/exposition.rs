//! The text format of Prometheus, version 0.0.4. Writing it takes a few lines. A library would add its own registry,
//! although most of these numbers live elsewhere and are read only on request.

use std::fmt::Write;

/// The content type of answers.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Families of samples, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Exposition(String);

/// The samples of one name. Each family is written once and completely, as the format requires.
pub(crate) struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Exposition {
    pub(crate) fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Family { text: &mut self.0, name }
    }

    pub(crate) fn text(self) -> String {
        self.0
    }
}

impl Family<'_> {
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: f64) -> &mut Self {
        self.part("", labels, value)
    }

    fn part(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) -> &mut Self {
        let _ = write!(self.text, "{}{suffix}", self.name);
        for (at, (name, value)) in labels.iter().enumerate() {
            let open = if at == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{open}{name}=\"{}\"", escape(value));
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
        self
    }

    /// A histogram from counts per bound and the sum of all values. The counts are not cumulative; the last is beyond
    /// all bounds.
    pub(crate) fn histogram(&mut self, bounds: &[f64], counts: &[u64], sum: f64) {
        let mut total = 0_u64;
        for (at, count) in counts.iter().enumerate() {
            total = total.saturating_add(*count);
            let bound = bounds.get(at).map_or_else(|| "+Inf".to_owned(), f64::to_string);
            self.part("_bucket", &[("le", &bound)], number(total));
        }
        self.part("_sum", &[], sum).part("_count", &[], number(total));
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Samples are floating-point numbers, whatever they count.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn number(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_families_whole() {
        let mut all = Exposition::default();
        all.family("x_total", Kind::Counter, "An x.")
            .sample(&[("a", "q\"\\\n"), ("b", "")], 1.5)
            .sample(&[], 2.0);
        assert_eq!(
            all.text(),
            "# HELP x_total An x.\n# TYPE x_total counter\nx_total{a=\"q\\\"\\\\\\n\",b=\"\"} 1.5\nx_total 2\n"
        );
    }

    #[test]
    fn a_histogram_sums_up_its_counts() {
        let mut all = Exposition::default();
        all.family("d", Kind::Histogram, "D.").histogram(&[0.5, 1.0], &[1, 2, 4], 9.25);
        let text = all.text();
        for line in [
            "d_bucket{le=\"0.5\"} 1",
            "d_bucket{le=\"1\"} 3",
            "d_bucket{le=\"+Inf\"} 7",
            "d_sum 9.25",
            "d_count 7",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
    }
}
