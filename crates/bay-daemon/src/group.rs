//! The group whose members may use the socket.
//!
//! Like Docker's group, it is equal to root: a member can make a bay with any directory of the host mounted.

use std::fs;

/// The host's groups. Groups of a directory service are not in it; the group of a daemon is a group of its host.
const GROUPS: &str = "/etc/group";

/// The id of a group of this host, if there is one of this name.
pub(crate) fn id_of(name: &str) -> Option<u32> {
    find(&fs::read_to_string(GROUPS).ok()?, name)
}

fn find(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let named = fields.next() == Some(name) && !name.is_empty();
        // The second field is a password, which nothing uses.
        fields.nth(1).filter(|_| named)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_its_whole_name() {
        let groups = "root:x:0:\nworkbay2:x:7:\nworkbay:x:991:ann,bob\nbroken\n:x:5:\n";
        assert_eq!(find(groups, "workbay"), Some(991));
        for absent in ["work", "", "broken", "ann"] {
            assert_eq!(find(groups, absent), None, "{absent:?}");
        }
    }
}
