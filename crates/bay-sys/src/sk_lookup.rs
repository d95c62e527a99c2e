//! One listener for every TCP port and address of a network namespace: BPF `sk_lookup` (Linux 5.9).
//!
//! Rules of a packet filter would do the same, but they need modules that some hosts lack, and they stay when the
//! process that made them dies. Steering ends with its descriptor: without a listener, the kernel refuses connections
//! itself.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

// From linux/bpf.h.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_MAP_TYPE_SOCKMAP: u32 = 15;
const BPF_PROG_TYPE_SK_LOOKUP: u32 = 30;
const BPF_SK_LOOKUP: u32 = 36;
const BPF_PSEUDO_MAP_FD: u8 = 1;
const MAP_LOOKUP_ELEM: i32 = 1;
const SK_RELEASE: i32 = 86;
const SK_ASSIGN: i32 = 124;
/// The offset of `protocol` in `struct bpf_sk_lookup`.
const PROTOCOL_AT: i16 = 12;
/// Enough for the largest argument structure used here. The kernel requires the rest to be zero.
const ARGUMENT_WORDS: usize = 16;

/// Steers new TCP connections to one listener until it is dropped.
#[derive(Debug)]
pub struct Steering {
    _link: OwnedFd,
}

/// Makes `listener` accept every TCP connection that arrives in the network namespace, whatever its port and local
/// address. After the listener is closed, the kernel refuses connections.
///
/// # Errors
/// The error of the kernel: `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`, `EINVAL` if it does not support such programs.
pub fn steer(namespace: impl AsFd, listener: impl AsFd) -> io::Result<Steering> {
    let map = create_socket_map()?;
    put_socket(&map, listener.as_fd().as_raw_fd())?;
    let program = load(&program(map.as_raw_fd()))?;
    let mut arguments = Arguments::default();
    arguments.halves(0, program.as_raw_fd().cast_unsigned(), namespace.as_fd().as_raw_fd().cast_unsigned());
    arguments.halves(1, BPF_SK_LOOKUP, 0);
    // SAFETY: the arguments contain no pointers.
    let link = unsafe { bpf(BPF_LINK_CREATE, &mut arguments)? };
    Ok(Steering { _link: link })
}

/// A map with room for one socket. The kernel removes a socket that is closed.
fn create_socket_map() -> io::Result<OwnedFd> {
    let mut arguments = Arguments::default();
    let (key_bytes, value_bytes, entries) = (4, 8, 1);
    arguments.halves(0, BPF_MAP_TYPE_SOCKMAP, key_bytes);
    arguments.halves(1, value_bytes, entries);
    // SAFETY: the arguments contain no pointers.
    unsafe { bpf(BPF_MAP_CREATE, &mut arguments) }
}

fn put_socket(map: &OwnedFd, socket: RawFd) -> io::Result<()> {
    let key = 0_u32;
    let value = u64::try_from(socket).map_err(io::Error::other)?;
    let mut arguments = Arguments::default();
    arguments.halves(0, map.as_raw_fd().cast_unsigned(), 0);
    arguments.0[1] = (&raw const key).expose_provenance() as u64;
    arguments.0[2] = (&raw const value).expose_provenance() as u64;
    // SAFETY: both pointers are to values that live until the call returns and are as large as the map says.
    unsafe { bpf_call(BPF_MAP_UPDATE_ELEM, &mut arguments) }.map(drop)
}

fn load(instructions: &[u64]) -> io::Result<OwnedFd> {
    /// The kernel lets programs of any accepted licence call the helpers used here.
    const LICENSE: &std::ffi::CStr = c"Dual MIT/GPL";
    let mut arguments = Arguments::default();
    let count = u32::try_from(instructions.len()).map_err(io::Error::other)?;
    arguments.halves(0, BPF_PROG_TYPE_SK_LOOKUP, count);
    arguments.0[1] = instructions.as_ptr().expose_provenance() as u64;
    arguments.0[2] = LICENSE.as_ptr().expose_provenance() as u64;
    // `expected_attach_type` is the second half of the ninth word.
    arguments.halves(8, 0, BPF_SK_LOOKUP);
    // SAFETY: both pointers are to memory that lives until the call returns, of the length given and with a zero at its
    // end; the kernel verifies the program before it accepts it.
    unsafe { bpf(BPF_PROG_LOAD, &mut arguments) }
}

/// Registers of the BPF machine.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R6: u8 = 6;
const R7: u8 = 7;
const FRAME: u8 = 10;

/// For TCP: takes the socket out of the map and assigns the connection to it. Leaves other packets to the kernel, also
/// if the map has no socket.
fn program(map: RawFd) -> Vec<u64> {
    const COPY: u8 = 0xbf;
    const SET: u8 = 0xb7;
    const ADD: u8 = 0x07;
    const LOAD_WORD: u8 = 0x61;
    const STORE_WORD: u8 = 0x62;
    const LOAD_MAP: u8 = 0x18;
    const IF_EQUAL: u8 = 0x15;
    const IF_NOT_EQUAL: u8 = 0x55;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const PASS: i32 = 1;
    let word = |code: u8, to: u8, from: u8, offset: i16, value: i32| {
        u64::from(code)
            | u64::from(from << 4 | to) << 8
            | u64::from(offset.cast_unsigned()) << 16
            | u64::from(value.cast_unsigned()) << 32
    };
    vec![
        word(COPY, R6, R1, 0, 0),
        word(LOAD_WORD, R2, R1, PROTOCOL_AT, 0),
        word(IF_NOT_EQUAL, R2, 0, 14, libc::IPPROTO_TCP),
        // The key, 0, is on the stack.
        word(STORE_WORD, FRAME, 0, -4, 0),
        word(COPY, R2, FRAME, 0, 0),
        word(ADD, R2, 0, 0, -4),
        word(LOAD_MAP, R1, BPF_PSEUDO_MAP_FD, 0, map),
        0,
        word(CALL, 0, 0, 0, MAP_LOOKUP_ELEM),
        word(IF_EQUAL, R0, 0, 7, 0),
        word(COPY, R7, R0, 0, 0),
        word(COPY, R1, R6, 0, 0),
        word(COPY, R2, R0, 0, 0),
        word(SET, R3, 0, 0, 0),
        word(CALL, 0, 0, 0, SK_ASSIGN),
        word(COPY, R1, R7, 0, 0),
        word(CALL, 0, 0, 0, SK_RELEASE),
        word(SET, R0, 0, 0, PASS),
        word(EXIT, 0, 0, 0, 0),
    ]
}

/// `union bpf_attr`.
#[derive(Default)]
#[repr(C, align(8))]
struct Arguments([u64; ARGUMENT_WORDS]);

impl Arguments {
    /// Two fields of four bytes, in their order in memory.
    fn halves(&mut self, at: usize, first: u32, second: u32) {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&first.to_ne_bytes());
        bytes[4..].copy_from_slice(&second.to_ne_bytes());
        self.0[at] = u64::from_ne_bytes(bytes);
    }
}

/// A command that returns a new descriptor.
///
/// # Safety
/// As for [`bpf_call`].
unsafe fn bpf(command: libc::c_int, arguments: &mut Arguments) -> io::Result<OwnedFd> {
    // SAFETY: as the caller promises. These commands return a descriptor without another owner.
    unsafe {
        let fd = bpf_call(command, arguments)?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// # Safety
/// Every pointer among the arguments is valid for what the command does with it.
unsafe fn bpf_call(command: libc::c_int, arguments: &mut Arguments) -> io::Result<libc::c_int> {
    // SAFETY: the arguments have the stated size, and what they point to is valid, as the caller promises. Needed
    // because libraries for this load object files, and need a C library or hundreds of crates.
    let answer =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *arguments, size_of::<Arguments>()) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    libc::c_int::try_from(answer).map_err(io::Error::other)
}
