//! `bay install`: a copy of this executable in /usr/local/bin, the group whose members may use the daemon, and the unit
//! if systemd runs.

use std::fs;
use std::path::Path;
use std::process::Command;

use bay_client::{invalid, local};
use bay_types::installation::GROUP;
use bay_types::{ApiError, ErrorCode};

use super::place::{Place, Record, replace, sha256};
use super::unit;

/// Most hashes on record. Each installation of another build adds one and removes what it replaces.
const MAX_HASHES: usize = 4;

/// Installs this executable. Returns what was done, a line for each. Safe to repeat.
pub(crate) fn install(place: &Place, data_dir: &Path, force: bool) -> Result<Vec<String>, ApiError> {
    if !rustix::process::geteuid().is_root() {
        return Err(ApiError::new(
            ErrorCode::NotRoot,
            "installing for all users needs root",
            "run `sudo bay install`",
        ));
    }
    let mut record = place.read()?.unwrap_or_default();
    record.data_dir = data_dir.to_owned();
    let mut done = vec![executable(place, &mut record, force)?];
    done.extend(group(place, &mut record)?);
    done.extend(service(place, &mut record)?);
    Ok(done)
}

fn executable(place: &Place, record: &mut Record, force: bool) -> Result<String, ApiError> {
    let target = place.executable();
    let failed = |error: std::io::Error| local(&format!("installing {}", target.display()), &error);
    // Through the link, which also works after the file was replaced.
    let own = Path::new("/proc/self/exe");
    let hash = sha256(own).map_err(failed)?;
    let present = match fs::symlink_metadata(&target) {
        // A link is not an executable of somebody else's: earlier releases were linked from where they were built.
        Ok(found) if found.is_symlink() => None,
        Ok(_) => Some(sha256(&target).map_err(failed)?),
        Err(_) => None,
    };
    if let Some(present) = &present
        && *present != hash
        && !record.sha256.contains(present)
        && !force
    {
        return Err(invalid(
            format!("{} is a file that `bay install` did not make", target.display()),
            "move it away, or repeat with --force to replace it",
        ));
    }
    // On record before it is there.
    record.sha256.retain(|known| *known != hash);
    record.sha256.push(hash.clone());
    let surplus = record.sha256.len().saturating_sub(MAX_HASHES);
    record.sha256.drain(..surplus);
    place.write(record)?;
    if present.as_ref() == Some(&hash) {
        return Ok(format!("{} is this build", target.display()));
    }
    let contents = fs::read(own).map_err(failed)?;
    if let Some(dir) = target.parent() {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    replace(&target, &contents, 0o755).map_err(failed)?;
    record.sha256 = vec![hash];
    place.write(record)?;
    Ok(format!("{} is a copy of this build, for all users", target.display()))
}

/// Makes the group whose members may use the daemon's socket. A host without `groupadd` has only root for that.
fn group(place: &Place, record: &mut Record) -> Result<Option<String>, ApiError> {
    let groups = fs::read_to_string(place.groups()).unwrap_or_default();
    if members(&groups, GROUP).is_some() {
        return Ok(None);
    }
    record.group = Some(GROUP.to_owned());
    place.write(record)?;
    let mut command = Command::new("groupadd");
    command.arg("--system");
    if !place.is_the_host() {
        command.arg("--prefix").arg(place.root());
    }
    let done = command.arg(GROUP).output();
    Ok(Some(match done {
        Ok(output) if output.status.success() => {
            format!(
                "the group {GROUP} may use the socket; its members are equal to root (usermod -aG {GROUP} USER)"
            )
        }
        _ => {
            format!("there is no group {GROUP}, so only root can use the socket: groupadd could not make it")
        }
    }))
}

/// The members of a group, if there is such a group.
pub(crate) fn members(groups: &str, name: &str) -> Option<Vec<String>> {
    groups.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [named, _, _, members] = fields[..] else { return None };
        (named == name)
            .then(|| members.split(',').filter(|member| !member.is_empty()).map(str::to_owned).collect())
    })
}

fn service(place: &Place, record: &mut Record) -> Result<Option<String>, ApiError> {
    if !place.has_systemd() {
        return Ok(None);
    }
    let path = place.unit();
    let failed = |error: std::io::Error| local(&format!("writing {}", path.display()), &error);
    if let Ok(present) = fs::read_to_string(&path)
        && !present.starts_with(unit::MARK)
    {
        return Ok(Some(format!("{} is another unit and was left alone", path.display())));
    }
    record.unit = true;
    place.write(record)?;
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    let text = unit::text(&place.executable(), &record.data_dir);
    replace(&path, text.as_bytes(), 0o644).map_err(failed)?;
    if place.is_the_host() {
        systemctl(&["daemon-reload"])?;
        systemctl(&["enable", "workbay.service"])?;
    }
    Ok(Some(format!("{} starts the daemon at the next boot (now: systemctl start workbay)", path.display())))
}

pub(crate) fn systemctl(arguments: &[&str]) -> Result<(), ApiError> {
    let doing = format!("running systemctl {}", arguments.join(" "));
    let output = Command::new("systemctl").args(arguments).output().map_err(|error| local(&doing, &error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = bay_text::escape::one_line(&String::from_utf8_lossy(&output.stderr));
    Err(local(&doing, &std::io::Error::other(said)))
}

/// Whether the unit is one that [`install`] wrote. The operator may have changed it since.
pub(crate) fn is_own_unit(place: &Place, record: &Record) -> bool {
    record.unit && fs::read_to_string(place.unit()).is_ok_and(|text| text.starts_with(unit::MARK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_executable_of_somebody_else_is_not_replaced_and_a_link_of_an_earlier_release_is() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(dir.path());
        let target = place.executable();
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::write(&target, "#!/bin/sh\n").unwrap();
        let mut record = Record::default();
        let refused = executable(&place, &mut record, false).unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidInput);
        assert_eq!(fs::read(&target).unwrap(), b"#!/bin/sh\n");
        fs::remove_file(&target).unwrap();
        let cache = dir.path().join("cache");
        fs::write(&cache, "the build in a cache").unwrap();
        std::os::unix::fs::symlink(&cache, &target).unwrap();
        executable(&place, &mut record, false).unwrap();
        let found = fs::symlink_metadata(&target).unwrap();
        assert!(found.is_file());
        assert_eq!(found.permissions().mode() & 0o7777, 0o755, "all users can read and run it");
        assert_eq!(fs::read(&cache).unwrap(), b"the build in a cache");
        assert_eq!(place.read().unwrap().unwrap().sha256, [sha256(&target).unwrap()]);
        assert!(executable(&place, &mut record, false).unwrap().contains("is this build"));
    }

    #[test]
    fn the_members_of_a_group_are_read() {
        let groups = "root:x:0:\nworkbay:x:990:ann,bob\nempty:x:991:\nodd\n";
        assert_eq!(members(groups, "workbay"), Some(vec!["ann".to_owned(), "bob".to_owned()]));
        assert_eq!(members(groups, "empty"), Some(vec![]));
        assert_eq!(members(groups, "odd"), None);
    }
}
