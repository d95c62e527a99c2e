//! `bay top`: what every bay uses, live.
//!
//! ```text
//!  GET /v1/top, twice ──► rates (the growth between) ──► draw (lines that fit) ──► screen
//!                                                    └─► plain table or JSON, if not on a terminal
//! ```

mod draw;
mod rates;
mod screen;

use std::io::Read;
use std::time::Duration;

use bay_client::{Client, local};
use bay_types::ApiError;
use bay_types::top::Top as Look;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use draw::Order;
use rates::{Rates, between};
use screen::Screen;

const KEYS: &str = "q ends · order by: c processor, m memory, d disk, n name";
/// The pause between the two samples of `--once`.
const GLANCE: Duration = Duration::from_secs(1);
/// Shortest and longest interval, in seconds.
const INTERVALS: std::ops::RangeInclusive<f64> = 0.2..=3600.0;
/// Most keys in the queue.
const KEYS_AHEAD: usize = 64;
const CTRL_C: u8 = 3;

/// Watch what the bays use: processors, memory, pressure, disks, processes.
///
/// Pressure is the share of the last ten seconds in which a process in the bay waited for processors, memory and disks,
/// in percent. Steal is the processor time that other machines on the same hardware took from this host. DISK is what
/// only that bay holds, SHARED the size of its image.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay top\n  bay top --once --json | jq '.bays[] | {name, cpu_percent}'")]
pub(crate) struct Top {
    /// Print one table and exit.
    #[arg(long)]
    once: bool,
    /// Seconds between two updates.
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = interval)]
    interval: f64,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds".to_owned())?;
    let (least, most) = (INTERVALS.start(), INTERVALS.end());
    if INTERVALS.contains(&seconds) {
        Ok(seconds)
    } else {
        Err(format!("give between {least} and {most} seconds"))
    }
}

impl Top {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        let pause = Duration::from_secs_f64(self.interval);
        let first = look(&mut client).await?;
        if !self.once
            && !global.json
            && let Some(screen) = Screen::enter()
        {
            return live(&screen, client, first, pause).await;
        }
        let mut before = first;
        let mut wait = if self.once { GLANCE.min(pause) } else { pause };
        loop {
            tokio::time::sleep(wait).await;
            let now = look(&mut client).await?;
            print(&between(&before, &now), global.json, self.once)?;
            if self.once {
                return Ok(0);
            }
            (before, wait) = (now, pause);
        }
    }
}

async fn look(client: &mut Client) -> Result<Look, ApiError> {
    client.get("/v1/top").await
}

fn print(rates: &Rates, json: bool, once: bool) -> Result<(), Failure> {
    if !json {
        let gap = if once { "" } else { "\n" };
        return crate::output::data(&format!("{}{gap}", draw::plain(rates, Order::Cpu)));
    }
    if once {
        return crate::output::json(rates);
    }
    // One document per line, so that a reader knows where each ends.
    crate::output::json_line(rates)
}

/// Pressed keys, until standard input ends. The thread that reads them ends with the process.
fn typed() -> mpsc::Receiver<u8> {
    let (sender, receiver) = mpsc::channel(KEYS_AHEAD);
    std::thread::spawn(move || {
        for key in std::io::stdin().lock().bytes().map_while(Result::ok) {
            if sender.blocking_send(key).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The full-screen view, until a key or a signal ends it.
async fn live(screen: &Screen, mut client: Client, first: Look, pause: Duration) -> Outcome {
    let signals = |kind| signal(kind).map_err(|e| local("waiting for signals", &e));
    let mut resized = signals(SignalKind::window_change())?;
    let mut terminated = signals(SignalKind::terminate())?;
    let mut hung_up = signals(SignalKind::hangup())?;
    let mut keys = typed();
    let mut order = Order::Cpu;
    let mut note = KEYS.to_owned();
    let mut rates = between(&first, &first);
    let mut before = first;
    // The first rates come soon, because a screen of dashes is useless.
    let mut next = Instant::now() + GLANCE.min(pause);
    loop {
        let size = crate::terminal::size();
        let (columns, rows) = size.map_or((80, 24), |size| (usize::from(size.cols), usize::from(size.rows)));
        let lines = draw::screen(&rates, order, columns, rows, &note, crate::output::colours());
        crate::output::written(screen.show(&lines))?;
        tokio::select! {
            _ = resized.recv() => {}
            _ = terminated.recv() => return Ok(0),
            _ = hung_up.recv() => return Ok(0),
            key = keys.recv() => match key {
                None | Some(b'q' | b'Q' | CTRL_C) => return Ok(0),
                Some(b'c') => order = Order::Cpu,
                Some(b'm') => order = Order::Memory,
                Some(b'd') => order = Order::Disk,
                Some(b'n') => order = Order::Name,
                Some(_) => {}
            },
            () = tokio::time::sleep_until(next) => {
                next = Instant::now() + pause;
                match look(&mut client).await {
                    Ok(now) => {
                        rates = between(&before, &now);
                        before = now;
                        note = KEYS.to_owned();
                    }
                    Err(error) => {
                        // A daemon that is being replaced will answer again.
                        note = format!("{} (trying again; q ends)", bay_text::escape::one_line(&error.message));
                        client = client.another_without_starting();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds_within_limits() {
        assert_eq!(interval("0.5"), Ok(0.5));
        for odd in ["0", "-1", "nan", "inf", "1e9", "2s", ""] {
            assert!(interval(odd).is_err(), "{odd}");
        }
    }
}
