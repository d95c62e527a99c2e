//! How large the host is: what bays may ask for is bounded by it.

/// What the host has to give.
#[derive(Debug, Clone, Copy)]
pub struct HostSize {
    pub memory_mib: u64,
    pub cpus: u64,
    /// What the pool can come to hold.
    pub disk_mib: u64,
}

impl HostSize {
    pub fn here() -> Self {
        let memory = rustix::system::sysinfo();
        let bytes = u64::from(memory.mem_unit).saturating_mul(memory.totalram as u64);
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        // The pool grows and its disk fills up, so its size is asked for when it matters.
        Self { memory_mib: bytes >> 20, cpus, disk_mib: u64::MAX }
    }
}
