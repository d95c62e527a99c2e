//! Settings of tools: their destinations are found, and no credential is returned.

use bay_policy::tool_settings::{Found, apt_list, apt_sources, cargo_config, git_config, npmrc, pip_conf};

fn places(found: &[Found]) -> Vec<String> {
    found.iter().map(|found| found.place.to_string()).collect()
}

#[test]
fn pip() {
    let text = "[global]\nindex-url = https://user:hunter2@pip.example.com/simple\ntrusted-host = no.example.com\nextra-index-url =\n    https://a.example.com/simple/\n    http://b.example.com:8080/x\n[install]\nfind_links: https://c.example.com/wheels\n; index-url = https://no.example.com/\ntimeout = 5\n";
    let found = pip_conf(text);
    assert_eq!(
        places(&found),
        [
            "https://pip.example.com/simple/",
            "https://a.example.com/simple/",
            "http://b.example.com:8080/x/",
            "https://c.example.com/wheels/"
        ]
    );
    assert_eq!((found[1].line, found[1].setting.as_str()), (5, "extra-index-url"));
    assert!(!serde_json::to_string(&found).unwrap().contains("hunter2"));
}

#[test]
fn npm() {
    let text = "registry=https://npm.example.com/\n@team:registry = \"https://team.example.com/npm/\"\n//npm.example.com/:_authToken=hunter2\nregistry=${NPM_MIRROR}\n; registry=https://no.example.com/\nproxy=http://no.example.com\n";
    assert_eq!(places(&npmrc(text)), ["https://npm.example.com/", "https://team.example.com/npm/"]);
}

#[test]
fn cargo() {
    let text = "[registries.team]\nindex = \"sparse+https://cargo.example.com/index/\"\n[registries.git]\nindex = \"ssh://git@no.example.com/x\"\n[source.main]\nreplace-with = \"mirror\"\n[source.mirror]\nregistry = \"sparse+https://mirror.example.com/\"\n[net]\nretry = 3\n";
    let found = cargo_config(text);
    assert_eq!(places(&found), ["https://cargo.example.com/index/", "https://mirror.example.com/"]);
    assert_eq!((found[0].line, found[0].setting.as_str()), (2, "registries.team.index"));
    assert!(cargo_config("[registries.team").is_empty());
}

#[test]
fn apt() {
    let text = "# deb https://no.example.com/ x main\ndeb https://deb.example.com/debian stable main\ndeb-src [arch=amd64 signed-by=/k] http://src.example.com/debian stable main # x\ndeb cdrom:[Disc]/ stable main\nrpm https://no.example.com\n";
    assert_eq!(
        places(&apt_list(text)),
        ["https://deb.example.com/debian/", "http://src.example.com/debian/"]
    );
    let text = "Types: deb\nURIs: https://deb.example.com/debian\n https://two.example.com/debian\nSuites: stable\n\nTypes: deb\nEnabled: no\nURIs: https://no.example.com/\n\n# comment\nuris: http://three.example.com/\n";
    assert_eq!(
        places(&apt_sources(text)),
        ["https://deb.example.com/debian/", "https://two.example.com/debian/", "http://three.example.com/"]
    );
}

#[test]
fn git() {
    let text = "[user]\n\tname = x\n[remote \"origin\"]\n\turl = https://token@git.example.com/team/project.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n[url \"https://mirror.example.com/\"]\n\tinsteadOf = https://elsewhere.example.com/\n[remote \"ssh\"]\n\turl = git@no.example.com:x/y.git\n";
    assert_eq!(
        places(&git_config(text)),
        ["https://git.example.com/team/project.git/", "https://mirror.example.com/"]
    );
}

#[test]
fn files_that_do_not_parse_are_skipped() {
    for text in [
        "",
        "\0\0",
        "=",
        "[",
        "registry=",
        "registry=javascript:alert(1)",
        "deb",
        "URIs:",
        &"x".repeat(2 << 20),
    ] {
        for read in [pip_conf, npmrc, cargo_config, apt_list, apt_sources, git_config] {
            assert!(read(text).is_empty(), "{text:.40}");
        }
    }
    let many: String = (0..1000).map(|at| format!("@s{at}:registry=https://h{at}.example.com/\n")).collect();
    assert_eq!(npmrc(&many).len(), bay_policy::tool_settings::MAX_FOUND);
}
