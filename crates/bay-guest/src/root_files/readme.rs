//! The README for the agent in a bay.

use std::fmt::Write;

use bay_types::bay::Limits;
use bay_types::guest::{GATEWAY_V4, GuestConfig, PROXY_PORT};

pub(super) fn text(guest: &GuestConfig) -> String {
    let mut mounts = String::new();
    for mount in &guest.about.mounts {
        // Writing to a String cannot fail. A path may contain a line break, which must not break the line of this file.
        let _ = writeln!(mounts, "- {mount:?}: from the host, read-only.");
    }
    include_str!("README.md")
        .replace("@NAME@", &guest.hostname)
        .replace("@PROXY@", &format!("{GATEWAY_V4}:{PROXY_PORT}"))
        .replace("@LIMITS@", &limits(&guest.about.limits))
        .replace("@MOUNTS@\n", &mounts)
}

fn limits(limits: &Limits) -> String {
    let or_host = |value: Option<String>| value.unwrap_or_else(|| "the host's".to_owned());
    format!(
        "processors {}, memory {}, disk {}, processes {}",
        or_host(limits.cpus.map(|n| n.to_string())),
        or_host(limits.memory_mib.map(|n| format!("{n} MiB"))),
        or_host(limits.disk_mib.map(|n| format!("{n} MiB"))),
        or_host(limits.pids.map(|n| n.to_string())),
    )
}

#[cfg(test)]
mod tests {
    use bay_types::inside::About;

    use super::*;

    #[test]
    fn every_placeholder_is_replaced() {
        let about = About {
            limits: Limits { memory_mib: Some(512), ..Limits::default() },
            durability: bay_types::durability::Durability::Strict,
            mounts: vec!["/data\nx".into()],
            isolation: None,
        };
        let guest = GuestConfig {
            bay_id: "bay".into(),
            hostname: "alpha".into(),
            machine_id: String::new(),
            author: None,
            user: None,
            certificate: None,
            ssh: None,
            secrets: Vec::new(),
            fork_index: None,
            about,
        };
        let text = text(&guest);
        assert!(!text.contains('@'), "{text}");
        assert!(
            text.contains("alpha") && text.contains("memory 512 MiB") && text.contains("/data\\nx"),
            "{text}"
        );
    }
}
