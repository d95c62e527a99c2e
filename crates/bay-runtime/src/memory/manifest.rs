//! The manifest beside the images: on what machine they were made, and what a restore has to provide.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bay_types::runtime::Criu;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Try};

/// Written last: a directory without it is no checkpoint.
const FILE: &str = "memory.json";
/// Raised when images of an earlier format can no longer be restored.
const FORMAT: u32 = 1;
/// Longest file that is read.
const MAX_BYTES: u64 = 16 << 20;
pub(super) const STEP: &str = "identity";

/// The machine on which memory was captured. A restore needs the same kernel, a processor with at least these features,
/// and the same major and minor version of CRIU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    /// Release and build of the kernel.
    pub(super) kernel: String,
    pub(super) cpu: String,
    /// The features of the processor. Programs have chosen their code by them.
    pub(super) cpu_flags: BTreeSet<String>,
    pub(super) criu: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) machine: Machine,
    pub(super) id_base: u32,
    /// Inode of the guest's socket.
    pub(super) listener: u64,
    /// Groups below the bay's own, parents first.
    pub(super) groups: Vec<PathBuf>,
}

impl Machine {
    pub(super) fn this(criu: &Criu) -> Result<Self, Failure> {
        let system = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let cpu =
            fs::read_to_string("/proc/cpuinfo").at(STEP, || "could not read /proc/cpuinfo".to_owned())?;
        let of = |key: &str| {
            let line = cpu.lines().find(|line| line.split(':').next().is_some_and(|k| k.trim() == key));
            line.and_then(|line| line.split_once(':')).map_or(String::new(), |(_, v)| v.trim().to_owned())
        };
        Ok(Self {
            kernel: format!("{} {}", text(system.release()), text(system.version())),
            cpu: of("model name"),
            cpu_flags: of("flags").split_ascii_whitespace().map(str::to_owned).collect(),
            criu: criu.version.clone(),
        })
    }

    /// Why images that were captured on `self` cannot be restored here.
    fn differs(&self, here: &Self) -> Option<String> {
        if self.kernel != here.kernel {
            return Some(format!("it was made on kernel {}, and this is {}", self.kernel, here.kernel));
        }
        let lacks: Vec<&str> =
            self.cpu_flags.difference(&here.cpu_flags).map(String::as_str).take(8).collect();
        if !lacks.is_empty() {
            return Some(format!(
                "it was made on a processor ({}) that can do what this one ({}) cannot: {}",
                self.cpu,
                here.cpu,
                lacks.join(", ")
            ));
        }
        let release = |version: &str| version.split('.').take(2).collect::<Vec<_>>().join(".");
        if release(&self.criu) != release(&here.criu) {
            return Some(format!("it was made with CRIU {}, and this host has {}", self.criu, here.criu));
        }
        None
    }
}

impl Manifest {
    pub(super) fn new(machine: Machine, id_base: u32, listener: u64, groups: Vec<PathBuf>) -> Self {
        Self { format: FORMAT, machine, id_base, listener, groups }
    }

    pub(super) fn write(&self, images: &Path) -> io::Result<()> {
        fs::write(images.join(FILE), serde_json::to_vec(self)?)
    }

    /// Reads the manifest, and refuses images from another kind of machine.
    pub(super) fn for_here(images: &Path, criu: &Criu) -> Result<Self, Failure> {
        let manifest = Self::read(images)
            .at(STEP, || format!("{} holds no memory checkpoint that is whole", images.display()))?;
        match manifest.machine.differs(&Machine::this(criu)?) {
            None => Ok(manifest),
            Some(why) => Err(Failure::new(
                STEP,
                "this memory checkpoint cannot go on here",
                io::Error::new(io::ErrorKind::Unsupported, why),
            )),
        }
    }

    fn read(images: &Path) -> io::Result<Self> {
        use std::io::Read;
        let mut text = Vec::new();
        fs::File::open(images.join(FILE))?.take(MAX_BYTES).read_to_end(&mut text)?;
        let manifest: Self = serde_json::from_slice(&text)?;
        if manifest.format != FORMAT {
            let why = format!("its form is {}, and this version reads {FORMAT}", manifest.format);
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            kernel: "6.18.0 #1 SMP".to_owned(),
            cpu: "one".to_owned(),
            cpu_flags: ["sse".to_owned(), "avx2".to_owned()].into(),
            criu: "4.2.1".to_owned(),
        }
    }

    #[test]
    fn memory_is_restored_only_on_the_same_kind_of_machine() {
        let here = machine();
        assert_eq!(machine().differs(&here), None);
        assert_eq!(Machine { criu: "4.2.3".to_owned(), ..machine() }.differs(&here), None);
        let poorer = Machine { cpu_flags: ["sse".to_owned()].into(), ..machine() };
        assert_eq!(poorer.differs(&here), None);
        assert!(here.differs(&poorer).unwrap().contains("avx2"));
        let other = Machine { kernel: "6.12.1 #1 SMP".to_owned(), ..machine() };
        assert!(other.differs(&here).unwrap().contains("6.12.1"));
        let newer = Machine { criu: "4.3".to_owned(), ..machine() };
        assert!(newer.differs(&here).unwrap().contains("CRIU 4.3"));
    }
}
