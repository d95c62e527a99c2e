//! Roots as distributions make them and as agents change them.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use bay_types::inside::About;
use rustix::fs::{FileType, Mode};

use super::*;

/// A certificate authority with this name, as PEM.
fn authority(name: &str) -> String {
    let mut wanted = rcgen::CertificateParams::new(Vec::new()).unwrap();
    wanted.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    wanted.distinguished_name = rcgen::DistinguishedName::new();
    wanted.distinguished_name.push(rcgen::DnType::OrganizationName, "Workbay");
    wanted.distinguished_name.push(rcgen::DnType::CommonName, name);
    wanted.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
}

fn der(text: &str) -> Certificate {
    pem::certificates(text.as_bytes()).swap_remove(0).1
}

struct Root(tempfile::TempDir);

impl Root {
    fn new(directories: &[&str]) -> Self {
        let root = Self(tempfile::tempdir().unwrap());
        for directory in directories.iter().chain(&[".bay"]) {
            fs::create_dir_all(root.at(directory)).unwrap();
        }
        root
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn put(&self, path: &str, bytes: impl AsRef<[u8]>) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), bytes).unwrap();
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn trust(&self, certificate: &str) {
        self.trust_with(certificate, Earlier::Trusted);
    }

    fn trust_with(&self, certificate: &str, earlier: Earlier) {
        let guest = GuestConfig {
            bay_id: "bay".into(),
            hostname: "alpha".into(),
            machine_id: String::new(),
            author: None,
            user: None,
            about: About::default(),
            certificate: Some(certificate.to_owned()),
            ssh: None,
            secrets: Vec::new(),
            fork_index: None,
        };
        let root = File::open(self.0.path()).unwrap();
        install(&guest, earlier, root.as_fd(), &Log::open(self.0.path()));
    }

    fn log(&self) -> String {
        fs::read_to_string(self.at("guest.log")).unwrap_or_default()
    }

    /// How often a bundle contains a certificate.
    fn count(&self, bundle: &str, certificate: &str) -> usize {
        let wanted = der(certificate);
        pem::certificates(self.text(bundle).as_bytes()).iter().filter(|(_, there)| *there == wanted).count()
    }

    /// Every file with its inode, to find files that were written again.
    fn state(&self) -> Vec<(PathBuf, u64, i64)> {
        fn walk(dir: &Path, all: &mut Vec<(PathBuf, u64, i64)>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let meta = fs::symlink_metadata(&path).unwrap();
                if meta.is_dir() {
                    walk(&path, all);
                } else if !path.ends_with("guest.log") {
                    all.push((path, meta.ino(), meta.mtime_nsec()));
                }
            }
        }
        let mut all = Vec::new();
        walk(self.0.path(), &mut all);
        all.sort();
        all
    }
}

const DEBIAN: &str = "etc/ssl/certs/ca-certificates.crt";

#[test]
fn a_debian_root_trusts_it_in_its_bundle_by_hash_and_after_its_tools_rebuild_them() {
    let root = Root::new(&["usr/local/share"]);
    let (system, ours) = (authority("Web"), authority("Gateway of  ALPHA"));
    root.put(DEBIAN, format!("# all\n{}", system.trim_end()));
    root.trust(&ours);
    let name = der(&ours).short_name();
    assert!(root.text(DEBIAN).starts_with("# all\n-----BEGIN"));
    assert_eq!((root.count(DEBIAN, &system), root.count(DEBIAN, &ours)), (1, 1));
    assert_eq!(der(&root.text(".bay/ca.crt")), der(&ours));
    assert_eq!(fs::read_link(root.at(".bay/ca-bundle.crt")).unwrap(), Path::new("/").join(DEBIAN));
    assert_eq!(der(&root.text(&format!("usr/local/share/ca-certificates/{name}.crt"))), der(&ours));
    let hash = der::subject_hash(&der(&ours)).unwrap();
    let by_hash = fs::read_link(root.at(&format!("etc/ssl/certs/{hash}.0"))).unwrap();
    assert_eq!(by_hash, Path::new(&format!("{name}.pem")));
    assert_eq!(
        fs::read_link(root.at(&format!("etc/ssl/certs/{name}.pem"))).unwrap(),
        Path::new(&format!("/usr/local/share/ca-certificates/{name}.crt"))
    );
    for file in [DEBIAN, ".bay/ca.crt"] {
        assert_eq!(fs::metadata(root.at(file)).unwrap().permissions().mode() & 0o777, 0o644, "{file}");
    }
    let before = root.state();
    root.trust(&ours);
    assert_eq!(root.state(), before, "once is enough");
    assert_eq!(root.log(), "");
}

#[test]
fn a_fedora_root_trusts_it_at_the_targets_of_its_links() {
    let root = Root::new(&["etc/pki/ca-trust/source/anchors", "etc/pki/tls/certs", "etc/ssl"]);
    let (system, ours) = (authority("Web"), authority("Gateway"));
    let real = "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem";
    root.put(real, &system);
    symlink("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", root.at("etc/pki/tls/certs/ca-bundle.crt"))
        .unwrap();
    symlink("../pki/tls/certs", root.at("etc/ssl/certs")).unwrap();
    root.trust(&ours);
    root.trust(&ours);
    assert_eq!((root.count(real, &system), root.count(real, &ours)), (1, 1));
    assert!(root.at("etc/pki/tls/certs/ca-bundle.crt").is_symlink());
    let name = der(&ours).short_name();
    assert!(root.at(&format!("etc/pki/ca-trust/source/anchors/{name}.crt")).exists());
    assert!(!root.at("usr/local/share/ca-certificates").exists());
    assert_eq!(
        fs::read_link(root.at(".bay/ca-bundle.crt")).unwrap(),
        Path::new("/etc/pki/tls/certs/ca-bundle.crt")
    );
    assert_eq!(root.log(), "");
}

#[test]
fn a_root_without_any_certificates_gets_a_bundle_and_one_of_opensuse_keeps_its_own() {
    let bare = Root::new(&[]);
    let ours = authority("Gateway");
    bare.trust(&ours);
    assert_eq!(bare.count(DEBIAN, &ours), 1);
    assert_eq!(fs::read_link(bare.at(".bay/ca-bundle.crt")).unwrap(), Path::new("/").join(DEBIAN));
    assert_eq!(bare.log(), "");
    let suse = Root::new(&["etc/pki/trust/anchors", "etc/ssl"]);
    suse.put("var/lib/ca-certificates/ca-bundle.pem", authority("Web"));
    symlink("../../var/lib/ca-certificates/ca-bundle.pem", suse.at("etc/ssl/ca-bundle.pem")).unwrap();
    suse.trust(&ours);
    assert_eq!(suse.count("var/lib/ca-certificates/ca-bundle.pem", &ours), 1);
    assert!(!suse.at("usr").exists() && !suse.at(DEBIAN).exists());
}

#[test]
fn a_bay_without_a_gateway_is_not_changed() {
    let root = Root::new(&[]);
    let guest = GuestConfig {
        bay_id: "bay".into(),
        hostname: "alpha".into(),
        machine_id: String::new(),
        author: None,
        user: None,
        about: About::default(),
        certificate: None,
        ssh: None,
        secrets: Vec::new(),
        fork_index: None,
    };
    let open = File::open(root.0.path()).unwrap();
    install(&guest, Earlier::Trusted, open.as_fd(), &Log::open(root.0.path()));
    assert!(root.state().is_empty());
    assert!(variables(open.as_fd()).is_empty());
}

#[test]
fn a_fork_trusts_its_own_first_and_its_nearest_ancestors_and_forgets_the_oldest_everywhere() {
    let root = Root::new(&["etc/ssl/certs/java"]);
    root.put(DEBIAN, authority("Web"));
    root.put("etc/ssl/certs/java/cacerts", jks::write(&[]).unwrap());
    // All with the same name, as a bay and its forks may have.
    let line: Vec<String> = (0..MAX_TRUSTED + 3).map(|_| authority("Gateway")).collect();
    for certificate in &line {
        root.trust(certificate);
    }
    let (dropped, kept) = line.split_at(3);
    assert_eq!(root.count(".bay/ca.crt", &line[line.len() - 1]), 1);
    let hash = der::subject_hash(&der(&line[0])).unwrap();
    let store = jks::read(&fs::read(root.at("etc/ssl/certs/java/cacerts")).unwrap()).unwrap();
    let in_java = |certificate: &str| store.iter().any(|entry| entry.certificate == der(certificate));
    let hashed: Vec<PathBuf> = (0..MAX_TRUSTED)
        .map(|n| fs::read_link(root.at(&format!("etc/ssl/certs/{hash}.{n}"))).unwrap())
        .collect();
    for certificate in kept {
        assert_eq!(root.count(DEBIAN, certificate), 1);
        assert!(in_java(certificate));
        assert!(hashed.contains(&PathBuf::from(format!("{}.pem", der(certificate).short_name()))));
    }
    for certificate in dropped {
        let name = der(certificate).short_name();
        assert_eq!(root.count(DEBIAN, certificate), 0);
        assert!(!in_java(certificate));
        assert!(!root.at(&format!("usr/local/share/ca-certificates/{name}.crt")).exists());
        assert!(!root.at(&format!("etc/ssl/certs/{name}.pem")).is_symlink());
    }
    assert_eq!(pem::certificates(root.text(DEBIAN).as_bytes()).len(), MAX_TRUSTED + 1);
    assert!(!root.at(&format!("etc/ssl/certs/{hash}.{MAX_TRUSTED}")).is_symlink());
    // Back to an ancestor's certificate: it is first again.
    root.trust(&kept[0]);
    assert_eq!(root.count(".bay/ca.crt", &kept[0]), 1);
    assert_eq!(pem::certificates(root.text(DEBIAN).as_bytes()).len(), MAX_TRUSTED + 1);
    assert_eq!(root.log(), "");
}

#[test]
fn a_dropped_certificate_whose_link_is_the_last_leaves_no_dangling_link() {
    let root = Root::new(&["usr/local/share"]);
    let (same, last, next) = (authority("Gateway"), authority("Gateway"), authority("Gateway"));
    let hash = der::subject_hash(&der(&same)).unwrap();
    let link = |number: usize| root.at(&format!("etc/ssl/certs/{hash}.{number}"));
    root.trust(&same);
    root.trust(&last);
    assert!(link(1).is_symlink());
    let old = Wanted { trusted: vec![der(&same)], dropped: vec![der(&last)] };
    let open = File::open(root.0.path()).unwrap();
    system::install(&Tree::new(open.as_fd()), &old, &|what, outcome| {
        outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
    });
    assert_eq!(fs::read_link(link(0)).unwrap(), Path::new(&format!("{}.pem", der(&same).short_name())));
    assert!(!link(1).is_symlink(), "OpenSSL stops searching at a link without a target");
    root.trust(&next);
    assert_eq!(fs::read_link(link(1)).unwrap(), Path::new(&format!("{}.pem", der(&next).short_name())));
}

#[test]
fn a_bundle_that_cannot_be_read_is_not_replaced() {
    for unreadable in [DEBIAN, "etc/ssl/cert.pem"] {
        let root = Root::new(&["opt/jdk/lib/security"]);
        let long = authority("Web").repeat((8 << 20) / 400);
        root.put(unreadable, &long);
        root.put("opt/jdk/lib/security/cacerts", b"0\x82 encrypted");
        root.trust(&authority("Gateway"));
        assert!(root.text(unreadable) == long, "{unreadable} was replaced");
        assert!(root.log().contains(unreadable), "{}", root.log());
        assert_eq!(
            root.at(DEBIAN).exists(),
            unreadable == DEBIAN,
            "a bundle with few certificates would hide it"
        );
        assert!(!root.at(".bay/ca-bundle.crt").is_symlink(), "clients use their own bundle");
        assert_eq!(fs::read(root.at("opt/jdk/lib/security/cacerts")).unwrap(), b"0\x82 encrypted");
        // It can be read again.
        root.put(unreadable, authority("Web"));
        root.trust(&authority("Gateway"));
        assert!(root.at(".bay/ca-bundle.crt").is_symlink());
        root.put(unreadable, &long);
        root.trust(&authority("Gateway"));
        assert!(!root.at(".bay/ca-bundle.crt").is_symlink());
    }
}

#[test]
fn java_keeps_what_it_trusts_and_a_store_that_cannot_be_read_is_made_from_the_bundle() {
    let root = Root::new(&["usr/lib/jvm/java-17/lib/security"]);
    let (web, own, ours) = (authority("Web"), authority("Company"), authority("Gateway"));
    root.put(DEBIAN, &web);
    let entry = jks::Entry { alias: "company".into(), created_ms: 7, certificate: der(&own) };
    root.put("etc/ssl/certs/java/cacerts", jks::write(std::slice::from_ref(&entry)).unwrap());
    symlink("/etc/ssl/certs/java/cacerts", root.at("usr/lib/jvm/java-17/lib/security/cacerts")).unwrap();
    // As a JDK has it: the certificate in a bag without encryption.
    let bag = |certificate: &Certificate| {
        let long = |tag: u8, content: &[u8]| {
            let length = u16::try_from(content.len()).unwrap().to_be_bytes();
            [&[tag, 0x82], &length[..], content].concat()
        };
        let oid = [0x06, 0x0a, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x16, 0x01];
        long(0x30, &[&oid[..], &long(0xa0, &long(0x04, &certificate.0))].concat())
    };
    root.put("opt/java/openjdk/lib/security/cacerts", bag(&der(&own)));
    root.put("opt/jdk-8/jre/lib/security/cacerts", b"0\x82 encrypted");
    root.put("etc/environment", "JAVA_HOME=/srv/java\n");
    root.put("srv/java/lib/security/cacerts", b"");
    root.trust(&ours);
    let store = |path: &str| jks::read(&fs::read(root.at(path)).unwrap()).unwrap();
    let shared = store("etc/ssl/certs/java/cacerts");
    assert_eq!(shared[0], entry);
    assert_eq!((shared[1].certificate.clone(), shared.len()), (der(&ours), 2));
    assert!(root.at("usr/lib/jvm/java-17/lib/security/cacerts").is_symlink());
    let of = |path: &str| store(path).into_iter().map(|entry| entry.certificate).collect::<Vec<_>>();
    assert_eq!(of("opt/java/openjdk/lib/security/cacerts"), [der(&own), der(&ours)]);
    for other in ["opt/jdk-8/jre/lib/security/cacerts", "srv/java/lib/security/cacerts"] {
        assert_eq!(of(other), [der(&web), der(&ours)], "{other}");
    }
    let before = root.state();
    root.trust(&ours);
    assert_eq!(root.state(), before);
}

#[test]
fn a_java_store_that_is_not_the_usual_one_stays() {
    let root = Root::new(&[]);
    let mut other = jks::write(&[]).unwrap();
    other[20] ^= 1;
    root.put("opt/jdk/lib/security/cacerts", &other);
    root.trust(&authority("Gateway"));
    assert_eq!(fs::read(root.at("opt/jdk/lib/security/cacerts")).unwrap(), other);
    assert!(root.log().contains("another password"), "{}", root.log());
}

#[test]
fn browsers_get_policies_and_those_of_the_image_stay() {
    let root = Root::new(&[]);
    let ours = authority("Gateway");
    let theirs = r#"{"policies":{"BlockAboutConfig":true,"Certificates":{"Install":["/etc/own.crt"]}}}"#;
    root.put("etc/firefox/policies/policies.json", theirs);
    root.trust(&ours);
    root.trust(&ours);
    let json = |path: &str| serde_json::from_str::<serde_json::Value>(&root.text(path)).unwrap();
    let firefox = json("etc/firefox/policies/policies.json");
    assert_eq!(firefox["policies"]["BlockAboutConfig"], true);
    assert_eq!(
        firefox["policies"]["Certificates"]["Install"],
        serde_json::json!(["/etc/own.crt", "/.bay/ca.crt"])
    );
    for chromium in ["etc/chromium", "etc/opt/chrome", "etc/opt/chrome_for_testing"] {
        let policy = json(&format!("{chromium}/policies/managed/workbay.json"));
        assert_eq!(policy["CACertificates"], serde_json::json!([der(&ours).base64()]));
    }
    root.put("etc/firefox/policies/policies.json", "[]");
    root.trust(&ours);
    assert_eq!(root.text("etc/firefox/policies/policies.json"), "[]");
}

#[test]
fn homes_get_a_store_for_chromium_and_a_store_that_was_changed_stays() {
    let root = Root::new(&["root", "home/dev", "home/own/.pki/nssdb", "home/sly"]);
    let me = rustix::process::getuid().as_raw();
    let (dev, service) = (if me == 0 { 1000 } else { me }, 105);
    root.put(
        "etc/passwd",
        format!(
            "root:x:0:0::/root:/bin/sh\ndev:x:{dev}:{dev}::/home/dev:/bin/sh\nown:x:1001:1001::/home/own:/bin/sh\n\
             sly:x:1002:1002::/home/sly:/bin/sh\nold:x:1003:1003::/home/old:/bin/sh\n\
             mail:x:{service}:{service}::/var/mail:/bin/sh\n"
        ),
    );
    fs::create_dir_all(root.at("var/mail")).unwrap();
    root.put("home/own/.pki/nssdb/cert9.db", "mine");
    symlink("/etc", root.at("home/sly/.pki")).unwrap();
    let (first, second) = (authority("Gateway"), authority("Gateway"));
    root.trust(&first);
    let store = "home/dev/.pki/nssdb/cert9.db";
    let before = fs::read(root.at(store)).unwrap();
    let contains =
        |bytes: &[u8], certificate: &str| memchr::memmem::find(bytes, &der(certificate).0).is_some();
    assert!(contains(&before, &first));
    if me == 0 {
        for path in ["home/dev/.pki", "home/dev/.pki/nssdb", store] {
            assert_eq!(fs::metadata(root.at(path)).unwrap().uid(), dev, "{path}");
        }
        assert!(contains(&fs::read(root.at("root/.pki/nssdb/cert9.db")).unwrap(), &first));
    }
    assert_eq!(root.text("home/own/.pki/nssdb/cert9.db"), "mine");
    assert!(
        !root.at("etc/nssdb").exists() && !root.at("var/mail/.pki").exists() && !root.at("home/old").exists()
    );
    root.trust(&second);
    let after = fs::read(root.at(store)).unwrap();
    assert!(contains(&after, &first) && contains(&after, &second));
    // SQLite counts changes.
    let mut written = after.clone();
    written[27] = 2;
    root.put(store, &written);
    root.trust(&authority("Gateway"));
    assert_eq!(fs::read(root.at(store)).unwrap(), written);
}

#[test]
fn other_files_with_these_names_are_replaced_or_skipped_and_never_followed_out() {
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    let root = Root::new(&["etc/ssl/certs", "etc/pki", "usr", "opt/a/lib/security", "opt/b/lib/security"]);
    let fifo = |path: &str| {
        rustix::fs::mknodat(rustix::fs::CWD, root.at(path), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
    };
    symlink(&victim, root.at(".bay/ca.crt")).unwrap();
    symlink(&victim, root.at(".bay/.ca.crt.workbay")).unwrap();
    fs::create_dir_all(root.at(".bay/ca-earlier.crt")).unwrap();
    fifo(DEBIAN);
    symlink("cert.pem", root.at("etc/ssl/cert.pem")).unwrap();
    File::create(root.at("etc/ssl/ca-bundle.pem")).unwrap().set_len(1 << 40).unwrap();
    symlink(outside.path(), root.at("usr/local")).unwrap();
    symlink(outside.path(), root.at("etc/chromium")).unwrap();
    fs::write(root.at("etc/opt"), "no directory").unwrap();
    fifo("opt/a/lib/security/cacerts");
    symlink(&victim, root.at("opt/b/lib/security/cacerts")).unwrap();
    let ours = authority("Gateway");
    // First with a directory that cannot be removed in the place of a file, then without.
    root.trust(&ours);
    assert!(root.log().contains("what=/.bay/ca.crt"), "{}", root.log());
    fs::remove_dir_all(root.at(".bay/ca-earlier.crt")).unwrap();
    root.trust(&ours);
    assert_eq!(der(&root.text(".bay/ca.crt")), der(&ours));
    assert!(!root.at(".bay/ca.crt").is_symlink());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1, "something was written outside");
    for passed in ["etc/ssl/cert.pem", "etc/ssl/ca-bundle.pem", "opt/chrome", "opt/a/lib/security/cacerts"] {
        assert!(root.log().contains(passed), "{passed}: {}", root.log());
    }
}

#[test]
fn an_invalid_certificate_changes_nothing() {
    let root = Root::new(&[]);
    let long = authority("x").repeat(40);
    for odd in ["", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", &long] {
        root.trust(odd);
        assert!(root.state().is_empty(), "{odd:.60}");
    }
    assert!(root.log().contains("the gateway's certificate is none"));
}

#[test]
fn variables_are_set_only_while_the_files_that_they_name_exist() {
    let root = Root::new(&[]);
    root.trust(&authority("Gateway"));
    let open = File::open(root.0.path()).unwrap();
    let names: Vec<&str> = variables(open.as_fd()).iter().map(|(name, _)| *name).collect();
    assert!(names.contains(&"NODE_EXTRA_CA_CERTS") && names.contains(&"SSL_CERT_FILE"));
    fs::remove_file(root.at(DEBIAN)).unwrap();
    assert!(variables(open.as_fd()).is_empty(), "a bundle that is gone would be worse than none");
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_the_parsers_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..512)) {
        let _ = der::subject_hash(&Certificate(bytes.clone()));
        let _ = der::pkcs12_certificates(&bytes);
        let _ = pem::certificates(&bytes);
        let _ = jks::read(&bytes);
        let store = jks::write(&[jks::Entry { alias: "a".into(), created_ms: 1, certificate: Certificate(bytes) }]);
        let store = store.unwrap();
        for cut in 0..store.len() {
            proptest::prop_assert!(jks::read(&store[..cut]).is_none());
        }
    }
}

#[test]
fn ssh_clients_know_the_gateway_and_the_hosts_of_the_image() {
    let root = Root::new(&["etc/ssh"]);
    root.put("etc/ssh/ssh_known_hosts", "old.test ssh-ed25519 AAAA");
    let tree_root = File::open(root.0.path()).unwrap();
    let tree = Tree::new(tree_root.as_fd());
    let gateway = |key: &str| bay_types::guest::GatewaySsh { host_key: key.to_owned(), hosts: Vec::new() };
    ssh::install(&tree, &gateway("ssh-ed25519 ONE=")).unwrap();
    ssh::install(&tree, &gateway("ssh-ed25519 TWO=")).unwrap();
    let text = root.text("etc/ssh/ssh_known_hosts");
    assert_eq!(text, "* ssh-ed25519 TWO= the gateway of this bay\nold.test ssh-ed25519 AAAA\n");
    assert!(ssh::install(&tree, &gateway("x\n* evil")).is_err());
    let bare = Root::new(&[]);
    let bare_root = File::open(bare.0.path()).unwrap();
    ssh::install(&Tree::new(bare_root.as_fd()), &gateway("ssh-ed25519 ONE=")).unwrap();
    assert!(bare.text("etc/ssh/ssh_known_hosts").starts_with("* ssh-ed25519 ONE="));
}

#[test]
fn certificates_of_another_bays_gateway_are_dropped_from_a_copied_root() {
    let root = Root::new(&["etc/ssl/certs"]);
    root.put(DEBIAN, "");
    let (grandparent, parent, own) = (authority("Grandparent"), authority("Parent"), authority("Own"));
    root.trust(&grandparent);
    root.trust(&parent);
    assert_eq!((root.count(DEBIAN, &grandparent), root.count(DEBIAN, &parent)), (1, 1));
    root.trust_with(&own, Earlier::Dropped);
    assert_eq!(root.count(DEBIAN, &own), 1);
    for other in [&grandparent, &parent] {
        assert_eq!(root.count(DEBIAN, other), 0);
        let name = der(other).short_name();
        assert!(!root.at(&format!("usr/local/share/ca-certificates/{name}.crt")).exists());
        assert!(!root.text("etc/chromium/policies/managed/workbay.json").contains(&der(other).base64()));
    }
    assert!(!root.at(".bay/ca-earlier.crt").exists());
}
