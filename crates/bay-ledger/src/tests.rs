use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

mod bundles;

/// The literal definition in RFC 6962, section 2.1.
fn naive_root(leaves: &[Hash]) -> Hash {
    match leaves {
        [] => Hash::of_nothing(),
        [one] => *one,
        many => {
            let k = naive_split(many.len());
            node_hash(&naive_root(&many[..k]), &naive_root(&many[k..]))
        }
    }
}

fn naive_split(n: usize) -> usize {
    let mut k = 1;
    while 2 * k < n {
        k *= 2;
    }
    k
}

fn naive_path(m: usize, leaves: &[Hash]) -> Vec<Hash> {
    if leaves.len() == 1 {
        return vec![];
    }
    let k = naive_split(leaves.len());
    if m < k {
        let mut path = naive_path(m, &leaves[..k]);
        path.push(naive_root(&leaves[k..]));
        path
    } else {
        let mut path = naive_path(m - k, &leaves[k..]);
        path.push(naive_root(&leaves[..k]));
        path
    }
}

fn naive_consistency(m: usize, leaves: &[Hash], whole: bool) -> Vec<Hash> {
    if m == leaves.len() {
        return if whole { vec![] } else { vec![naive_root(leaves)] };
    }
    let k = naive_split(leaves.len());
    if m <= k {
        let mut proof = naive_consistency(m, &leaves[..k], whole);
        proof.push(naive_root(&leaves[k..]));
        proof
    } else {
        let mut proof = naive_consistency(m - k, &leaves[k..], false);
        proof.push(naive_root(&leaves[..k]));
        proof
    }
}

pub(crate) fn leaves(n: u64) -> Vec<Hash> {
    (0..n).map(|i| leaf_hash(&i.to_be_bytes())).collect()
}

/// A store in memory: the leaves, and the stored nodes.
#[derive(Default)]
struct Kept {
    frontier: Frontier,
    leaves: Vec<Hash>,
    rows: std::collections::BTreeMap<(u32, u64), Hash>,
}

impl Kept {
    fn of(leaves: &[Hash]) -> Self {
        let mut kept = Self::default();
        for leaf in leaves {
            kept.leaves.push(*leaf);
            let rows = &mut kept.rows;
            let pushed = kept.frontier.push(*leaf, |node, hash| {
                if node.is_kept() {
                    rows.insert((node.level, node.index), hash);
                }
            });
            assert!(pushed);
        }
        kept
    }

    fn node(&self, node: Node) -> Hash {
        let row = node.row();
        let hashes = (row.first..row.first + row.count).map(|index| match row.level {
            0 => self.leaves[usize::try_from(index).unwrap()],
            level => self.rows[&(level, index)],
        });
        fold_full(hashes.collect()).unwrap()
    }

    fn range(&self, range: std::ops::Range<u64>) -> Hash {
        fold_subtrees(&subtrees(range).into_iter().map(|node| self.node(node)).collect::<Vec<_>>())
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// The eight test leaves of Certificate Transparency implementations, with the roots that all of them compute.
#[test]
fn the_roots_are_those_of_certificate_transparency() {
    let inputs =
        ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"];
    let roots = [
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    ];
    let mut frontier = Frontier::default();
    assert_eq!(frontier.root().to_string(), roots[0]);
    for (input, root) in inputs.iter().zip(&roots[1..]) {
        assert!(frontier.push(leaf_hash(&unhex(input)), |_, _| {}));
        assert_eq!(frontier.root().to_string(), *root);
    }
}

#[test]
fn only_the_naive_proofs_of_small_trees_verify() {
    let all = leaves(70);
    for n in 1..=70_usize {
        let (some, size) = (&all[..n], n as u64);
        let kept = Kept::of(some);
        assert_eq!(kept.frontier.root(), naive_root(some));
        for m in 0..n {
            let index = m as u64;
            let path: Vec<Hash> =
                inclusion_ranges(index, size).unwrap().into_iter().map(|r| kept.range(r)).collect();
            assert_eq!(path, naive_path(m, some));
            assert_eq!(root_by_inclusion(index, size, some[m], &path), Some(naive_root(some)));
            assert_ne!(root_by_inclusion(index, size, leaf_hash(b"other"), &path), Some(naive_root(some)));
            if n > 1 {
                assert_eq!(root_by_inclusion(index, size, some[m], &path[1..]), None);
                let moved = (index + 1) % size;
                assert_ne!(root_by_inclusion(moved, size, some[m], &path), Some(naive_root(some)));
            }
        }
        for m in 1..=n {
            let old = m as u64;
            let proof: Vec<Hash> =
                consistency_ranges(old, size).unwrap().into_iter().map(|r| kept.range(r)).collect();
            assert_eq!(proof, naive_consistency(m, some, true), "{m} of {n}");
            let (before, after) = (naive_root(&some[..m]), naive_root(some));
            assert_eq!(roots_by_consistency(old, size, before, &proof), Some((before, after)));
            let other = leaf_hash(b"other");
            assert_ne!(roots_by_consistency(old, size, other, &proof), Some((other, after)), "{m} of {n}");
            for at in 0..proof.len() {
                let mut wrong = proof.clone();
                wrong[at] = other;
                assert_ne!(roots_by_consistency(old, size, before, &wrong), Some((before, after)));
            }
        }
    }
    assert_eq!(inclusion_ranges(3, 3), None);
    assert_eq!(consistency_ranges(0, 3), None);
    assert_eq!(consistency_ranges(4, 3), None);
}

#[test]
fn one_append_in_256_keeps_a_node() {
    let kept = Kept::of(&leaves(70_000));
    assert_eq!(kept.rows.len(), 70_000 / 256 + 1);
    assert_eq!(kept.frontier.root(), naive_root(&kept.leaves));
    for range in [0..70_000, 0..65_536, 65_536..70_000, 69_888..70_000] {
        let (from, to) = (usize::try_from(range.start).unwrap(), usize::try_from(range.end).unwrap());
        assert_eq!(kept.range(range), naive_root(&kept.leaves[from..to]));
    }
}

#[test]
fn a_subtree_is_used_only_at_a_valid_position() {
    let mut frontier = Frontier::default();
    assert!(frontier.push(leaf_hash(b"a"), |_, _| {}));
    let before = frontier.clone();
    for level in [1, 2, 62, 63, 64, u32::MAX] {
        assert!(!frontier.push_full(level, leaf_hash(b"b"), |_, _| {}), "{level}");
    }
    assert_eq!(frontier, before);
    assert_eq!(Frontier::new(3, vec![leaf_hash(b"a")]), None);
    assert_eq!(Frontier::new(u64::MAX, vec![leaf_hash(b"a"); 64]), None);
}

#[test]
fn no_two_events_have_the_same_encoding() {
    let leaf = |bay: &str, kind: &str, body: &str| EventRecord::leaf_of(1, "t", bay, kind, body);
    assert_ne!(leaf("a", "b", "c"), leaf("ab", "", "c"));
    assert_ne!(leaf("", "ab", "c"), leaf("", "a", "bc"));
    assert_ne!(leaf("", "a", "x\n{\"seq\":2}"), leaf("", "a", "x"));
}

proptest! {
    #[test]
    fn large_trees_agree_with_the_naive_definition(n in 1_usize..1500, seed in any::<u64>()) {
        let some = &leaves(1500)[..n];
        let kept = Kept::of(some);
        let root = naive_root(some);
        prop_assert_eq!(kept.frontier.root(), root);
        let size = n as u64;
        let m = usize::try_from(seed % size).unwrap();
        let path: Vec<Hash> = inclusion_ranges(m as u64, size).unwrap().into_iter().map(|r| kept.range(r)).collect();
        prop_assert_eq!(&path, &naive_path(m, some));
        prop_assert_eq!(root_by_inclusion(m as u64, size, some[m], &path), Some(root));
        let old = m + 1;
        let proof: Vec<Hash> = consistency_ranges(old as u64, size).unwrap().into_iter().map(|r| kept.range(r)).collect();
        prop_assert_eq!(&proof, &naive_consistency(old, some, true));
        let before = naive_root(&some[..old]);
        prop_assert_eq!(roots_by_consistency(old as u64, size, before, &proof), Some((before, root)));
    }

    #[test]
    fn proofs_of_any_numbers_and_hashes_do_no_harm(
        a in any::<u64>(), b in any::<u64>(), hashes in vec(any::<[u8; 32]>(), 0..70)
    ) {
        let hashes: Vec<Hash> = hashes.into_iter().map(Hash::new).collect();
        let _ = root_by_inclusion(a, b, Hash::of_nothing(), &hashes);
        let _ = roots_by_consistency(a, b, Hash::of_nothing(), &hashes);
        let _ = Frontier::new(a, hashes);
    }

    #[test]
    fn a_written_hash_parses_to_the_same_hash(bytes in any::<[u8; 32]>()) {
        let hash = Hash::new(bytes);
        prop_assert_eq!(Hash::parse(&hash.to_string()), Some(hash));
        prop_assert_eq!(Hash::parse(&hash.to_string().to_uppercase()).is_some(), hash.to_string() == hash.to_string().to_uppercase());
    }
}
