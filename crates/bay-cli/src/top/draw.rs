//! The output of `bay top` as lines that fit the terminal.

use std::fmt::Write as _;

use bay_types::bay::State;
use bay_types::stats::Pressures;

use super::rates::{BayRates, HostRates, Rates};
use crate::output::size;

/// Longest name that is shown without clipping.
const NAME: usize = 24;
/// Lines are cut at no fewer characters than this: nobody reads a narrower screen.
const LEAST_WIDTH: usize = 20;

/// The order of the rows: numbers from the largest, names from A to Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Cpu,
    Memory,
    Disk,
    Name,
}

struct Column {
    title: &'static str,
    /// On a narrow screen, columns with higher numbers are left out first; 0 always stays.
    spare: u8,
    left: bool,
    cell: fn(&BayRates) -> String,
}

/// A column with its cells and its width.
type Laid<'a> = (&'a Column, Vec<String>, usize);

const COLUMNS: [Column; 13] = [
    Column { title: "NAME", spare: 0, left: true, cell: |bay| clipped(&bay.name) },
    Column { title: "STATE", spare: 6, left: true, cell: |bay| bay.state.to_string() },
    Column { title: "CPU%", spare: 0, left: false, cell: |bay| percent(bay.cpu_percent) },
    Column { title: "MEMORY", spare: 0, left: false, cell: |bay| bytes(bay.stats.memory_bytes) },
    Column { title: "OF", spare: 3, left: false, cell: |bay| bytes(bay.stats.memory_limit_bytes) },
    Column { title: "PRESSURE", spare: 4, left: false, cell: |bay| pressure(&bay.stats.pressure) },
    Column { title: "READ/s", spare: 5, left: false, cell: |bay| speed(bay.read_bytes_per_s) },
    Column { title: "WRITE/s", spare: 5, left: false, cell: |bay| speed(bay.write_bytes_per_s) },
    Column { title: "IOWAIT%", spare: 7, left: false, cell: |bay| percent(bay.iowait_percent) },
    Column { title: "DISK", spare: 2, left: false, cell: |bay| bytes(bay.disk.map(|disk| disk.own_bytes)) },
    Column {
        title: "SHARED",
        spare: 9,
        left: false,
        cell: |bay| bytes(bay.disk.map(|disk| disk.shared_bytes)),
    },
    Column { title: "PIDS", spare: 8, left: false, cell: |bay| number(bay.stats.pids) },
    Column { title: "EXECS", spare: 1, left: false, cell: |bay| bay.execs_running.to_string() },
];

/// The whole screen: at most `rows` high and `columns` wide, or [`LEAST_WIDTH`] on a narrower terminal.
pub(super) fn screen(
    rates: &Rates,
    order: Order,
    columns: usize,
    rows: usize,
    note: &str,
    colours: bool,
) -> Vec<String> {
    let width = columns.max(LEAST_WIDTH);
    let mut lines: Vec<String> = header(&rates.host).into_iter().map(|line| cut(&line, width)).collect();
    lines.push(cut(note, width));
    let room = rows.saturating_sub(lines.len());
    let table = table(rates, order, Some(width), colours);
    let hidden = (table.len() > room).then(|| table.len() + 1 - room);
    match hidden {
        Some(hidden) if room > 1 => {
            lines.extend(table.into_iter().take(room - 1));
            lines.push(cut(&format!("… and {hidden} more"), width));
        }
        _ => lines.extend(table.into_iter().take(room)),
    }
    lines.truncate(rows);
    lines
}

/// For pipes and files: every bay, every column.
pub(super) fn plain(rates: &Rates, order: Order) -> String {
    let mut lines = header(&rates.host);
    lines.extend(table(rates, order, None, false));
    lines.join("\n")
}

fn header(host: &HostRates) -> Vec<String> {
    let used = host.memory_total_bytes.saturating_sub(host.memory_available_bytes);
    let mut second = format!("memory {} of {}", size(used), size(host.memory_total_bytes));
    if let (Some(total), Some(free)) = (host.pool_total_bytes, host.pool_free_bytes) {
        let _ = write!(second, " · pool {} of {}", size(total.saturating_sub(free)), size(total));
    }
    vec![
        format!(
            "host: {} processors {}% busy · I/O wait {}% · steal {}% · pressure cpu/mem/io {}",
            host.cpus,
            percent(host.cpu_percent),
            percent(host.iowait_percent),
            percent(host.steal_percent),
            pressure(&host.pressure)
        ),
        second,
    ]
}

fn table(rates: &Rates, order: Order, width: Option<usize>, colours: bool) -> Vec<String> {
    let mut bays: Vec<&BayRates> = rates.bays.iter().collect();
    let key = |bay: &BayRates| match order {
        Order::Cpu => bay.cpu_percent.unwrap_or(-1.0),
        #[expect(clippy::cast_precision_loss, reason = "only for ordering")]
        Order::Memory => bay.stats.memory_bytes.map_or(-1.0, |bytes| bytes as f64),
        #[expect(clippy::cast_precision_loss, reason = "only for ordering")]
        Order::Disk => bay.disk.map_or(-1.0, |disk| disk.own_bytes as f64),
        Order::Name => 0.0,
    };
    bays.sort_by(|a, b| key(b).total_cmp(&key(a)).then_with(|| a.name.cmp(&b.name)));
    let mut columns: Vec<Laid<'_>> = COLUMNS
        .iter()
        .map(|column| {
            let cells: Vec<String> = bays.iter().map(|bay| (column.cell)(bay)).collect();
            let wide = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
            (column, cells, wide.max(column.title.len()))
        })
        .collect();
    if let Some(width) = width {
        let total = |columns: &[Laid<'_>]| {
            columns.iter().map(|(_, _, wide)| wide + 2).sum::<usize>().saturating_sub(2)
        };
        while total(&columns) > width {
            let most = columns.iter().map(|(column, ..)| column.spare).max().unwrap_or(0);
            if most == 0 {
                break;
            }
            columns.retain(|(column, ..)| column.spare != most);
        }
    }
    let row = |cell: &dyn Fn(&Laid<'_>) -> String| {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| {
                let (text, wide) = (cell(column), column.2);
                if column.0.left { format!("{text:<wide$}") } else { format!("{text:>wide$}") }
            })
            .collect();
        let line = cells.join("  ").trim_end().to_owned();
        width.map_or_else(|| line.clone(), |width| cut(&line, width))
    };
    let mut lines = vec![row(&|column| column.0.title.to_owned())];
    if colours {
        lines[0] = format!("\u{1b}[7m{}\u{1b}[0m", lines[0]);
    }
    for (i, bay) in bays.iter().enumerate() {
        let line = row(&|column| column.1[i].clone());
        let dim = colours && bay.state != State::Running;
        lines.push(if dim { format!("\u{1b}[2m{line}\u{1b}[0m") } else { line });
    }
    if bays.is_empty() {
        lines.push("no bays yet: `bay up .` makes one for this directory".to_owned());
    }
    lines
}

fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

fn clipped(name: &str) -> String {
    bay_text::clip(name, NAME)
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

fn number(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn bytes(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), size)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "only for showing")]
fn speed(value: Option<f64>) -> String {
    bytes(value.map(|value| value.max(0.0) as u64))
}

/// Share of the last ten seconds in which a process waited for processors, memory and disks.
fn pressure(of: &Pressures) -> String {
    let one = |pressure: Option<bay_types::stats::Pressure>| {
        pressure.map_or_else(|| "-".to_owned(), |pressure| format!("{:.0}", pressure.some.avg10))
    };
    format!("{}/{}/{}", one(of.cpu), one(of.memory), one(of.io))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::{between, tests::look};

    fn rates(bays: usize) -> Rates {
        let mut rates = between(&look(1_000_000, 0, 0), &look(3_000_000, 3_000_000, 1000));
        let one = rates.bays[0].clone();
        rates.bays = (0..bays)
            .map(|i| {
                let cpu_percent = one.cpu_percent.map(|cpu| cpu + i as f64);
                BayRates { name: format!("bay-{i}"), cpu_percent, ..one.clone() }
            })
            .collect();
        rates
    }

    #[test]
    fn the_screen_fits_whatever_its_size() {
        for columns in [1, 20, 40, 79, 80, 120, 300] {
            for rows in [0, 1, 2, 3, 4, 5, 24, 100] {
                let lines = screen(&rates(30), Order::Cpu, columns, rows, "q ends", false);
                assert!(lines.len() <= rows, "{columns}x{rows}: {}", lines.len());
                let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
                assert!(widest <= columns.max(LEAST_WIDTH), "{columns}x{rows}: {widest}");
            }
        }
    }

    #[test]
    fn a_narrow_screen_has_the_important_columns_and_a_wide_one_has_all() {
        let wide = screen(&rates(1), Order::Cpu, 200, 24, "", false).join("\n");
        for title in COLUMNS.iter().map(|column| column.title) {
            assert!(wide.contains(title), "{title}:\n{wide}");
        }
        for part in [
            "bay-0",
            "150.0",
            "100.0 MiB",
            "512.0 MiB",
            "2/-/20",
            "1.4 MiB",
            "75.0",
            "5.0 MiB",
            "1.0 GiB",
            "12",
        ] {
            assert!(wide.contains(part), "{part}:\n{wide}");
        }
        let narrow = screen(&rates(1), Order::Cpu, 40, 24, "", false).join("\n");
        assert!(
            narrow.contains("bay-0") && narrow.contains("150.0") && !narrow.contains("SHARED"),
            "{narrow}"
        );
    }

    #[test]
    fn the_busiest_bay_is_first_and_those_below_the_edge_are_counted() {
        let lines = screen(&rates(30), Order::Cpu, 100, 10, "", false);
        assert!(lines[4].starts_with("bay-29"), "{lines:?}");
        assert!(lines.last().unwrap().starts_with("… and 25 more"), "{lines:?}");
        let named = screen(&rates(3), Order::Name, 100, 10, "", false);
        assert!(named[4].starts_with("bay-0"), "{named:?}");
    }

    #[test]
    fn a_table_for_a_file_has_no_escapes_and_every_column() {
        let text = plain(&rates(40), Order::Cpu);
        assert!(!text.contains('\u{1b}') && text.contains("SHARED") && text.contains("bay-0"), "{text}");
    }
}
