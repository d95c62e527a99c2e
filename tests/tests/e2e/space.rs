//! Where the disk goes, and what gives it back.

use std::fs;
use std::path::PathBuf;

use bay_tests::{Daemon, SMALL, image, leaks, until};
use bay_types::ErrorCode;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// Imports the small image once more, under a name of its own. Returns its id.
fn another_image(daemon: &Daemon, name: &str) -> String {
    let source = format!("dir:{}", image::small().display());
    let made = daemon.bay(&["images", "import", &source, "--name", name, "--force", "--json"]).ok().json();
    made["id"].as_str().unwrap().to_owned()
}

/// Makes an image look as if it were imported from the host's own tools, which are too large for a test.
fn pretend_host(daemon: &Daemon, id: &str) {
    let path: PathBuf = leaks::pool_root(&daemon.pool).join("images").join(id).join("meta.json");
    let mut meta: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    meta["name"] = json!("host");
    meta["source"] = json!("host");
    fs::write(&path, serde_json::to_vec(&meta).unwrap()).unwrap();
}

fn image_ids(daemon: &Daemon) -> Vec<String> {
    let images = daemon.bay(&["images", "ls", "--json"]).ok().json();
    images.as_array().unwrap().iter().map(|image| image["id"].as_str().unwrap().to_owned()).collect()
}

fn df(daemon: &Daemon) -> Value {
    let usage = daemon.bay(&["df", "--json"]).ok().json();
    assert_eq!(usage["complete"], true, "{usage}");
    usage
}

fn bay_space(usage: &Value, name: &str) -> Value {
    let bays = usage["bays"].as_array().unwrap();
    bays.iter().find(|bay| bay["name"] == name).unwrap_or_else(|| panic!("{usage}")).clone()
}

#[test]
fn a_superseded_image_of_the_host_goes_with_its_last_bay_and_the_newest_stays() {
    let daemon = Daemon::setup().own_pool(1024).without_image().start();
    let (old, new, own) =
        (another_image(&daemon, "a"), another_image(&daemon, "b"), another_image(&daemon, "c"));
    for (bay, image) in [("one", &old), ("two", &old), ("three", &new), ("four", &own)] {
        daemon.bay_from(bay, image);
    }
    pretend_host(&daemon, &old);
    pretend_host(&daemon, &new);
    let _removed = daemon.bay(&["rm", "one", "--yes"]).ok();
    assert!(image_ids(&daemon).contains(&old), "a bay still uses it");
    let _removed = daemon.bay(&["rm", "two", "three", "four", "--yes"]).ok();
    until("the superseded image to go", || (!image_ids(&daemon).contains(&old)).then_some(()));
    assert_eq!(image_ids(&daemon), [new, own], "the newest and the operator's own stay");
    let events = daemon.rest("GET", "/v1/events?since=0", &Value::Null).json();
    let removal = events.as_array().unwrap().iter().find(|event| event["kind"] == "image.remove").cloned();
    let removal = removal.unwrap_or_else(|| panic!("{events}"));
    assert_eq!((&removal["body"]["image"], &removal["body"]["by"]), (&json!(old), &json!("superseded")));
}

#[test]
fn prune_removes_the_images_that_no_bay_uses_and_shows_them_first() {
    let daemon = Daemon::setup().own_pool(1024).start();
    daemon.empty_bay("b");
    let first = another_image(&daemon, "tools");
    let second = another_image(&daemon, "tools");
    let prune = |arguments: &[&str]| {
        let mut line = vec!["images", "prune", "--json"];
        line.extend(arguments);
        let pruned = daemon.bay(&line).ok().json();
        let images = pruned["images"].as_array().unwrap();
        images.iter().map(|image| image["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(prune(&["--dry-run"]), [first.clone(), second.clone()]);
    assert_eq!(prune(&["--dry-run", "--superseded"]), std::slice::from_ref(&first));
    assert_eq!(image_ids(&daemon).len(), 3, "a dry run removes nothing");
    let shown = daemon.bay(&["images", "prune", "--superseded", "--yes"]).ok();
    assert!(shown.errors().contains("tools") && shown.text().contains("1 image removed"), "{shown}");
    assert_eq!(prune(&[]), [second]);
    let left = daemon.bay(&["images", "ls", "--json"]).ok().json();
    assert_eq!(left.as_array().unwrap().len(), 1, "{left}");
    assert_eq!(left[0]["name"], SMALL);
    assert_eq!(prune(&[]), Vec::<String>::new());
    daemon.bay(&["images", "rm", "tools"]).fails_with(ErrorCode::ImageNotFound);
}

#[test]
fn df_says_what_each_bay_and_checkpoint_frees() {
    let daemon = Daemon::setup().own_pool(1024).start();
    daemon.empty_bay("b");
    let write = |name: &str, mib: u64| {
        let script = format!("head -c {} /dev/urandom > /workspace/{name}; sync", mib * MIB);
        let _written = daemon.sh("b", &script).ok();
    };
    let about = |value: &Value, mib: u64| {
        let bytes = value.as_u64().unwrap();
        assert!((mib * MIB..(mib + 4) * MIB).contains(&bytes), "{value} is not about {mib} MiB");
    };
    write("one", 20);
    let usage = df(&daemon);
    let bay = bay_space(&usage, "b");
    about(&bay["workspace"]["own_bytes"], 20);
    about(&bay["own_bytes"], 20);

    let _taken = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    let bay = bay_space(&df(&daemon), "b");
    about(&bay["workspace"]["shared_bytes"], 20);
    about(&bay["own_bytes"], 20);
    about(&bay["checkpoints"][0]["files"]["shared_bytes"], 20);
    about(&bay["checkpoints"][0]["files"]["own_bytes"], 0);

    // The bay overwrites the file, so that only the checkpoint has the old data.
    write("one", 10);
    let usage = df(&daemon);
    let bay = bay_space(&usage, "b");
    about(&bay["workspace"]["own_bytes"], 10);
    about(&bay["checkpoints"][0]["files"]["own_bytes"], 20);
    about(&bay["own_bytes"], 30);

    // What it says is what comes back, and everything that is in use is accounted for.
    let used = |usage: &Value| usage["total_bytes"].as_u64().unwrap() - usage["free_bytes"].as_u64().unwrap();
    let listed = used(&usage) - usage["rest_bytes"].as_u64().unwrap();
    let sum = bay["own_bytes"].as_u64().unwrap() + usage["images"][0]["own_bytes"].as_u64().unwrap();
    assert!(listed.abs_diff(sum) < 2 * MIB, "{usage}");
    assert_eq!(usage["images"][0]["bays"], 1);
    let text = daemon.bay(&["df", "--checkpoints"]).ok().text();
    assert!(text.contains("bay checkpoints rm b v1") && text.contains("reserved for the host"), "{text}");
    let _removed = daemon.bay(&["checkpoints", "rm", "b", "v1"]).ok();
    until("the checkpoint's space to be free", || {
        // The kernel frees a removed snapshot after the next commit of the filesystem.
        let _committed = daemon.sh("b", "sync").ok();
        let freed = used(&usage).saturating_sub(used(&df(&daemon)));
        (freed > 15 * MIB).then_some(())
    });
}
