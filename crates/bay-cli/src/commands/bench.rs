use bay_bench::{Bench, Daemon, Judged, Scored};

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::table;

/// Runs the contests, and prints one table for each.
pub(crate) async fn run(bench: Bench, global: &GlobalOptions) -> Outcome {
    let location = global.location();
    let client = global.client();
    let daemon = Daemon { data_dir: location.data_dir, socket: location.socket, client };
    let scored = bench.run(daemon).await?;
    if global.json {
        crate::output::json(&scored)?;
    } else {
        crate::output::data(&render(&scored))?;
    }
    Ok(0)
}

fn render(scored: &[Scored]) -> String {
    let mut parts = Vec::new();
    for contest in scored {
        let mut table = table::table(&["CONTESTANT", "MEDIAN", "P95", "RATIO", "BAR", ""]);
        for line in &contest.lines {
            let each =
                |show: &dyn Fn(&Judged) -> String| line.bars.iter().map(show).collect::<Vec<_>>().join("\n");
            table.add_row([
                line.name.clone(),
                line.unit.show(line.median),
                line.unit.show(line.p95),
                each(&|bar| match (bar.against, bar.reached) {
                    (Some(_), Some(ratio)) => format!("{ratio:.3}"),
                    _ => String::new(),
                }),
                each(&|bar| bar.show(line.unit)),
                each(&|bar| bar.verdict.to_owned()),
            ]);
        }
        parts.push(format!("{} ({} rounds)\n{}", contest.title, contest.rounds, table.trim_fmt()));
        parts.extend(contest.notes.iter().map(|note| format!("  {note}")));
    }
    parts.join("\n\n")
}
