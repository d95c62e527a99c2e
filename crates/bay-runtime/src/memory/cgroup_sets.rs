//! Gives threads with equal sets of groups one number of a set in CRIU's images.
//!
//! CRIU should record every combination of groups once. In a bay, which has a cgroup namespace, it does not recognise a
//! combination that it has already (it compares before it sets where the namespace begins). So each thread gets a
//! combination of its own, and a restore moves every single thread through every hierarchy. Here equal combinations get
//! the same number. A thread with the number of its process needs no move.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use super::protobuf::{Value, fields, replaced};

const GROUPS: &str = "cgroup.img";
const CORE: &str = "core-";
/// Two numbers that identify the kind of image, and the length of its only entry.
const HEAD: usize = 12;
/// The path of fields in `core_entry` (CRIU's `core.proto`) to the number of a combination: for a process in
/// `task_core_entry`, for a thread in `thread_core_entry`.
const PLACES: [[u64; 2]; 2] = [[CORE_TASK, TASK_GROUPS], [CORE_THREAD, THREAD_GROUPS]];
const CORE_TASK: u64 = 3;
const TASK_GROUPS: u64 = 9;
const CORE_THREAD: u64 = 5;
const THREAD_GROUPS: u64 = 16;
/// The fields of `cgroup_entry` and `cg_set_entry` (CRIU's `cgroup.proto`).
const GROUPS_SET: u64 = 1;
const SET_ID: u64 = 1;
const SET_MEMBER: u64 = 2;

/// Writes one number for equal sets into the images of processes and threads. The equal sets stay in the image of
/// groups, unused. Unexpected images stay as they are: they are correct, only slower.
pub(super) fn merge(images: &Path) -> io::Result<()> {
    let groups = fs::read(images.join(GROUPS))?;
    let numbers = entry(&groups).map(duplicates).unwrap_or_default();
    if numbers.is_empty() {
        return Ok(());
    }
    for file in fs::read_dir(images)? {
        let file = file?;
        if file.file_name().as_encoded_bytes().starts_with(CORE.as_bytes()) {
            let core = fs::read(file.path())?;
            if let Some(new) = renumbered(&core, &numbers) {
                fs::write(file.path(), new)?;
            }
        }
    }
    Ok(())
}

/// The content of an image with one entry.
fn entry(image: &[u8]) -> Option<&[u8]> {
    let (head, entry) = image.split_at_checked(HEAD)?;
    let length = u32::from_le_bytes(*head.last_chunk()?);
    (usize::try_from(length).ok()? == entry.len()).then_some(entry)
}

/// For each number of a repeated combination, the number of its first occurrence.
fn duplicates(groups: &[u8]) -> HashMap<u64, u64> {
    let mut first: HashMap<Vec<&[u8]>, u64> = HashMap::new();
    let mut numbers = HashMap::new();
    for (field, value) in fields(groups) {
        let (GROUPS_SET, Value::Bytes(set)) = (field, value) else { continue };
        let (mut id, mut members) = (None, Vec::new());
        for part in fields(set) {
            match part {
                (SET_ID, Value::Number(number)) => id = Some(number),
                (SET_MEMBER, Value::Bytes(member)) => members.push(member),
                _ => {}
            }
        }
        let Some(id) = id else { continue };
        let known = *first.entry(members).or_insert(id);
        if known != id {
            numbers.insert(id, known);
        }
    }
    numbers
}

/// The image with the new numbers, or None if nothing changes or it is not understood.
fn renumbered(core: &[u8], numbers: &HashMap<u64, u64>) -> Option<Vec<u8>> {
    let before = entry(core)?;
    let number = |old: u64| numbers.get(&old).copied().unwrap_or(old);
    let mut after = before.to_vec();
    for place in PLACES {
        after = replaced(&after, &place, &number)?;
    }
    if after == before {
        return None;
    }
    let length = u32::try_from(after.len()).ok()?.to_le_bytes();
    Some([&core[..HEAD - length.len()], &length, &after].concat())
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::Message;
    use super::*;

    fn image(entry: &Message) -> Vec<u8> {
        let length = u32::try_from(entry.as_bytes().len()).unwrap().to_le_bytes();
        [&[7; 8][..], &length, entry.as_bytes()].concat()
    }

    fn set(id: u64, path: &[u8]) -> Message {
        let mut member = Message::default();
        member.bytes(1, b"cpu").bytes(2, path).number(3, 62);
        let mut set = Message::default();
        set.number(1, id).message(2, &member);
        set
    }

    #[test]
    fn threads_in_the_same_groups_have_the_same_number() {
        let mut groups = Message::default();
        groups.message(1, &set(2, b"/a")).message(1, &set(3, b"/b")).message(1, &set(4, b"/b"));
        let numbers = duplicates(entry(&image(&groups)).unwrap());
        assert_eq!(numbers, HashMap::from([(4, 3)]));

        let core = |number: u64| {
            let (mut task, mut thread, mut core) = <(Message, Message, Message)>::default();
            task.number(1, 4).number(9, number);
            thread.number(1, 300).number(16, number).bytes(20, b"rest");
            core.number(1, 1).message(3, &task).message(5, &thread);
            image(&core)
        };
        assert_eq!(renumbered(&core(4), &numbers).unwrap(), core(3));
        assert_eq!(renumbered(&core(3), &numbers), None);
        assert_eq!(renumbered(&core(4)[..20], &numbers), None);
    }
}
