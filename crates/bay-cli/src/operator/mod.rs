//! The settings of the operator's own tools: the registries that they use. A policy with `@registries` lets a bay read
//! these.
//!
//! Only the caller's environment, and files of the caller and of the host, are read, with the caller's rights. They
//! belong to other programs and may contain anything, so their size is bounded and text that does not parse is
//! skipped. Credentials never leave the parsers. A tool without settings has its default registries.

mod lookup;
mod repository;

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bay_policy::tool_settings::{
    Found, MAX_SETTINGS_BYTES, Tool, apt_list, apt_sources, cargo_config, default_places, git_config, npmrc,
    pip_conf, variable,
};
use bay_policy::{Place, Preset};
use bay_types::policy::{FoundPlace, FoundPlaces};
use rustix::fs::OFlags;

use lookup::private_addresses;
pub(crate) use repository::proposals;

/// Most files of one directory of settings.
const MAX_FILES: usize = 256;

/// Whether a policy refers to destinations that are found on the operator's machine.
pub(crate) fn wants(text: &str, places: &str) -> bool {
    let extended =
        |preset: &Preset| preset.text().contains(places) && text.contains(&format!("\"{}\"", preset.name()));
    text.contains(places) || Preset::ALL.iter().any(extended)
}

/// The sources of settings.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The root directory; a temporary directory in tests.
    root: PathBuf,
    home: Option<PathBuf>,
    environment: BTreeMap<String, String>,
}

impl Settings {
    /// The settings of the caller.
    pub(crate) fn of_caller() -> Self {
        let environment: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let home = environment.get("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        Self { root: PathBuf::from("/"), home, environment }
    }

    /// All registries without duplicates, each with the setting that names it.
    pub(crate) fn registries(&self) -> Vec<FoundPlace> {
        let mut all: Vec<FoundPlace> = Vec::new();
        let mut add = |place: &Place, from: String| {
            let url = place.to_string();
            if !all.iter().any(|known| known.url == url) {
                all.push(FoundPlace { url, from, addresses: Vec::new() });
            }
        };
        for tool in Tool::ALL {
            let found = match tool {
                Tool::Pip => self.pip(),
                Tool::Npm => self.npm(),
                Tool::Cargo => self.cargo(),
                Tool::Apt => self.apt(),
            };
            let replaced = found.iter().any(|(_, found)| replaces(tool, &found.setting));
            for (from, found) in &found {
                add(&found.place, format!("{}: {from}", tool.name()));
            }
            if !replaced {
                for place in default_places(tool) {
                    add(&place, format!("{}: its own default", tool.name()));
                }
            }
        }
        for (from, found) in self.git() {
            add(&found.place, format!("git: {from}"));
        }
        all
    }

    /// `None` for `~/…` if there is no home directory.
    fn path(&self, path: &str) -> Option<PathBuf> {
        match path.strip_prefix("~/") {
            Some(below) => Some(self.home.as_ref()?.join(below)),
            None => Some(self.root.join(path.trim_start_matches('/'))),
        }
    }

    fn file(&self, path: &Path, parser: fn(&str) -> Vec<Found>) -> Vec<(String, Found)> {
        let Some(text) = bounded(path) else { return Vec::new() };
        parser(&text)
            .into_iter()
            .map(|found| (format!("{} in {}:{}", found.setting, path.display(), found.line), found))
            .collect()
    }

    fn files(&self, paths: &[&str], parser: fn(&str) -> Vec<Found>) -> Vec<(String, Found)> {
        paths.iter().filter_map(|path| self.path(path)).flat_map(|path| self.file(&path, parser)).collect()
    }

    /// Destinations that a variable lists.
    fn variable(&self, name: &str, setting: &str) -> Vec<(String, Found)> {
        let Some(value) = self.environment.get(name) else { return Vec::new() };
        let found = |word: &str| {
            let found = Found { place: variable(word)?, line: 0, setting: setting.to_owned() };
            Some((format!("the variable {name}"), found))
        };
        value.split_whitespace().filter_map(found).collect()
    }

    /// Destinations from a file that a variable names.
    fn file_of(&self, name: &str, parser: fn(&str) -> Vec<Found>) -> Vec<(String, Found)> {
        match self.environment.get(name).filter(|path| path.starts_with('/')) {
            Some(path) => self.files(&[path], parser),
            None => Vec::new(),
        }
    }

    fn pip(&self) -> Vec<(String, Found)> {
        let mut found = self.files(
            &["/etc/pip.conf", "/etc/xdg/pip/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf"],
            pip_conf,
        );
        found.extend(self.file_of("PIP_CONFIG_FILE", pip_conf));
        for (name, setting) in [
            ("PIP_INDEX_URL", "index-url"),
            ("PIP_EXTRA_INDEX_URL", "extra-index-url"),
            ("PIP_FIND_LINKS", "find-links"),
            ("UV_DEFAULT_INDEX", "index-url"),
            ("UV_INDEX_URL", "index-url"),
            ("UV_EXTRA_INDEX_URL", "extra-index-url"),
        ] {
            found.extend(self.variable(name, setting));
        }
        // An index lists files that lie beside it.
        for (_, found) in &mut found {
            let beside = found.place.above("simple").or_else(|| found.place.above("+simple"));
            if let Some(beside) = beside {
                found.place = beside;
            }
        }
        found
    }

    fn npm(&self) -> Vec<(String, Found)> {
        let mut found =
            self.files(&["/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc", "~/.npmrc"], npmrc);
        for name in ["NPM_CONFIG_USERCONFIG", "npm_config_userconfig"] {
            found.extend(self.file_of(name, npmrc));
        }
        for name in ["NPM_CONFIG_REGISTRY", "npm_config_registry"] {
            found.extend(self.variable(name, "registry"));
        }
        found
    }

    fn cargo(&self) -> Vec<(String, Found)> {
        let mut found = match self.environment.get("CARGO_HOME").filter(|path| path.starts_with('/')) {
            Some(home) => {
                self.files(&[&format!("{home}/config.toml"), &format!("{home}/config")], cargo_config)
            }
            None => self.files(&["~/.cargo/config.toml", "~/.cargo/config"], cargo_config),
        };
        for name in self.environment.keys() {
            if name.starts_with("CARGO_REGISTRIES_") && name.ends_with("_INDEX") {
                found.extend(self.variable(name, "registries.index"));
            }
            if name.starts_with("CARGO_SOURCE_") && name.ends_with("_REGISTRY") {
                found.extend(self.variable(name, "source.registry"));
            }
        }
        found
    }

    fn apt(&self) -> Vec<(String, Found)> {
        let mut found = self.files(&["/etc/apt/sources.list"], apt_list);
        let directory = self.path("/etc/apt/sources.list.d").and_then(|path| std::fs::read_dir(path).ok());
        let entries = directory.into_iter().flatten().take(MAX_FILES);
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.sort();
        for path in files {
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("list") => found.extend(self.file(&path, apt_list)),
                Some("sources") => found.extend(self.file(&path, apt_sources)),
                _ => {}
            }
        }
        found
    }

    /// URLs that git substitutes for others. Remotes belong to repositories, which have a policy of their own.
    fn git(&self) -> Vec<(String, Found)> {
        let mut found = self.files(&["/etc/gitconfig", "~/.config/git/config", "~/.gitconfig"], git_config);
        found.retain(|(_, found)| found.setting == "url.insteadOf");
        found
    }
}

/// Whether this setting replaces the tool's default registry.
fn replaces(tool: Tool, setting: &str) -> bool {
    match tool {
        Tool::Pip => matches!(setting, "index-url" | "index"),
        Tool::Npm => setting == "registry",
        Tool::Cargo => setting.starts_with("source."),
        Tool::Apt => true,
    }
}

/// The text of a regular file that is not too long.
fn bounded(path: &Path) -> Option<String> {
    // A pipe of that name must not block.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_SETTINGS_BYTES as u64 + 1).read_to_end(&mut bytes).ok()?;
    if bytes.len() > MAX_SETTINGS_BYTES {
        return None;
    }
    String::from_utf8(bytes).ok()
}

/// The address of a repository over HTTPS, if its location is one that can be fetched so.
pub(crate) fn forge(location: &str, from: &str) -> Vec<FoundPlace> {
    let place = Place::of_repository(location);
    let found =
        |place: Place| FoundPlace { url: place.to_string(), from: from.to_owned(), addresses: vec![] };
    place.map(found).into_iter().collect()
}

/// All destinations that the policy refers to, with their private addresses, and notes for the operator.
pub(crate) async fn places(
    text: &str,
    forge: Vec<FoundPlace>,
    listed: &[String],
) -> (FoundPlaces, Vec<String>) {
    let mut found = FoundPlaces::default();
    if wants(text, "@registries") {
        found.registries = Settings::of_caller().registries();
    }
    if wants(text, "@forge") {
        found.forge = forge;
    }
    let place = |url: &String| FoundPlace { url: url.clone(), from: "--list".to_owned(), addresses: vec![] };
    found.listed = listed.iter().map(place).collect();
    let all = found.registries.iter_mut().chain(&mut found.forge).chain(&mut found.listed);
    let notes = private_addresses(all.collect()).await;
    (found, notes)
}

#[cfg(test)]
mod tests;
