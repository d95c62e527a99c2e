//! How the daemon reaches the network: its proxy and certificates. Git gets nothing else of the daemon's
//! environment.

use std::path::PathBuf;

/// Variables of the daemon that git gets for a remote.
pub const GIT_VARIABLES: [&str; 11] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
];

/// Variables and files of a git run that talks to a remote.
#[derive(Debug, Default)]
pub(crate) struct Network {
    pub(crate) variables: Vec<(String, String)>,
    /// Certificate files, which git must be able to read.
    pub(crate) files: Vec<PathBuf>,
}

impl Network {
    pub(crate) fn of(environment: &[(String, String)]) -> Self {
        let mut variables: Vec<(String, String)> = environment
            .iter()
            .filter(|(name, value)| GIT_VARIABLES.contains(&name.as_str()) && !value.is_empty())
            .cloned()
            .collect();
        // Only OpenSSL reads the usual names; git has its own names for every TLS library.
        for (usual, own) in [("SSL_CERT_FILE", "GIT_SSL_CAINFO"), ("SSL_CERT_DIR", "GIT_SSL_CAPATH")] {
            let value = |wanted| variables.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
            if let (Some(value), None) = (value(usual).cloned(), value(own)) {
                variables.push((own.to_owned(), value));
            }
        }
        let files = variables
            .iter()
            .filter(|(name, _)| name.contains("SSL_"))
            .flat_map(|(_, value)| std::env::split_paths(value))
            .filter(|path| path.is_absolute())
            .collect();
        Self { variables, files }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_gets_proxies_and_certificates_and_nothing_else() {
        let given = [
            ("https_proxy", "http://proxy:3128"),
            ("NO_PROXY", ""),
            ("SSL_CERT_FILE", "/own/ca.pem"),
            ("SSL_CERT_DIR", "/one:/two"),
            ("GIT_SSH_COMMAND", "sh"),
            ("LD_PRELOAD", "/x.so"),
        ];
        let given: Vec<_> = given.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let network = Network::of(&given);
        let names: Vec<&str> = network.variables.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["https_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH"]
        );
        assert!(network.files.contains(&"/own/ca.pem".into()) && network.files.contains(&"/two".into()));
        let own = [("SSL_CERT_FILE", "/a"), ("GIT_SSL_CAINFO", "/b")];
        let own: Vec<_> = own.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(Network::of(&own).variables, own, "git's own name takes precedence");
    }
}
