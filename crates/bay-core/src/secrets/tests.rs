//! Tests of the vault without bays: what it stores, what it reports, and what it does if a source fails.

use super::*;

async fn keys(dir: &Path) -> Arc<Keyring> {
    let store = bay_store::Store::open(&dir.join("bay.db")).await.unwrap();
    let keys = Keyring::open(Some(&dir.join("keys/own")), &store).await.unwrap();
    store.close().await;
    Arc::new(keys)
}

fn secret(name: &str, value: &str, command: Option<(&str, u64)>) -> Kept {
    let now = Timestamp::now();
    Kept {
        name: name.to_owned(),
        incarnation: 1,
        value: text(value),
        value_since: now,
        earlier: Vec::new(),
        expires: None,
        command: command.map(|(line, refresh_s)| stored::KeptCommand {
            line: text(line),
            refresh_s,
            uid: rustix::process::geteuid().as_raw(),
        }),
        uses: vec!["api.test/v1/** as bearer".to_owned()],
        env: vec![name.to_owned()],
        files: Vec::new(),
        git: Vec::new(),
        bays: Vec::new(),
        managed: true,
        literal_bodies: false,
        allow_weak: true,
        set_at: now,
    }
}

fn exposed(value: &Arc<SecretString>) -> &str {
    value.expose_secret()
}

#[tokio::test]
async fn a_secret_outlives_the_daemon_and_is_nowhere_in_plain() {
    let temp = tempfile::tempdir().unwrap();
    let keys = keys(temp.path()).await;
    let vault = Vault::open(temp.path(), Arc::clone(&keys));
    vault.keep(secret("TOKEN", "the-canary-value", None)).await.unwrap();
    let next = Vault::open(temp.path(), keys);
    assert_eq!(exposed(&next.value("TOKEN", 1).await.unwrap()), "the-canary-value");
    for entry in std::fs::read_dir(temp.path().join(DIR)).unwrap() {
        let raw = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!raw.windows(6).any(|window| window == b"canary"));
    }
    let shown = format!("{:?} {}", next, serde_json::to_string(&next.list().unwrap()).unwrap());
    assert!(!shown.contains("canary"), "{shown}");
    assert!(next.value("TOKEN", 2).await.unwrap_err().contains("taken back"), "another one of this name");
}

#[tokio::test]
async fn a_source_that_fails_leaves_its_value_until_that_ends() {
    let temp = tempfile::tempdir().unwrap();
    let keys = keys(temp.path()).await;
    let vault = Vault::open(temp.path(), keys);
    // The command prints a value while the file exists.
    let file = temp.path().join("value");
    let line = format!("cat {}", file.display());
    let old = Timestamp::now() - SignedDuration::from_hours(1);
    let mut kept = secret("TOKEN", "the-first-value", Some((&line, 10)));
    kept.value_since = old;
    vault.keep(kept.clone()).await.unwrap();
    assert_eq!(exposed(&vault.value("TOKEN", 1).await.unwrap()), "the-first-value");
    assert!(vault.show("TOKEN").unwrap().problem.unwrap().contains("failed"), "and that is told");
    // The value has expired, and there is no other.
    kept.expires = Some(old);
    vault.keep(kept.clone()).await.unwrap();
    let why = vault.value("TOKEN", 1).await.unwrap_err();
    assert!(why.contains("has ended") && why.contains("failed"), "{why}");
    std::fs::write(&file, "the-second-value\n").unwrap();
    vault.keep(kept).await.unwrap();
    assert_eq!(exposed(&vault.value("TOKEN", 1).await.unwrap()), "the-second-value");
    let shown = vault.show("TOKEN").unwrap();
    assert!(shown.problem.is_none() && shown.expires.is_none(), "{shown:?}");
}

#[tokio::test]
async fn without_the_key_there_are_no_secrets_and_the_reason_is_reported() {
    let temp = tempfile::tempdir().unwrap();
    let first = keys(temp.path()).await;
    Vault::open(temp.path(), first).keep(secret("TOKEN", "the-canary-value", None)).await.unwrap();
    std::fs::rename(temp.path().join("keys/own"), temp.path().join("aside")).unwrap();
    let vault = Vault::open(temp.path(), keys(temp.path()).await);
    let error = vault.list().unwrap_err();
    assert_eq!(error.code, ErrorCode::KeyUnusable);
    assert!(error.message.contains("is gone"), "{}", error.message);
    assert!(vault.value("TOKEN", 1).await.is_err());
    std::fs::rename(temp.path().join("aside"), temp.path().join("keys/own")).unwrap();
    let vault = Vault::open(temp.path(), keys(temp.path()).await);
    assert_eq!(vault.list().unwrap().len(), 1);
}

#[tokio::test]
async fn a_clock_that_was_set_leaves_no_value_for_longer_than_it_should_be() {
    let temp = tempfile::tempdir().unwrap();
    let vault = Vault::open(temp.path(), keys(temp.path()).await);
    let day = SignedDuration::from_hours(24);
    let mut kept = secret("TOKEN", "the-first-value", Some(("echo the-second-value", 3600)));
    // Set before the clock was set back by a day: nobody knows how old it is.
    kept.value_since = Timestamp::now() + day;
    vault.keep(kept.clone()).await.unwrap();
    assert_eq!(exposed(&vault.value("TOKEN", 1).await.unwrap()), "the-second-value");
    // Set before the clock was set forward: it is old. An expired value is not used.
    kept.value_since = Timestamp::now() - day;
    vault.keep(kept.clone()).await.unwrap();
    assert_eq!(exposed(&vault.value("TOKEN", 1).await.unwrap()), "the-second-value");
    kept.command = None;
    kept.expires = Some(Timestamp::now() - day);
    vault.keep(kept).await.unwrap();
    assert!(vault.value("TOKEN", 1).await.unwrap_err().contains("has ended"));
}

#[tokio::test]
async fn a_source_that_hangs_holds_one_request_up_for_a_while_and_no_other() {
    let temp = tempfile::tempdir().unwrap();
    let vault = Vault::open(temp.path(), keys(temp.path()).await);
    let ran = temp.path().join("ran");
    let line = format!("echo once >> {}; exec sleep 1000", ran.display());
    let mut kept = secret("TOKEN", "the-first-value", Some((&line, 10)));
    kept.value_since = Timestamp::now() - SignedDuration::from_hours(1);
    vault.keep(kept).await.unwrap();
    let both = tokio::join!(vault.value("TOKEN", 1), vault.value("TOKEN", 1));
    for value in [both.0, both.1, vault.value("TOKEN", 1).await] {
        assert_eq!(exposed(&value.unwrap()), "the-first-value");
    }
    assert_eq!(std::fs::read_to_string(ran).unwrap(), "once\n", "it is left alone for a while");
    assert!(vault.show("TOKEN").unwrap().problem.is_some_and(|why| why.contains("15 s")), "and told");
    let told = vault.refreshes().unwrap().try_recv().unwrap();
    assert!(told.name == "TOKEN" && told.failed.is_some(), "{told:?}");
}

/// The remembered values, the newest last.
fn remembered(vault: &Vault) -> Vec<String> {
    vault.former().values().map(|one| one.value.expose_secret().to_owned()).collect()
}

#[tokio::test]
async fn cred_rotated_former_values_are_known_to_the_next_daemon_for_a_while_and_not_without_number() {
    let temp = tempfile::tempdir().unwrap();
    let keys = keys(temp.path()).await;
    let vault = Vault::open(temp.path(), Arc::clone(&keys));
    let mut kept = secret("TOKEN", "value-number-0", None);
    // As an earlier release stored it.
    kept.earlier = vec![text("value-before-0")];
    stored::write(&vault.dir(), &kept, &keys).unwrap();
    let vault = Vault::open(temp.path(), Arc::clone(&keys));
    assert_eq!(remembered(&vault), ["value-before-0"]);
    kept.earlier.clear();
    for number in 1..=former_values::MAX_OF_ONE {
        kept.replace_value(text(&format!("value-number-{number}")));
        vault.keep(kept.clone()).await.unwrap();
    }
    let all: Vec<String> =
        (0..former_values::MAX_OF_ONE).map(|number| format!("value-number-{number}")).collect();
    assert_eq!(remembered(&vault), all);
    let next = Vault::open(temp.path(), Arc::clone(&keys));
    assert_eq!(remembered(&next), all, "and what an earlier release kept is not read twice");
    for entry in std::fs::read_dir(temp.path()).unwrap() {
        let raw = std::fs::read(entry.unwrap().path()).unwrap_or_default();
        assert!(!raw.windows(12).any(|window| window == b"value-number"));
    }
    let until = next.former().values().next().unwrap().until;
    let left = until.duration_since(Timestamp::now());
    assert!(
        left > former_values::REMEMBERED_FOR - SignedDuration::from_hours(1)
            && left <= former_values::REMEMBERED_FOR
    );
    // After its removal, the last value is remembered too.
    let last = next.find("TOKEN").unwrap();
    next.remember(&last).unwrap();
    assert_eq!(remembered(&next).last(), Some(&format!("value-number-{}", former_values::MAX_OF_ONE)));
}

#[tokio::test]
async fn cred_weak_a_command_that_prints_a_weak_value_leaves_the_one_that_there_is() {
    let temp = tempfile::tempdir().unwrap();
    let vault = Vault::open(temp.path(), keys(temp.path()).await);
    let mut kept = secret("TOKEN", "k7Vq2mZp9LwXr4Td", Some(("echo Summer2024!", 10)));
    kept.allow_weak = false;
    kept.value_since = Timestamp::now() - SignedDuration::from_hours(1);
    vault.keep(kept.clone()).await.unwrap();
    assert_eq!(exposed(&vault.value("TOKEN", 1).await.unwrap()), "k7Vq2mZp9LwXr4Td");
    let problem = vault.show("TOKEN").unwrap().problem.unwrap();
    assert!(problem.contains("easy to guess") && !problem.contains("Summer"), "{problem}");
    kept.allow_weak = true;
    vault.keep(kept).await.unwrap();
    assert_eq!(exposed(&vault.value("TOKEN", 1).await.unwrap()), "Summer2024!");
    assert!(vault.show("TOKEN").unwrap().weak);
}
