use jiff::Timestamp;

use super::*;

fn key() -> SecretKey {
    SecretKey::new("workbay/test", &[7; 32]).unwrap()
}

fn time() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().unwrap()
}

fn events(n: u64) -> Vec<EventRecord> {
    (1..=n)
        .map(|seq| {
            let (at, kind, body) = (format!("time {seq}"), "test.event", format!("{{\"n\":{seq}}}"));
            let hash = EventRecord::leaf_of(seq, &at, "", kind, &body);
            EventRecord { seq, at, bay: String::new(), kind: kind.to_owned(), body, hash }
        })
        .collect()
}

/// A log with this many events, as a daemon has it.
struct Log {
    key: SecretKey,
    events: Vec<EventRecord>,
    kept: Kept,
}

impl Log {
    fn new(n: u64) -> Self {
        Self::of(events(n))
    }

    fn of(events: Vec<EventRecord>) -> Self {
        let kept = Kept::of(&events.iter().map(EventRecord::leaf).collect::<Vec<_>>());
        Self { key: key(), events, kept }
    }

    fn note(&self) -> String {
        self.key.sign(self.kept.frontier.size(), self.kept.frontier.root(), time())
    }

    fn head(&self) -> Head {
        Head::open(&self.note(), &self.key.public()).unwrap()
    }

    fn hashes(&self, range: std::ops::Range<u64>) -> Vec<Hash> {
        subtrees(range).into_iter().map(|node| self.kept.node(node)).collect()
    }

    fn bundle(&self, from: u64, to: u64) -> Vec<Vec<u8>> {
        let (before, behind) = (self.hashes(0..from - 1), self.hashes(to..self.kept.frontier.size()));
        let mut lines =
            vec![Bundle::line(&Header::new(self.note(), Evidence::Range { from, to, before, behind }))];
        let wanted = self.events.iter().filter(|event| (from..=to).contains(&event.seq));
        lines.extend(wanted.map(Bundle::line));
        lines
    }
}

fn check(lines: &[Vec<u8>], known: &[Head]) -> Result<Verified, Flaw> {
    let mut verifier = Verifier::new(key().public(), known.to_vec());
    for line in lines {
        verifier.line(line)?;
    }
    verifier.finish()
}

#[test]
fn a_whole_bundle_and_every_part_of_it_verify() {
    for n in [0, 1, 2, 7, 8, 300] {
        let log = Log::new(n);
        assert_eq!(check(&log.bundle(1, n), &[]).unwrap().events, (n > 0).then_some((1, n)));
    }
    let log = Log::new(21);
    for from in 1..=21 {
        for to in from..=21 {
            let verified = check(&log.bundle(from, to), &[log.head()]).unwrap();
            assert_eq!((verified.events, verified.standing), (Some((from, to)), vec![Standing::Continues]));
        }
    }
}

#[test]
fn changed_removed_added_and_reordered_events_of_a_bundle_are_detected() {
    let log = Log::new(9);
    let good = log.bundle(1, 9);
    let wrong = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut lines = good.clone();
        change(&mut lines);
        check(&lines, &[]).unwrap_err()
    };
    let edit = |lines: &mut Vec<Vec<u8>>, at: usize, honest: bool| {
        let mut event: EventRecord = serde_json::from_slice(&lines[at]).unwrap();
        event.body = "{}".to_owned();
        if honest {
            event.hash = event.leaf();
        }
        lines[at] = Bundle::line(&event);
    };
    assert_eq!(wrong(&|lines| edit(lines, 4, false)), Flaw::Edited { seq: 4 });
    assert_eq!(wrong(&|lines| edit(lines, 4, true)), Flaw::Root { size: 9 });
    assert_eq!(wrong(&|lines| edit(lines, 9, true)), Flaw::Root { size: 9 });
    assert_eq!(wrong(&|lines| lines.swap(3, 4)), Flaw::Order { expected: 3, found: 4 });
    assert_eq!(wrong(&|lines| drop(lines.pop())), Flaw::Cut { expected: 9, to: 9 });
    assert_eq!(wrong(&|lines| drop(lines.remove(5))), Flaw::Order { expected: 5, found: 6 });
    assert!(matches!(wrong(&|lines| lines.push(lines[9].clone())), Flaw::Malformed { line: 11, .. }));
    assert!(matches!(wrong(&Vec::clear), Flaw::Malformed { line: 1, .. }));
    // The head of a smaller log: older, and known only by a newer head.
    let older = Log::new(8);
    assert_eq!(check(&older.bundle(1, 8), &[log.head()]).unwrap().standing, [Standing::Older]);
    // A header that announces fewer events than its head has.
    let mut header: Header = serde_json::from_slice(&good[0]).unwrap();
    header.evidence = Evidence::Range { from: 1, to: 8, before: vec![], behind: vec![] };
    assert_eq!(
        wrong(&|lines| {
            lines.pop();
            lines[0] = Bundle::line(&header);
        }),
        Flaw::Root { size: 9 }
    );
}

#[test]
fn a_renumbered_swap_is_detected_too() {
    let mut swapped = events(9);
    swapped.swap(2, 3);
    for (seq, event) in (1..).zip(&mut swapped) {
        event.seq = seq;
        event.hash = event.leaf();
    }
    let mut lines = Log::of(swapped).bundle(1, 9);
    lines[0] = Log::new(9).bundle(1, 9)[0].clone();
    assert_eq!(check(&lines, &[]), Err(Flaw::Root { size: 9 }));
}

#[test]
fn a_fork_is_detected_at_the_same_size_and_at_another() {
    let mut other = events(9);
    other[8].body = "{}".to_owned();
    other[8].hash = other[8].leaf();
    let (one, other) = (Log::new(9), Log::of(other));
    assert!(matches!(check(&other.bundle(1, 9), &[one.head()]), Err(Flaw::Fork { size: 9, .. })));
    let longer = Log::new(12);
    assert!(matches!(check(&longer.bundle(1, 12), &[other.head()]), Err(Flaw::Fork { size: 9, .. })));
    assert_eq!(check(&longer.bundle(1, 12), &[one.head()]).unwrap().standing, [Standing::Continues]);
    assert_eq!(check(&longer.bundle(11, 12), &[one.head()]).unwrap().standing, [Standing::Unknown]);
    assert!(matches!(check(&longer.bundle(10, 12), &[other.head()]), Err(Flaw::Fork { size: 9, .. })));
}

#[test]
fn proofs_of_one_event_and_of_consistency_are_bundles_too() {
    let (log, older) = (Log::new(21), Log::new(13));
    let path: Vec<Hash> =
        inclusion_ranges(4, 21).unwrap().into_iter().map(|range| log.kept.range(range)).collect();
    let header = Header::new(log.note(), Evidence::Inclusion { event: 5, path });
    let lines = [Bundle::line(&header), Bundle::line(&log.events[4])];
    assert_eq!(check(&lines, &[]).unwrap().events, Some((5, 5)));
    let other = [Bundle::line(&header), Bundle::line(&log.events[5])];
    assert_eq!(check(&other, &[]), Err(Flaw::Order { expected: 5, found: 6 }));
    assert_eq!(check(&lines[..1], &[]), Err(Flaw::Cut { expected: 5, to: 5 }));

    let path: Vec<Hash> =
        consistency_ranges(13, 21).unwrap().into_iter().map(|range| log.kept.range(range)).collect();
    let lines = [Bundle::line(&Header::new(log.note(), Evidence::Consistency { old: 13, path }))];
    assert_eq!(check(&lines, &[older.head()]).unwrap().standing, [Standing::Continues]);
    let mut fork = events(13);
    fork[0].kind = "other".to_owned();
    let fork = Log::of(fork).head();
    assert!(matches!(check(&lines, &[fork]), Err(Flaw::Fork { size: 13, .. })));
}

#[test]
fn a_head_verifies_only_with_the_right_key() {
    let log = Log::new(5);
    let note = log.note();
    let public = log.key.public();
    assert_eq!(PublicKey::parse(&format!("{public}\n")).unwrap(), public);
    assert_eq!(Head::open(&note, &public).unwrap().size, 5);
    let stranger = SecretKey::new("workbay/test", &[8; 32]).unwrap();
    assert!(matches!(Head::open(&note, &stranger.public()), Err(NoteError::NotSigned(_))));
    let elsewhere = SecretKey::new("workbay/other", &[7; 32]).unwrap();
    assert!(matches!(Head::open(&note, &elsewhere.public()), Err(NoteError::OtherLog { .. })));
    let changed = note.replacen("\n5\n", "\n6\n", 1);
    assert!(matches!(Head::open(&changed, &public), Err(NoteError::WrongSignature(_))));
    // Signatures of others beside ours change nothing.
    let witness = "\u{2014} witness AAAAAAAA";
    assert_eq!(Head::open(&format!("{note}{witness}\n"), &public).unwrap().size, 5);
    let secret = log.key.to_secret_text();
    assert_eq!(SecretKey::parse(&secret).unwrap().public(), public);
    assert!(matches!(PublicKey::parse(&secret), Err(NoteError::Key(_))));
    assert!(!format!("{:?}", log.key).contains(&secret[20..40]));
}

proptest! {
    #[test]
    fn a_flipped_bit_anywhere_is_detected(at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let log = Log::new(6);
        let mut bytes = log.bundle(2, 5).concat();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let lines: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        // The piece after the last line break is empty.
        let lines = match lines.split_last() {
            Some((last, lines)) if last.is_empty() => lines.to_vec(),
            _ => lines,
        };
        // A changed line break can leave the same lines. Whatever verifies must be the original content.
        if let Ok(verified) = check(&lines, &[]) {
            prop_assert_eq!(verified.head, log.head());
            prop_assert_eq!(verified.events, Some((2, 5)));
        }
    }

    #[test]
    fn parsing_any_text_does_no_harm(text in "\\PC{0,300}", note in "\\PC{0,60}\n[0-9]{0,20}\n\\PC{0,50}\ntime \\PC{0,20}\n\n\u{2014} \\PC{0,40}") {
        let _ = Head::open(&note, &key().public());
        let _ = PublicKey::parse(&text);
        let _ = SecretKey::parse(&text);
        let _ = check(&[text.into_bytes()], &[]);
    }
}
