//! Checks of what callers request that need no I/O. The same request gets the same answer on every host of the
//! same size.

use std::path::{Component, Path};

use bay_types::bay::{BayCreate, Limits, Mount};
use bay_types::reach::MAX_REACH;
use bay_types::{Action, BayName, CoreError, ErrorCode, Hint};

use crate::host_size::HostSize;

/// The most mounts of one bay.
const MAX_MOUNTS: usize = 64;
/// The longest path that the kernel accepts.
const MAX_PATH: usize = 4095;
/// Places inside a bay that a mount must not cover: those of the kernel, our own, the workspace, and `/run`, which is
/// made in memory at every start.
const KEPT_TARGETS: [&str; 6] =
    ["/proc", "/sys", "/dev", "/run", bay_types::guest::HOME, bay_types::guest::WORKSPACE];

fn invalid(message: impl Into<String>, next: impl Into<Hint>) -> CoreError {
    CoreError::new(ErrorCode::InvalidInput, message, next)
}

pub(crate) fn name(given: &str) -> Result<BayName, CoreError> {
    given.parse().map_err(|e: bay_types::id::ParseIdError| {
        CoreError::new(
            ErrorCode::InvalidName,
            e.to_string(),
            format!("try {:?}", BayName::slug(given).as_str()),
        )
    })
}

pub(crate) fn limits(limits: &Limits, host: HostSize) -> Result<(), CoreError> {
    let low = |flag: &str, given: String, least: String| {
        Err(invalid(
            format!("{flag} {given} is too little for a bay"),
            format!("give at least {least}, or leave {flag} out"),
        ))
    };
    let high = |flag: &str, given: String, has: String| {
        Err(CoreError::new(
            ErrorCode::NotEnough,
            format!("{flag} {given} is more than this host has ({has})"),
            format!("ask for at most {has}, or leave {flag} out"),
        ))
    };
    if let Some(cpus) = limits.cpus {
        if !cpus.is_finite() || cpus < Limits::MIN_CPUS {
            return low("--cpus", cpus.to_string(), Limits::MIN_CPUS.to_string());
        }
        #[expect(clippy::cast_precision_loss, reason = "no host has 2^52 processors")]
        if cpus > host.cpus as f64 {
            return high("--cpus", cpus.to_string(), host.cpus.to_string());
        }
    }
    if let Some(memory) = limits.memory_mib {
        if memory < Limits::MIN_MEMORY_MIB {
            return low("--memory-mib", memory.to_string(), Limits::MIN_MEMORY_MIB.to_string());
        }
        if memory > host.memory_mib {
            return high("--memory-mib", memory.to_string(), host.memory_mib.to_string());
        }
    }
    if let Some(disk) = limits.disk_mib {
        if disk < Limits::MIN_DISK_MIB {
            return low("--disk-mib", disk.to_string(), Limits::MIN_DISK_MIB.to_string());
        }
        if disk > host.disk_mib {
            return Err(CoreError::new(
                ErrorCode::NotEnough,
                format!(
                    "--disk-mib {disk} is more than the pool can hold ({} MiB, with what it may still grow)",
                    host.disk_mib
                ),
                format!(
                    "ask for at most {}, leave --disk-mib out, or place the pool on a larger disk (--pool DIR)",
                    host.disk_mib
                ),
            ));
        }
    }
    if let Some(pids) = limits.pids
        && pids < Limits::MIN_PIDS
    {
        return low("--pids", pids.to_string(), Limits::MIN_PIDS.to_string());
    }
    let ranges = [
        ("--cpu-shares", limits.cpu_shares, Limits::MIN_CPU_SHARES, Limits::MAX_CPU_SHARES),
        ("--io-read-mibps", limits.io_read_mibps, Limits::MIN_IO_MIBPS, Limits::MAX_IO_MIBPS),
        ("--io-write-mibps", limits.io_write_mibps, Limits::MIN_IO_MIBPS, Limits::MAX_IO_MIBPS),
    ];
    for (flag, given, least, most) in ranges {
        if let Some(given) = given
            && !(least..=most).contains(&given)
        {
            return Err(invalid(
                format!("{flag} {given} is not between {least} and {most}"),
                format!("give a number between them, or leave {flag} out"),
            ));
        }
    }
    Ok(())
}

/// The shortest time without activity after which a bay can be stopped.
const MIN_IDLE_STOP_S: u64 = 2;
/// The longest time without activity after which a bay can be stopped: 30 days.
const MAX_IDLE_STOP_S: u64 = 30 * 24 * 60 * 60;

pub(crate) fn idle_stop(seconds: Option<u64>) -> Result<(), CoreError> {
    match seconds {
        Some(given) if !(MIN_IDLE_STOP_S..=MAX_IDLE_STOP_S).contains(&given) => Err(invalid(
            format!("--idle-stop {given}s is not between {MIN_IDLE_STOP_S} seconds and 30 days"),
            "give a time between them, such as 30m, or `off`",
        )),
        _ => Ok(()),
    }
}

/// The ports of the host that a bay may use, in order and each once.
pub(crate) fn reach(ports: &[u16]) -> Result<Vec<u16>, CoreError> {
    if ports.len() > MAX_REACH {
        return Err(invalid(
            format!("{} ports of the host were named; a bay may use at most {MAX_REACH}", ports.len()),
            "name the services that it needs",
        ));
    }
    if ports.contains(&0) {
        return Err(invalid(
            "0 is not a port of the host",
            "write --reach host:PORT with a port from 1 to 65535",
        ));
    }
    let mut ports = ports.to_vec();
    ports.sort_unstable();
    ports.dedup();
    Ok(ports)
}

/// Whether a path is absolute, without `..` and NUL, and not longer than the kernel accepts.
fn plain_absolute(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    path.is_absolute()
        && bytes.len() <= MAX_PATH
        && !bytes.contains(&0)
        && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)))
}

pub(crate) fn mounts(mounts: &[Mount]) -> Result<(), CoreError> {
    if mounts.len() > MAX_MOUNTS {
        return Err(invalid(
            format!("{} mounts are too many: a bay can have at most {MAX_MOUNTS}", mounts.len()),
            "mount a common parent directory instead",
        ));
    }
    for (i, mount) in mounts.iter().enumerate() {
        for (what, path) in [("source", &mount.source), ("target", &mount.target)] {
            if !plain_absolute(path) {
                return Err(invalid(
                    format!("the mount's {what} {:?} is not an absolute path without `..`", shown(path)),
                    "write --mount /SOURCE:/TARGET:ro with both paths absolute",
                ));
            }
        }
        if mount.target == Path::new("/") || KEPT_TARGETS.iter().any(|kept| mount.target.starts_with(kept)) {
            return Err(invalid(
                format!(
                    "{:?} in a bay belongs to the bay itself and cannot be replaced by a mount",
                    shown(&mount.target)
                ),
                "choose another target, such as one under /mnt",
            ));
        }
        let within = |other: &&Mount| {
            other.target.starts_with(&mount.target) || mount.target.starts_with(&other.target)
        };
        if let Some(other) = mounts[..i].iter().find(within) {
            return Err(invalid(
                format!(
                    "the mounts at {:?} and {:?} would cover one another",
                    shown(&other.target),
                    shown(&mount.target)
                ),
                "give each mount a target of its own that is not below another's",
            ));
        }
    }
    Ok(())
}

fn shown(path: &Path) -> String {
    let text: String = path.to_string_lossy().chars().take(200).collect();
    text
}

/// Checks everything about a new bay that needs no I/O.
pub(crate) fn create(create: &BayCreate, host: HostSize) -> Result<Option<BayName>, CoreError> {
    let name = create.name.as_deref().map(name).transpose()?;
    limits(&create.limits, host)?;
    idle_stop(create.idle_stop_s)?;
    mounts(&create.mounts)?;
    if create.author.as_ref().is_some_and(|author| !author.is_plain()) {
        return Err(invalid(
            "the author's name or address is empty, too long, or more than one line",
            "check `git config user.name` and `git config user.email`",
        ));
    }
    if create.user.as_ref().is_some_and(|user| !user.is_plain()) {
        return Err(invalid(
            "the bay's user is not a lower-case word of at most 32 letters, digits, '-' and '_', or it is root",
            "write --user agent, or leave it out for root",
        ));
    }
    if create.image.is_empty() || create.image.len() > MAX_PATH || create.image.contains('\0') {
        return Err(invalid(
            "the image's name is empty or too long",
            Hint::new("{} lists the images", [Action::ListImages]),
        ));
    }
    Ok(name)
}

/// Checks a path inside a bay, for files and archives. The guest resolves it safely.
pub(crate) fn bay_path(path: &str) -> Result<(), CoreError> {
    if path.starts_with('/') && path.len() <= MAX_PATH && !path.contains('\0') {
        return Ok(());
    }
    let shown: String = path.chars().take(100).collect();
    Err(invalid(
        format!("{shown:?} is not an absolute path of at most {MAX_PATH} bytes without NUL"),
        "write NAME:/path",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOST: HostSize = HostSize { memory_mib: 1024, cpus: 2, disk_mib: 4096 };

    #[test]
    fn ports_of_the_host_are_few_and_real_and_each_is_there_once() {
        assert_eq!(reach(&[5432, 80, 5432]).unwrap(), [80, 5432]);
        assert!(reach(&[]).unwrap().is_empty());
        assert_eq!(code(reach(&[80, 0]).map(drop)), Some(ErrorCode::InvalidInput));
        let many: Vec<u16> = (1..=17).collect();
        assert_eq!(reach(&many[..16]).unwrap().len(), MAX_REACH);
        assert_eq!(code(reach(&many).map(drop)), Some(ErrorCode::InvalidInput));
    }

    fn code(result: Result<(), CoreError>) -> Option<ErrorCode> {
        result.err().map(|e| e.code)
    }

    #[test]
    fn limits_below_the_least_are_invalid_and_above_the_host_are_not_enough() {
        let with = |cpus, memory_mib, disk_mib, pids| Limits {
            cpus,
            memory_mib,
            disk_mib,
            pids,
            ..Limits::default()
        };
        for (given, expected) in [
            (with(None, None, None, None), None),
            (with(Some(2.0), Some(1024), Some(16), Some(8)), None),
            (with(Some(0.0), None, None, None), Some(ErrorCode::InvalidInput)),
            (with(Some(-1.0), None, None, None), Some(ErrorCode::InvalidInput)),
            (with(Some(f64::NAN), None, None, None), Some(ErrorCode::InvalidInput)),
            (with(Some(f64::INFINITY), None, None, None), Some(ErrorCode::InvalidInput)),
            (with(Some(2.5), None, None, None), Some(ErrorCode::NotEnough)),
            (with(None, Some(15), None, None), Some(ErrorCode::InvalidInput)),
            (with(None, Some(1025), None, None), Some(ErrorCode::NotEnough)),
            (with(None, None, Some(1), None), Some(ErrorCode::InvalidInput)),
            (with(None, None, Some(4096), None), None),
            (with(None, None, Some(4097), None), Some(ErrorCode::NotEnough)),
            (with(None, None, Some(u64::MAX), None), Some(ErrorCode::NotEnough)),
            (with(None, None, None, Some(1)), Some(ErrorCode::InvalidInput)),
        ] {
            assert_eq!(code(limits(&given, HOST)), expected, "{given:?}");
        }
    }

    #[test]
    fn shares_speeds_and_idle_times_have_bounds() {
        let shares = |n| limits(&Limits { cpu_shares: Some(n), ..Limits::default() }, HOST).is_ok();
        assert_eq!([15, 16, 65536, 65537].map(shares), [false, true, true, false]);
        let reads = |n| limits(&Limits { io_read_mibps: Some(n), ..Limits::default() }, HOST).is_ok();
        let writes = |n| limits(&Limits { io_write_mibps: Some(n), ..Limits::default() }, HOST).is_ok();
        for n in [0, u64::MAX] {
            assert!(!reads(n) && !writes(n) && !shares(n));
        }
        assert!(reads(1) && writes(1));
        let idle = |n| idle_stop(Some(n)).is_ok();
        assert_eq!([0, 1, 2, 1800, 2_592_000, 2_592_001].map(idle), [false, false, true, true, true, false]);
        assert!(idle_stop(None).is_ok());
    }

    #[test]
    fn mounts_stay_out_of_what_is_the_bay_s_own() {
        let mount = |source: &str, target: &str| Mount { source: source.into(), target: target.into() };
        for (source, target, fits) in [
            ("/srv", "/mnt/srv", true),
            ("/srv", "/process", true),
            ("srv", "/mnt", false),
            ("/srv/../etc", "/mnt", false),
            ("/srv", "mnt", false),
            ("/srv", "/", false),
            ("/srv", "/proc", false),
            ("/srv", "/sys/fs", false),
            ("/srv", "/dev/null", false),
            ("/srv", "/.bay/run", false),
            ("/srv", "/a/../proc", false),
            ("/srv", "/workspace", false),
            ("/srv", "/workspace/sub", false),
            ("/srv", "/workspaces", true),
            ("/srv", "/run", false),
            ("/srv", "/run/secrets", false),
            ("/srv", "/.bay", false),
        ] {
            assert_eq!(mounts(&[mount(source, target)]).is_ok(), fits, "{source} {target}");
        }
        assert!(mounts(&[mount("/a", "/m"), mount("/b", "/m")]).is_err());
        assert!(mounts(&[mount("/a", "/m"), mount("/b", "/m/x")]).is_err());
        assert!(mounts(&[mount("/a", "/m/x/y"), mount("/b", "/m")]).is_err());
        assert!(mounts(&[mount("/a", "/m/x"), mount("/b", "/m/y"), mount("/b", "/mm")]).is_ok());
        assert!(mounts(&vec![mount("/a", "/m"); MAX_MOUNTS + 1]).is_err());
    }

    #[test]
    fn a_bad_name_comes_with_a_good_one() {
        let error = name("My Project!").unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidName);
        assert!(error.hint.worded(|_| None).contains("my-project"), "{error:?}");
    }

    proptest! {
        #[test]
        fn no_path_leaves_the_rules(target in "(/|\\.\\.|proc|a|\\PC){0,20}") {
            if mounts(&[Mount { source: "/a".into(), target: target.clone().into() }]).is_ok() {
                prop_assert!(target.starts_with('/'));
                prop_assert!(!target.split('/').any(|part| part == ".."));
                prop_assert!(!Path::new(&target).starts_with("/proc"));
            }
        }
    }
}
