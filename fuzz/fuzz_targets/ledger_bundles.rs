//! Bundles of the ledger, and the heads and keys in them: nothing panics, and nothing but what was signed is believed.
#![no_main]

use bay_ledger::{Bundle, Evidence, Head, Header, PublicKey, SecretKey, Verifier};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(secret) = SecretKey::new("workbay/fuzz", &[7; 32]) else { return };
    let key = secret.public();
    let text = String::from_utf8_lossy(data);
    let _ = PublicKey::parse(&text);
    let _ = SecretKey::parse(&text);
    assert!(Head::open(&text, &key).is_err(), "nobody but the key's owner can sign");

    // As a whole bundle: its header has no signature of ours.
    let mut verifier = Verifier::new(key.clone(), vec![]);
    let held = data.split(|byte| *byte == b'\n').try_for_each(|line| verifier.line(line));
    assert!(held.is_err() || verifier.finish().is_err());

    // Behind a head that is signed: evidence and events of the attacker's choice.
    let note = secret.sign(5, bay_ledger::leaf_hash(b"nobody knows what leads here"), jiff::Timestamp::UNIX_EPOCH);
    let mut lines = data.split(|byte| *byte == b'\n');
    let Some(Ok(evidence)) = lines.next().map(serde_json::from_slice::<Evidence>) else { return };
    let consistency = matches!(evidence, Evidence::Consistency { .. });
    let mut verifier = Verifier::new(key, vec![]);
    let held = verifier
        .line(&Bundle::line(&Header::new(note, evidence)))
        .and_then(|()| lines.try_for_each(|line| verifier.line(line)));
    // Without an older head there is nothing that a proof of consistency could prove.
    assert!(held.is_err() || consistency || verifier.finish().is_err());
});
