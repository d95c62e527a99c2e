use bay_cli_words::Words;
use bay_client::bay_path;
use bay_types::blame::Blame;
use bay_types::exec::{ExecView, duration_s};
use bay_types::usage::{Source, Sources, StallTime, Usage};
use clap::Args;
use jiff::Timestamp;

use super::state;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::age::since;
use crate::output::table::section;
use crate::output::{grouped, size};
use crate::removed_bay;
use bay_text::clip;
use bay_text::escape::{one_line, visible};
use bay_text::percent::segment;
use bay_text::shell::command;

/// Longest command line that is printed. `--json` has all of it.
const COMMAND: usize = 2000;

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Name or id of the bay.
    name: String,
    /// Number or id of the exec, or the end of its id.
    exec: String,
}

impl Show {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        removed_bay::or_newest(global, bay, async |bay| self.show(global, bay).await).await
    }

    async fn show(&self, global: &GlobalOptions, bay: &str) -> Outcome {
        let path = bay_path(bay, &format!("/execs/{}", segment(&self.exec)));
        let exec: ExecView = global.client().get(&path).await?;
        if global.json {
            crate::output::json(&exec)?;
        } else {
            crate::output::data(&render(bay, &exec, Timestamp::now()))?;
        }
        Ok(0)
    }
}

type Lines = Vec<(&'static str, String)>;

fn render(bay: &str, exec: &ExecView, now: Timestamp) -> String {
    let title = format!("exec {} of {}: {}", exec.number, visible(bay), state(exec));
    let mut parts = vec![section(&title, &what(exec, now))];
    for (title, lines) in [
        ("may have failed because", blame(bay, exec)),
        ("changed while it ran", files(exec)),
        ("used", used(&exec.usage)),
        ("waited for", waited(&exec.usage)),
        ("cost", cost(exec)),
        ("not measured", missing(exec)),
    ] {
        if !lines.is_empty() {
            parts.push(section(title, &lines));
        }
    }
    parts.join("\n\n")
}

fn what(exec: &ExecView, now: Timestamp) -> Lines {
    let mut lines = vec![
        ("command", clip(&command(&exec.argv), COMMAND)),
        ("directory", visible(exec.cwd.as_deref().unwrap_or("(the bay's own: /workspace)"))),
        ("user", visible(exec.user.as_deref().unwrap_or("root"))),
    ];
    if exec.tty {
        lines.push(("terminal", "yes".to_owned()));
    }
    if let Some(call) = &exec.tool_call {
        lines.push(("tool call", visible(call)));
    }
    lines.push(("started", format!("{} ago ({})", since(exec.started_at, now), exec.started_at)));
    match exec.ended_at {
        Some(ended_at) => lines.push(("took", duration(duration_s(exec.started_at, ended_at)))),
        None => lines.push(("running for", duration(duration_s(exec.started_at, now)))),
    }
    if exec.hangs() {
        let why = "it was killed but did not end: it hung in the kernel (uninterruptible sleep), and ends when the disk or mount that it waits for responds";
        lines.push(("hangs", why.to_owned()));
    }
    lines.push(("output", size(exec.output_bytes)));
    lines.push(("id", exec.id.to_string()));
    if let Some(trace) = &exec.trace {
        let span = trace.span_id.map(|span| format!(", span {span}")).unwrap_or_default();
        let parent = trace.parent_span_id.map(|span| format!(", caller's span {span}")).unwrap_or_default();
        lines.push(("trace", format!("{}{span}{parent}", trace.trace_id)));
    }
    lines
}

/// Each finding, and below it what to do about it.
fn blame(bay: &str, exec: &ExecView) -> Lines {
    let words = Words::new(Some(bay.to_owned()));
    let findings = exec.blame.iter().filter(|blame| !matches!(blame, Blame::Unknown));
    findings
        .flat_map(|blame| {
            let next = one_line(&words.hint(&blame.hint()));
            [("cause", one_line(&blame.line())), ("next", next)]
        })
        .filter(|(_, text)| !text.is_empty())
        .collect()
}

/// Files of the workspace, whoever changed them.
fn files(exec: &ExecView) -> Lines {
    let Some(files) = exec.files.as_ref().filter(|files| !files.is_empty()) else { return Lines::new() };
    let at_least = if files.at_least { "at least " } else { "" };
    let mut lines =
        vec![("files", format!("{at_least}{} created, {} changed", files.created, files.changed))];
    if !files.names.is_empty() {
        let names: Vec<String> = files.names.iter().map(|name| visible(name)).collect();
        lines.push(("such as", names.join(", ")));
    }
    if files.ignored > 0 {
        let ignored = grouped(files.ignored);
        lines.push(("left out", format!("{ignored} ignored: `bay diff --ignored` shows them")));
    }
    lines
}

fn used(usage: &Usage) -> Lines {
    let mut lines = Lines::new();
    if let (Some(all), Some(user), Some(system)) = (usage.cpu_us(), usage.user_us, usage.system_us) {
        let text =
            format!("{}: {} in the program, {} in the kernel", micros(all), micros(user), micros(system));
        lines.push(("cpu", text));
    }
    match usage.peak_bytes() {
        Some((bytes, Source::Cgroup)) => {
            lines.push(("memory", format!("{} at most, page cache included", size(bytes))));
        }
        Some((bytes, _)) => lines.push(("memory", format!("{} at most in its largest process", size(bytes)))),
        None => {}
    }
    if let (Some(read), Some(written)) = (usage.read_bytes, usage.write_bytes) {
        lines.push(("disk", format!("{} read, {} written", size(read), size(written))));
    }
    if let Some(peak) = usage.processes_peak {
        let looked = if usage.sources.processes == Some(Source::Sampled) { " when sampled" } else { "" };
        let left = match usage.processes_left {
            Some(left) if left > 0 => format!("; {left} continued after its end"),
            _ => String::new(),
        };
        let at_once = if peak == 1 { "1 process".to_owned() } else { format!("{peak} at once") };
        lines.push(("processes", format!("{at_once}{looked}{left}")));
    }
    lines
}

fn waited(usage: &Usage) -> Lines {
    let line = |stall: StallTime| {
        if stall.some_us == 0 {
            return "never".to_owned();
        }
        let all = stall.full_us.map(|us| format!(", {} of it with nothing running", micros(us)));
        format!("{}{}", micros(stall.some_us), all.unwrap_or_default())
    };
    let stalls = [("cpu", usage.stalls.cpu), ("memory", usage.stalls.memory), ("disk", usage.stalls.io)];
    stalls.into_iter().filter_map(|(name, stall)| Some((name, line(stall?)))).collect()
}

fn cost(exec: &ExecView) -> Lines {
    let mut lines = Lines::new();
    if let Some(core_s) = exec.cost.core_s {
        lines.push(("processor", format!("{core_s:.3} core-seconds")));
    }
    if let Some(gib_s) = exec.cost.memory_gib_s_estimate {
        let of = match exec.cost.memory_from {
            Some(Source::Cgroup) => "its peak",
            _ => "its largest process's peak",
        };
        lines.push(("memory", format!("{gib_s:.3} GiB-seconds, estimated as {of} for as long as it ran")));
    }
    if let Some(bytes) = exec.cost.disk_written_bytes {
        lines.push(("disk", format!("{} written", size(bytes))));
    }
    lines
}

/// What this host could not measure, and why.
fn missing(exec: &ExecView) -> Lines {
    let (usage, sources) = (&exec.usage, &exec.usage.sources);
    let over = exec.ended_at.is_some();
    if usage.cpu_us().is_none() {
        let why = if over {
            "it never ran, or its bay was gone before it could be asked"
        } else {
            "it has not ended"
        };
        return vec![("anything", why.to_owned())];
    }
    if *sources == Sources::default() {
        return vec![("more", "it was recorded by an earlier release".to_owned())];
    }
    let mut lines = Lines::new();
    let mut lacks = |name, what: &str| lines.push((name, what.to_owned()));
    if sources.cpu == Some(Source::WaitedFor) {
        lacks("cpu", "of processes nobody waited for: the exec had no control group");
    }
    if usage.memory_peak_bytes.is_none() {
        lacks("memory", "of all its processes together: needs the memory controller in cgroup version 2");
    }
    if sources.io != Some(Source::Cgroup) && over {
        lacks("disk", "I/O of processes nobody waited for: needs the io controller in cgroup version 2");
    }
    if usage.read_bytes.is_none() && !over {
        lacks("disk", "until it ends: needs the io controller in cgroup version 2");
    }
    if sources.processes != Some(Source::Cgroup) {
        lacks("processes", "between two samples: needs the pids controller in cgroup version 2");
    }
    if sources.pressure.is_none() {
        lacks("waiting", "needs a kernel with pressure stall information (psi=1)");
    }
    lines
}

fn micros(us: u64) -> String {
    duration(bay_types::usage::seconds(us))
}

/// A duration with a precision that fits its length.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s <= 0.0 => "0".to_owned(),
        s if s < 0.01 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 60.0 => format!("{s:.2} s"),
        s if s < 3600.0 => format!("{:.0} min {:.0} s", (s / 60.0).floor(), (s % 60.0).floor()),
        s => format!("{:.0} h {:.0} min", (s / 3600.0).floor(), (s % 3600.0 / 60.0).floor()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(usage: &serde_json::Value) -> ExecView {
        serde_json::from_value(serde_json::json!({
            "id": "exec_0190000000007000800000000000abcd", "bay": "bay_0190000000007000800000000000abcd",
            "number": 3, "argv": ["make", "te\u{1b}st"], "cwd": null, "user": null, "tty": false,
            "tool_call": "call-7", "started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:01:30Z",
            "exit": { "reason": "exited", "code": 0 }, "usage": usage, "output_bytes": 2048,
            "trace": { "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": null,
                       "parent_span_id": "00f067aa0ba902b7", "sampled": true },
            "cost": { "core_s": 2.5, "memory_gib_s_estimate": 9.0, "memory_from": "largest-process",
                      "disk_written_bytes": 4096 },
        }))
        .unwrap()
    }

    fn shown(usage: &serde_json::Value) -> String {
        render("web", &exec(usage), "2026-01-01T00:05:00Z".parse().unwrap())
    }

    #[test]
    fn an_exec_is_shown_with_what_it_used_and_what_could_not_be_measured() {
        let text = shown(&serde_json::json!({
            "user_us": 2_000_000, "system_us": 500_000, "max_rss_kib": 102_400, "read_bytes": 0,
            "write_bytes": 4096, "processes_peak": 6, "processes_left": 1,
            "stalls": { "cpu": { "some_us": 1500, "full_us": 0 } },
            "sources": { "cpu": "cgroup", "memory": "largest-process", "io": "waited-for",
                         "processes": "sampled", "pressure": "cgroup" },
        }));
        for part in [
            "exec 3 of web: exited 0",
            "call-7",
            "1 min 30 s",
            "2.50 s: 2.00 s in the program",
            "100.0 MiB at most in its largest process",
            "4.0 KiB written",
            "6 at once when sampled; 1 continued",
            "1.5 ms, 0 of it",
            "2.500 core-seconds",
            "estimated as its largest process's peak",
            "memory controller in cgroup version 2",
            "caller's span 00f067aa0ba902b7",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn what_may_have_made_it_fail_is_shown_with_what_to_do() {
        let mut failed = exec(&serde_json::json!({}));
        failed.blame = vec![Blame::Memory, Blame::Unknown, Blame::Pids];
        let text = render("web", &failed, "2026-01-01T00:05:00Z".parse().unwrap());
        for part in [
            "may have failed because",
            "used up its memory",
            "bay set web --memory-mib",
            "bay set web --pids",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!shown(&serde_json::json!({})).contains("may have failed"), "nothing was found");
    }

    #[test]
    fn an_exec_with_unknown_usage_says_so() {
        let text = shown(&serde_json::json!({}));
        assert!(text.contains("it never ran, or its bay was gone"), "{text}");
        assert!(!text.contains("waited for\n"), "{text}");
    }

    #[test]
    fn a_record_of_an_earlier_release_says_so() {
        let text = shown(&serde_json::json!({ "user_us": 1, "system_us": 1, "max_rss_kib": 1 }));
        assert!(text.contains("an earlier release") && !text.contains("controller"), "{text}");
    }

    #[test]
    fn if_everything_is_measured_nothing_is_reported_as_missing() {
        let text = shown(&serde_json::json!({
            "user_us": 1, "system_us": 1, "max_rss_kib": 1, "memory_peak_bytes": 1024, "read_bytes": 1,
            "write_bytes": 1, "processes_peak": 1, "processes_left": 0,
            "sources": { "cpu": "cgroup", "memory": "cgroup", "io": "cgroup", "processes": "cgroup",
                         "pressure": "cgroup" },
        }));
        assert!(!text.contains("not measured"), "{text}");
        assert!(text.contains("1.0 KiB at most, page cache included"), "{text}");
    }

    #[test]
    fn durations_are_as_precise_as_they_are_long() {
        for (seconds, text) in [
            (0.0, "0"),
            (0.0015, "1.5 ms"),
            (0.25, "250 ms"),
            (12.345, "12.35 s"),
            (61.0, "1 min 1 s"),
            (7260.0, "2 h 1 min"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
