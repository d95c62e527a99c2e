//! Injected faults, so that tests can show what a `kill -9` at the worst moment leaves behind.
//!
//! `runtime:STEP` makes the runtime helper die before that step. `daemon:POINT` makes the daemon kill itself:
//! * `after-intent`: a desired state is stored, nothing is done yet
//! * `after-disk`: a bay's subvolumes exist, the store does not know of them
//! * `bay-stands-still`: a bay is frozen for a checkpoint
//! * `after-snapshot`: the snapshots of a checkpoint exist, the store does not know of them
//! * `after-start`: a guest runs, the store does not know of it
//! * `before-ack`: everything is done and stored, the caller has no answer yet

/// Where the daemon can kill itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    AfterIntent,
    AfterDisk,
    BayStandsStill,
    AfterSnapshot,
    AfterStart,
    BeforeAck,
}

impl Point {
    const ALL: [(&'static str, Point); 6] = [
        ("after-intent", Point::AfterIntent),
        ("after-disk", Point::AfterDisk),
        ("bay-stands-still", Point::BayStandsStill),
        ("after-snapshot", Point::AfterSnapshot),
        ("after-start", Point::AfterStart),
        ("before-ack", Point::BeforeAck),
    ];
}

/// The fault that this daemon was started with, if any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fault {
    daemon: Option<Point>,
    /// For the runtime helper.
    pub runtime: Option<String>,
}

impl Fault {
    /// Reads `runtime:STEP` or `daemon:POINT`. Any name of a step is accepted.
    ///
    /// # Errors
    /// If the text has neither form, or names no point of the daemon.
    pub fn parse(text: Option<&str>) -> Result<Self, String> {
        let Some(text) = text else { return Ok(Self::default()) };
        match text.split_once(':') {
            Some(("runtime", step)) if !step.is_empty() => {
                Ok(Self { daemon: None, runtime: Some(step.to_owned()) })
            }
            Some(("daemon", name)) => match Point::ALL.iter().find(|(known, _)| *known == name) {
                Some((_, point)) => Ok(Self { daemon: Some(*point), runtime: None }),
                None => Err(format!("{name:?} is no point of the daemon")),
            },
            _ => Err(format!("{text:?} is neither runtime:STEP nor daemon:POINT")),
        }
    }

    /// Kills the daemon if this is the point of its fault.
    pub(crate) fn at(&self, point: Point) {
        if self.daemon == Some(point) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_odd_ones_refused() {
        assert_eq!(Fault::parse(None), Ok(Fault::default()));
        assert_eq!(Fault::parse(Some("runtime:mounts")).unwrap().runtime.as_deref(), Some("mounts"));
        assert_eq!(Fault::parse(Some("daemon:after-disk")).unwrap().daemon, Some(Point::AfterDisk));
        for odd in ["", "daemon:", "daemon:never", "runtime:", "other:x"] {
            assert!(Fault::parse(Some(odd)).is_err(), "{odd}");
        }
    }
}
