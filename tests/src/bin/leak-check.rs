//! `leak-check check` runs after the suites. It lists what they left on the host, closes the shared pool, and fails if
//! there was anything. `leak-check clean` removes everything of an earlier run, whatever its state.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use bay_tests::leaks::{self, Leak};
use bay_tests::suite;
use bay_tests::wait::{PATIENCE, within};

fn main() -> ExitCode {
    let dir = suite::place();
    if !dir.exists() {
        return ExitCode::SUCCESS;
    }
    if !suite::is_ours(&dir) {
        eprintln!("{} was not made by the tests, so it is left alone; set BAY_TEST_DIR", dir.display());
        return ExitCode::FAILURE;
    }
    match std::env::args().nth(1).as_deref() {
        Some("check") => check(&dir),
        Some("clean") => {
            clean(&dir);
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: leak-check check|clean   (in BAY_TEST_DIR or its default)");
            ExitCode::from(2)
        }
    }
}

fn check(dir: &Path) -> ExitCode {
    let mut found = leaks::of_suite(dir);
    let pool = dir.join("pool");
    leaks::close_pool(&pool);
    // A device is detached when the last mount namespace with a copy of its mount has ended. Any program that is making
    // namespaces has such a copy for a while.
    let _ = within(PATIENCE, || leaks::loop_devices(&pool).is_empty().then_some(()));
    found.extend(
        leaks::loop_devices(&pool).into_iter().map(|(device, file)| Leak::LoopDevice { device, file }),
    );
    found.extend(leaks::mounts(&pool).into_iter().map(Leak::Mount));
    let _ = fs::remove_dir_all(&pool);
    if found.is_empty() {
        println!("nothing was left: no process, mount, cgroup, loop device, subvolume or file");
        return ExitCode::SUCCESS;
    }
    println!("left on the host by the suites:");
    for leak in found {
        println!("  {leak}");
    }
    ExitCode::FAILURE
}

fn clean(dir: &Path) {
    let daemons = leaks::daemons_of_suite(dir);
    leaks::clear(dir, &daemons);
    for pool in fs::read_dir(dir.join("p")).into_iter().flatten().filter_map(Result::ok) {
        leaks::close_pool(&pool.path());
    }
    leaks::close_pool(&dir.join("pool"));
    leaks::unmount_below(dir);
    if leaks::mounts(dir).is_empty() {
        let _ = fs::remove_dir_all(dir);
    }
}
