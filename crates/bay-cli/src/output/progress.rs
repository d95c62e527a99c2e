//! Progress of long operations: a bar on a terminal, one line per stage in a log, nothing for a program.

use std::time::{Duration, Instant};

use bay_types::progress::Progress;
use indicatif::{ProgressBar, ProgressStyle};

use bay_client::ShowProgress;
use bay_text::escape::one_line;

/// An operation that is shorter than this leaves no lines in a log.
const SHORT: Duration = Duration::from_millis(300);
/// Interval at which an unmeasured bar moves.
const TICK: Duration = Duration::from_millis(100);

#[derive(Debug)]
enum Mode {
    Bar,
    Lines,
    Silent,
}

/// Shows progress. It draws nothing before the first report, because most verbs end before anybody could read it.
#[derive(Debug)]
pub(crate) struct Meter {
    mode: Mode,
    bar: Option<ProgressBar>,
    stage: String,
    began: Instant,
    /// The last stage for which a line was printed.
    told: String,
}

impl Meter {
    pub(crate) fn new(json: bool) -> Self {
        let mode = match (json, super::watched()) {
            (true, _) => Mode::Silent,
            (false, true) => Mode::Bar,
            (false, false) => Mode::Lines,
        };
        Self { mode, bar: None, stage: String::new(), began: Instant::now(), told: String::new() }
    }

    /// Shows a stage without a count.
    pub(crate) fn stage(&mut self, stage: &str) {
        self.show(&Progress { stage: stage.to_owned(), ..Progress::default() });
    }

    fn draw(&mut self, news: &Progress, stage_is_new: bool) {
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(TICK);
            bar
        });
        if stage_is_new {
            bar.set_style(style(news));
            bar.set_message(one_line(&news.stage));
            bar.set_position(0);
        }
        if let Some(total) = news.total
            && bar.length() != Some(total)
        {
            bar.set_style(style(news));
            bar.set_length(total);
        }
        bar.set_position(news.done);
    }
}

impl ShowProgress for Meter {
    fn show(&mut self, news: &Progress) {
        let stage_is_new = news.stage != self.stage;
        match self.mode {
            Mode::Silent => {}
            Mode::Lines => {
                if self.began.elapsed() > SHORT && news.stage != self.told {
                    super::talk(&format!("{} …", one_line(&news.stage)));
                    self.told.clone_from(&news.stage);
                }
            }
            Mode::Bar => self.draw(news, stage_is_new),
        }
        if stage_is_new {
            self.stage.clone_from(&news.stage);
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.stage.clear();
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.clear();
    }
}

fn style(news: &Progress) -> ProgressStyle {
    let template = match (news.unit.as_str(), news.total) {
        ("bytes", Some(_)) => "{spinner} {msg}  {bar:30} {bytes}/{total_bytes}  {bytes_per_sec}  {eta}",
        ("bytes", None) => "{spinner} {msg}  {bytes}  {bytes_per_sec}",
        ("", None) => "{spinner} {msg}",
        ("", Some(_)) => "{spinner} {msg}  {bar:30} {pos}/{len}",
        (_, Some(_)) => "{spinner} {msg}  {bar:30} {human_pos}/{human_len}  {eta}",
        (_, None) => "{spinner} {msg}  {human_pos}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
