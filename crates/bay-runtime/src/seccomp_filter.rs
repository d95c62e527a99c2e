//! The system calls that a bay may make.
//!
//! Three filters, because each refuses with its own error:
//!
//! 1. an allowlist. Any other call *does not exist* (`ENOSYS`), so that programs fall back as on an older kernel. It does
//!    not contain io_uring (it cannot be checkpointed and has a long record of kernel defects), keyrings (not namespaced)
//!    and the descriptor-based mount calls (programs fall back to `mount`);
//! 2. calls that are *not permitted* (`EPERM`): those that concern the whole host ([`FORBIDDEN`]); all ioctls of
//!    btrfs but [`BTRFS_ALLOWED`] (a subvolume made by an agent would be empty in every checkpoint; others list the
//!    pool's subvolumes or show how much all bays have written); terminal injection; and limits of another process
//!    that would end it, because the kernel lets the bay's root set those of PID 1;
//! 3. socket families other than [`SOCKET_FAMILIES`], such as vsock, are *not supported* (`EAFNOSUPPORT`).
//!
//! None of this sets `no_new_privs`, so sudo works. Programs for another architecture than the host's are killed.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// Socket families whose traffic stays in the network namespace.
const SOCKET_FAMILIES: [i32; 5] =
    [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET];

/// `BTRFS_IOCTL_MAGIC`, the second byte of every btrfs ioctl and of those that other filesystems adopted from it.
const BTRFS_MAGIC: u64 = 0x94;
/// Selects the byte of the magic, without the bits of number, size and direction.
const IOCTL_MAGIC_MASK: u64 = 0xff00;
/// The ioctls with this magic that programs need and that show nothing of the pool. Each is the whole request, as the
/// kernel compares it. The others make, remove or send subvolumes, number them (`INO_LOOKUP`, `INO_LOOKUP_USER`,
/// `GET_SUBVOL_INFO`, `GET_SUBVOL_ROOTREF`, `SUBVOL_SYNC_WAIT`), show what all bays together have written and when
/// (`SPACE_INFO`, `FS_INFO`, `DEV_INFO`, `GET_DEV_STATS`, `START_SYNC`, `WAIT_SYNC`), or need rights on the host.
const BTRFS_ALLOWED: [u64; 6] = [
    0x4004_9409, // FICLONE
    0x4020_940d, // FICLONERANGE
    0xc018_9436, // FIDEDUPERANGE
    0x8100_9431, // FS_IOC_GETFSLABEL
    0x5000_9402, // BTRFS_IOC_DEFRAG
    0x4030_9410, // BTRFS_IOC_DEFRAG_RANGE
];

const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;

/// Limits that end a process, or make each of its allocations or writes fail. The kernel lets root in a user namespace
/// set them for every process there, even for PID 1, and PID 1 cannot raise them again. A filter cannot tell which
/// process a pid means (each thread of PID 1 has one), so nobody may set these limits for another process. Container
/// runtimes set the other limits, such as open files, for other processes.
const ENDING_LIMITS: [libc::__rlimit_resource_t; 5] =
    [libc::RLIMIT_CPU, libc::RLIMIT_FSIZE, libc::RLIMIT_DATA, libc::RLIMIT_AS, libc::RLIMIT_RTTIME];

/// The filters, in the order of installation.
pub(crate) fn compile() -> io::Result<Vec<BpfProgram>> {
    Ok(vec![families()?, forbidden()?, allowed()?])
}

fn allowed() -> io::Result<BpfProgram> {
    let names = ALLOWED.iter().chain(ALLOWED_ON_THIS_ARCHITECTURE).chain(ALLOWED_SINCE);
    let rules = names.map(|&call| (call, vec![])).collect();
    filter(rules, SeccompAction::Errno(errno(libc::ENOSYS)), SeccompAction::Allow)
}

fn forbidden() -> io::Result<BpfProgram> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        FORBIDDEN.iter().map(|&call| (call, vec![])).collect();
    let mut ioctls = vec![
        rule(vec![condition(1, SeccompCmpOp::Eq, TIOCSTI)?])?,
        rule(vec![condition(1, SeccompCmpOp::Eq, TIOCLINUX)?])?,
    ];
    let of_btrfs = condition(1, SeccompCmpOp::MaskedEq(IOCTL_MAGIC_MASK), BTRFS_MAGIC << 8);
    let and_none_of = BTRFS_ALLOWED.iter().map(|&request| condition(1, SeccompCmpOp::Ne, request));
    ioctls.push(rule(std::iter::once(of_btrfs).chain(and_none_of).collect::<io::Result<_>>()?)?);
    rules.insert(libc::SYS_ioctl, ioctls);
    let limits = ENDING_LIMITS.into_iter().map(|resource| {
        // Process 0 is the caller itself. Without new limits, the call only reads the old ones.
        let sets = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0);
        rule(vec![
            condition(0, SeccompCmpOp::Ne, 0)?,
            condition(1, SeccompCmpOp::Eq, resource.into())?,
            sets.map_err(io::Error::other)?,
        ])
    });
    rules.insert(libc::SYS_prlimit64, limits.collect::<io::Result<_>>()?);
    filter(rules, SeccompAction::Allow, SeccompAction::Errno(errno(libc::EPERM)))
}

fn families() -> io::Result<BpfProgram> {
    let other = || -> io::Result<Vec<SeccompRule>> {
        let none = SOCKET_FAMILIES
            .iter()
            .map(|&family| condition(0, SeccompCmpOp::Ne, u64::try_from(family).unwrap_or(0)))
            .collect::<io::Result<Vec<_>>>()?;
        Ok(vec![rule(none)?])
    };
    let rules = BTreeMap::from([(libc::SYS_socket, other()?), (libc::SYS_socketpair, other()?)]);
    filter(rules, SeccompAction::Allow, SeccompAction::Errno(errno(libc::EAFNOSUPPORT)))
}

fn errno(number: i32) -> u32 {
    number.unsigned_abs()
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> io::Result<SeccompCondition> {
    // The kernel reads families and ioctl numbers as 32 bits. If the filter compared 64 bits, the upper half could hide
    // them.
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value).map_err(io::Error::other)
}

fn rule(conditions: Vec<SeccompCondition>) -> io::Result<SeccompRule> {
    SeccompRule::new(conditions).map_err(io::Error::other)
}

fn filter(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> io::Result<BpfProgram> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    SeccompFilter::new(rules, otherwise, matched, architecture)
        .and_then(TryInto::try_into)
        .map_err(io::Error::other)
}

/// Refused with `EPERM`, which programs expect on a machine where they lack the privilege.
const FORBIDDEN: &[c_long] = &[
    libc::SYS_acct,
    libc::SYS_bpf,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

macro_rules! calls {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

/// Calls with the same name on every architecture. They include the forbidden ones: of several filters, the strictest
/// result applies.
#[rustfmt::skip]
const ALLOWED: &[c_long] = calls![
    SYS_accept SYS_accept4 SYS_acct SYS_adjtimex SYS_bind SYS_bpf SYS_brk SYS_capget SYS_capset SYS_chdir SYS_chroot
    SYS_clock_adjtime SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_clock_settime SYS_clone SYS_clone3
    SYS_close SYS_close_range SYS_connect SYS_copy_file_range SYS_delete_module SYS_dup SYS_dup3 SYS_epoll_create1
    SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_execve SYS_execveat SYS_exit SYS_exit_group
    SYS_faccessat SYS_faccessat2 SYS_fadvise64 SYS_fallocate SYS_fanotify_init SYS_fanotify_mark SYS_fchdir SYS_fchmod
    SYS_fchmodat SYS_fchown SYS_fchownat SYS_fcntl SYS_fdatasync SYS_fgetxattr SYS_finit_module SYS_flistxattr
    SYS_flock SYS_fremovexattr SYS_fsetxattr SYS_fstat SYS_fstatfs SYS_fsync SYS_ftruncate SYS_futex SYS_futex_waitv
    SYS_get_mempolicy SYS_get_robust_list SYS_getcpu SYS_getcwd SYS_getdents64 SYS_getegid SYS_geteuid SYS_getgid
    SYS_getgroups SYS_getitimer SYS_getpeername SYS_getpgid SYS_getpid SYS_getppid SYS_getpriority SYS_getrandom
    SYS_getresgid SYS_getresuid SYS_getrusage SYS_getsid SYS_getsockname SYS_getsockopt SYS_gettid SYS_gettimeofday
    SYS_getuid SYS_getxattr SYS_init_module SYS_inotify_add_watch SYS_inotify_init1 SYS_inotify_rm_watch SYS_io_cancel
    SYS_io_destroy SYS_io_getevents SYS_io_setup SYS_io_submit SYS_ioctl SYS_ioprio_get SYS_ioprio_set SYS_kcmp
    SYS_kexec_file_load SYS_kexec_load SYS_kill SYS_landlock_add_rule SYS_landlock_create_ruleset
    SYS_landlock_restrict_self SYS_lgetxattr SYS_linkat SYS_listen SYS_listxattr SYS_llistxattr SYS_lremovexattr
    SYS_lseek SYS_lsetxattr SYS_madvise SYS_mbind SYS_membarrier SYS_memfd_create SYS_migrate_pages SYS_mincore
    SYS_mkdirat SYS_mknodat SYS_mlock SYS_mlock2 SYS_mlockall SYS_mmap SYS_mount SYS_move_pages SYS_mprotect
    SYS_mq_getsetattr SYS_mq_notify SYS_mq_open SYS_mq_timedreceive SYS_mq_timedsend SYS_mq_unlink SYS_mremap
    SYS_mseal SYS_msgctl SYS_msgget SYS_msgrcv SYS_msgsnd SYS_msync SYS_munlock SYS_munlockall SYS_munmap
    SYS_name_to_handle_at SYS_nanosleep SYS_newfstatat SYS_open_by_handle_at SYS_openat SYS_openat2
    SYS_perf_event_open SYS_personality SYS_pidfd_getfd SYS_pidfd_open SYS_pidfd_send_signal SYS_pipe2 SYS_pivot_root
    SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect SYS_ppoll SYS_prctl SYS_pread64 SYS_preadv SYS_preadv2
    SYS_prlimit64 SYS_process_madvise SYS_process_mrelease SYS_process_vm_readv SYS_process_vm_writev SYS_pselect6
    SYS_ptrace SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_quotactl SYS_quotactl_fd SYS_read SYS_readahead
    SYS_readlinkat SYS_readv SYS_reboot SYS_recvfrom SYS_recvmmsg SYS_recvmsg SYS_remap_file_pages SYS_removexattr
    SYS_renameat2 SYS_restart_syscall SYS_rseq SYS_rt_sigaction SYS_rt_sigpending SYS_rt_sigprocmask
    SYS_rt_sigqueueinfo SYS_rt_sigreturn SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_rt_tgsigqueueinfo
    SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_getaffinity SYS_sched_getattr SYS_sched_getparam
    SYS_sched_getscheduler SYS_sched_rr_get_interval SYS_sched_setaffinity SYS_sched_setattr SYS_sched_setparam
    SYS_sched_setscheduler SYS_sched_yield SYS_seccomp SYS_semctl SYS_semget SYS_semop SYS_semtimedop SYS_sendfile
    SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_set_mempolicy SYS_set_robust_list SYS_set_tid_address SYS_setdomainname
    SYS_setfsgid SYS_setfsuid SYS_setgid SYS_setgroups SYS_sethostname SYS_setitimer SYS_setns SYS_setpgid
    SYS_setpriority SYS_setregid SYS_setresgid SYS_setresuid SYS_setreuid SYS_setsid SYS_setsockopt SYS_settimeofday
    SYS_setuid SYS_setxattr SYS_shmat SYS_shmctl SYS_shmdt SYS_shmget SYS_shutdown SYS_sigaltstack SYS_signalfd4
    SYS_socket SYS_socketpair SYS_splice SYS_statfs SYS_statx SYS_swapoff SYS_swapon SYS_symlinkat SYS_sync SYS_syncfs
    SYS_sysinfo SYS_syslog SYS_tee SYS_tgkill SYS_timer_create SYS_timer_delete SYS_timer_getoverrun SYS_timer_gettime
    SYS_timer_settime SYS_timerfd_create SYS_timerfd_gettime SYS_timerfd_settime SYS_times SYS_tkill SYS_truncate
    SYS_umask SYS_umount2 SYS_uname SYS_unlinkat SYS_unshare SYS_userfaultfd SYS_utimensat SYS_vhangup SYS_vmsplice
    SYS_wait4 SYS_waitid SYS_write SYS_writev
];

/// Old names that only x86-64 has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_ON_THIS_ARCHITECTURE: &[c_long] = calls![
    SYS_access SYS_alarm SYS_arch_prctl SYS_chmod SYS_chown SYS_creat SYS_dup2 SYS_epoll_create SYS_epoll_wait
    SYS_eventfd SYS_fork SYS_futimesat SYS_getdents SYS_getpgrp SYS_getrlimit SYS_inotify_init SYS_lchown SYS_link
    SYS_lstat SYS_memfd_secret SYS_mkdir SYS_mknod SYS_modify_ldt SYS_open SYS_pause SYS_pipe SYS_poll SYS_readlink
    SYS_rename SYS_renameat SYS_rmdir SYS_select SYS_set_thread_area SYS_get_thread_area SYS_setrlimit SYS_signalfd
    SYS_stat SYS_symlink SYS_sync_file_range SYS_time SYS_unlink SYS_utime SYS_utimes SYS_vfork
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_ON_THIS_ARCHITECTURE: &[c_long] =
    calls![SYS_getrlimit SYS_memfd_secret SYS_renameat SYS_setrlimit SYS_sync_file_range];

/// Recent calls, with the same number on every architecture: set_mempolicy_home_node, cachestat, fchmodat2,
/// map_shadow_stack, futex_wake, futex_wait, futex_requeue, statmount, listmount, lsm_get_self_attr, lsm_set_self_attr,
/// lsm_list_modules, setxattrat, getxattrat, listxattrat, removexattrat.
const ALLOWED_SINCE: &[c_long] =
    &[450, 451, 452, 453, 454, 455, 456, 457, 458, 459, 460, 461, 463, 464, 465, 466];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile_and_fit_the_kernels_limit() {
        let programs = compile().unwrap();
        assert_eq!(programs.len(), 3);
        // BPF_MAXINSNS
        assert!(programs.iter().all(|program| program.len() <= 4096));
    }

    #[test]
    fn forbidden_calls_are_in_the_allowlist() {
        // Otherwise the error would be ENOSYS, and programs would look for another way.
        assert!(FORBIDDEN.iter().all(|call| ALLOWED.contains(call)));
    }

    #[test]
    fn calls_that_escape_checkpoints_or_namespaces_are_not_allowed() {
        for call in [
            libc::SYS_io_uring_setup,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_fsopen,
            libc::SYS_move_mount,
        ] {
            assert!(!ALLOWED.contains(&call));
        }
    }
}
