//! Users and groups of the bay, from its `/etc/passwd` and `/etc/group`.
//!
//! The agent controls both files. They are read up to a bound and parsed here, and lines that make no sense are
//! skipped. The C library would load modules of the bay's filesystem into PID 1.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;

use bay_sys::paths::open_below;
use bay_sys::spawn::Identity;
use rustix::fs::{FileType, OFlags, ResolveFlags};

/// Most bytes of a file that are read.
const MAX_FILE: u64 = 1 << 20;
/// Supplementary groups of one user.
const MAX_GROUPS: usize = 1024;

/// The user of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) home: String,
    pub(crate) shell: String,
    pub(crate) identity: Identity,
}

/// Why a user was not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UserError {
    #[error("the user {0:?} does not exist in the bay")]
    NoUser(String),
    #[error("the group {0:?} does not exist in the bay")]
    NoGroup(String),
}

/// Finds a user by `NAME` or `UID`; `:GROUP` or `:GID` may follow. Root if no user is named. A number is a user even if
/// the file does not have it.
pub(crate) fn find(root: BorrowedFd<'_>, wanted: Option<&str>) -> Result<User, UserError> {
    let wanted = wanted.unwrap_or("0");
    resolve(&read(root, "etc/passwd"), &read(root, "etc/group"), wanted)
}

fn resolve(passwd: &str, group: &str, wanted: &str) -> Result<User, UserError> {
    let (user, group_part) = match wanted.split_once(':') {
        Some((user, group_part)) => (user, Some(group_part)),
        None => (wanted, None),
    };
    let number = user.parse::<u32>().ok();
    // A name of digits is first taken as a number, as in other tools.
    let found = passwd.lines().filter_map(parse_passwd).find(|entry| match number {
        Some(uid) => entry.identity.uid == uid,
        None => entry.name == user,
    });
    let mut user = match (found, number) {
        (Some(mut entry), _) => {
            entry.identity.groups = groups_of(group, &entry.name, entry.identity.gid);
            entry
        }
        (None, Some(uid)) => nameless(uid),
        (None, None) if user == "root" => nameless(0),
        (None, None) => return Err(UserError::NoUser(user.to_owned())),
    };
    if let Some(wanted) = group_part {
        let gid = wanted
            .parse()
            .ok()
            .or_else(|| group.lines().filter_map(parse_group).find(|g| g.name == wanted).map(|g| g.gid))
            .ok_or_else(|| UserError::NoGroup(wanted.to_owned()))?;
        user.identity.gid = gid;
        user.identity.groups = vec![gid];
    }
    Ok(user)
}

/// Root and people, each with a home directory; not the users of system services.
pub(crate) fn with_homes(root: BorrowedFd<'_>) -> Vec<User> {
    const PEOPLE: std::ops::Range<u32> = 1000..60_000;
    let passwd = read(root, "etc/passwd");
    let mut found: Vec<User> = passwd
        .lines()
        .filter_map(parse_passwd)
        .filter(|user| PEOPLE.contains(&user.identity.uid) && user.home != "/")
        .collect();
    found.insert(0, resolve(&passwd, "", "0").unwrap_or_else(|_| nameless(0)));
    found
}

/// A user that is not in the file.
fn nameless(uid: u32) -> User {
    let (name, home) = if uid == 0 { ("root".to_owned(), "/root") } else { (uid.to_string(), "/") };
    User {
        name,
        home: home.to_owned(),
        shell: "/bin/sh".to_owned(),
        identity: Identity { uid, gid: 0, groups: vec![0] },
    }
}

fn parse_passwd(line: &str) -> Option<User> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|n| !n.is_empty())?;
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    let home = fields.nth(1).filter(|h| h.starts_with('/')).unwrap_or("/");
    let shell = fields.next().filter(|s| s.starts_with('/')).unwrap_or("/bin/sh");
    Some(User {
        name: name.to_owned(),
        home: home.to_owned(),
        shell: shell.to_owned(),
        identity: Identity { uid, gid, groups: Vec::new() },
    })
}

struct Group<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

fn parse_group(line: &str) -> Option<Group<'_>> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|n| !n.is_empty())?;
    let gid = fields.nth(1)?.parse().ok()?;
    Some(Group { name, gid, members: fields.next().unwrap_or("") })
}

fn groups_of(group: &str, name: &str, primary: u32) -> Vec<u32> {
    let mut gids = vec![primary];
    let member = group.lines().filter_map(parse_group).filter(|g| g.members.split(',').any(|m| m == name));
    gids.extend(member.map(|g| g.gid).filter(|gid| *gid != primary).take(MAX_GROUPS - 1));
    gids
}

/// Names of all users and groups, to show the owners of files.
#[derive(Debug)]
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    pub(crate) fn read(root: BorrowedFd<'_>) -> Self {
        // If an id has several entries, the first one names it.
        let (mut users, mut groups) = (HashMap::new(), HashMap::new());
        for user in read(root, "etc/passwd").lines().filter_map(parse_passwd) {
            users.entry(user.identity.uid).or_insert(user.name);
        }
        for group in read(root, "etc/group").lines().filter_map(parse_group) {
            groups.entry(group.gid).or_insert_with(|| group.name.to_owned());
        }
        Self { users, groups }
    }

    /// A user's name, or the number if the user has no name.
    pub(crate) fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    pub(crate) fn group(&self, gid: u32) -> String {
        self.groups.get(&gid).cloned().unwrap_or_else(|| gid.to_string())
    }
}

/// The group id of the `tty` group, which owns terminals on most systems.
pub(crate) fn tty_group(root: BorrowedFd<'_>) -> Option<u32> {
    read(root, "etc/group").lines().filter_map(parse_group).find(|g| g.name == "tty").map(|g| g.gid)
}

/// The beginning of a regular file. Empty if there is no such file.
pub(crate) fn read(root: BorrowedFd<'_>, path: &str) -> String {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut bytes = Vec::new();
    if let Ok(fd) = open_below(root, path, flags, ResolveFlags::IN_ROOT)
        && rustix::fs::fstat(&fd).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile)
    {
        // After a failed read, the bytes until then are used. A user in the missing part is reported as unknown.
        let _ = File::from(fd).take(MAX_FILE).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\n:x:5:5::/:/bin/sh\n\
        dev:x:1000:1001:Dev,,,:/home/dev:/bin/zsh\nodd:x:7:7::relative:\nbig:x:99999999999:1::/:\n";
    const GROUP: &str = "root:x:0:\ndev:x:1001:\ndocker:x:998:dev,other\nwheel:x:10:other\nvideo:x:44:dev\n";

    fn find(wanted: &str) -> Result<User, UserError> {
        resolve(PASSWD, GROUP, wanted)
    }

    #[test]
    fn a_user_is_found_by_name_and_by_number_with_its_groups() {
        let dev = find("dev").unwrap();
        assert_eq!(dev.identity, Identity { uid: 1000, gid: 1001, groups: vec![1001, 998, 44] });
        assert_eq!((dev.home.as_str(), dev.shell.as_str()), ("/home/dev", "/bin/zsh"));
        assert_eq!(find("1000").unwrap(), dev);
        assert_eq!(find("0").unwrap().home, "/root");
    }

    #[test]
    fn a_group_can_be_named_beside_the_user() {
        assert_eq!(find("dev:docker").unwrap().identity, Identity { uid: 1000, gid: 998, groups: vec![998] });
        assert_eq!(find("4242:7").unwrap().identity, Identity { uid: 4242, gid: 7, groups: vec![7] });
        assert_eq!(find("dev:nope"), Err(UserError::NoGroup("nope".into())));
    }

    #[test]
    fn unknown_names_are_errors_and_unknown_numbers_are_not() {
        assert_eq!(find("nobody-here"), Err(UserError::NoUser("nobody-here".into())));
        assert_eq!(find(""), Err(UserError::NoUser(String::new())));
        assert_eq!(find("big"), Err(UserError::NoUser("big".into())));
        assert_eq!(find("4242").unwrap().identity.gid, 0);
        assert_eq!(find("odd").unwrap().home, "/");
    }

    #[test]
    fn root_exists_even_without_files() {
        assert_eq!(resolve("", "", "root").unwrap().identity.uid, 0);
    }
}
