use bay_types::diff::Node;
use proptest::prelude::*;

use super::secrets::checksum;
use super::*;

fn node(kind: NodeKind) -> Node {
    Node { kind, mode: 0o644, uid: 0, gid: 0, size: 1, target: None }
}

/// A changed file with these marked lines.
fn changed(path: &str, patch: &str) -> DiffEntry {
    let count = |mark: char| patch.lines().filter(|line| line.starts_with(mark)).count() as u64;
    let content = Content::Text {
        added: count('+'),
        removed: count('-'),
        patch: Some(format!("@@ -1,9 +1,9 @@\n{patch}")),
        lossy: false,
    };
    let file = Some(node(NodeKind::File));
    DiffEntry::new(Change::Modified, path.as_bytes(), file.clone(), file, content)
}

fn deleted(path: &str, patch: &str) -> DiffEntry {
    DiffEntry { change: Change::Deleted, after: None, ..changed(path, patch) }
}

fn rules(entries: &[DiffEntry]) -> Vec<(Severity, String, Option<u64>)> {
    let found = review(entries);
    found.findings.into_iter().map(|finding| (finding.severity, finding.rule, finding.line)).collect()
}

fn only(entry: DiffEntry) -> (Severity, String, Option<u64>) {
    let mut found = rules(&[entry]);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Random-looking letters, the same each time; this file contains no real token.
fn letters(count: usize, from: &str) -> String {
    let from = from.as_bytes();
    let mut state = 88_172_645_463_325_252_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(from[usize::try_from(state % from.len() as u64).unwrap()])
    };
    (0..count).map(next).collect()
}

const BASE62: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

#[test]
fn a_token_is_recognised_by_its_checksum_and_never_shown() {
    let body = letters(30, BASE62);
    let token = format!("ghp_{body}{}", checksum(&body));
    let found = review(&[changed("src/a.rs", &format!(" x\n+let t = \"{token}\";\n"))]);
    assert!(found.stop());
    assert_eq!((found.findings[0].rule.as_str(), found.findings[0].line), ("github-token", Some(2)));
    assert_eq!(found.findings[0].why, "a GitHub token: ghp_… (40 characters)");
    assert!(!format!("{found:?}").contains(&body[..8]));
    // With one wrong letter it is no token.
    let wrong = format!("ghp_{body}{}", checksum("other"));
    assert_eq!(rules(&[changed("src/a.rs", &format!("+{wrong}\n"))]), []);
    // A removed line does not leave.
    assert_eq!(rules(&[changed("src/a.rs", &format!("-{token}\n {token}\n"))]), []);
}

#[test]
fn known_formats_are_found_and_placeholders_are_not() {
    let random = |n| letters(n, BASE62);
    let tokens = [
        ("aws-key", format!("AKIA{}", letters(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"))),
        ("gitlab-token", format!("glpat-{}", random(20))),
        ("slack-token", format!("xoxb-{}-{}", letters(12, "0123456789"), random(24))),
        ("stripe-key", format!("sk_live_{}", random(24))),
        ("google-key", format!("AIza{}", random(35))),
        ("anthropic-key", format!("sk-ant-api03-{}", random(93))),
        ("openai-key", format!("sk-proj-{}", random(60))),
        ("sendgrid-key", format!("SG.{}.{}", random(22), random(43))),
        ("npm-token", format!("npm_{}{}", random(30), checksum(&random(30)))),
        ("age-key", format!("AGE-SECRET-KEY-1{}", letters(58, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L"))),
    ];
    for (rule, token) in tokens {
        let (severity, found, _) = only(changed("config.yml", &format!("+  key: {token}\n")));
        assert_eq!((severity, found.as_str()), (Severity::Stop, rule), "{token}");
    }
    let harmless = [
        format!("ghp_{}", "x".repeat(36)),
        "AKIAIOSFODNN7EXAMPLE".to_owned(),
        format!("sk_live_{}", "0".repeat(24)),
        format!("my_AKIA{}", letters(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")),
        "npm_config_registry=https://registry.example.org".to_owned(),
        "the words hf_ and SG. and cio mean nothing".to_owned(),
    ];
    for text in harmless {
        assert_eq!(rules(&[changed("README.md", &format!("+{text}\n"))]), [], "{text}");
    }
}

#[test]
fn a_private_key_is_a_header_followed_by_content() {
    let body = letters(64, BASE62);
    let key = format!("+-----BEGIN RSA PRIVATE KEY-----\n+{body}\n+-----END RSA PRIVATE KEY-----\n");
    assert_eq!(only(changed("id_rsa", &key)), (Severity::Stop, "private-key".into(), Some(1)));
    let old = format!("+-----BEGIN EC PRIVATE KEY-----\n+Proc-Type: 4\n+\n+{body}\n");
    assert_eq!(only(changed("key.pem", &old)).1, "private-key");
    let json = format!("+  \"key\": \"-----BEGIN PRIVATE KEY-----\\n{body}\\n\"\n");
    assert_eq!(only(changed("account.json", &json)).1, "private-key");
    let code = "+if text.contains(\"-----BEGIN RSA PRIVATE KEY-----\") {\n+    return true;\n";
    assert_eq!(rules(&[changed("src/scan.rs", code)]), []);
    let public = format!("+-----BEGIN PUBLIC KEY-----\n+{body}\n");
    assert_eq!(rules(&[changed("key.pub", &public)]), []);
}

#[test]
fn random_values_with_secret_names_are_a_warning() {
    let value = letters(32, BASE62);
    for line in [
        format!("DB_PASSWORD={value}"),
        format!("api_key: '{value}'"),
        format!("const clientSecret = \"{value}\";"),
        format!("  \"auth_token\" : \"{value}\","),
        format!("SECRET_TOKEN={}", letters(40, "0123456789abcdef")),
    ] {
        let (severity, rule, _) = only(changed("src/settings.py", &format!("+{line}\n")));
        assert_eq!((severity, rule.as_str()), (Severity::Warn, "random-value"), "{line}");
    }
    for line in [
        "password = os.environ[\"DATABASE_PASSWORD\"]".to_owned(),
        "token: ${{ secrets.GITHUB_TOKEN }}".to_owned(),
        "let token = self.tokens.next_token_of_this_kind();".to_owned(),
        "secret_name: my-production-database-credentials-2".to_owned(),
        "password: changeme-1234567890abcdef".to_owned(),
        "tokenizer_path = models/tokenizers/llama-3.2-instruct".to_owned(),
        format!("integrity: sha512-{value}"),
        format!("checksum = \"{}\"", letters(64, "0123456789abcdef")),
    ] {
        assert_eq!(rules(&[changed("src/settings.py", &format!("+{line}\n"))]), [], "{line}");
    }
    let locked = changed("Cargo.lock", &format!("+token = \"{value}\"\n"));
    assert_eq!(only(locked).1, "lock-file");
}

#[test]
fn removed_tests_are_reported_and_moved_tests_are_not() {
    let removed = changed(
        "src/a.rs",
        " mod tests {\n-    #[test]\n-    fn it_works() {\n-        assert!(x);\n-    }\n",
    );
    let found = rules(std::slice::from_ref(&removed));
    assert_eq!(
        found,
        [
            (Severity::Warn, "assertions-removed".into(), None),
            (Severity::Warn, "test-removed".into(), Some(3))
        ]
    );
    let moved = changed("tests/b.rs", "+#[test]\n+fn it_works() {\n+    assert!(x);\n+}\n");
    assert_eq!(rules(&[removed, moved]), [(Severity::Warn, "assertions-removed".into(), None)]);
    assert_eq!(only(deleted("pkg/api_test.go", "-func TestApi(t *testing.T) {\n-}\n")).1, "tests-deleted");
    let python = changed("tests/test_x.py", "-def test_a():\n-    pass\n+def test_b():\n+    pass\n");
    assert_eq!(only(python).1, "test-removed");
    let js = changed("web/a.test.ts", "-  it('adds', () => {\n+  it.skip('adds', () => {\n");
    assert_eq!(only(js).1, "test-skipped");
}

#[test]
fn skipped_tests_are_reported_and_similar_words_are_not() {
    for line in [
        "@pytest.mark.skip(reason='x')",
        "describe.only('x', () => {",
        "xit('x')",
        "t.Skip(\"x\")",
        "#[ignore]",
    ] {
        assert_eq!(only(changed("tests/a", &format!("+{line}\n"))).1, "test-skipped", "{line}");
    }
    assert_eq!(only(changed("src/lib.rs", "+    #[ignore]\n     #[test]\n")).1, "test-skipped");
    for line in ["process.exit(1)", "profit(3)", "const skip = 1", "model.fit(x)"] {
        assert_eq!(rules(&[changed("tests/a", &format!("+{line}\n"))]), [], "{line}");
    }
}

#[test]
fn files_that_run_code_are_recognised_by_their_paths() {
    let rule = |path: &str| only(changed(path, "+x\n")).1;
    for (path, wanted) in [
        (".github/workflows/ci.yml", "ci"),
        ("sub/.gitlab-ci.yml", "ci"),
        (".git/hooks/post-checkout", "hook"),
        ("web/.husky/pre-commit", "hook"),
        (".envrc", "runs-code"),
        (".vscode/tasks.json", "runs-code"),
        ("crates/x/build.rs", "build"),
        ("Makefile", "build"),
        ("CODEOWNERS", "review-rules"),
        ("AGENTS.md", "agent-instructions"),
        ("go.sum", "lock-file"),
        (".gitattributes", "git-attributes"),
        ("sub/.git/info/attributes", "git-attributes"),
    ] {
        assert_eq!(rule(path), wanted, "{path}");
    }
    for path in
        ["src/makefile.rs", "docs/github/workflows/x", "src/hooks/a.ts", ".git/hooks/pre-commit.sample"]
    {
        assert_eq!(rules(&[changed(path, "+x\n")]), [], "{path}");
    }
    assert_eq!(only(changed("package.json", "+  \"postinstall\": \"node x.js\",\n")).1, "runs-code");
    assert_eq!(rules(&[changed("package.json", "+  \"test\": \"jest\",\n")]), []);
    assert_eq!(only(changed(".git/config", "+\thooksPath = .x\n")).1, "git-config");
    assert_eq!(rules(&[changed(".git/config", "+\tname = me\n+[user]\n")]), []);
    let blinded = rules(&[changed(".github/workflows/a.yml", "+      continue-on-error: true\n")]);
    assert!(blinded.iter().any(|(_, rule, line)| rule == "ci-weakened" && *line == Some(1)), "{blinded:?}");
}

#[test]
fn binaries_links_permissions_and_unusual_names_are_reported() {
    let binary = |path: &str| DiffEntry { content: Content::Binary, ..changed(path, "") };
    assert_eq!(only(binary("tool")), (Severity::Warn, "binary".into(), None));
    assert_eq!(only(binary("logo.PNG")).0, Severity::Note);
    assert_eq!(rules(&[DiffEntry { change: Change::Deleted, ..binary("tool") }]), []);
    let link = |path: &str, target: &str| {
        let after = Node { target: Some(target.to_owned()), ..node(NodeKind::Symlink) };
        DiffEntry::new(Change::Added, path.as_bytes(), None, Some(after), Content::Same)
    };
    for (path, target, out) in [
        ("a", "/etc/passwd", true),
        ("a", "../b", true),
        ("d/a", "../b", false),
        ("d/a", "x/../../../b", true),
        ("a", "/workspace/b", false),
        ("a", "/workspaces", true),
    ] {
        assert_eq!(rules(&[link(path, target)]).len(), usize::from(out), "{path} -> {target}");
    }
    let mut setuid = changed("tool", "+x\n");
    setuid.after.as_mut().unwrap().mode = 0o4755;
    assert_eq!(only(setuid).1, "setuid");
    assert_eq!(only(changed("a\u{1b}[2J", "+x\n")).1, "odd-name");
    assert_eq!(only(changed("a.c", "+if (admin\u{202e}) {\n")).1, "hidden-characters");
    assert_eq!(only(changed("a.md", "+run it\u{e0072}\u{e006d}\n")).1, "hidden-characters");
    assert!(rules(&[changed("a.md", "+fine 👩\u{200d}🔬 ❤\u{fe0f}\n")]).is_empty());
    let unread = Content::Unread { why: "x".into() };
    assert_eq!(only(DiffEntry { content: unread, ..changed("d", "") }).1, "unread");
}

#[test]
fn many_deletions_are_reported_once() {
    let entries: Vec<_> = (0..MASS_DELETION_FILES).map(|n| deleted(&format!("src/{n}.rs"), "-x\n")).collect();
    assert_eq!(rules(&entries), [(Severity::Warn, "mass-deletion".into(), None)]);
}

#[test]
fn the_most_severe_findings_come_first_and_excess_ones_are_counted() {
    let body = letters(30, BASE62);
    let mut entries: Vec<_> = (0..MAX_FINDINGS).map(|n| changed(&format!("{n}/Makefile"), "+x\n")).collect();
    entries.push(changed("z", &format!("+ghp_{body}{}\n", checksum(&body))));
    let found = review(&entries);
    assert!(found.stop());
    assert_eq!(found.findings[0].severity, Severity::Stop);
    assert_eq!((found.findings.len(), found.not_listed), (MAX_FINDINGS, 1));
}

proptest! {
    #[test]
    fn no_text_makes_a_rule_panic(path in "\\PC{0,30}", patch in any::<String>(), lines in "([-+ @]\\PC{0,60}\n){0,8}") {
        for text in [patch, lines] {
            let _ = review(&[changed(&path, &text), deleted(&path, &text)]);
        }
    }

    /// A secret is found whatever surrounds it, and only its beginning is shown.
    #[test]
    fn a_token_is_found_anywhere_in_a_line(before in "[^A-Za-z0-9_\n]{0,20}", after in "[^A-Za-z0-9\n]{0,20}") {
        let body = letters(30, BASE62);
        let token = format!("ghp_{body}{}", checksum(&body));
        let found = review(&[changed("a.txt", &format!("+{before}{token}{after}\n"))]);
        prop_assert!(found.findings.iter().any(|finding| finding.rule == "github-token"));
        let shown = format!("{found:?}");
        prop_assert!(!shown.contains(&body[..6]));
    }
}
