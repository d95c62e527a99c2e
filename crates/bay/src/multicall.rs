//! The other programs inside this executable, each with the name or the first argument that starts it.

use std::process::ExitCode;

/// Runs the runtime helper, the guest, `bay-ctl` or the bench's load generator if this process was started as one.
///
/// It decides by the program name and the first argument alone, before any thread exists. Helper and guest must be
/// single-threaded, and the time that this takes delays a bay's first command.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let name = arguments.next()?;
    if std::path::Path::new(&name).file_name().is_some_and(|name| name == bay_cli::bay_ctl::NAME) {
        return Some(bay_cli::bay_ctl::run());
    }
    let first = arguments.next()?;
    match first.to_str()? {
        "__runtime" => Some(bay_runtime::run()),
        "__guest" => Some(bay_guest::run()),
        "__load" => Some(bay_bench::load(arguments.next()?.to_str()?)),
        _ => None,
    }
}
