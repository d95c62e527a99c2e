//! Makes git use HTTPS for remotes with SSH addresses at the common forges and at the host of the workspace's origin,
//! because the gateway can read HTTPS.

use std::os::fd::BorrowedFd;

use crate::users;

/// The forges whose addresses are most common.
const FORGES: [&str; 4] = ["github.com", "gitlab.com", "bitbucket.org", "codeberg.org"];
/// The settings of the repository for which the bay was made.
const ORIGIN: &str = "workspace/.git/config";
/// Longest name of a host.
const MAX_HOST: usize = 253;

fn section(host: &str) -> String {
    format!("[url \"https://{host}/\"]")
}

/// The section for a host.
fn https_section(host: &str) -> String {
    format!("{}\n\tinsteadOf = git@{host}:\n\tinsteadOf = ssh://git@{host}/\n", section(host))
}

/// The settings without sections that an earlier start added for hosts that the bay now reaches by SSH.
pub(crate) fn without_https(old: &str, by_ssh: &[String]) -> String {
    by_ssh.iter().fold(old.to_owned(), |text, host| text.replace(&https_section(host), ""))
}

/// What must be added to git's settings for all users, if anything. Existing sections stay. Hosts to which the gateway
/// relays SSH need no section.
pub(crate) fn over_https(root: BorrowedFd<'_>, old: &str, by_ssh: &[String]) -> Option<String> {
    let origin = origin_host(&users::read(root, ORIGIN));
    let own = origin.filter(|host| !FORGES.contains(&host.as_str()));
    let mut text = String::new();
    for host in FORGES.map(str::to_owned).into_iter().chain(own) {
        let there = section(&host);
        if !by_ssh.contains(&host) && !old.lines().any(|line| line.trim() == there) {
            text.push_str(&https_section(&host));
        }
    }
    (!text.is_empty())
        .then(|| format!("# the bay's gateway speaks HTTPS, so remotes by SSH are asked that way\n{text}"))
}

/// The host of `origin`, if its address uses SSH as the user `git`.
fn origin_host(config: &str) -> Option<String> {
    let mut within = false;
    for line in config.lines().map(str::trim) {
        if line.starts_with('[') {
            within = line == "[remote \"origin\"]";
        }
        let value = line.strip_prefix("url").map(str::trim_start).and_then(|rest| rest.strip_prefix('='));
        if let Some(url) = value.map(str::trim).filter(|_| within) {
            let host = match url.strip_prefix("ssh://git@") {
                Some(rest) => rest.split('/').next(),
                None => url.strip_prefix("git@").and_then(|rest| Some(rest.split_once(':')?.0)),
            };
            let plain = |host: &&str| {
                !host.is_empty()
                    && host.len() <= MAX_HOST
                    && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
            };
            return host.filter(plain).map(str::to_ascii_lowercase);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_are_reached_by_ssh_get_no_section_and_lose_an_earlier_one() {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        let root = std::os::fd::AsFd::as_fd(&root);
        let before = over_https(root, "", &[]).unwrap();
        assert!(before.contains("git@github.com:") && before.contains("git@gitlab.com:"));
        let by_ssh = ["github.com".to_owned()];
        let kept = without_https(&before, &by_ssh);
        assert!(!kept.contains("github.com") && kept.contains("git@gitlab.com:"), "{kept}");
        assert_eq!(over_https(root, &kept, &by_ssh), None, "nothing is added again");
        let own = "[url \"https://github.com/\"]\n\tinsteadOf = gh:\n";
        assert_eq!(without_https(own, &by_ssh), own, "what somebody else wrote stays");
    }

    #[test]
    fn the_host_of_an_ssh_origin_is_found_and_odd_values_are_ignored() {
        let of = |url: &str| {
            origin_host(&format!("[core]\n\turl = git@no.test:x\n[remote \"origin\"]\n\turl = {url}\n"))
        };
        assert_eq!(of("git@Forge.test:team/x.git").as_deref(), Some("forge.test"));
        assert_eq!(of("ssh://git@forge.test/team/x.git").as_deref(), Some("forge.test"));
        for odd in
            ["ssh://git@forge.test:2222/x", "https://forge.test/x", "git@a\"]b:x", "git@:x", "/srv/x", ""]
        {
            assert_eq!(of(odd), None, "{odd}");
        }
        assert_eq!(origin_host("[remote \"fork\"]\nurl = git@x.test:y\n"), None);
    }
}
