//! `process.Process`: commands and terminals. Each is an exec with kept output, and is signalled as a tree.

use std::sync::Arc;
use std::time::Duration;

use bay_types::exec::{ExecSpec, Exit, SignalRequest, TtySize};
use bay_types::frame::Frame;
use http::{HeaderMap, Response};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::body::Arriving;
use super::caller::Caller;
use super::connect::{self, Base64, Events, Messages, lenient, to_base64};
use super::fault::{Fault, Kind, Result};
use super::processes::{Process, ProcessConfig, ProcessInfo, Selector};
use super::{Empty, Envd};
use crate::execs::output::{Follow, Output};
use crate::execs::{Exec, Found, Input};
use crate::http::Body;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// How long the answer to KILL waits for the end of the process, so that a request after it does not find the process.
const KILL_WAIT: Duration = Duration::from_secs(2);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StartRequest {
    #[serde(deserialize_with = "lenient")]
    process: ProcessConfig,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pty {
    #[serde(deserialize_with = "lenient")]
    size: Size,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Size {
    #[serde(deserialize_with = "lenient")]
    cols: u32,
    #[serde(deserialize_with = "lenient")]
    rows: u32,
}

impl From<&Pty> for TtySize {
    fn from(pty: &Pty) -> Self {
        let cells = |wanted: u32, otherwise: u16| match u16::try_from(wanted).unwrap_or(u16::MAX) {
            0 => otherwise,
            cells => cells,
        };
        let usual = TtySize::default();
        TtySize { cols: cells(pty.size.cols, usual.cols), rows: cells(pty.size.rows, usual.rows) }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProcessInput {
    stdin: Option<Base64>,
    pty: Option<Base64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProcessRequest {
    process: Option<Selector>,
    pty: Option<Pty>,
    input: Option<ProcessInput>,
    signal: Option<Signal>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Signal {
    Name(SignalName),
    Number(i32),
}

#[derive(Debug, Clone, Copy, Deserialize)]
enum SignalName {
    #[serde(rename = "SIGNAL_SIGTERM")]
    Term,
    #[serde(rename = "SIGNAL_SIGKILL")]
    Kill,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamInput {
    start: Option<ProcessRequest>,
    data: Option<ProcessRequest>,
}

#[derive(Debug, Serialize)]
pub(super) struct ListAnswer {
    processes: Vec<ProcessInfo>,
}

#[derive(Debug, Serialize)]
struct EventAnswer {
    event: Event,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Event {
    Start { pid: i32 },
    Data(Data),
    End(End),
    Keepalive(Empty),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Data {
    Stdout(String),
    Stderr(String),
    Pty(String),
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct End {
    exit_code: i32,
    exited: bool,
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl From<Exit> for End {
    fn from(exit: Exit) -> Self {
        let status = match (exit.code, exit.signal) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("signal: {}", signal_words(signal)),
            (None, None) => "the process was lost".to_owned(),
        };
        let error = (exit.code != Some(0)).then(|| status.clone());
        Self { exit_code: exit.code.unwrap_or(-1), exited: exit.code.is_some(), status, error }
    }
}

fn signal_words(signal: i32) -> String {
    match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    }
    .to_owned()
}

pub(super) async fn call(
    envd: &Arc<Envd>,
    method: &str,
    headers: &HeaderMap,
    body: Arriving,
) -> Response<Body> {
    match method {
        "List" => connect::answer(list(envd, headers, body).await),
        "Update" => connect::answer(update(envd, headers, body).await),
        "SendInput" => connect::answer(send_input(envd, headers, body).await),
        "SendSignal" => connect::answer(send_signal(envd, headers, body).await),
        "CloseStdin" => connect::answer(close_stdin(envd, headers, body).await),
        "Start" => start(envd, headers, body).await.unwrap_or_else(|fault| connect::refuse_stream(&fault)),
        "Connect" => follow(envd, headers, body).await.unwrap_or_else(|fault| connect::refuse_stream(&fault)),
        "StreamInput" => {
            stream_input(envd, headers, body).await.unwrap_or_else(|fault| connect::refuse_stream(&fault))
        }
        _ => Fault::new(Kind::Unimplemented, format!("there is no process.Process/{method}")).to_call(),
    }
}

async fn list(envd: &Envd, headers: &HeaderMap, body: Arriving) -> Result<ListAnswer> {
    let _: Empty = connect::read_call(headers, body).await?;
    Ok(ListAnswer { processes: envd.processes.list() })
}

async fn start(envd: &Arc<Envd>, headers: &HeaderMap, body: Arriving) -> Result<Response<Body>> {
    connect::require_stream(headers)?;
    let deadline = connect::deadline(headers)?;
    let wanted: StartRequest = Messages::of(body).only().await?;
    let caller = Caller::of_call(envd.files.root(), headers)?;
    let config = wanted.process;
    let argv = std::iter::once(config.cmd.clone()).chain(config.args.iter().cloned());
    let mut spec = ExecSpec::new(argv);
    spec.cwd = Some(directory(&caller, config.cwd.as_deref())?);
    spec.env = envd.variables();
    spec.env.extend(config.envs.iter().map(|(k, v)| (k.clone(), v.clone())));
    spec.user = Some(caller.user.name.clone());
    spec.tty = wanted.pty.as_ref().map(TtySize::from);
    // Clients that do not know this flag expect that they can send input.
    spec.stdin = wanted.stdin.unwrap_or(true);
    let (found, _) = envd.execs.start(spec).await?;
    let output = Output::of(&envd.execs, &found, 0, Follow::UntilExit)?;
    let status = found.status();
    let process = Process {
        id: status.spec.id,
        pid: status.pid,
        tag: wanted.tag,
        config,
        pty: status.spec.tty.is_some(),
        ended: false,
    };
    if let Found::Live(exec) = &found {
        envd.processes.add(process.clone(), exec);
        if let Some(deadline) = deadline {
            tokio::spawn(end_at(Arc::clone(exec), deadline));
        }
    }
    Ok(send_events(output, &process, headers, deadline))
}

/// The working directory of a command: the requested one, otherwise the user's home, or the root if the home does not
/// exist.
fn directory(caller: &Caller, wanted: Option<&str>) -> Result<String> {
    match wanted {
        Some(wanted) if !wanted.is_empty() => caller.path(wanted),
        _ if std::path::Path::new(&caller.user.home).is_dir() => Ok(caller.user.home.clone()),
        _ => Ok("/".to_owned()),
    }
}

/// Ends a command at its deadline, even if its client has gone away.
async fn end_at(exec: Arc<Exec>, deadline: Instant) {
    let mut life = exec.life.subscribe();
    tokio::select! {
        _ = life.wait_for(|life| life.ended.is_some()) => {}
        () = tokio::time::sleep_until(deadline) => exec.time_out(),
    }
}

/// Streams what a process prints from now on, and its end.
async fn follow(envd: &Arc<Envd>, headers: &HeaderMap, body: Arriving) -> Result<Response<Body>> {
    connect::require_stream(headers)?;
    let deadline = connect::deadline(headers)?;
    let wanted: ProcessRequest = Messages::of(body).only().await?;
    let process = envd.processes.find(wanted.process.as_ref())?;
    let found = envd.execs.get(process.id)?;
    let output = Output::of(&envd.execs, &found, found.status().output_bytes, Follow::UntilExit)?;
    Ok(send_events(output, &process, headers, deadline))
}

fn send_events(
    output: Output,
    process: &Process,
    headers: &HeaderMap,
    deadline: Option<Instant>,
) -> Response<Body> {
    let (events, response) = connect::open_stream();
    let keepalive = connect::keepalive(headers);
    let (pid, pty) = (process.pid, process.pty);
    tokio::spawn(async move {
        let send = forward(output, &events, (pid, pty), keepalive);
        let outcome = match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline, send).await.unwrap_or_else(|_| {
                Err(Fault::new(Kind::DeadlineExceeded, "the time that the client gave is over"))
            }),
            None => send.await,
        };
        events.end(outcome).await;
    });
    response
}

/// Returns when the process has ended or the client is gone.
async fn forward(
    mut output: Output,
    events: &Events,
    (pid, pty): (i32, bool),
    keepalive: Duration,
) -> Result<()> {
    if !events.send(&EventAnswer { event: Event::Start { pid } }).await {
        return Ok(());
    }
    loop {
        let event = {
            // Kept until it is ready: dropping it would lose what it has read.
            let mut next = std::pin::pin!(output.next());
            let frame = loop {
                tokio::select! {
                    frame = &mut next => break frame,
                    () = events.closed() => return Ok(()),
                    () = tokio::time::sleep(keepalive) => {
                        let event = Event::Keepalive(Empty {});
                        if !events.send(&EventAnswer { event }).await {
                            return Ok(());
                        }
                    }
                }
            };
            let Some(frame) = frame else { return Ok(()) };
            match Frame::decode(frame) {
                Ok(Some((Frame::Stdout(bytes), _))) if pty => Event::Data(Data::Pty(to_base64(&bytes))),
                Ok(Some((Frame::Stdout(bytes), _))) => Event::Data(Data::Stdout(to_base64(&bytes))),
                Ok(Some((Frame::Stderr(bytes), _))) => Event::Data(Data::Stderr(to_base64(&bytes))),
                Ok(Some((Frame::Exit(exit, _), _))) => Event::End(exit.into()),
                Ok(Some((Frame::Error(error), _))) => return Err(error.into()),
                // The bound on kept output dropped bytes before the client read them. The interface cannot express
                // that.
                _ => continue,
            }
        };
        let last = matches!(event, Event::End(_));
        if !events.send(&EventAnswer { event }).await || last {
            return Ok(());
        }
    }
}

/// The exec of a running process.
fn live(envd: &Envd, process: &Process) -> Result<Arc<Exec>> {
    match envd.execs.get(process.id)? {
        Found::Live(exec) => Ok(exec),
        Found::Finished(_) => {
            Err(Fault::new(Kind::NotFound, format!("the process {} has ended", process.pid)))
        }
    }
}

async fn update(envd: &Envd, headers: &HeaderMap, body: Arriving) -> Result<Empty> {
    let wanted: ProcessRequest = connect::read_call(headers, body).await?;
    let process = envd.processes.find_running(wanted.process.as_ref())?;
    if let Some(pty) = &wanted.pty {
        if !process.pty {
            return Err(Fault::new(
                Kind::Precondition,
                format!("the process {} has no terminal", process.pid),
            ));
        }
        live(envd, &process)?.resize(pty.into());
    }
    Ok(Empty {})
}

async fn send_signal(envd: &Envd, headers: &HeaderMap, body: Arriving) -> Result<Empty> {
    let wanted: ProcessRequest = connect::read_call(headers, body).await?;
    let signal = match wanted.signal {
        Some(Signal::Name(SignalName::Kill) | Signal::Number(SIGKILL)) => SIGKILL,
        Some(Signal::Name(SignalName::Term) | Signal::Number(SIGTERM)) => SIGTERM,
        _ => return Err(Fault::invalid("the signal must be SIGNAL_SIGTERM or SIGNAL_SIGKILL")),
    };
    let process = envd.processes.find_running(wanted.process.as_ref())?;
    let exec = live(envd, &process)?;
    let mut life = exec.life.subscribe();
    envd.execs.signal(process.id, SignalRequest { signal, tree: true })?;
    if signal == SIGKILL {
        // If the process hangs in the kernel, the answer does not wait for its end.
        let _ = tokio::time::timeout(KILL_WAIT, life.wait_for(|life| life.ended.is_some())).await;
    }
    Ok(Empty {})
}

async fn close_stdin(envd: &Envd, headers: &HeaderMap, body: Arriving) -> Result<Empty> {
    let wanted: ProcessRequest = connect::read_call(headers, body).await?;
    let process = envd.processes.find_running(wanted.process.as_ref())?;
    if process.pty {
        return Err(Fault::new(Kind::Precondition, "a terminal has no end of input: send Control-D instead"));
    }
    live(envd, &process)?.input.close().await;
    Ok(Empty {})
}

async fn send_input(envd: &Envd, headers: &HeaderMap, body: Arriving) -> Result<Empty> {
    let wanted: ProcessRequest = connect::read_call(headers, body).await?;
    let deadline = connect::deadline(headers)?;
    let process = envd.processes.find_running(wanted.process.as_ref())?;
    let write = write_input(envd, &process, wanted.input);
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, write)
            .await
            .map_err(|_| Fault::new(Kind::DeadlineExceeded, "the process does not read its input"))??,
        None => write.await?,
    }
    Ok(Empty {})
}

/// Writes input to a process, and waits while the process does not read.
async fn write_input(envd: &Envd, process: &Process, input: Option<ProcessInput>) -> Result<()> {
    let bytes = match input {
        Some(ProcessInput { pty: Some(bytes), .. }) if process.pty => bytes.0,
        Some(ProcessInput { stdin: Some(bytes), .. }) if !process.pty => bytes.0,
        Some(ProcessInput { stdin: None, pty: None }) | None => {
            return Err(Fault::invalid("the request holds no input"));
        }
        Some(_) => {
            let has = if process.pty { "a terminal" } else { "no terminal" };
            return Err(Fault::new(Kind::Precondition, format!("the process {} has {has}", process.pid)));
        }
    };
    let exec = live(envd, process)?;
    if matches!(exec.input, Input::None) {
        return Err(Fault::new(
            Kind::Precondition,
            format!("the process {} was started without an input", process.pid),
        ));
    }
    let mut life = exec.life.subscribe();
    tokio::select! {
        () = exec.input.write(&bytes) => Ok(()),
        _ = life.wait_for(|life| life.ended.is_some()) => {
            Err(Fault::new(Kind::NotFound, format!("the process {} has ended", process.pid)))
        }
    }
}

async fn stream_input(envd: &Arc<Envd>, headers: &HeaderMap, body: Arriving) -> Result<Response<Body>> {
    connect::require_stream(headers)?;
    let deadline = connect::deadline(headers)?;
    let take = async {
        let mut messages = Messages::of(body);
        let mut process = None;
        while let Some(message) = messages.next::<StreamInput>().await? {
            match message {
                StreamInput { start: Some(start), .. } => {
                    process = Some(envd.processes.find_running(start.process.as_ref())?);
                }
                StreamInput { data: Some(data), .. } => {
                    let process = process
                        .as_ref()
                        .ok_or_else(|| Fault::invalid("input came before its process was named"))?;
                    write_input(envd, process, data.input).await?;
                }
                // A keepalive message.
                StreamInput { .. } => {}
            }
        }
        Ok::<(), Fault>(())
    };
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, take)
            .await
            .map_err(|_| Fault::new(Kind::DeadlineExceeded, "the time that the client gave is over"))??,
        None => take.await?,
    }
    let (events, response) = connect::open_stream();
    tokio::spawn(async move {
        if events.send(&Empty {}).await {
            events.end(Ok(())).await;
        }
    });
    Ok(response)
}

#[cfg(test)]
mod tests {
    use bay_types::exec::EndReason;

    use super::*;

    #[test]
    fn an_end_is_reported_as_clients_expect() {
        let end = |code, signal| End::from(Exit { reason: EndReason::Exited, code, signal });
        assert_eq!(end(Some(0), None).error, None);
        assert_eq!(end(Some(3), None).status, "exit status 3");
        assert_eq!(end(Some(3), None).error.as_deref(), Some("exit status 3"));
        let killed = end(None, Some(9));
        assert_eq!((killed.exit_code, killed.exited, killed.status.as_str()), (-1, false, "signal: killed"));
    }

    #[test]
    fn a_terminal_without_a_size_gets_the_usual_one() {
        let size = |text: &str| TtySize::from(&serde_json::from_str::<Pty>(text).unwrap());
        assert_eq!(size("{}"), TtySize { cols: 80, rows: 24 });
        assert_eq!(size(r#"{"size":{"cols":100,"rows":null}}"#), TtySize { cols: 100, rows: 24 });
        assert_eq!(size(r#"{"size":{"cols":4000000000,"rows":1}}"#), TtySize { cols: u16::MAX, rows: 1 });
    }
}
