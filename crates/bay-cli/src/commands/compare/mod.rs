use bay_client::local;
use bay_types::exec::ExecSpec;
use bay_types::{ApiError, ErrorCode};
use clap::Args;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::talk;
use bay_text::escape::{message, visible};
use run::Row;

mod counts;
mod html;
mod run;
mod table;

/// Most bays that --parallel runs the command in at the same time.
const AT_ONCE: usize = 16;
/// What a shell reports for a program ended by Ctrl-C.
const EXIT_INTERRUPTED: u8 = 130;

/// Run the same command in several bays and compare the results side by side.
///
/// The runs are one after another, so that they do not compete for processors; --parallel runs them concurrently. Each
/// run is an exec of its bay, and `bay logs BAY EXEC` has its output. Exits with 0 if the command ended in every bay,
/// with whatever status. Otherwise the exit status is that of the error of the first bay, in the given order, that has
/// one; after Ctrl-C it is 130.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay compare fix-1 fix-2 fix-3 --run 'cargo test'\n  bay compare a b --run 'npm ci && npm test' --timeout 600 --parallel\n  bay compare a b --run 'make test' --html > compared.html\n  bay compare a b --run 'make bench' --json | jq '.bays[] | {bay, wall_s}'\n\n`*` is the best value of a column among the bays that succeeded, or among all if none did. `!` marks each failure if not all exits are the same."
)]
pub(crate) struct Compare {
    /// Names or ids of the bays.
    #[arg(required = true, value_name = "BAY")]
    bays: Vec<String>,
    /// The command, for the bay's shell.
    #[arg(long, value_name = "CMD")]
    run: String,
    /// Kill the command in a bay after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Run in all bays concurrently, at most 16 at a time.
    #[arg(long)]
    parallel: bool,
    /// In DIFF, also count changed files that the repository ignores.
    #[arg(long)]
    ignored: bool,
    /// Print the results as one self-contained HTML page.
    #[arg(long)]
    html: bool,
}

#[derive(Serialize)]
struct Comparison<'a> {
    command: &'a str,
    parallel: bool,
    bays: &'a [Row],
}

impl Compare {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        for bay in &self.bays {
            crate::naming::bay(bay)?;
        }
        let mut interrupt =
            signal(SignalKind::interrupt()).map_err(|error| local("listening for Ctrl-C", &error))?;
        let specs: Vec<ExecSpec> = self.bays.iter().map(|_| self.spec()).collect();
        if let Some(spec) = specs.first() {
            spec.check()?;
        }
        let mut rows: Vec<Row> = Vec::new();
        let at_once = if self.parallel { AT_ONCE } else { 1 };
        let runs = self.bays.iter().zip(&specs).map(|(bay, spec)| {
            let client = global.client();
            async move {
                let row = run::run(client, bay, spec.clone(), self.ignored).await;
                if !global.json {
                    talk(&progress(&row));
                }
                row
            }
        });
        let interrupted = {
            let mut runs = stream::iter(runs).buffered(at_once);
            loop {
                tokio::select! {
                    row = runs.next() => match row {
                        Some(row) => rows.push(row),
                        None => break false,
                    },
                    _ = interrupt.recv() => break true,
                }
            }
        };
        if interrupted {
            // Only execs that were started can be ended. The request to end one does not start it.
            let begun = self.bays.iter().zip(&specs).skip(rows.len()).take(at_once);
            for (bay, spec) in begun {
                run::end(global.client().another_without_starting(), bay, spec.id).await;
            }
            let begun = rows.len() + at_once;
            for (number, bay) in self.bays.iter().enumerate().skip(rows.len()) {
                rows.push(Row::without_result(bay, interrupted_by_user(number < begun)));
            }
        }
        self.show(&rows, global.json)?;
        if interrupted {
            return Ok(EXIT_INTERRUPTED);
        }
        Ok(rows.iter().find_map(|row| row.error.as_ref()).map_or(0, |error| error.code.exit_code()))
    }

    fn spec(&self) -> ExecSpec {
        ExecSpec { timeout_s: self.timeout, ..ExecSpec::new(["sh", "-c", &self.run]) }
    }

    fn show(&self, rows: &[Row], json: bool) -> Result<(), crate::failure::Failure> {
        if json {
            return crate::output::json(&Comparison {
                command: &self.run,
                parallel: self.parallel,
                bays: rows,
            });
        }
        if self.html {
            crate::output::data(html::page(&self.run, self.parallel, rows).trim_end())?;
        } else {
            crate::output::data(&table::render(rows))?;
        }
        talk(&table::verdict(rows));
        if let Some(line) = table::left_out(rows) {
            talk(&line);
        }
        for (row, error) in rows.iter().filter_map(|row| Some((row, row.error.as_ref()?))) {
            talk(&format!("{}: error[{}]: {}", visible(&row.bay), error.code, message(&error.message)));
            if !error.next.is_empty() {
                talk(&format!("next: {}", message(&error.next)));
            }
        }
        Ok(())
    }
}

fn interrupted_by_user(begun: bool) -> ApiError {
    let why = if begun {
        "stopped by Ctrl-C; the command has no result in this bay"
    } else {
        "the command was not started in this bay because of Ctrl-C"
    };
    ApiError::new(ErrorCode::Interrupted, why, "run `bay compare` again")
}

/// A line for each finished run, so that a long comparison shows progress.
fn progress(row: &Row) -> String {
    let bay = visible(&row.bay);
    match (&row.error, row.exit_code, row.number) {
        (None, Some(code), Some(number)) => {
            let took = row.wall_s.map(table::seconds).unwrap_or_default();
            format!("{bay}: exit {code} after {took}; `bay logs {bay} {number}` has its output")
        }
        _ => format!("{bay}: did not run to an end"),
    }
}
