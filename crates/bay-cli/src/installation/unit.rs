//! The systemd unit of the daemon.

use std::path::Path;

/// In the first line of the unit, so that `bay uninstall` removes no unit of somebody else's.
pub(crate) const MARK: &str = "# Made by `bay install`; `bay uninstall` removes it.";

/// The text of the unit. `KillMode=process`: bays and their helpers outlive the daemon, and an upgrade is a restart.
/// Nothing here gives the daemon a mount namespace of its own, because bays and the pool are mounted on the host.
pub(crate) fn text(executable: &Path, data_dir: &Path) -> String {
    let (executable, data_dir) = (argument(executable), argument(data_dir));
    format!(
        "{MARK}
[Unit]
Description=Workbay: isolated Linux workstations for coding agents
Wants=network-online.target
After=network-online.target local-fs.target

[Service]
Type=exec
ExecStart={executable} serve --data-dir {data_dir}
Restart=on-failure
RestartSec=2
KillMode=process
TimeoutStopSec=30
LimitNOFILE=65536
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"
    )
}

/// A path as one argument of a command line in a unit.
fn argument(path: &Path) -> String {
    let mut text = String::from("\"");
    for character in path.to_string_lossy().chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            // Specifiers and variables.
            '%' | '$' => text.extend([character, character]),
            _ => text.push(character),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_unit_ends_the_daemon_alone_and_starts_it_with_the_host() {
        let text = text(Path::new("/usr/local/bin/bay"), Path::new("/var/lib/workbay"));
        assert!(text.starts_with(MARK));
        let lines: Vec<&str> = text.lines().collect();
        for line in [
            "ExecStart=\"/usr/local/bin/bay\" serve --data-dir \"/var/lib/workbay\"",
            "KillMode=process",
            "Restart=on-failure",
            "WantedBy=multi-user.target",
        ] {
            assert!(lines.contains(&line), "{line} is not in\n{text}");
        }
        // Each of these would hide the pool's mount or the bays from the host, or end bays with the daemon.
        for namespace in
            ["PrivateTmp", "ProtectSystem", "PrivateMounts", "ReadWritePaths", "KillMode=control-group"]
        {
            assert!(!text.contains(namespace), "{namespace}");
        }
        let sections: Vec<&str> = lines.iter().copied().filter(|line| line.starts_with('[')).collect();
        assert_eq!(sections, ["[Unit]", "[Service]", "[Install]"]);
    }

    #[test]
    fn a_path_with_special_characters_stays_one_argument() {
        let text = text(Path::new("/b"), Path::new("/srv/my \"bays\" 50%$HOME\\x"));
        assert!(text.contains("--data-dir \"/srv/my \\\"bays\\\" 50%%$$HOME\\\\x\"\n"), "{text}");
    }

    #[test]
    fn systemd_accepts_the_unit_where_it_is_installed() {
        let dir = tempfile::tempdir().unwrap();
        let unit = dir.path().join("workbay.service");
        std::fs::write(&unit, text(Path::new("/bin/true"), Path::new("/var/lib/workbay"))).unwrap();
        match Command::new("systemd-analyze").arg("verify").arg(&unit).output() {
            Ok(verified) => {
                assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
            }
            Err(error) => println!("skipped: systemd-analyze cannot be run: {error}"),
        }
    }
}
