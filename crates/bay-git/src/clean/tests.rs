//! Packs that an honest bay makes, and packs that a hostile one could make.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::{CleanRepo, GitError, Lender, Taken};

/// Runs git and returns the raw output.
fn git(dir: &Path, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=Test", "-c", "user.email=test@example.invalid"]).args(args);
    command.current_dir(dir).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn word(dir: &Path, args: &[&str], input: &[u8]) -> String {
    String::from_utf8(git(dir, args, input)).unwrap().trim_end().to_owned()
}

/// A repository with one commit; returns its id.
fn source(dir: &Path) -> String {
    git(dir, &["init", "-q", "-b", "main"], b"");
    std::fs::write(dir.join("file"), "one\n".repeat(100)).unwrap();
    commit(dir, "first")
}

fn commit(dir: &Path, message: &str) -> String {
    git(dir, &["add", "-A"], b"");
    git(dir, &["commit", "-q", "-m", message], b"");
    word(dir, &["rev-parse", "HEAD"], b"")
}

fn pack(dir: &Path, revisions: &str) -> Vec<u8> {
    git(dir, &["pack-objects", "--revs", "--stdout", "-q"], revisions.as_bytes())
}

/// A commit whose tree has one raw entry, and a pack with all of its objects.
fn commit_of(dir: &Path, tree: &[u8], id: &str) -> (String, Vec<u8>) {
    let tree = word(dir, &["hash-object", "-t", "tree", "--literally", "-w", "--stdin"], tree);
    let tip = word(dir, &["commit-tree", &tree, "-m", "odd"], b"");
    let pack = git(dir, &["pack-objects", "--stdout", "-q"], format!("{tip}\n{tree}\n{id}\n").as_bytes());
    (tip, pack)
}

fn entry(mode: &str, name: &str, id: &str) -> Vec<u8> {
    let mut raw = format!("{mode} {name}\0").into_bytes();
    raw.extend((0..id.len()).step_by(2).map(|at| u8::from_str_radix(&id[at..at + 2], 16).unwrap()));
    raw
}

struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn make(&self, name: &str) -> std::path::PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    /// Imports a pack into a new repository.
    fn take(
        &self,
        pack: &[u8],
        tip: &str,
        base: Option<&str>,
        lender: Option<Lender>,
    ) -> (CleanRepo, Result<Taken, GitError>) {
        let place = tempfile::Builder::new().tempdir_in(self.dir.path()).unwrap().keep();
        let repo = CleanRepo::create(&place, false, lender, Arc::new(AtomicBool::new(true))).unwrap();
        std::fs::write(repo.incoming(), pack).unwrap();
        let taken = repo.take_in(tip, base, &mut |_| {});
        (repo, taken)
    }

    fn refuses(&self, pack: &[u8], tip: &str, lender: Option<Lender>) -> String {
        match self.take(pack, tip, None, lender).1 {
            Err(GitError::Refused { why }) => why,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn honest_work_is_imported_completely_and_leaves_as_a_bundle() {
    let lab = Lab::new();
    let there = lab.make("source");
    let base = source(&there);
    std::fs::write(there.join("new\nline"), "two\n").unwrap();
    let tip = commit(&there, "second");
    let (repo, taken) = lab.take(&pack(&there, &tip), &tip, Some(&base), None);
    assert_eq!(taken.unwrap(), Taken::Work);
    let bundle = repo.bundle(&tip, "web", Some(&base)).unwrap();
    let heads = word(&there, &["bundle", "list-heads", bundle.to_str().unwrap()], b"");
    assert_eq!(heads.lines().collect::<Vec<_>>(), [format!("{tip} HEAD"), format!("{tip} refs/heads/web")]);
    // It builds on the commit that the bay began from.
    let text = std::fs::read(&bundle).unwrap();
    assert!(text.windows(41).any(|at| at == format!("-{base}").as_bytes()));
    let (_repo, taken) = lab.take(&pack(&there, &base), &base, Some(&base), None);
    assert_eq!(taken.unwrap(), Taken::Nothing);
}

#[test]
fn objects_that_a_lender_has_need_not_be_sent() {
    let lab = Lab::new();
    let there = lab.make("source");
    let base = source(&there);
    let lender = lab.make("lender");
    git(&lender, &["clone", "-q", "--bare", there.to_str().unwrap(), "."], b"");
    let lender = Lender { objects: lender.join("objects"), commit: base.clone() };
    std::fs::write(there.join("other"), "two\n").unwrap();
    let tip = commit(&there, "second");
    let small = pack(&there, &format!("{tip}\n^{base}\n"));
    let (repo, taken) = lab.take(&small, &tip, Some(&base), Some(lender.clone()));
    assert_eq!(taken.unwrap(), Taken::Work);
    assert!(repo.bundle(&tip, "web", None).is_ok(), "also with the whole history");
    // Without the lender it is incomplete.
    assert!(!lab.refuses(&small, &tip, None).is_empty());
}

#[test]
fn objects_of_the_lender_that_were_never_sent_do_not_leave() {
    let lab = Lab::new();
    let lender = lab.make("lender");
    let base = source(&lender);
    std::fs::write(lender.join("private"), "a secret of the caller\n").unwrap();
    let private_commit = commit(&lender, "private");
    let private_blob = word(&lender, &["rev-parse", "HEAD:private"], b"");
    let lent = Lender { objects: lender.join(".git/objects"), commit: base.clone() };
    let bay = lab.make("bay");
    source(&bay);
    // A tree that names the blob, and a commit that names the commit, without the objects themselves.
    let tree = word(&bay, &["mktree", "--missing"], format!("100644 blob {private_blob}\tx\n").as_bytes());
    let first = word(&bay, &["commit-tree", &tree, "-m", "steal"], b"");
    let sent = git(&bay, &["pack-objects", "--stdout", "-q"], format!("{first}\n{tree}\n").as_bytes());
    assert!(lab.refuses(&sent, &first, Some(lent.clone())).contains("did not send"));
    let own = word(&bay, &["rev-parse", "HEAD^{tree}"], b"");
    let raw = format!(
        "tree {own}\nparent {private_commit}\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n"
    );
    let second = word(&bay, &["hash-object", "-t", "commit", "--literally", "-w", "--stdin"], raw.as_bytes());
    let sent = git(&bay, &["pack-objects", "--stdout", "-q"], format!("{second}\n{own}\n").as_bytes());
    assert!(lab.refuses(&sent, &second, Some(lent)).contains("did not send"));
}

#[test]
fn entries_that_would_leave_a_checkout_or_configure_git_are_refused() {
    let lab = Lab::new();
    let there = lab.make("source");
    source(&there);
    let blob = word(&there, &["rev-parse", "HEAD:file"], b"");
    let empty = word(&there, &["hash-object", "-t", "tree", "-w", "--stdin"], b"");
    for (mode, name, id) in [
        ("40000", ".git", &empty),
        ("100644", ".git", &blob),
        ("40000", ".GIT", &empty),
        ("40000", "GIT~1", &empty),
        ("40000", ".g\u{200c}it", &empty),
        ("40000", "..", &empty),
        ("100644", "..", &blob),
        ("100644", ".", &blob),
        ("100644", "", &blob),
        ("100644", "a/b", &blob),
        ("120000", ".gitmodules", &blob),
    ] {
        let (tip, pack) = commit_of(&there, &entry(mode, name, id), id);
        let why = lab.refuses(&pack, &tip, None);
        assert!(!why.is_empty(), "{name:?}");
    }
    let (tip, pack) = commit_of(&there, &entry("100644", "plain", &blob), &blob);
    assert!(lab.take(&pack, &tip, None, None).1.is_ok(), "the same with a plain name");
}

#[test]
fn garbage_and_partial_packs_are_refused() {
    let lab = Lab::new();
    let there = lab.make("source");
    let tip = source(&there);
    let whole = pack(&there, &tip);
    for odd in [&b""[..], b"PACK", b"not a pack at all", &whole[..whole.len() / 2], &[0; 100_000]] {
        lab.refuses(odd, &tip, None);
    }
    let mut bent = whole.clone();
    let middle = bent.len() / 2;
    bent[middle] ^= 1;
    lab.refuses(&bent, &tip, None);
    // A valid pack of something else, and invalid ids.
    lab.refuses(&whole, &"1".repeat(40), None);
    let blob = word(&there, &["rev-parse", "HEAD:file"], b"");
    lab.refuses(&whole, &blob, None);
    for odd in ["", "HEAD", "-x", "--all", "refs/heads/../../x", &"A".repeat(40)] {
        lab.refuses(&whole, odd, None);
    }
}

#[test]
fn an_incomplete_history_is_refused() {
    let lab = Lab::new();
    let there = lab.make("source");
    let base = source(&there);
    std::fs::write(there.join("file"), "two\n").unwrap();
    let tip = commit(&there, "second");
    lab.refuses(&pack(&there, &format!("{tip}\n^{base}\n")), &tip, None);
}

#[test]
fn changed_and_intermediate_files_are_written_as_they_are_stored() {
    let lab = Lab::new();
    let there = lab.make("source");
    std::fs::create_dir(there.join("d")).unwrap();
    std::fs::write(there.join("d/same"), "same").unwrap();
    std::fs::write(there.join("gone"), "gone\n").unwrap();
    let base = source(&there);
    // The work's own attributes would convert the text, or run a program.
    std::fs::write(there.join(".gitattributes"), "* working-tree-encoding=UTF-16 ident filter=x\n").unwrap();
    std::fs::write(there.join("file"), "two $Id$\n").unwrap();
    std::fs::write(there.join("token"), "secret\n").unwrap();
    std::os::unix::fs::symlink("/etc", there.join("link")).unwrap();
    std::fs::create_dir(there.join("new")).unwrap();
    std::fs::write(there.join("new/odd\nname"), "").unwrap();
    std::fs::remove_file(there.join("gone")).unwrap();
    let write = |name: &str, text: &str| {
        word(&there, &["hash-object", "-w", "--no-filters", "--stdin"], format!("{name}{text}").as_bytes())
    };
    let (attributes, file, token, empty, link) = (
        write("", "* ident filter=x working-tree-encoding=UTF-16\n"),
        write("two", " $Id$\n"),
        write("secret", "\n"),
        write("", ""),
        write("", "/etc"),
    );
    let index = |entries: &str| {
        git(&there, &["update-index", "-z", "--index-info"], entries.as_bytes());
        let tree = word(&there, &["write-tree"], b"");
        let parent = word(&there, &["rev-parse", "HEAD"], b"");
        let tip = word(&there, &["commit-tree", &tree, "-p", &parent, "-m", "x"], b"");
        git(&there, &["update-ref", "HEAD", &tip], b"");
        tip
    };
    index(&format!("100644 {token} 0\ttoken\0"));
    let zero = "0".repeat(40);
    let tip = index(&format!(
        "0 {zero} 0\ttoken\x000 {zero} 0\tgone\0100644 {attributes} 0\t.gitattributes\0100644 {file} 0\tfile\0\
         120000 {link} 0\tlink\0100644 {empty} 0\tnew/odd\nname\0"
    ));
    let (repo, taken) = lab.take(&pack(&there, &tip), &tip, Some(&base), None);
    assert_eq!(taken.unwrap(), Taken::Work);
    let changed = repo.changes(&tip, Some(&base)).unwrap();
    let paths: Vec<&[u8]> = changed.iter().map(|change| change.path.as_slice()).collect();
    assert_eq!(paths, [&b".gitattributes"[..], b"file", b"gone", b"link", b"new/odd\nname"]);
    let laid_out = repo.lay_out(&tip, Some(&base)).unwrap();
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap();
    assert_eq!(read(laid_out.after.join("file")), "two $Id$\n");
    assert_eq!(read(laid_out.before.join("gone")), "gone\n");
    assert_eq!(read(laid_out.after.join("new/odd\nname")), "");
    assert_eq!(std::fs::read_link(laid_out.after.join("link")).unwrap(), Path::new("/etc"));
    assert!(!laid_out.after.join("d").exists() && !laid_out.after.join("gone").exists());
    assert_eq!(read(laid_out.on_the_way.join("1/token")), "secret\n");
}
