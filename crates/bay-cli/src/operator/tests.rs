use super::*;

fn settings(files: &[(&str, &str)], environment: &[(&str, &str)]) -> (tempfile::TempDir, Settings) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path.trim_start_matches('/').replace('~', "home"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let settings = Settings {
        root: dir.path().to_owned(),
        home: Some(dir.path().join("home")),
        environment: environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    };
    (dir, settings)
}

fn urls(settings: &Settings) -> Vec<String> {
    settings.registries().into_iter().map(|found| found.url).collect()
}

fn usual_of(tool: Tool) -> Vec<String> {
    default_places(tool).iter().map(ToString::to_string).collect()
}

#[test]
fn a_machine_without_settings_has_the_default_registries() {
    let (_dir, settings) = settings(&[], &[]);
    let all: Vec<String> = Tool::ALL.into_iter().flat_map(usual_of).collect();
    assert_eq!(urls(&settings), all);
}

#[test]
fn settings_replace_the_defaults_and_contain_no_credentials() {
    let (_dir, settings) = settings(
        &[
            ("/etc/pip.conf", "[global]\nindex-url = https://me:hunter2@mirror.example.com/pypi/simple\n"),
            ("~/.config/pip/pip.conf", "[global]\nextra-index-url = https://extra.example.com/simple/\n"),
            ("~/.npmrc", "registry=https://npm.example.com/\n//npm.example.com/:_authToken=hunter2\n"),
            (
                "~/.cargo/config.toml",
                "[source.crates-io]\nreplace-with = \"m\"\n[source.m]\nregistry = \"sparse+https://cargo.example.com/index/\"\n",
            ),
            ("/etc/apt/sources.list", "deb http://apt.example.com/debian stable main\n"),
            ("/etc/apt/sources.list.d/a.sources", "Types: deb\nURIs: https://more.example.com/apt\n"),
            ("/etc/apt/sources.list.d/b.disabled", "deb http://never.example.com/ x y\n"),
            (
                "~/.gitconfig",
                "[url \"https://git.example.com/\"]\n\tinsteadOf = https://forge.example.org/\n[remote \"x\"]\n\turl = https://never.example.com/x\n",
            ),
        ],
        &[],
    );
    let found = settings.registries();
    assert_eq!(
        urls(&settings),
        [
            "https://mirror.example.com/pypi/",
            "https://extra.example.com/",
            "https://npm.example.com/",
            "https://cargo.example.com/index/",
            "http://apt.example.com/debian/",
            "https://more.example.com/apt/",
            "https://git.example.com/",
        ]
    );
    assert!(
        found[0].from.starts_with("pip: index-url in ") && found[0].from.ends_with("pip.conf:2"),
        "{found:?}"
    );
    assert!(!format!("{found:?}").contains("hunter2"));
}

#[test]
fn additional_registries_keep_the_default_and_variables_are_read_too() {
    let (_dir, settings) = settings(
        &[("~/.npmrc", "@team:registry=https://team.example.com/npm/\n")],
        &[
            ("PIP_INDEX_URL", "https://u:p@pip.example.com/simple"),
            ("CARGO_REGISTRIES_OWN_INDEX", "sparse+https://own.example.com/index/"),
            ("PIP_EXTRA_INDEX_URL", "https://a.example.com/simple $BROKEN https://b.example.com/x"),
        ],
    );
    let all = urls(&settings);
    for wanted in [
        "https://team.example.com/npm/",
        "https://pip.example.com/",
        "https://own.example.com/index/",
        "https://a.example.com/",
        "https://b.example.com/x/",
    ] {
        assert!(all.iter().any(|url| url == wanted), "{wanted} in {all:?}");
    }
    assert!(usual_of(Tool::Npm).iter().all(|url| all.contains(url)));
    assert!(usual_of(Tool::Cargo).iter().all(|url| all.contains(url)));
    assert!(!usual_of(Tool::Pip).iter().any(|url| all.contains(url)));
}

#[test]
fn files_that_are_not_regular_or_too_long_are_skipped() {
    let long = format!("registry=https://long.example.com/\n{}", "#".repeat(MAX_SETTINGS_BYTES));
    let (dir, settings) = settings(&[("~/.npmrc", &long)], &[]);
    std::fs::create_dir_all(dir.path().join("etc/pip.conf")).unwrap();
    std::fs::create_dir_all(dir.path().join("home/.pip")).unwrap();
    std::fs::write(dir.path().join("home/.pip/pip.conf"), [0xff, 0xfe, 0]).unwrap();
    let pipe = dir.path().join("home/.gitconfig");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(!urls(&settings).iter().any(|url| url.contains("example.com")));
}

#[tokio::test]
async fn a_name_of_this_host_gets_a_note_and_no_permission() {
    let place = |url: &str| FoundPlace { url: url.to_owned(), from: String::new(), addresses: vec![] };
    let mut places = [place("http://localhost:8080/simple/"), place("http://10.0.0.1/"), place("nonsense")];
    let notes = private_addresses(places.iter_mut().collect()).await;
    assert!(
        notes.len() == 1 && notes[0].contains("localhost resolves to") && notes[0].contains("stays refused"),
        "{notes:?}"
    );
    assert!(places.iter().all(|place| place.addresses.is_empty()));
}

#[test]
fn destinations_are_searched_only_for_policies_that_refer_to_them() {
    for preset in Preset::ALL {
        assert_eq!(wants(preset.text(), "@registries"), preset == Preset::Coding, "{}", preset.name());
        assert_eq!(wants(preset.text(), "@listed"), preset == Preset::Autonomous, "{}", preset.name());
    }
    assert!(wants("extends = \"coding\"", "@registries"));
    assert!(!wants("extends = \"open\"", "@registries"));
}
