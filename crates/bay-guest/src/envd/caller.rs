//! The user that a request names, and where that user's relative paths begin.

use std::os::fd::BorrowedFd;

use http::{HeaderMap, header};

use super::fault::{Fault, Kind, Result};
use crate::users::{self, User};

/// The user of requests that name none. If the bay has no such user, root.
const DEFAULT_USER: &str = "user";
/// Longest path that the kernel accepts.
const MAX_PATH: usize = 4095;

/// A user of the bay.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) user: User,
}

impl Caller {
    /// The user in the basic credentials of a call. The password is ignored.
    pub(super) fn of_call(root: BorrowedFd<'_>, headers: &HeaderMap) -> Result<Self> {
        let odd = || Fault::new(Kind::Unauthenticated, "the Authorization header is not understood");
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Self::named(root, None);
        };
        let text = value.to_str().map_err(|_| odd())?;
        let Some((scheme, credentials)) = text.split_once(' ') else { return Err(odd()) };
        if !scheme.eq_ignore_ascii_case("basic") {
            return Err(odd());
        }
        let quoted = serde_json::Value::from(credentials.trim());
        let decoded: super::connect::Base64 = serde_json::from_value(quoted).map_err(|_| odd())?;
        let text = String::from_utf8(decoded.0).map_err(|_| odd())?;
        let name = text.split_once(':').map_or(text.as_str(), |(name, _)| name);
        Self::named(root, Some(name).filter(|n| !n.is_empty()))
    }

    pub(super) fn named(root: BorrowedFd<'_>, name: Option<&str>) -> Result<Self> {
        let found = match name {
            // A colon would name a group, which the interface does not support.
            Some(name) if name.contains(':') => Err(users::UserError::NoUser(name.to_owned())),
            Some(name) => users::find(root, Some(name)),
            None => users::find(root, Some(DEFAULT_USER)).or_else(|_| users::find(root, None)),
        };
        match found {
            Ok(user) => Ok(Self { user }),
            Err(error) => Err(Fault::new(Kind::Unauthenticated, error.to_string())),
        }
    }

    pub(super) fn owner(&self) -> (u32, u32) {
        (self.user.identity.uid, self.user.identity.gid)
    }

    /// Makes a path absolute and removes `.` and `..`. A relative path, or one that begins with `~`, starts at the
    /// user's home.
    pub(super) fn path(&self, path: &str) -> Result<String> {
        if path.contains('\0') {
            return Err(Fault::invalid("the path contains a NUL"));
        }
        let home = &self.user.home;
        let joined = match path.strip_prefix('~') {
            Some("") => home.clone(),
            Some(rest) if rest.starts_with('/') => format!("{home}{rest}"),
            Some(_) => return Err(Fault::invalid(format!("{path:?}: only ~ itself stands for a home"))),
            None if path.starts_with('/') => path.to_owned(),
            None => format!("{home}/{path}"),
        };
        if joined.len() > MAX_PATH {
            return Err(Fault::invalid(format!("the path is longer than {MAX_PATH} bytes")));
        }
        Ok(clean(&joined))
    }
}

/// Removes `.`, `..` and doubled slashes from an absolute path, without looking at the disk.
pub(super) fn clean(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(kept.pop()),
            name => kept.push(name),
        }
    }
    format!("/{}", kept.join("/"))
}

/// Directory and name of a clean path. None for the root itself.
pub(super) fn split(path: &str) -> Option<(&str, &str)> {
    let (parent, name) = path.rsplit_once('/')?;
    (!name.is_empty()).then_some((if parent.is_empty() { "/" } else { parent }, name))
}

#[cfg(test)]
mod tests {
    use bay_sys::spawn::Identity;

    use super::*;

    fn caller() -> Caller {
        let identity = Identity { uid: 1000, gid: 1000, groups: vec![1000] };
        Caller {
            user: User { name: "dev".into(), home: "/home/dev".into(), shell: "/bin/sh".into(), identity },
        }
    }

    #[test]
    fn relative_paths_begin_at_home_and_dots_are_removed() {
        for (given, meant) in [
            ("", "/home/dev"),
            ("a", "/home/dev/a"),
            ("~", "/home/dev"),
            ("~/a/../b", "/home/dev/b"),
            ("/a//b/./c/", "/a/b/c"),
            ("../../../..", "/"),
            ("/", "/"),
            ("a\nb", "/home/dev/a\nb"),
        ] {
            assert_eq!(caller().path(given).unwrap(), meant, "{given:?}");
        }
        assert!(caller().path("~root/x").is_err());
        assert!(caller().path("a\0b").is_err());
        assert!(caller().path(&"x".repeat(5000)).is_err());
        assert_eq!(split("/a/b"), Some(("/a", "b")));
        assert_eq!(split("/a"), Some(("/", "a")));
        assert_eq!(split("/"), None);
    }
}
