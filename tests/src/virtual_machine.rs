//! A host unlike this one: a virtual machine with its own kernel and cgroup layout.
//!
//! It has no disk and no network card. Its initial file tree contains everything it needs: busybox, the `bay` under
//! test, `mkfs.btrfs`, a few kernel modules, an image for bays and the test's script. The script writes to the serial
//! console. A line `@@ NAME VALUE` is a result; everything else is for a person who investigates a failure.
//!
//! The processor is emulated in software: slower, but the same on every machine, and without `/dev/kvm`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::image::{self, which};
use crate::suite::{self, Lack, Scratch};
use crate::wait::within;

/// Set by `./test`: the kernel to boot.
const KERNEL: &str = "BAY_TEST_KERNEL";
/// Set by `./test`: the directory of the kernel's modules.
const MODULES: &str = "BAY_TEST_MODULES";
const EMULATOR: &str = "qemu-system-x86_64";
/// Modules of the kernel that bays need.
const NEEDED_MODULES: [&str; 3] = ["btrfs", "loop", "veth"];
/// Enough for the file tree twice, the pool and a few bays.
const MEMORY_MIB: u32 = 768;
/// Time limit from the boot to the end of the script. Generous, for overloaded machines.
const DEADLINE: Duration = Duration::from_secs(200);

/// How a machine's control groups are mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cgroups {
    /// Only version 2, as in current distributions.
    V2,
    /// The controllers of version 1, and no version 2.
    V1,
}

/// The files to boot a machine.
#[derive(Debug)]
pub struct Machine {
    kernel: PathBuf,
    modules: PathBuf,
}

/// The results of a machine's script.
#[derive(Debug)]
pub struct Said {
    answers: BTreeMap<String, String>,
    console: String,
}

impl Machine {
    /// Finds what `./test` has downloaded. If it is missing, the calling test counts as skipped.
    #[must_use]
    pub fn find() -> Option<Self> {
        let from = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.exists());
        match (which(EMULATOR), from(KERNEL), from(MODULES)) {
            (Some(_), Some(kernel), Some(modules)) => Some(Self { kernel, modules }),
            (None, ..) => {
                suite::skip(Lack::Installable, "qemu-system-x86_64 is not installed");
                None
            }
            _ => {
                suite::skip(
                    Lack::Installable,
                    "no kernel for a virtual machine (BAY_TEST_KERNEL, BAY_TEST_MODULES)",
                );
                None
            }
        }
    }

    /// Boots, runs a shell script as root, and powers off.
    ///
    /// # Panics
    /// If the script does not come to its end; shows the console.
    #[must_use]
    pub fn run(&self, cgroups: Cgroups, script: &str) -> Said {
        let scratch = Scratch::new();
        let tree = scratch.join("tree");
        self.plant(&tree, script);
        let packed = scratch.join("tree.cpio");
        pack(&tree, &packed);
        let console = scratch.join("console");
        let mut child = self.boot(cgroups, &packed, &console);
        let ended = within(DEADLINE, || child.try_wait().unwrap());
        if ended.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let said = Said::read(&String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()));
        assert!(
            said.answers.contains_key("ended"),
            "the machine ended with {ended:?} and its script did not:\n{}",
            said.console
        );
        said
    }

    fn boot(&self, cgroups: Cgroups, tree: &Path, console: &Path) -> Child {
        let layout = match cgroups {
            Cgroups::V2 => "v2",
            Cgroups::V1 => "v1",
        };
        let mut command = Command::new(EMULATOR);
        command.args(["-M", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "2"]);
        command.args(["-m", &MEMORY_MIB.to_string()]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-net", "none"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(tree);
        // A kernel panic and the end of the script both reset the machine, and a reset ends the emulator.
        command.args(["-append", &format!("console=ttyS0 quiet panic=-1 reboot=t layout={layout}")]);
        command.arg("-serial").arg(format!("file:{}", console.display()));
        let errors = File::create(console.with_extension("errors")).unwrap();
        command.stdin(Stdio::null()).stdout(errors.try_clone().unwrap()).stderr(errors);
        command.spawn().unwrap()
    }

    /// Makes the machine's file tree.
    fn plant(&self, tree: &Path, script: &str) {
        image::base(tree);
        image::base(&tree.join("image"));
        for dir in ["usr/sbin", "var/lib"] {
            fs::create_dir_all(tree.join(dir)).unwrap();
        }
        stripped(&suite::binary(), &tree.join("usr/bin/bay"));
        let mkfs =
            which("mkfs.btrfs").expect("mkfs.btrfs is missing: ./test installs it (package btrfs-progs)");
        image::copy(&mkfs, &tree.join("usr/sbin/mkfs.btrfs"));
        image::libraries_of(&mkfs, tree);
        self.plant_modules(tree);
        fs::write(tree.join("script"), script).unwrap();
        let init = tree.join("init");
        fs::write(&init, include_str!("virtual_machine/init.sh")).unwrap();
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn plant_modules(&self, tree: &Path) {
        let index = fs::read_to_string(self.modules.join("modules.dep")).unwrap();
        let version = self.modules.file_name().unwrap();
        let to = tree.join("lib/modules").join(version);
        // Drivers that are built into the kernel are not in the index, and are not needed as modules.
        let present: Vec<&str> =
            NEEDED_MODULES.into_iter().filter(|name| !files_of(&index, name).is_empty()).collect();
        let files: BTreeSet<&str> = present.iter().flat_map(|name| files_of(&index, name)).collect();
        for file in files {
            let copy = to.join(file);
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            image::copy(&self.modules.join(file), &copy);
        }
        fs::create_dir_all(&to).unwrap();
        fs::write(to.join("modules.dep"), &index).unwrap();
        fs::write(tree.join("modules"), format!("{}\n", present.join("\n"))).unwrap();
    }
}

/// Files of a module and its dependencies, from lines like `kernel/a/b.ko: kernel/c.ko kernel/d.ko`.
fn files_of<'a>(index: &'a str, module: &str) -> Vec<&'a str> {
    let line = index.lines().find(|line| {
        let file = line.split(':').next().unwrap_or_default();
        let name = file.rsplit('/').next().unwrap_or_default();
        name.split('.').next() == Some(module)
    });
    line.map(|line| line.split([':', ' ']).filter(|file| !file.is_empty()).collect()).unwrap_or_default()
}

/// Copies an executable without debug information, so that the machine boots faster and needs less memory.
fn stripped(from: &Path, to: &Path) {
    let stripped = Command::new("strip").arg("-o").arg(to).arg(from).status();
    if !stripped.is_ok_and(|status| status.success()) {
        image::copy(from, to);
    }
}

fn pack(tree: &Path, packed: &Path) {
    let list = "find . | busybox cpio -o -H newc";
    let output = Command::new("sh")
        .args(["-c", list])
        .current_dir(tree)
        .stdout(File::create(packed).unwrap())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(output.status.success(), "{list}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Said {
    fn read(console: &str) -> Self {
        let lines = console.lines().filter_map(|line| line.trim().strip_prefix("@@ "));
        let answers = lines.map(|line| {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            (name.to_owned(), value.to_owned())
        });
        Self { answers: answers.collect(), console: console.to_owned() }
    }

    /// # Panics
    /// If the script did not say it; shows the console.
    #[track_caller]
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        match self.answers.get(name) {
            Some(value) => value,
            None => panic!("the script did not say {name}:\n{}", self.console),
        }
    }

    /// # Panics
    /// If it is not a number.
    #[track_caller]
    #[must_use]
    pub fn number(&self, name: &str) -> i64 {
        match self.text(name).parse() {
            Ok(number) => number,
            Err(_) => panic!("{name} is {:?}, not a number:\n{}", self.text(name), self.console),
        }
    }

    /// # Panics
    /// If it is not JSON.
    #[track_caller]
    #[must_use]
    pub fn json(&self, name: &str) -> Value {
        match serde_json::from_str(self.text(name)) {
            Ok(value) => value,
            Err(error) => panic!("{name} is not JSON ({error}):\n{}", self.console),
        }
    }

    /// Everything on the console, for messages.
    #[must_use]
    pub fn console(&self) -> &str {
        &self.console
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_with_its_dependencies() {
        let index = "kernel/fs/btrfs/btrfs.ko: kernel/lib/raid6/raid6_pq.ko kernel/crypto/xor.ko\n\
                     kernel/drivers/net/veth.ko.xz:\n";
        assert_eq!(files_of(index, "veth"), ["kernel/drivers/net/veth.ko.xz"]);
        assert_eq!(files_of(index, "btrfs").len(), 3);
        assert!(files_of(index, "loop").is_empty());
    }

    #[test]
    fn results_are_distinguished_from_kernel_messages() {
        let said = Said::read("[ 0.1] Linux\r\n@@ pids 40\r\n@@ doctor {\"fit\": true}\r\nnoise @@ pids 9\n");
        assert_eq!(said.number("pids"), 40);
        assert_eq!(said.json("doctor")["fit"], true);
    }
}
