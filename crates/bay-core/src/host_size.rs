//! The size of the host, which bounds the limits of bays.

/// What bays can get from the host.
#[derive(Debug, Clone, Copy)]
pub struct HostSize {
    pub memory_mib: u64,
    pub cpus: u64,
    /// The size that the pool can reach, or no bound if nobody has read it yet.
    pub disk_mib: u64,
}

impl HostSize {
    /// The memory of this host, and the processors that this process may use.
    pub fn here() -> Self {
        let memory = rustix::system::sysinfo();
        let bytes = u64::from(memory.mem_unit).saturating_mul(memory.totalram as u64);
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        // The pool grows and its disk fills up, so its size is read when it is needed.
        Self { memory_mib: bytes >> 20, cpus, disk_mib: u64::MAX }
    }
}
