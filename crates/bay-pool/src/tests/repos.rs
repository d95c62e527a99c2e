use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bay_sys::btrfs;
use bay_tests::suite::{self, Lack};
use bay_types::checkpoint::Point;
use bay_types::{BayId, CheckpointName, ErrorCode, RepoId};

use super::remote::{answering, remote};
use super::{Lab, import_host, write};
use crate::beginning::Beginning;
use crate::subvolume::open_dir;
use crate::{Pool, WorkspaceFrom};

/// Plain git, as a person would run it.
fn git(dir: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"])
        .args(arguments)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A repository with two branches and a tag.
fn source(lab: &Lab) -> PathBuf {
    let dir = lab.path().join("source");
    fs::create_dir(&dir).unwrap();
    git(&dir, &["init", "-q", "-b", "trunk"]);
    write(&dir.join("readme"), "one", 0o644);
    write(&dir.join("bin/run"), "#!", 0o755);
    std::os::unix::fs::symlink("/etc/passwd", dir.join("link")).unwrap();
    git(&dir, &["add", "."]);
    git(&dir, &["commit", "-qm", "one"]);
    git(&dir, &["tag", "-am", "v1", "v1"]);
    git(&dir, &["checkout", "-qb", "topic/x"]);
    write(&dir.join("readme"), "two", 0o644);
    git(&dir, &["commit", "-qam", "two"]);
    git(&dir, &["checkout", "-q", "trunk"]);
    dir
}

fn fetched(pool: &Pool, dir: &Path) -> RepoId {
    let repo = pool.repo_for(&remote(dir)).unwrap();
    pool.repo_fetch(repo, &mut |_| {}).unwrap();
    repo
}

fn from(repo: RepoId, commit: &str, branch: Option<&str>) -> WorkspaceFrom {
    WorkspaceFrom::Checkout { repo, commit: commit.to_owned(), branch: branch.map(str::to_owned) }
}

fn code<T: std::fmt::Debug>(result: Result<T, crate::PoolError>) -> ErrorCode {
    result.unwrap_err().to_api().code
}

#[test]
fn a_workspace_is_a_complete_clone_with_a_clean_status() {
    let Some(lab) = Lab::new() else { return };
    let dir = source(&lab);
    let pool = lab.open();
    let repo = fetched(&pool, &dir);
    let resolved = pool.repo_resolve(repo, None).unwrap();
    assert_eq!(resolved.branch.as_deref(), Some("trunk"));
    assert_eq!(resolved.commit, git(&dir, &["rev-parse", "trunk"]));
    pool.repo_checkout(repo, &resolved.commit, Some("trunk"), &mut |_| {}).unwrap();
    let image = import_host(&pool);
    let disk = pool
        .bay_create(BayId::generate(), image.id, &from(repo, &resolved.commit, Some("trunk")), None)
        .unwrap();
    let work = &disk.workspace;
    assert_eq!(
        git(work, &["status", "--porcelain=v2", "--branch"]),
        format!(
            "# branch.oid {}\n# branch.head trunk\n# branch.upstream origin/trunk\n# branch.ab +0 -0",
            resolved.commit
        )
    );
    assert_eq!(git(work, &["log", "--format=%s", "origin/topic/x"]), "two\none");
    assert_eq!(git(work, &["describe", "--tags"]), "v1");
    assert_eq!(git(work, &["remote", "get-url", "origin"]), remote(&dir));
    assert_eq!(git(work, &["rev-parse", "--abbrev-ref", "origin/HEAD"]), "origin/trunk");
    git(work, &["fsck", "--strict"]);
    assert_eq!(fs::metadata(work.join("bin/run")).unwrap().permissions().mode() & 0o777, 0o755);
    // It belongs to the agent: a commit in it does not change the cache.
    write(&work.join("readme"), "mine", 0o644);
    git(work, &["commit", "-qam", "mine"]);
    assert!(!pool.repo_has_commit(repo, &git(work, &["rev-parse", "HEAD"])).unwrap());
    let view = pool.repo_view(repo).unwrap();
    assert_eq!((view.checkouts, view.bays), (1, 1));
    assert!(view.bytes > 0);
}

#[test]
fn a_second_checkout_and_every_workspace_share_their_blocks() {
    let Some(lab) = Lab::new() else { return };
    let dir = source(&lab);
    let noise: Vec<u8> = (0..20_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    fs::write(dir.join("large"), noise).unwrap();
    git(&dir, &["add", "."]);
    git(&dir, &["commit", "-qm", "large"]);
    let one = git(&dir, &["rev-parse", "HEAD"]);
    write(&dir.join("readme"), "later", 0o644);
    git(&dir, &["commit", "-qam", "later"]);
    let two = git(&dir, &["rev-parse", "HEAD"]);
    let pool = lab.open();
    let repo = fetched(&pool, &dir);
    let image = import_host(&pool);
    pool.repo_checkout(repo, &one, None, &mut |_| {}).unwrap();
    btrfs::sync(open_dir(&lab.mount_point()).unwrap()).unwrap();
    let before = pool.usage().unwrap().free_bytes;
    pool.repo_checkout(repo, &two, Some("trunk"), &mut |_| {}).unwrap();
    let first = pool.bay_create(BayId::generate(), image.id, &from(repo, &one, None), None).unwrap();
    let second =
        pool.bay_create(BayId::generate(), image.id, &from(repo, &two, Some("trunk")), None).unwrap();
    btrfs::sync(open_dir(&lab.mount_point()).unwrap()).unwrap();
    let taken = before.saturating_sub(pool.usage().unwrap().free_bytes);
    assert!(taken < 4 << 20, "{taken} bytes for a checkout and two workspaces of 20 MB");
    assert_eq!(fs::read_to_string(first.workspace.join("readme")).unwrap(), "one");
    assert_eq!(fs::read_to_string(second.workspace.join("readme")).unwrap(), "later");
    assert_eq!(git(&first.workspace, &["status", "--porcelain"]), "");
    assert_eq!(git(&first.workspace, &["rev-parse", "--abbrev-ref", "HEAD"]), "HEAD", "detached");
    assert_eq!(git(&second.workspace, &["status", "--porcelain"]), "");
    // Inode numbers and times match the index, so git need not read the files again.
    let inode = |path: &Path| fs::metadata(path.join("large")).unwrap().ino();
    assert_eq!(inode(&first.workspace), inode(&second.workspace));
}

#[test]
fn refs_are_resolved_as_git_resolves_them() {
    let Some(lab) = Lab::new() else { return };
    let dir = source(&lab);
    let pool = lab.open();
    let repo = fetched(&pool, &dir);
    let (one, two) = (git(&dir, &["rev-parse", "trunk"]), git(&dir, &["rev-parse", "topic/x"]));
    for (reference, commit, branch) in [
        ("topic/x", &two, Some("topic/x")),
        ("refs/heads/trunk", &one, Some("trunk")),
        ("v1", &one, None),
        ("refs/tags/v1", &one, None),
        (two.as_str(), &two, None),
        (&two[..10], &two, None),
        ("topic/x~1", &one, None),
    ] {
        let resolved = pool.repo_resolve(repo, Some(reference)).unwrap();
        assert_eq!((&resolved.commit, resolved.branch.as_deref()), (commit, branch), "{reference}");
    }
    for reference in ["", "nope", "-x", "--help", "a\0b", "a\nb", &"0".repeat(40), "HEAD:readme", "../x"] {
        assert_eq!(code(pool.repo_resolve(repo, Some(reference))), ErrorCode::RefNotFound, "{reference:?}");
    }
    assert!(pool.repo_has_commit(repo, &one).unwrap());
    assert!(!pool.repo_has_commit(repo, &"0".repeat(40)).unwrap());
    assert!(!pool.repo_has_commit(repo, "--all").unwrap());
    assert_eq!(code(pool.repo_checkout(repo, &"0".repeat(40), None, &mut |_| {})), ErrorCode::RefNotFound);
    assert_eq!(code(pool.repo_checkout(repo, "HEAD", None, &mut |_| {})), ErrorCode::InvalidInput);
    assert_eq!(code(pool.repo_checkout(repo, &one, Some("../x"), &mut |_| {})), ErrorCode::InvalidInput);
    let missing = from(repo, &one, None);
    let image = import_host(&pool);
    assert_eq!(code(pool.bay_create(BayId::generate(), image.id, &missing, None)), ErrorCode::RefNotFound);
}

#[test]
fn a_fetch_follows_the_source_and_prunes_what_it_dropped() {
    let Some(lab) = Lab::new() else { return };
    let dir = source(&lab);
    let pool = lab.open();
    let repo = fetched(&pool, &dir);
    let two = git(&dir, &["rev-parse", "topic/x"]);
    git(&dir, &["branch", "-qD", "topic/x"]);
    git(&dir, &["commit", "-q", "--amend", "-m", "rewritten"]);
    pool.repo_fetch(repo, &mut |_| {}).unwrap();
    assert_eq!(pool.repo_resolve(repo, None).unwrap().commit, git(&dir, &["rev-parse", "trunk"]));
    assert_eq!(code(pool.repo_resolve(repo, Some("topic/x"))), ErrorCode::RefNotFound);
    assert!(pool.repo_has_commit(repo, &two).unwrap(), "what a bay may have been made from stays");
    assert_eq!(pool.repo_for(&format!("{}/", remote(&dir))).unwrap(), repo, "one repository per location");
}

#[test]
fn failures_of_a_fetch_have_distinct_codes() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    let fetch = |location: &str| {
        let repo = pool.repo_for(location).unwrap();
        let error = pool.repo_fetch(repo, &mut |_| {}).unwrap_err();
        assert_eq!(code(pool.repo_resolve(repo, None)), ErrorCode::RepoEmpty);
        assert!(pool.repo_tips(repo).unwrap().is_empty());
        assert!(!pool.repo_has_commit(repo, &"0".repeat(40)).unwrap());
        (error.to_api().code, error.to_string())
    };
    let empty = lab.path().join("empty");
    fs::create_dir(&empty).unwrap();
    git(&empty, &["init", "-q"]);
    assert_eq!(fetch(&remote(&empty)).0, ErrorCode::RepoEmpty);
    let absent = |(code, said): (ErrorCode, String)| {
        assert!(code == ErrorCode::RepoFetch && said.contains("there is no such repository"), "{said}");
    };
    absent(fetch(&remote(Path::new("/does/not/exist"))));
    let (server, _) = answering(9, "HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    absent(fetch(&format!("http://{server}/x.git")));
    let (server, _) = answering(9, "HTTP/1.1 200 Yes\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert_eq!(fetch(&format!("http://{server}/x.git")).0, ErrorCode::RepoEmpty);
    // Nothing listens on that port.
    assert_eq!(fetch("git://127.0.0.1:1/x").0, ErrorCode::RepoFetch);
    for local in [empty.to_str().unwrap(), "/does/not/exist", "file:///etc"] {
        assert_eq!(fetch(local).0, ErrorCode::InvalidInput, "a path that a caller names is not opened");
    }
    assert_eq!(code(pool.repo_for("ext::sh -c id")), ErrorCode::InvalidInput);
    assert_eq!(code(pool.repo_fetch(RepoId::generate(), &mut |_| {})), ErrorCode::RepoNotFound);
    assert_eq!(code(pool.repo_view(RepoId::generate())), ErrorCode::RepoNotFound);
}

#[test]
fn a_server_that_asks_for_a_password_has_its_own_error() {
    let Some(lab) = Lab::new() else { return };
    let pool = lab.open();
    // Git asks once, is refused, and cannot ask anybody for a password.
    let (server, asks) = answering(
        1,
        "HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    );
    let repo = pool.repo_for(&format!("http://user:hunter2@{server}/x")).unwrap();
    assert!(!pool.repo_view(repo).unwrap().location.contains("hunter2"));
    let error = pool.repo_fetch(repo, &mut |_| {}).unwrap_err();
    assert_eq!(error.to_api().code, ErrorCode::RepoAuth, "{error}");
    assert!(!asks.recv().unwrap().contains("Authorization"));
}

#[test]
fn the_daemons_proxy_is_used() {
    let Some(mut lab) = Lab::new() else { return };
    let (proxy, asks) = answering(1, "HTTP/1.1 502 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    lab.environment = vec![
        ("http_proxy".to_owned(), format!("http://{proxy}")),
        ("GIT_TRACE".to_owned(), lab.path().join("trace").display().to_string()),
    ];
    let pool = lab.open();
    let repo = pool.repo_for("http://repositories.invalid/x.git").unwrap();
    assert_eq!(code(pool.repo_fetch(repo, &mut |_| {})), ErrorCode::RepoFetch);
    let asked = asks.recv().unwrap();
    assert!(asked.starts_with("GET http://repositories.invalid/x.git/info/refs"), "{asked}");
    assert!(!lab.path().join("trace").exists(), "no other variable passes");
}

#[test]
fn git_can_read_the_daemons_certificates() {
    let Some(mut lab) = Lab::new() else { return };
    let own = lab.path().join("authorities.pem");
    if fs::copy("/etc/ssl/certs/ca-certificates.crt", &own).is_err() {
        let why = "this host has no certificates in the usual place: install ca-certificates";
        return suite::skip(Lack::Installable, why);
    }
    lab.environment = vec![("SSL_CERT_FILE".to_owned(), own.display().to_string())];
    let (server, asks) = answering(1, "this is no TLS");
    let pool = lab.open();
    let repo = pool.repo_for(&format!("https://{server}/x.git")).unwrap();
    let error = pool.repo_fetch(repo, &mut |_| {}).unwrap_err();
    assert_eq!(error.to_api().code, ErrorCode::RepoFetch);
    assert!(!error.to_string().contains("authorities.pem"), "{error}");
    assert!(!asks.recv().unwrap().is_empty(), "it came to the handshake");
}

#[test]
fn only_an_empty_repository_that_is_not_in_use_is_removed_as_such() {
    let Some(lab) = Lab::new() else { return };
    let dir = source(&lab);
    let pool = lab.open();
    let full = fetched(&pool, &dir);
    assert!(!pool.repo_remove_if_empty(full).unwrap());
    let empty = pool.repo_for("https://example.org/typo").unwrap();
    let working = pool.repo_lock(empty).unwrap();
    assert!(!pool.repo_remove_if_empty(empty).unwrap());
    drop(working);
    assert!(pool.repo_remove_if_empty(empty).unwrap());
    assert_eq!(code(pool.repo_remove_if_empty(empty)), ErrorCode::RepoNotFound);
    assert_eq!(pool.repo_list().unwrap().len(), 1);
}

#[test]
fn a_bundle_is_imported_and_an_invalid_one_refused() {
    let Some(lab) = Lab::new() else { return };
    let dir = source(&lab);
    let pool = lab.open();
    let repo = pool.repo_for("/home/ann/project").unwrap();
    let bundle = lab.path().join("bundle");
    git(&dir, &["bundle", "create", "-q", bundle.to_str().unwrap(), "HEAD", "trunk"]);
    let one = git(&dir, &["rev-parse", "trunk"]);
    assert!(!pool.repo_has_commit(repo, &one).unwrap());
    pool.repo_unbundle(repo, &mut fs::File::open(&bundle).unwrap()).unwrap();
    assert!(pool.repo_has_commit(repo, &one).unwrap());
    assert_eq!(pool.repo_tips(repo).unwrap(), std::slice::from_ref(&one));
    assert_eq!(pool.repo_resolve(repo, None).unwrap().branch.as_deref(), Some("trunk"));
    pool.repo_checkout(repo, &one, Some("work"), &mut |_| {}).unwrap();

    // Only the new commits, based on what the cache has; no branch points to them.
    write(&dir.join("readme"), "uncommitted", 0o644);
    git(&dir, &["commit", "-qam", "three"]);
    let three = git(&dir, &["rev-parse", "HEAD"]);
    git(&dir, &["bundle", "create", "-q", bundle.to_str().unwrap(), "HEAD", &format!("^{one}")]);
    pool.repo_unbundle(repo, &mut fs::File::open(&bundle).unwrap()).unwrap();
    let tips = pool.repo_tips(repo).unwrap();
    assert!(tips.len() == 2 && tips.contains(&three) && tips.contains(&one), "{tips:?}");
    pool.repo_checkout(repo, &three, Some("trunk"), &mut |_| {}).unwrap();
    assert!(pool.repo_view(repo).unwrap().synced_at > jiff::Timestamp::UNIX_EPOCH);

    let stranger = pool.repo_for("/home/ann/other").unwrap();
    let whole = fs::read(&bundle).unwrap();
    for bytes in [&whole[..], &whole[..whole.len() / 2], b"", b"not a bundle", b"# v2 git bundle\n\n"] {
        let result = pool.repo_unbundle(stranger, &mut &bytes[..]);
        assert_eq!(
            code(result),
            ErrorCode::RepoFetch,
            "{}",
            String::from_utf8_lossy(&bytes[..bytes.len().min(30)])
        );
    }
    assert_eq!(
        fs::read_dir(lab.mount_point().join("corners/corner/tmp")).unwrap().count(),
        1,
        "home and nothing else"
    );
}

#[test]
fn hostile_repositories_run_nothing_and_write_nowhere_else() {
    let Some(lab) = Lab::new() else { return };
    let dir = source(&lab);
    let mark = lab.path().join("ran");
    let touch = format!("touch {}", mark.display());
    write(&dir.join(".gitattributes"), "* filter=evil diff=evil merge=evil\nlarge filter=lfs\n", 0o644);
    write(
        &dir.join(".gitmodules"),
        &format!("[submodule \"m\"]\n\tpath = m\n\turl = {}\n", dir.display()),
        0o644,
    );
    write(&dir.join("large"), "version https://git-lfs.github.com/spec/v1\n", 0o644);
    git(&dir, &["add", "."]);
    let head = git(&dir, &["rev-parse", "HEAD"]);
    git(&dir, &["update-index", "--add", "--cacheinfo", &format!("160000,{head},m")]);
    git(&dir, &["commit", "-qm", "hostile", "--no-verify"]);
    // The repository's own settings and hooks, where the server side of git would read them.
    for (key, value) in [
        ("core.fsmonitor", touch.as_str()),
        ("core.sshCommand", &touch),
        ("filter.evil.smudge", &touch),
        ("filter.evil.clean", &touch),
        ("filter.lfs.smudge", &touch),
        ("uploadpack.packObjectsHook", &touch),
        ("core.alternateRefsCommand", &touch),
        ("core.hooksPath", "hooks"),
    ] {
        git(&dir, &["config", key, value]);
    }
    for hook in ["post-checkout", "reference-transaction", "pre-auto-gc", "post-index-change"] {
        write(&dir.join(".git/hooks").join(hook), &format!("#!/bin/sh\n{touch}\n"), 0o755);
    }
    let pool = lab.open();
    let repo = fetched(&pool, &dir);
    let commit = pool.repo_resolve(repo, None).unwrap().commit;
    pool.repo_checkout(repo, &commit, Some("trunk"), &mut |_| {}).unwrap();
    let image = import_host(&pool);
    let disk =
        pool.bay_create(BayId::generate(), image.id, &from(repo, &commit, Some("trunk")), None).unwrap();
    assert!(!mark.exists(), "something of the repository ran");
    let config = fs::read_to_string(disk.workspace.join(".git/config")).unwrap();
    assert!(!config.contains("touch"), "{config}");
    assert!(
        disk.workspace.join("m").is_dir() && fs::read_dir(disk.workspace.join("m")).unwrap().count() == 0
    );
    assert!(fs::read_to_string(disk.workspace.join("large")).unwrap().starts_with("version"));
    assert_eq!(fs::read_link(disk.workspace.join("link")).unwrap(), Path::new("/etc/passwd"));
    assert!(!disk.workspace.join(".git/hooks").exists());
    // A submodule whose update method is a command is refused by the cache.
    write(
        &dir.join(".gitmodules"),
        &format!("[submodule \"m\"]\n\tpath = m\n\turl = ./m\n\tupdate = !{touch}\n"),
        0o644,
    );
    git(
        &dir,
        &[
            "-c",
            "core.fsmonitor=false",
            "-c",
            "core.hooksPath=/dev/null",
            "-c",
            "filter.evil.clean=cat",
            "add",
            ".gitmodules",
        ],
    );
    fs::remove_dir_all(dir.join(".git/hooks")).unwrap();
    git(&dir, &["-c", "core.fsmonitor=false", "-c", "filter.evil.clean=cat", "commit", "-qm", "worse"]);
    let error = pool.repo_fetch(repo, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("submodule"), "{error}");
    assert!(!mark.exists());
}

#[test]
fn a_tree_that_would_plant_settings_is_refused() {
    let Some(lab) = Lab::new() else { return };
    let dir = source(&lab);
    let blob = git(&dir, &["rev-parse", "HEAD:readme"]);
    let make_tree = |entries: &str| {
        use std::io::Write;
        let mut child = Command::new("git")
            .args(["mktree"])
            .current_dir(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(entries.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().trim().to_owned()
    };
    let inner = make_tree(&format!("100644 blob {blob}\tconfig\n"));
    let outer = make_tree(&format!("040000 tree {inner}\t.GIT\n100644 blob {blob}\treadme\n"));
    let commit = git(&dir, &["commit-tree", "-m", "evil", &outer]);
    git(&dir, &["update-ref", "refs/heads/trunk", &commit]);
    let pool = lab.open();
    let repo = pool.repo_for(&remote(&dir)).unwrap();
    assert_eq!(code(pool.repo_fetch(repo, &mut |_| {})), ErrorCode::RepoFetch);
}

#[test]
fn leftovers_of_killed_work_do_not_block_new_work() {
    let Some(lab) = Lab::new() else { return };
    let dir = source(&lab);
    let pool = lab.open();
    let repo = fetched(&pool, &dir);
    let place = lab.mount_point().join("corners/corner/repos").join(repo.to_string());
    for left in ["git/packed-refs.lock", "git/HEAD.lock", "git/objects/pack/tmp_pack_x"] {
        fs::write(place.join(left), "x").unwrap();
    }
    crate::subvolume::create(&place.join("checkouts/.tmp-x"), 0o755, None).unwrap();
    let pool = {
        drop(pool);
        lab.open()
    };
    assert!(!place.join("checkouts/.tmp-x").exists() && !place.join("git/objects/pack/tmp_pack_x").exists());
    pool.repo_fetch(repo, &mut |_| {}).unwrap();
    let commit = pool.repo_resolve(repo, None).unwrap().commit;
    pool.repo_checkout(repo, &commit, None, &mut |_| {}).unwrap();
    assert_eq!(pool.repo_list().unwrap().len(), 1);
    pool.repo_remove(repo).unwrap();
    assert!(pool.repo_list().unwrap().is_empty() && !place.exists());
    assert_eq!(code(pool.repo_remove(repo)), ErrorCode::RepoNotFound);
}

#[test]
fn a_beginning_is_a_link_to_the_checkout_until_that_is_removed() {
    let Some(lab) = Lab::new() else { return };
    let dir = source(&lab);
    let pool = lab.open();
    let repo = fetched(&pool, &dir);
    let commit = pool.repo_resolve(repo, None).unwrap().commit;
    pool.repo_checkout(repo, &commit, None, &mut |_| {}).unwrap();
    let image = import_host(&pool);
    let bay = BayId::generate();
    let disk = pool.bay_create(bay, image.id, &from(repo, &commit, None), Some(1024)).unwrap();
    let begun = fs::read(disk.workspace.join("readme")).unwrap();
    fs::write(disk.workspace.join("readme"), "changed").unwrap();

    let point = Point { bay, checkpoint: CheckpointName::FIRST };
    pool.checkpoint_prepare(bay).unwrap();
    pool.checkpoint_take(bay).unwrap();
    pool.checkpoint_keep(point).unwrap();
    let fork = BayId::generate();
    pool.bay_create(fork, image.id, &WorkspaceFrom::Checkpoint { point, state: false }, None).unwrap();
    // A creation that was killed has a link, and nothing else yet.
    let killed = BayId::generate();
    fs::create_dir_all(pool.beginning_dir(killed)).unwrap();
    let link = fs::read_link(pool.beginning_dir(bay).join("workspace")).unwrap();
    std::os::unix::fs::symlink(link, pool.beginning_dir(killed).join("workspace")).unwrap();

    for of in [bay, fork, killed] {
        assert!(matches!(pool.beginning(of), Some(Beginning::Checkout(_))), "{:?}", pool.beginning(of));
    }
    // An earlier release was killed after it had made the workspace.
    let half = BayId::generate();
    let files = pool.bay_create(half, image.id, &from(repo, &commit, None), None).unwrap();
    pool.trash().remove(&pool.beginning_dir(half)).unwrap();
    pool.bay_create(half, image.id, &from(repo, &commit, None), None).unwrap();
    fs::write(files.workspace.join("readme"), "changed").unwrap();
    pool.repo_remove(repo).unwrap();
    pool.sweep().unwrap();
    for of in [bay, fork, killed, half] {
        let kept = pool.beginning(of);
        assert!(matches!(kept, Some(Beginning::Snapshot(_))), "{kept:?}");
        assert_eq!(fs::read(kept.unwrap().path().join("readme")).unwrap(), begun);
    }
    assert_eq!(fs::read(disk.workspace.join("readme")).unwrap(), b"changed");
}
