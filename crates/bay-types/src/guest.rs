//! The guest protocol besides execs: HTTP/1.1 over a unix socket, one version number.
//!
//! | request                                   | answer                                                    |
//! |-------------------------------------------|-----------------------------------------------------------|
//! | `GET /v1/info`                            | [`GuestInfo`]                                             |
//! | `GET /v1/execs`                           | array of [`ExecStatus`](crate::exec::ExecStatus)          |
//! | `PUT /v1/execs/{id}`                      | start; 201, or 200 if this exec exists already            |
//! | `GET /v1/execs/{id}`                      | its status                                                |
//! | `DELETE /v1/execs/{id}`                   | forget a finished exec and its output                     |
//! | `POST /v1/execs/{id}/attach?since=N`      | upgrade to frames; a body starts the exec first; with a [`bay-input`](crate::frame::INPUT) header, input has offsets |
//! | `GET /v1/execs/{id}/output?since=N&follow=&times=` | the same output frames as a plain body, ended by `Exit` when it has ended; with `times`, each stretch after a `Time` |
//! | `POST /v1/execs/{id}/signal`              | [`SignalRequest`](crate::exec::SignalRequest); answers [`Signalled`](crate::exec::Signalled) with the status afterwards |
//! | `GET /v1/services`                        | array of [`ServiceView`](crate::service::ServiceView), by name |
//! | `PUT /v1/services/{name}`                 | [`ServiceSpec`](crate::service::ServiceSpec): define or replace; answers the view, 201 when new |
//! | `GET /v1/services/{name}`                 | its view                                                  |
//! | `DELETE /v1/services/{name}`              | stop it and forget it with its log; 202 and the view while it ends, then 404 |
//! | `POST /v1/services/{name}/{start,stop,restart}` | answers the view at once; poll it for the outcome |
//! | `GET /v1/services/{name}/output?since=N&follow=&times=` | its log as output frames, over all kept runs; no `Exit` |
//! | `GET /v1/events`                          | lines of [`GuestEvent`], without end; cut off when its reader is far behind |
//! | `POST /v1/asks/{id}`                      | [`Answered`](crate::inside::Answered): the answer to a [`GuestEvent::Asked`]; 204 |
//! | `GET /v1/stat?path=`                      | [`FileStat`]; of a symlink itself unless `follow=true`    |
//! | `GET /v1/files?path=`                     | one regular file                                          |
//! | `PUT /v1/files?path=`                     | [`FileStat`]; `mode=` (octal), `user=`, `parents=true`     |
//! | `GET /v1/archive?path=`                   | a tar stream of a directory's content, or of one file     |
//! | `PUT /v1/archive?path=`                   | a tar stream into a directory; `user=`, `parents=true`     |
//! | `GET /v1/watch?path=`                     | lines of [`WatchLine`](crate::watch::WatchLine), the first when the watches are in place; `recursive=false` |
//! | `GET /v1/ports`                           | array of [`Port`](crate::inside::Port)                    |
//! | `POST /v1/tcp/{port}`                     | connect to the port on the bay's loopback, IPv4 first: upgrade to [`forward::UPGRADE`](crate::forward::UPGRADE) |
//! | `GET /v1/activity`                        | [`Activity`](crate::inside::Activity)                     |
//! | `PUT /v1/limits`                          | [`Limits`](crate::bay::Limits) in force, which `bay-ctl` and `/.bay/README.md` show; 204 |
//! | `PUT /v1/secrets`                         | array of [`Delivered`]: the sentinels in force; 204  |
//! | `POST /v1/wake`                           | [`Wake`], after a restore: upgrade to [`WAKE_UPGRADE`], then its new socket as a descriptor; answers [`Woken`] |
//! | `POST /v1/shutdown`                       | [`Shutdown`]; TERM to all, then KILL; answers [`ShutdownReport`], then the guest exits |
//! | `POST /process.Process/{method}`          | E2B's envd interface, Connect with JSON: processes        |
//! | `POST /filesystem.Filesystem/{method}`    | E2B's envd interface: files, directories, watching        |
//! | `GET`, `POST /files`, `POST /files/compose` | E2B's envd interface: content of files; its own query and errors |
//! | `GET /health`, `/metrics`, `/envs`        | E2B's envd interface                                      |
//!
//! Errors are an [`ApiError`](crate::ApiError) body with its status. Query values are percent-encoded bytes
//! ([`escape`]); `+` stands for itself. A path that is not absolute starts at [`WORKSPACE`].
//!
//! An attached client that closes its sending side has detached; the end of input is a frame of its own. Frames are
//! read in order, so a signal behind more input than the command takes waits: `POST …/signal` does not.
//!
//! PUT of a file replaces it in one step. Without `mode=` and `user=` a replaced file keeps its own and a new one is
//! root's with 0644. Members of an archive sent in belong to `user=` (root when absent), whatever their headers say;
//! a first member named [`DELETE_LIST`] holds paths to remove beforehand, relative to the directory and separated by
//! NUL. Members of an archive taken out are named relative to the directory, or by the file's own name; sockets, FIFOs
//! and devices are left out. With `sparse=true` the holes of files are left out too ([`crate::sparse`]). An archive
//! that the guest cannot complete ends with a global header that says why ([`ARCHIVE_BROKE_OFF`]), and then with
//! bytes that are not an archive.

use std::net::{Ipv4Addr, Ipv6Addr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bay::{Author, BayUser};
use crate::exec::{ExecEnd, Exit};
use crate::id::ExecId;
use crate::inside::{About, Ask, InsideChange};
use crate::secret::Delivered;
use crate::service::{ServiceName, ServiceState};
use crate::text_enum::text_enum;

/// Version of this protocol. A daemon talks only to a guest of the same version. A bay with an older guest keeps
/// running, and its user is asked to replace it.
pub const PROTOCOL: u32 = 1;

/// The directory of Workbay inside the bay, and the paths in it.
pub const HOME: &str = "/.bay";
/// Writable by the guest: kept output of execs, definitions and logs of services. A subvolume of its own, so that
/// it outlives the root filesystem.
pub const STATE_DIR: &str = "/.bay/state";
/// In the state directory of a bay that began with the root filesystem of another bay: a file that says that the guest
/// has not yet removed what made that root the other machine.
pub const COPIED_ROOT: &str = "copied-root";
/// The workspace.
pub const WORKSPACE: &str = "/workspace";

/// Inside the bay: the gateway's certificate.
pub const CERTIFICATE: &str = "/.bay/ca.crt";
/// Inside the bay: the bundle of all certificates that clients must trust.
pub const CERTIFICATE_BUNDLE: &str = "/.bay/ca-bundle.crt";
/// Inside the bay: git settings for credentials; the settings for all users include this file.
pub const GIT_SETTINGS: &str = "/.bay/gitconfig";

/// The archive member that lists paths to delete.
pub const DELETE_LIST: &str = ".bay-delete";

/// Key of the PAX record that says why an archive is incomplete. It is in a global header, which no file in the
/// archive can produce.
pub const ARCHIVE_BROKE_OFF: &str = "BAY.broke-off";

/// The gateway's IPv4 address. These four addresses are the same in every bay, so that the sockets of a forked bay
/// stay valid.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);
/// The bay's own IPv4 address.
pub const BAY_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// The gateway's IPv6 address.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x0ba, 0, 0, 0, 0, 0, 1);
/// The bay's own IPv6 address.
pub const BAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x0ba, 0, 0, 0, 0, 0, 2);
/// The gateway's port for DNS, at its own addresses.
pub const DNS_PORT: u16 = 53;
/// The gateway's port for its proxy, at its own addresses.
pub const PROXY_PORT: u16 = 3128;

/// Extended attribute of the control group of a service's run. It has the service's name, for readers on the host.
pub const SERVICE_MARK: &str = "user.bay.service";

/// File descriptors that the guest inherits from the runtime helper.
pub mod fd {
    /// The listening unix socket.
    pub const LISTENER: i32 = 3;
    /// Directory of the cgroup v2 group under which the guest makes one leaf per exec.
    pub const EXEC_CGROUP: i32 = 4;
    /// [`GuestConfig`](super::GuestConfig) as JSON, to be read to the end and closed.
    pub const CONFIG: i32 = 5;
}

/// How a guest starts that inherits no descriptors, because the kernel of its sandbox accepts no listening ones.
pub mod boot {
    /// The argument that selects this.
    pub const SANDBOXED: &str = "--sandboxed";
    /// The guest's executable inside.
    pub const PROGRAM: &str = "/.bay/bin/guest";
    /// A directory that the runtime helper shares with the guest until it listens.
    pub const SHARED: &str = "/.bay/boot";
    /// Name in [`SHARED`] of the [`GuestConfig`](super::GuestConfig) as JSON.
    pub const CONFIG: &str = "config";
    /// Name in [`SHARED`] of the guest's socket, which the guest makes.
    pub const SOCKET: &str = "socket";
    /// Name in [`SHARED`] of a file that the guest makes when it listens.
    pub const LISTENS: &str = "listens";
}

/// The configuration that the runtime helper gives the guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GuestConfig {
    pub bay_id: String,
    pub hostname: String,
    /// Stable for the life of the bay: 32 hexadecimal digits.
    pub machine_id: String,
    /// The author of commits, if the bay's own git settings name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<Author>,
    /// The user that the bay was given; absent if everything runs as root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<BayUser>,
    #[serde(default)]
    pub about: About,
    /// The gateway's certificate authority as PEM, which clients in the bay must trust. Absent if no gateway
    /// terminates TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Absent if no gateway relays SSH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<GatewaySsh>,
    /// The sentinels of the bay's secrets, and where to put them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Delivered>,
    /// The index of this bay among the children of a fork; absent if it was not forked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork_index: Option<u32>,
}

/// How a bay's gateway relays SSH.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewaySsh {
    /// The gateway's public host key, which it shows for every host: kind and base64, as in `known_hosts`.
    pub host_key: String,
    /// Hosts that git may reach by SSH. Their remotes are not rewritten to HTTPS.
    pub hosts: Vec<String>,
}

/// Directory of the hooks that a forked bay runs first.
pub const FORK_HOOKS: &str = "/etc/bay/fork.d";
/// The hooks' variable with the index of the child.
pub const FORK_INDEX: &str = "BAY_FORK_INDEX";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestInfo {
    pub version: String,
    pub protocol: u32,
    pub started_at: Timestamp,
    /// Problems while the bay was made ready, such as failed fork hooks, one per line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}

/// One line of `GET /v1/events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum GuestEvent {
    /// Sent at once when the stream opens, so that the reader knows that it is live.
    Hello,
    ExecEnded {
        id: ExecId,
        exit: Exit,
        /// Absent from a guest of an earlier release; the daemon then requests it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Box<ExecEnd>>,
    },
    /// A process of the bay asks the daemon for something. The daemon answers with `POST /v1/asks/{id}`.
    Asked {
        id: u64,
        #[serde(flatten)]
        ask: Ask,
    },
    /// A process of the bay changed something with `bay-ctl`.
    Changed {
        #[serde(flatten)]
        change: InsideChange,
    },
    /// A service reached a state in which services stay for a while.
    ServiceReached {
        service: ServiceName,
        state: ServiceState,
        reason: String,
        /// How often it was started again after it had ended by itself, since the bay started.
        restarts: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Other,
}

text_enum!(FileKind { File = "file", Directory = "directory", Symlink = "symlink", Other = "other" });

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStat {
    pub kind: FileKind,
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Disk space of the file: less than its size if it is sparse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shutdown {
    /// Time between TERM and KILL.
    pub grace_ms: u64,
}

/// The last answer of a guest: the ends of the execs that ran when the shutdown began. A guest of an earlier
/// release sends none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownReport {
    #[serde(default)]
    pub ended: Vec<ExecEnded>,
}

/// The end of one exec, as its guest saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnded {
    pub id: ExecId,
    pub exit: Exit,
    pub end: ExecEnd,
}

/// Token of the `Upgrade` header of the connection over which a restored guest gets its new socket.
pub const WAKE_UPGRADE: &str = "bay-wake";
/// Longest [`Woken`] that is read.
pub const MAX_WOKEN: u64 = 64 << 10;
/// Time limit for all fork hooks together, because the daemon waits for the new guest.
pub const FORK_HOOKS_TIME: std::time::Duration = std::time::Duration::from_secs(8);

/// The first message to a guest that was restored from memory. Nothing else runs in the bay yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wake {
    /// Its new configuration.
    pub config: GuestConfig,
    /// The index of this bay among the children of its checkpoint; absent if it is the captured bay itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork_index: Option<u32>,
}

/// The guest's answer: the other processes may continue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Woken {
    /// Hooks that failed, and why.
    pub notes: Vec<String>,
}
