//! Destinations that only files of a repository name. Their author is not the operator, so a person is asked about
//! them.

use bay_client::{Client, bay_path};
use bay_policy::tool_settings::{Found, MAX_FOUND, MAX_SETTINGS_BYTES, cargo_config, npmrc, pip_conf};
use bay_text::percent::path_value;
use bay_types::guest::WORKSPACE;
use bay_types::policy::FoundPlace;
use http_body_util::{BodyExt, Limited};

type Parser = fn(&str) -> Vec<Found>;

/// Files at the top of a workspace from which tools read settings.
const FILES: [(&str, Parser); 5] = [
    (".npmrc", npmrc),
    ("pip.conf", pip_conf),
    (".pip/pip.conf", pip_conf),
    (".cargo/config.toml", cargo_config),
    (".cargo/config", cargo_config),
];

/// The destinations that files in the workspace of a running bay name. A file that cannot be read names none.
pub(crate) async fn proposals(client: &mut Client, bay: &str) -> Vec<FoundPlace> {
    let mut all: Vec<FoundPlace> = Vec::new();
    for (name, parser) in FILES {
        let Some(text) = file(client, bay, &format!("{WORKSPACE}/{name}")).await else { continue };
        for found in parser(&text) {
            let url = found.place.to_string();
            if all.len() < MAX_FOUND && !all.iter().any(|known| known.url == url) {
                all.push(FoundPlace { url, from: format!("{name}:{}", found.line), addresses: vec![] });
            }
        }
    }
    all
}

async fn file(client: &mut Client, bay: &str, path: &str) -> Option<String> {
    let path = bay_path(bay, &format!("/files?path={}", path_value(path.as_bytes())));
    let body = client.download(&path).await.ok()?;
    let whole = Limited::new(body, MAX_SETTINGS_BYTES).collect().await.ok()?;
    String::from_utf8(whole.to_bytes().to_vec()).ok()
}
