//! What the egress of bays needs.

use std::path::{Path, PathBuf};

use super::{Check, Subject};

/// Steers a real connection, in a temporary network namespace.
pub(super) fn steering(root: bool) -> Check {
    let subject = Subject {
        id: "steer-connections",
        title: "steering of connections (BPF sk_lookup)",
        required: false,
        cost: "bays run, but nothing can leave them, whatever their policies allow",
        fix: "use a kernel of 5.9 or newer with CONFIG_BPF_SYSCALL and CONFIG_INET; in a container, give it CAP_BPF, \
               CAP_NET_ADMIN and CAP_SYS_ADMIN, and allow bpf in its seccomp profile",
    };
    match bay_runtime::can_steer() {
        Ok(()) => subject.ok("works"),
        Err(_) if !root => subject.unknown("only root may try it"),
        Err(error) => subject.missing(error.to_string()),
    }
}

/// Checks the keys with which daemons of this host encrypt. Makes no key.
pub(super) fn key(root: bool, look_at_keys: fn(Option<&Path>) -> Result<String, String>) -> Check {
    let subject = Subject {
        id: "key",
        title: "the daemon's key",
        required: false,
        cost: "data that the daemon encrypted cannot be read: bays run without egress",
        fix: "put the key back, owned by root and with mode 600; or name another with BAY_KEY_FILE",
    };
    let given = std::env::var_os("BAY_KEY_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    match look_at_keys(given.as_deref()) {
        Ok(found) => subject.ok(found),
        Err(_) if !root => subject.unknown("only root may look"),
        Err(why) => subject.missing(why),
    }
}
