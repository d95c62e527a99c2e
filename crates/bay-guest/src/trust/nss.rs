//! The certificate store of NSS in each home, `~/.pki/nssdb`. Chromium reads it if it has no policies, for example
//! under Playwright.
//!
//! The store is an SQLite database. It is written as a whole and never changed: a store that another program made or wrote to stays
//! as it is. So this module writes the few pages of such a database, and reads only its header.
//!
//! ```text
//!  page 1   header, and the schema: one table and the index of its key
//!  page 2   the table: for each certificate one row with it, and one that says what it is trusted for
//!  page 3   the index
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use sha1::{Digest, Sha1};

use super::der;
use super::pem::Certificate;
use super::tree::{Tree, invalid_data, read_in, write_owned_in};
use crate::users::{self, User};

/// Homes that get a store.
const MAX_HOMES: usize = 16;
const DIRECTORIES: [&str; 2] = [".pki", "nssdb"];
const NAME: &str = "cert9.db";
/// One page holds all rows: the certificate of a gateway is much shorter than a kilobyte, and there are few.
const PAGE: usize = 32 << 10;
const SQLITE_HEADER: usize = 100;
/// Where SQLite's header counts changes.
const COUNTER: std::ops::Range<usize> = 24..28;
/// Where SQLite's header names the program that wrote the file.
const APPLICATION: std::ops::Range<usize> = 68..72;
const OURS: &[u8; 4] = b"wbay";
const FIRST_COUNT: u32 = 1;

/// PKCS#11's object classes and levels of trust.
const CERTIFICATE: u32 = 1;
const TRUST: u32 = 0xce53_4353;
const TRUSTED_DELEGATOR: u32 = 0xce53_4352;
const MUST_VERIFY: u32 = 0xce53_435b;
const NOT_TRUSTED_HERE: u32 = 0xce53_4353;
/// How NSS writes a value that is present and empty.
const EMPTY: [u8; 3] = [0xa5, 0x00, 0x5a];

/// Ranges of attributes of PKCS#11 and NSS. The table has a column for each, named by its number.
const ATTRIBUTES: [(u32, u32); 25] = [
    (0x0, 0x3),
    (0x10, 0x12),
    (0x80, 0x8b),
    (0x90, 0x90),
    (0x100, 0x10c),
    (0x110, 0x111),
    (0x120, 0x129),
    (0x130, 0x134),
    (0x160, 0x166),
    (0x170, 0x170),
    (0x180, 0x181),
    (0x200, 0x202),
    (0x210, 0x210),
    (0x300, 0x302),
    (0x400, 0x406),
    (0x480, 0x482),
    (0x500, 0x503),
    (0x4000_0211, 0x4000_0212),
    (0x8000_0001, 0x8000_0001),
    (0xce53_4351, 0xce53_4358),
    (0xce53_4364, 0xce53_4369),
    (0xce53_4373, 0xce53_4374),
    (0xce53_6351, 0xce53_6360),
    (0xce53_63b4, 0xce53_63b5),
    (0xd5a0_db00, 0xd5a0_db00),
];

/// Makes the store in the homes of root and of people.
pub(super) fn install(tree: &Tree<'_>, trusted: &[Certificate], attempt: &impl Fn(&str, io::Result<()>)) {
    let Some(image) = database(trusted) else {
        return attempt(NAME, Err(invalid_data("certificates that do not fit a page")));
    };
    for user in users::with_homes(tree.root()).into_iter().take(MAX_HOMES) {
        // A user whose home does not exist needs none.
        let Ok(home) = tree.directory(user.home.trim_start_matches('/')) else { continue };
        attempt(&format!("{}/.pki/nssdb", user.home), make(home, &user, &image));
    }
}

fn make(home: OwnedFd, user: &User, image: &[u8]) -> io::Result<()> {
    let owner = (Uid::from_raw(user.identity.uid), Gid::from_raw(user.identity.gid));
    let mut at = home;
    for name in DIRECTORIES {
        // No link is followed: the user controls the home, and the guest is root.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        at = rustix::fs::openat(&at, name, flags, Mode::empty())?;
        if made {
            rustix::fs::fchown(&at, Some(owner.0), Some(owner.1))?;
        }
    }
    if !may_replace(at.as_fd()) {
        return Err(invalid_data(
            "a store of its own is there; `certutil -A -t C,, -n workbay -i /.bay/ca.crt` adds to it",
        ));
    }
    write_owned_in(at.as_fd(), NAME, image, Some(owner))
}

/// Whether there is no store, or one that this module wrote and nobody changed.
fn may_replace(directory: BorrowedFd<'_>) -> bool {
    if matches!(rustix::fs::statat(directory, NAME, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT)) {
        return true;
    }
    let old = read_in(directory, NAME, 3 * PAGE as u64).unwrap_or_default();
    old.get(APPLICATION) == Some(OURS) && old.get(COUNTER) == Some(&FIRST_COUNT.to_be_bytes())
}

enum Value {
    Null,
    Number(u32),
    Text(String),
    Bytes(Vec<u8>),
}

/// A whole database. None if the certificates do not fit.
fn database(trusted: &[Certificate]) -> Option<Vec<u8>> {
    let mut rows = Vec::new();
    for certificate in trusted {
        rows.push(certificate_row(certificate)?);
        rows.push(trust_row(certificate)?);
    }
    let columns: Vec<String> =
        ATTRIBUTES.iter().flat_map(|(from, to)| *from..=*to).map(|number| format!("a{number:x}")).collect();
    let create =
        format!("CREATE TABLE nssPublic (id PRIMARY KEY UNIQUE ON CONFLICT ABORT, {})", columns.join(", "));
    let text = |text: &str| Value::Text(text.to_owned());
    let schema = [
        [text("table"), text("nssPublic"), text("nssPublic"), Value::Number(2), Value::Text(create)],
        [
            text("index"),
            text("sqlite_autoindex_nssPublic_1"),
            text("nssPublic"),
            Value::Number(3),
            Value::Null,
        ],
    ];
    let (mut table, mut index) = (Vec::new(), Vec::new());
    for (id, attributes) in (1_u32..).zip(rows) {
        let mut row = vec![Value::Number(id)];
        for column in &columns {
            let found = attributes.iter().find(|(name, _)| name == column);
            row.push(found.map_or(Value::Null, |(_, bytes)| Value::Bytes(bytes.clone())));
        }
        table.push(row_cell(id, &row));
        index.push(cell(&[], &record(&[Value::Number(id), Value::Number(id)])));
    }
    let schema: Vec<Vec<u8>> = (1..).zip(&schema).map(|(id, row)| row_cell(id, row)).collect();
    let mut first = page(TABLE_LEAF, SQLITE_HEADER, &schema)?;
    first[..SQLITE_HEADER].copy_from_slice(&header());
    Some([first, page(TABLE_LEAF, 0, &table)?, page(INDEX_LEAF, 0, &index)?].concat())
}

type Attributes = Vec<(&'static str, Vec<u8>)>;

fn certificate_row(certificate: &Certificate) -> Option<Attributes> {
    let parts = der::parts(certificate)?;
    Some(vec![
        ("a0", CERTIFICATE.to_be_bytes().to_vec()),
        ("a1", vec![1]),
        ("a2", vec![0]),
        ("a3", certificate.short_name().into_bytes()),
        ("a11", certificate.0.clone()),
        ("a80", vec![0; 4]),
        ("a81", parts.issuer.to_vec()),
        ("a82", parts.serial.to_vec()),
        ("a101", parts.subject.to_vec()),
        ("a102", Sha1::digest(&certificate.0).to_vec()),
        ("a170", vec![1]),
    ])
}

/// The row that trusts the certificate to sign for servers, and for nothing else.
fn trust_row(certificate: &Certificate) -> Option<Attributes> {
    let parts = der::parts(certificate)?;
    let word = |word: u32| word.to_be_bytes().to_vec();
    Some(vec![
        ("a0", word(TRUST)),
        ("a1", vec![1]),
        ("a2", vec![0]),
        ("a3", EMPTY.to_vec()),
        ("a81", parts.issuer.to_vec()),
        ("a82", parts.serial.to_vec()),
        ("a170", vec![1]),
        ("ace536358", word(TRUSTED_DELEGATOR)),
        ("ace536359", word(MUST_VERIFY)),
        ("ace53635a", word(NOT_TRUSTED_HERE)),
        ("ace53635b", word(NOT_TRUSTED_HERE)),
        ("ace536360", vec![0]),
        ("ace5363b4", Sha1::digest(&certificate.0).to_vec()),
    ])
}

const TABLE_LEAF: u8 = 0x0d;
const INDEX_LEAF: u8 = 0x0a;

fn header() -> [u8; SQLITE_HEADER] {
    let mut header = [0; SQLITE_HEADER];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"SQLite format 3\0");
    put(16, &[0x80, 0x00]);
    // A rollback journal, no reserved bytes, and three fractions that are fixed.
    put(18, &[1, 1, 0, 64, 32, 32]);
    put(COUNTER.start, &FIRST_COUNT.to_be_bytes());
    put(28, &3_u32.to_be_bytes());
    // Version of the schema, its format, and UTF-8.
    put(40, &1_u32.to_be_bytes());
    put(44, &4_u32.to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(APPLICATION.start, OURS);
    // The change counter for which the size above is valid, and a version of SQLite.
    put(92, &FIRST_COUNT.to_be_bytes());
    put(96, &3_040_000_u32.to_be_bytes());
    header
}

/// A page of cells: their offsets, in order, at the beginning, and the cells at the end.
fn page(kind: u8, reserved: usize, cells: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut page = vec![0; PAGE];
    let mut content = PAGE;
    let mut places = Vec::new();
    for cell in cells {
        content = content.checked_sub(cell.len())?;
        page[content..content + cell.len()].copy_from_slice(cell);
        places.extend(u16::try_from(content).ok()?.to_be_bytes());
    }
    let count = u16::try_from(cells.len()).ok()?.to_be_bytes();
    let start = u16::try_from(content).ok()?.to_be_bytes();
    let head = [&[kind, 0, 0][..], &count, &start, &[0], &places].concat();
    page.get_mut(reserved..reserved + head.len())
        .filter(|_| reserved + head.len() <= content)?
        .copy_from_slice(&head);
    Some(page)
}

fn row_cell(id: u32, row: &[Value]) -> Vec<u8> {
    cell(&varint(id), &record(row))
}

fn cell(key: &[u8], record: &[u8]) -> Vec<u8> {
    [&varint(u32::try_from(record.len()).unwrap_or(u32::MAX))[..], key, record].concat()
}

/// The types of all values, then the values.
fn record(values: &[Value]) -> Vec<u8> {
    let (mut kinds, mut body) = (Vec::new(), Vec::new());
    let length = |bytes: &[u8]| u32::try_from(bytes.len() * 2).unwrap_or(u32::MAX - 13);
    for value in values {
        match value {
            Value::Null => kinds.push(0),
            Value::Number(number) => {
                kinds.push(4);
                body.extend(number.to_be_bytes());
            }
            Value::Text(text) => {
                kinds.extend(varint(length(text.as_bytes()) + 13));
                body.extend(text.as_bytes());
            }
            Value::Bytes(bytes) => {
                kinds.extend(varint(length(bytes) + 12));
                body.extend(bytes);
            }
        }
    }
    // The length includes itself, in one byte or two.
    let size = kinds.len() + if kinds.len() < 127 { 1 } else { 2 };
    [varint(u32::try_from(size).unwrap_or(u32::MAX)), kinds, body].concat()
}

/// Seven bits per byte, the highest first.
fn varint(number: u32) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..5).rev().map(|n| (number >> (7 * n)).to_le_bytes()[0] & 0x7f | 0x80).collect();
    if let Some(last) = bytes.last_mut() {
        *last &= 0x7f;
    }
    let empty = bytes.iter().take(4).take_while(|byte| **byte == 0x80).count();
    bytes.split_off(empty)
}
