//! Calls made by a process of ours that waits in a system call of its own: it is stopped, made to make them, and goes on
//! waiting as if nothing had happened.
//!
//! For one purpose: a program that insists on beginning as root, started by us, is to act as another user from a point
//! on that it tells us about. No capability is lost by that.

use std::io;

/// Gives a process that waits in a system call other ids, real, effective and saved, while its capabilities stay, and
/// lets its files below `/proc` belong to them.
///
/// # Errors
/// What the kernel says; `ErrorKind::Unsupported` on processors this was not written for, and when the process is not
/// waiting in a system call.
pub fn change_ids(pid: i32, id: u32) -> io::Result<()> {
    const KEEP_CAPABILITIES: u64 = 1 << 2;
    const DUMPABLE: u64 = 1;
    let id = u64::from(id);
    platform::make_calls(
        pid,
        &[
            (libc::SYS_prctl, [libc::PR_SET_SECUREBITS.unsigned_abs().into(), KEEP_CAPABILITIES, 0]),
            (libc::SYS_setresgid, [id, id, id]),
            (libc::SYS_setresuid, [id, id, id]),
            (libc::SYS_prctl, [libc::PR_SET_DUMPABLE.unsigned_abs().into(), DUMPABLE, 0]),
        ],
    )
}

#[cfg(target_arch = "x86_64")]
mod platform {
    use std::io;
    use std::mem::MaybeUninit;
    use std::ptr;

    /// The two bytes of the instruction `syscall`.
    const SYSCALL: i64 = 0x050f;
    const SYSCALL_LENGTH: u64 = 2;
    const TWO_BYTES: i64 = 0xffff;
    /// In the place of a system call's number: none that the kernel would begin again.
    const NO_CALL: u64 = u64::MAX;

    pub(super) fn make_calls(pid: i32, calls: &[(libc::c_long, [u64; 3])]) -> io::Result<()> {
        let traced = Traced::stop(pid)?;
        let registers = traced.registers()?;
        if traced.word(registers.rip - SYSCALL_LENGTH)? & TWO_BYTES != SYSCALL {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the process is not in a system call"));
        }
        let made = calls.iter().try_for_each(|&(number, arguments)| {
            let mut asked = registers;
            asked.rip = registers.rip - SYSCALL_LENGTH;
            asked.rax = number.unsigned_abs();
            asked.orig_rax = NO_CALL;
            [asked.rdi, asked.rsi, asked.rdx] = arguments;
            (asked.r10, asked.r8) = (0, 0);
            traced.set_registers(&asked)?;
            traced.step()?;
            let answer = traced.registers()?.rax.cast_signed();
            let refused = i32::try_from(-answer).ok().filter(|errno| (1..4096).contains(errno));
            refused.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
        });
        traced.set_registers(&registers)?;
        made
    }

    /// A stopped process. It goes on when this is dropped.
    struct Traced(i32);

    impl Traced {
        fn stop(pid: i32) -> io::Result<Self> {
            ask(libc::PTRACE_SEIZE, pid, 0, ptr::null_mut())?;
            let traced = Self(pid);
            ask(libc::PTRACE_INTERRUPT, pid, 0, ptr::null_mut())?;
            traced.wait()?;
            Ok(traced)
        }

        fn wait(&self) -> io::Result<()> {
            let mut status = 0;
            // SAFETY: `status` is valid for writing. Needed because the library's wrapper does not know __WALL.
            if unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) } < 0 {
                return Err(io::Error::last_os_error());
            }
            if libc::WIFSTOPPED(status) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
        }

        fn step(&self) -> io::Result<()> {
            ask(libc::PTRACE_SINGLESTEP, self.0, 0, ptr::null_mut())?;
            self.wait()
        }

        fn registers(&self) -> io::Result<libc::user_regs_struct> {
            let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
            ask(libc::PTRACE_GETREGS, self.0, 0, registers.as_mut_ptr().cast())?;
            // SAFETY: zeroed numbers are valid, and the kernel has filled them in.
            Ok(unsafe { registers.assume_init() })
        }

        fn set_registers(&self, registers: &libc::user_regs_struct) -> io::Result<()> {
            ask(libc::PTRACE_SETREGS, self.0, 0, ptr::from_ref(registers).cast_mut().cast())
        }

        /// What is at an address of its memory.
        fn word(&self, address: u64) -> io::Result<i64> {
            // SAFETY: reads the other process's memory; zero is set first because minus one is also a valid answer.
            unsafe {
                *libc::__errno_location() = 0;
                let word = libc::ptrace(libc::PTRACE_PEEKTEXT, self.0, address, 0);
                let failed = *libc::__errno_location();
                if failed == 0 { Ok(word) } else { Err(io::Error::from_raw_os_error(failed)) }
            }
        }
    }

    impl Drop for Traced {
        fn drop(&mut self) {
            let _ = ask(libc::PTRACE_DETACH, self.0, 0, ptr::null_mut());
        }
    }

    fn ask(request: libc::c_uint, pid: i32, address: u64, data: *mut libc::c_void) -> io::Result<()> {
        // SAFETY: `data` is null or points to a whole register set, for the two requests that use it; the others touch
        // nothing of ours. Needed because no library offers ptrace.
        let done = unsafe { libc::ptrace(request, pid, address, data) };
        if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod platform {
    use std::io;

    pub(super) fn make_calls(_pid: i32, _calls: &[(libc::c_long, [u64; 3])]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "written for x86-64 only"))
    }
}
