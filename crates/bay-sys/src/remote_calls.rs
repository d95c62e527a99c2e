//! System calls that another process is made to make: it is stopped, makes the calls, and continues where it was.
//!
//! There are two uses. CRIU insists on starting as root, but must act as another user from a certain point on, without
//! losing a capability. And a killed CRIU leaves code in processes, which must be unmapped.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};

/// How long a program that this project started may take to stop.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

/// How often a process is checked that is not in a system call yet.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Sets the real, effective and saved ids of a process, keeps its capabilities, and makes its files below `/proc`
/// belong to these ids. The process makes the calls with the system call instruction in which it waits. If it is not in
/// a system call, because it was just forked, this waits until it is.
///
/// # Errors
/// The error of the kernel; `ErrorKind::WouldBlock` if it does not come to a system call; `ErrorKind::Unsupported` on
/// other processors than x86-64.
pub fn change_ids(pid: i32, id: u32) -> io::Result<()> {
    const KEEP_CAPABILITIES: u64 = 1 << 2;
    const DUMPABLE: u64 = 1;
    let id = u64::from(id);
    let calls = [
        (libc::SYS_prctl, [libc::PR_SET_SECUREBITS.unsigned_abs().into(), KEEP_CAPABILITIES, 0]),
        (libc::SYS_setresgid, [id, id, id]),
        (libc::SYS_setresuid, [id, id, id]),
        (libc::SYS_prctl, [libc::PR_SET_DUMPABLE.unsigned_abs().into(), DUMPABLE, 0]),
    ];
    let until = Instant::now() + STOPS_WITHIN;
    loop {
        let made = platform::Stopped::new(pid, until)?.make_calls(None, &calls);
        match made {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                let _ = poll(&mut [], Some(&LOOK_EVERY));
            }
            made => return made,
        }
    }
}

/// Unmaps ranges of a process's memory. The process makes the calls with the instruction in which it waits, or with one
/// from its `vdso`. Once the process is stopped, its pid cannot be reused; then `is_it` checks that it is the right
/// one.
///
/// # Errors
/// The error of the kernel; `ErrorKind::NotFound` if it is another process; `ErrorKind::TimedOut` if it does not stop in
/// time, for example because it waits for its own child; `ErrorKind::WouldBlock` while it runs code in one of the ranges, or
/// if no instruction is found; `ErrorKind::Unsupported` on other processors than x86-64.
pub fn unmap(
    pid: i32,
    is_it: impl FnOnce() -> bool,
    until: Instant,
    ranges: &[Range<u64>],
    vdso: Option<Range<u64>>,
) -> io::Result<()> {
    let calls: Vec<_> =
        ranges.iter().map(|range| (libc::SYS_munmap, [range.start, range.end - range.start, 0])).collect();
    let stopped = platform::Stopped::new(pid, until)?;
    if !is_it() {
        return Err(io::ErrorKind::NotFound.into());
    }
    if ranges.iter().any(|range| range.contains(&stopped.at())) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    stopped.make_calls(vdso, &calls)
}

#[cfg(target_arch = "x86_64")]
mod platform {
    use std::cell::RefCell;
    use std::io;
    use std::mem::MaybeUninit;
    use std::ops::Range;
    use std::ptr;
    use std::time::Instant;

    use rustix::event::{Timespec, poll};

    /// The two bytes of the instruction `syscall`.
    const SYSCALL: i64 = 0x050f;
    const SYSCALL_LENGTH: u64 = 2;
    const TWO_BYTES: i64 = 0xffff;
    /// Replaces the number of a system call, so that the kernel restarts none.
    const NO_CALL: u64 = u64::MAX;

    /// The first pause before the process is checked again for a stop. The pauses become longer.
    const FIRST_ROUND: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000 };
    /// The longest pause between two checks, in nanoseconds.
    const LONGEST_ROUND: i64 = 5_000_000;
    /// Most other stops that are passed over before the requested one, so that a hostile process cannot delay the
    /// caller for ever.
    const MAX_STOPS: usize = 100;
    /// Most bytes of a `vdso` that are searched.
    const MAX_SEARCHED: u64 = 64 << 10;

    /// A stopped process. Dropping this lets it continue where it was.
    pub(super) struct Stopped {
        pid: i32,
        registers: libc::user_regs_struct,
        /// Signals that arrived meanwhile.
        signals: RefCell<Vec<i32>>,
        /// When to stop waiting. A process that waits in the kernel may never stop.
        until: Instant,
    }

    impl Stopped {
        pub(super) fn new(pid: i32, until: Instant) -> io::Result<Self> {
            ask(libc::PTRACE_SEIZE, pid, 0, ptr::null_mut())?;
            // From here on, dropping it releases the process.
            let mut stopped = Self { pid, registers: empty(), signals: RefCell::default(), until };
            ask(libc::PTRACE_INTERRUPT, pid, 0, ptr::null_mut())?;
            stopped.wait(|status| status >> 16 == libc::PTRACE_EVENT_STOP, libc::PTRACE_CONT)?;
            // The process's own seccomp filters must not apply to these calls. Not every kernel can suspend them.
            let _ = ask(libc::PTRACE_SETOPTIONS, pid, 0, libc::PTRACE_O_SUSPEND_SECCOMP as *mut libc::c_void);
            stopped.registers = stopped.read_registers()?;
            Ok(stopped)
        }

        /// The address of its next instruction.
        pub(super) fn at(&self) -> u64 {
            self.registers.rip
        }

        /// Makes the calls, with the instruction at its present address or one that is found in `elsewhere`.
        pub(super) fn make_calls(
            &self,
            elsewhere: Option<Range<u64>>,
            calls: &[(libc::c_long, [u64; 3])],
        ) -> io::Result<()> {
            let own = self.registers.rip.wrapping_sub(SYSCALL_LENGTH);
            let instruction = if self.is_syscall(own) { Some(own) } else { self.find_syscall(elsewhere) };
            let Some(instruction) = instruction else {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "the process is not in a system call"));
            };
            let made =
                calls.iter().try_for_each(|(number, arguments)| self.call(instruction, *number, *arguments));
            self.set_registers(&self.registers)?;
            made
        }

        fn call(&self, instruction: u64, number: libc::c_long, arguments: [u64; 3]) -> io::Result<()> {
            let mut asked = self.registers;
            asked.rip = instruction;
            asked.rax = number.unsigned_abs();
            asked.orig_rax = NO_CALL;
            [asked.rdi, asked.rsi, asked.rdx] = arguments;
            (asked.r10, asked.r8) = (0, 0);
            self.set_registers(&asked)?;
            ask(libc::PTRACE_SINGLESTEP, self.pid, 0, ptr::null_mut())?;
            let stepped = |status| status >> 16 == 0 && libc::WSTOPSIG(status) == libc::SIGTRAP;
            self.wait(stepped, libc::PTRACE_SINGLESTEP)?;
            let answer = self.read_registers()?.rax.cast_signed();
            let refused = i32::try_from(-answer).ok().filter(|errno| (1..4096).contains(errno));
            refused.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
        }

        fn is_syscall(&self, address: u64) -> bool {
            self.word(address).is_ok_and(|word| word & TWO_BYTES == SYSCALL)
        }

        fn find_syscall(&self, range: Option<Range<u64>>) -> Option<u64> {
            let range = range?;
            (range.start..range.end.min(range.start + MAX_SEARCHED)).find(|at| self.is_syscall(*at))
        }

        /// Waits for a certain stop. Signals that arrive before it are delivered later.
        fn wait(&self, wanted: impl Fn(i32) -> bool, go_on: libc::c_uint) -> io::Result<()> {
            for _ in 0..MAX_STOPS {
                let status = self.next_status()?;
                if !libc::WIFSTOPPED(status) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                if wanted(status) {
                    return Ok(());
                }
                if status >> 16 == 0 {
                    self.signals.borrow_mut().push(libc::WSTOPSIG(status));
                }
                ask(go_on, self.pid, 0, ptr::null_mut())?;
            }
            Err(io::ErrorKind::TimedOut.into())
        }

        fn next_status(&self) -> io::Result<i32> {
            let mut round = FIRST_ROUND;
            loop {
                let mut status = 0;
                let flags = libc::__WALL | libc::WNOHANG;
                // SAFETY: `status` is valid for writing. Needed because the library's wrapper does not support __WALL.
                match unsafe { libc::waitpid(self.pid, &raw mut status, flags) } {
                    0 if Instant::now() > self.until => return Err(io::ErrorKind::TimedOut.into()),
                    0 => drop(poll(&mut [], Some(&round))),
                    pid if pid < 0 => return Err(io::Error::last_os_error()),
                    _ => return Ok(status),
                }
                round.tv_nsec = LONGEST_ROUND.min(round.tv_nsec * 2);
            }
        }

        fn read_registers(&self) -> io::Result<libc::user_regs_struct> {
            let mut registers = empty();
            ask(libc::PTRACE_GETREGS, self.pid, 0, ptr::from_mut(&mut registers).cast())?;
            Ok(registers)
        }

        fn set_registers(&self, registers: &libc::user_regs_struct) -> io::Result<()> {
            ask(libc::PTRACE_SETREGS, self.pid, 0, ptr::from_ref(registers).cast_mut().cast())
        }

        /// The word at an address of its memory.
        fn word(&self, address: u64) -> io::Result<i64> {
            // SAFETY: reads the other process's memory. errno is cleared first, because -1 is also a valid result.
            unsafe {
                *libc::__errno_location() = 0;
                let word = libc::ptrace(libc::PTRACE_PEEKTEXT, self.pid, address, 0);
                let failed = *libc::__errno_location();
                if failed == 0 { Ok(word) } else { Err(io::Error::from_raw_os_error(failed)) }
            }
        }
    }

    impl Drop for Stopped {
        fn drop(&mut self) {
            let _ = ask(libc::PTRACE_DETACH, self.pid, 0, ptr::null_mut());
            for signal in self.signals.borrow().iter() {
                let _ = crate::spawn::signal_process(self.pid, *signal);
            }
        }
    }

    fn empty() -> libc::user_regs_struct {
        // SAFETY: the registers are plain numbers, for which zero is valid.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    fn ask(request: libc::c_uint, pid: i32, address: u64, data: *mut libc::c_void) -> io::Result<()> {
        // SAFETY: `data` is null or points to a whole register set, for the two requests that use it; the others access
        // no memory of this process. Needed because no library offers ptrace.
        let done = unsafe { libc::ptrace(request, pid, address, data) };
        if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod platform {
    use std::io;
    use std::ops::Range;
    use std::time::Instant;

    pub(super) struct Stopped;

    impl Stopped {
        pub(super) fn new(_pid: i32, _until: Instant) -> io::Result<Self> {
            Err(io::Error::new(io::ErrorKind::Unsupported, "written for x86-64 only"))
        }

        pub(super) fn at(&self) -> u64 {
            0
        }

        pub(super) fn make_calls(
            &self,
            _elsewhere: Option<Range<u64>>,
            _calls: &[(libc::c_long, [u64; 3])],
        ) -> io::Result<()> {
            Ok(())
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_busy_process_gets_its_ids_at_its_next_system_call() {
        // It counts for a while without a system call, like a process that was just forked.
        let counting = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exec sleep 60";
        let mut child = Command::new("sh").args(["-c", counting]).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let became = change_ids(pid, 12345);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        child.kill().unwrap();
        child.wait().unwrap();
        match became {
            // Only the host's root may set ids.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
            became => {
                became.unwrap();
                let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
                assert!(ids.split_ascii_whitespace().take(3).all(|id| id == "12345"), "{ids}");
            }
        }
    }
}
