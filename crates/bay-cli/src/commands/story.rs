use bay_client::bay_path;
use bay_story::{html, page};
use bay_types::story::Story as Told;
use clap::Args;
use jiff::tz::TimeZone;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::{colours, data};
use crate::removed_bay;

/// Show what happened in a bay on one page: what was asked, tried, failed, refused, what it cost, how it is now.
///
/// Rules make the page from the bay's record; no model does. It has at most 60 lines, whatever the record's size.
/// Where the time went is an estimate by rule. `bay timeline` has the events behind it. A bay that was removed is
/// found by its last name.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay story web\n  bay story web --html > web.html\n  bay story web --json | jq .failed\n\ndocs/story.md describes the rules."
)]
pub(crate) struct Story {
    /// Name or id of the bay.
    name: String,
    /// Write one page of HTML that needs nothing else.
    #[arg(long)]
    html: bool,
}

impl Story {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        removed_bay::or_newest(global, bay, async |bay| self.tell(global, bay).await).await
    }

    async fn tell(&self, global: &GlobalOptions, bay: &str) -> Outcome {
        let story: Told = global.client().get(&bay_path(bay, "/story")).await?;
        let zone = TimeZone::system();
        if global.json {
            crate::output::json(&story)?;
        } else if self.html {
            data(html::page(&story, &zone).trim_end())?;
        } else {
            data(&render(&story, &zone))?;
        }
        Ok(0)
    }
}

fn render(story: &Told, zone: &TimeZone) -> String {
    let (dim, plain) = if colours() { ("\u{1b}[2m", "\u{1b}[0m") } else { ("", "") };
    let mut lines = vec![page::heading(story, zone)];
    for section in page::sections(story, zone) {
        for (at, line) in section.lines.iter().enumerate() {
            let title = if at == 0 { section.title } else { "" };
            lines.push(format!("{dim}{title:<width$}{plain}{line}", width = page::TITLES));
        }
    }
    lines.join("\n")
}
