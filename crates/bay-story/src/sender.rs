//! Who sent a request, in a few words.

use bay_types::egress::Who;

use crate::text::safe;

/// The most characters of a name of a sender.
const NAME: usize = 40;
/// Programs that are browsers, by the beginning of their names.
const BROWSERS: &[&str] = &[
    "chrome",
    "chromium",
    "headless_shell",
    "headless-shell",
    "firefox",
    "msedge",
    "brave",
    "webkit",
    "MiniBrowser",
    "opera",
    "vivaldi",
    "google-chrome",
];
/// Hosts that browsers call by themselves, for updates, reports and settings. An entry that begins with a dot also covers
/// the names below it.
const BACKGROUND: &[&str] = &[
    ".gvt1.com",
    ".gvt2.com",
    "accounts.google.com",
    "android.clients.google.com",
    "beacons.gcp.gvt2.com",
    "clients1.google.com",
    "clients2.google.com",
    "clients2.googleusercontent.com",
    "clients4.google.com",
    "clientservices.googleapis.com",
    "content-autofill.googleapis.com",
    "mtalk.google.com",
    "optimizationguide-pa.googleapis.com",
    "passwordsleakcheck-pa.googleapis.com",
    "redirector.gvt1.com",
    "safebrowsing.googleapis.com",
    "safebrowsingohttpgateway.googleapis.com",
    "sb-ssl.google.com",
    "update.googleapis.com",
    ".mozilla.com",
    ".mozilla.net",
    "ciscobinary.openh264.org",
    "config.edge.skype.com",
    "edge.microsoft.com",
    "msedge.api.cdp.microsoft.com",
];

/// The sender of a request: `exec 3 (curl)`. `number` is the number of the exec, if it is known.
pub(crate) fn sender(who: Option<&Who>, number: Option<u64>) -> String {
    let Some(who) = who else { return "an unknown process".to_owned() };
    let name = match (number, &who.service, &who.nested) {
        (Some(number), ..) => format!("exec {number}"),
        (None, Some(service), _) => format!("service {}", safe(service, NAME)),
        (None, None, Some(nested)) => format!("container {}", safe(nested, NAME)),
        (None, None, None) if who.guest => "the bay's guest".to_owned(),
        (None, None, None) => "a process".to_owned(),
    };
    let program = who.process.as_ref().map(|process| safe(&process.program(), NAME));
    match program.filter(|program| !program.is_empty()) {
        Some(program) => format!("{name} ({program})"),
        None => name,
    }
}

/// Whether a browser seems to have made this request by itself, and not for a page: a known browser's program sent
/// it to a host that browsers call by themselves. What the process calls itself does not count.
#[must_use]
pub fn is_background(who: Option<&Who>, host: &str) -> bool {
    let Some(process) = who.and_then(|who| who.process.as_ref()) else { return false };
    let exe = process.exe.rsplit('/').next().unwrap_or_default();
    BROWSERS.iter().any(|browser| exe.starts_with(browser))
        && BACKGROUND.iter().any(|known| match known.strip_prefix('.') {
            Some(domain) => {
                host == domain || host.strip_suffix(domain).is_some_and(|below| below.ends_with('.'))
            }
            None => host == *known,
        })
}

#[cfg(test)]
mod tests {
    use bay_types::egress::Process;

    use super::*;

    fn who(exe: &str) -> Who {
        let process = Process { pid: 1, host_pid: 2, exe: exe.to_owned(), argv: vec!["chrome".to_owned()] };
        Who { process: Some(process), ..Who::default() }
    }

    #[test]
    fn only_a_browser_makes_a_browsers_background_calls() {
        let browser = who("/opt/chrome-linux/headless_shell");
        assert!(is_background(Some(&browser), "update.googleapis.com"));
        assert!(is_background(Some(&browser), "r4---sn-x.gvt1.com"));
        assert!(!is_background(Some(&browser), "gvt1.com.evil.example"));
        assert!(!is_background(Some(&browser), "evilgvt1.com"));
        assert!(!is_background(Some(&browser), "shop.example"));
        assert!(
            !is_background(Some(&who("/usr/bin/curl")), "update.googleapis.com"),
            "it only calls itself chrome"
        );
        assert!(!is_background(None, "update.googleapis.com"));
    }

    #[test]
    fn a_sender_has_the_name_of_its_binary() {
        let mut one = who("/usr/bin/node");
        assert_eq!(sender(Some(&one), Some(3)), "exec 3 (node (as chrome))");
        one.process = None;
        one.service = Some("web\u{1b}".to_owned());
        assert_eq!(sender(Some(&one), None), "service web");
        assert_eq!(sender(None, None), "an unknown process");
    }
}
