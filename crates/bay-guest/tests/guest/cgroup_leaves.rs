//! Execs in cgroup leaves of their own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use bay_tests::suite::{self, Lack};

use crate::harness::{Guest, Options, is_root, sh};

/// A cgroup v2 group for one test, which is removed with it.
pub(crate) struct Group(PathBuf);

impl Group {
    /// Prints a line and returns None if this machine does not allow making one.
    pub(crate) fn make() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mount =
            mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>()).find(|f| f.get(2) == Some(&"cgroup2"));
        let Some(mount) = mount.filter(|_| is_root()) else {
            suite::skip(Lack::Host, "a writable cgroup v2 hierarchy is needed");
            return None;
        };
        let name =
            format!("workbay-guest-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(mount[1]).join(name);
        if let Err(error) = std::fs::create_dir(&path) {
            suite::skip(Lack::Host, &format!("no cgroup can be made: {error}"));
            return None;
        }
        Some(Self(path))
    }

    fn leaves(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir()).count()
    }

    pub(crate) fn options(&self) -> Options {
        Options { cgroup: Some(self.0.clone()), ..Options::default() }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while std::time::Instant::now() < deadline {
            for leaf in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
                let _ = std::fs::write(leaf.path().join("cgroup.kill"), "1");
                let _ = std::fs::remove_dir(leaf.path());
            }
            if std::fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            std::thread::yield_now();
        }
        eprintln!("{} could not be removed", self.0.display());
    }
}

#[tokio::test]
async fn a_command_is_born_in_its_leaf_which_goes_when_it_ends() {
    let Some(group) = Group::make() else { return };
    let guest = Guest::with(&group.options());
    let spec = sh("grep ^0:: /proc/self/cgroup; echo ready; exec sleep 1000");
    let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
    let seen = attached.until("ready").await;
    assert!(seen.contains(&format!("/{}\n", spec.id)), "{seen}");
    let procs = std::fs::read_to_string(group.0.join(spec.id.to_string()).join("cgroup.procs")).unwrap();
    assert_eq!(procs.lines().count(), 1);
    guest.signal(spec.id, 15, true).await;
    attached.collect().await;
    guest.eventually(async || (group.leaves() == 0).then_some(())).await;
}

#[tokio::test]
async fn a_tree_is_killed_as_a_whole_even_if_it_hides() {
    let Some(group) = Group::make() else { return };
    let guest = Guest::with(&group.options());
    let spec = sh(
        "env -i setsid sh -c 'env -i setsid sleep 4242 & env -i setsid sleep 4242 & wait' & sleep 4242 & echo ready; wait",
    );
    let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
    attached.until("ready").await;
    guest.signal(spec.id, 9, true).await;
    attached.collect().await;
    guest.eventually(async || (group.leaves() == 0).then_some(())).await;
    assert_eq!(guest.sh("ps ax -o args= | grep -c '[s]leep 4242'").await.out().trim(), "0");
}

#[tokio::test]
async fn a_leaf_with_a_background_child_stays_until_that_ends() {
    let Some(group) = Group::make() else { return };
    let guest = Guest::with(&group.options());
    let spec = sh("setsid sleep 4343 >/dev/null 2>&1 & echo $!");
    let got = guest.run(&spec).await;
    assert_eq!(got.code(), Some(0));
    assert_eq!(group.leaves(), 1);
    // The exec has ended, but its remaining processes can be signalled.
    guest.signal(spec.id, 15, true).await;
    guest.eventually(async || (group.leaves() == 0).then_some(())).await;
}

#[tokio::test]
async fn groups_that_an_agent_made_below_its_leaf_are_removed_with_it() {
    let Some(group) = Group::make() else { return };
    let guest = Guest::with(&group.options());
    let spec = sh("echo ready; exec sleep 1000");
    let mut attached = guest.attach(spec.id, Some(&spec), 0).await;
    attached.until("ready").await;
    let inner = group.0.join(spec.id.to_string()).join("made/by/agent");
    std::fs::create_dir_all(&inner).unwrap();
    let leader = std::fs::read_to_string(group.0.join(spec.id.to_string()).join("cgroup.procs")).unwrap();
    std::fs::write(inner.join("cgroup.procs"), leader.trim()).unwrap();
    guest.signal(spec.id, 15, true).await;
    attached.collect().await;
    guest.eventually(async || (group.leaves() == 0).then_some(())).await;
}
