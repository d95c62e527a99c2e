//! The other programs inside this executable. Nothing else of the crate knows how they are called.

use std::process::ExitCode;

/// Runs the runtime helper, the guest, `bay-ctl` or the bench's load generator when this process was started as one.
///
/// Looks at nothing but its name and the first argument: helper and guest must be single-threaded, and both are on the
/// way to a bay's first command.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let name = arguments.next()?;
    if std::path::Path::new(&name).file_name().is_some_and(|name| name == crate::bay_ctl::NAME) {
        return Some(crate::bay_ctl::run());
    }
    let first = arguments.next()?;
    match first.to_str()? {
        "__runtime" => Some(bay_runtime::run()),
        "__guest" => Some(bay_guest::run()),
        "__load" => Some(bay_bench::load(arguments.next()?.to_str()?)),
        _ => None,
    }
}
