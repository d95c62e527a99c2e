use std::str::FromStr;

use bay_text::clip;

/// Most characters of a bad argument that an error quotes.
const QUOTED: usize = 64;

/// A port of the bay, and the port of this host that leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortPair {
    pub(crate) inside: u16,
    pub(crate) host: u16,
}

impl PortPair {
    /// A port under its own number.
    pub(crate) fn same(port: u16) -> Self {
        Self { inside: port, host: port }
    }
}

impl FromStr for PortPair {
    type Err = String;

    /// Parses `5173` or `5173:8080`.
    fn from_str(given: &str) -> Result<Self, String> {
        let port = |text: &str| {
            let number = text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
            number.filter(|port| *port > 0).ok_or_else(|| {
                format!(
                    "{:?} is not a port: write the bay's port, or PORT:HOST_PORT, each from 1 to 65535",
                    clip(text, QUOTED)
                )
            })
        };
        match given.split_once(':') {
            Some((inside, host)) => Ok(Self { inside: port(inside)?, host: port(host)? }),
            None => port(given).map(Self::same),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bays_port_comes_first_and_is_the_hosts_port_too_if_none_is_given() {
        assert_eq!("5173".parse(), Ok(PortPair::same(5173)));
        assert_eq!("5173:8080".parse(), Ok(PortPair { inside: 5173, host: 8080 }));
        assert_eq!("65535:1".parse(), Ok(PortPair { inside: 65535, host: 1 }));
    }

    #[test]
    fn what_is_no_port_is_refused_with_the_reason() {
        for bad in
            ["", "0", "70000", "65536", "http", "80:", ":80", "80:0", "+80", "80:80:80", "-1", "8 0", "８０"]
        {
            let why = bad.parse::<PortPair>().unwrap_err();
            assert!(why.contains("1 to 65535"), "{bad}: {why}");
        }
        assert!("9".repeat(5000).parse::<PortPair>().unwrap_err().len() < 300);
    }
}
