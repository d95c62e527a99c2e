use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bay_types::exec::ExecSpec;
use bay_types::frame::{Gap, GapReason};

use super::*;

struct Spool {
    _temp: tempfile::TempDir,
    state: OwnedFd,
    exec: PathBuf,
    id: ExecId,
    writer: Writer,
    bounded_to: Arc<AtomicU64>,
}

fn open_path(path: &Path) -> OwnedFd {
    fs::File::open(path).unwrap().into()
}

fn spool(bounds: Bounds) -> Spool {
    let temp = tempfile::tempdir().unwrap();
    let state = open_path(temp.path());
    let id = ExecId::generate();
    let dir = create_exec(state.as_fd(), id).unwrap();
    let exec = temp.path().join("execs").join(id.to_string());
    let bounded_to = Arc::default();
    let mut writer = Writer::new(Some(dir), bounds, Arc::clone(&bounded_to));
    writer.write_status(&status(id)).unwrap();
    Spool { _temp: temp, state, exec, id, writer, bounded_to }
}

fn status(id: ExecId) -> ExecStatus {
    let spec = ExecSpec { id, ..ExecSpec::new(["true"]) };
    ExecStatus {
        spec,
        pid: 2,
        started_at: jiff::Timestamp::UNIX_EPOCH,
        ended_at: None,
        exit: None,
        usage: Default::default(),
        output_bytes: 0,
        output_start: 0,
        bounded_to: None,
        refused_bytes: 0,
        witnessed: false,
        output_hashes: None,
    }
}

/// Stretches as (stream, bytes), with gaps as `Err`.
type Runs = Vec<Result<(bool, Vec<u8>), Gap>>;

impl Spool {
    fn read(&self, since: u64, chunk: usize) -> Result<Runs, SpoolError> {
        let status = read_status(self.state.as_fd(), self.id)?;
        let mut reader = Reader::open(self.state.as_fd(), &status, since)?;
        let mut buffer = vec![0; chunk];
        let mut runs: Runs = Vec::new();
        for _ in 0..2_000_000 {
            match reader.next(&mut buffer)? {
                Piece::End => return Ok(runs),
                Piece::Gap(gap) => runs.push(Err(gap)),
                Piece::Output { stderr, len } => match runs.last_mut() {
                    Some(Ok((same, bytes))) if *same == stderr => bytes.extend_from_slice(&buffer[..len]),
                    _ => runs.push(Ok((stderr, buffer[..len].to_vec()))),
                },
            }
        }
        panic!("the reader does not end");
    }
}

const SMALL: Bounds = Bounds { exec_bytes: 1000, segment_bytes: 100 };

#[test]
fn streams_stay_apart_and_can_be_replayed_from_any_byte() {
    let mut spool = spool(SMALL);
    let mut expected = Vec::new();
    for n in 0..60_u8 {
        let stderr = n % 3 == 0;
        let bytes = vec![n; usize::from(n % 7) + 1];
        spool.writer.append(stderr, &bytes);
        expected.extend(bytes.iter().map(|b| (stderr, *b)));
    }
    assert_eq!(spool.writer.end(), expected.len() as u64);
    for since in 0..=expected.len() {
        for chunk in [1, 3, 1000] {
            let runs = spool.read(since as u64, chunk).unwrap();
            let flat: Vec<(bool, u8)> = runs
                .into_iter()
                .flat_map(|run| {
                    let (stderr, bytes) = run.unwrap();
                    bytes.into_iter().map(move |b| (stderr, b))
                })
                .collect();
            assert_eq!(flat, expected[since..]);
        }
    }
}

#[test]
fn beyond_the_bound_the_oldest_output_is_dropped_and_a_gap_has_its_length() {
    let mut spool = spool(SMALL);
    for n in 0..50_u8 {
        spool.writer.append(false, &[n; 99]);
    }
    let end = 50 * 99;
    assert_eq!(spool.writer.end(), end);
    let start = spool.writer.start();
    // Times take a part of the bound.
    assert!((end - 1000..end - 500).contains(&start), "{start}");
    let status = read_status(spool.state.as_fd(), spool.id).unwrap();
    assert_eq!((status.output_start, status.output_bytes), (start, end));
    let runs = spool.read(7, 64).unwrap();
    assert_eq!(runs[0], Err(Gap { dropped: start - 7, why: GapReason::Bound }));
    assert_eq!(runs[1].as_ref().unwrap().1.len() as u64, end - start);
    let kept: u64 = fs::read_dir(&spool.exec).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(kept < 1000 + 1000, "{kept}");
}

#[test]
fn a_byte_by_byte_alternation_stays_within_the_bound() {
    let mut spool = spool(Bounds { exec_bytes: 20_000, segment_bytes: 1000 });
    for n in 0..50_000_u32 {
        spool.writer.append(n % 2 == 0, b"x");
    }
    let kept: u64 = fs::read_dir(&spool.exec).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(kept < 21_000, "{kept}");
    assert_eq!(spool.read(0, 100).unwrap().len() as u64, 50_000 - spool.writer.start() + 1);
}

/// The times of every byte that is kept, and how often the reader told a new one.
fn times(spool: &Spool, chunk: usize) -> (Vec<u64>, usize) {
    let status = read_status(spool.state.as_fd(), spool.id).unwrap();
    let mut reader = Reader::open(spool.state.as_fd(), &status, 0).unwrap().with_times(true);
    let (mut buffer, mut all, mut told, mut now) = (vec![0; chunk], Vec::new(), 0, 0);
    loop {
        match reader.next(&mut buffer).unwrap() {
            Piece::End => return (all, told),
            Piece::Gap(_) => {}
            Piece::Output { len, .. } => {
                if let Some(frame) = reader.time_frame() {
                    let Some((bay_types::frame::Frame::Time(at), _)) =
                        bay_types::frame::Frame::decode(&frame).unwrap()
                    else {
                        panic!("not a time")
                    };
                    (told, now) = (told + 1, at);
                }
                all.extend(std::iter::repeat_n(now, len));
            }
        }
    }
}

#[test]
fn every_byte_has_the_time_of_the_entry_before_it() {
    let mut spool = spool(SMALL);
    spool.writer.append(false, &[b'x'; 50]);
    spool.writer.append(true, &[b'y'; 80]);
    let (recorded, _) = times(&spool, 1000);
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap();
    assert_eq!(recorded.len(), 130);
    assert!(recorded.iter().all(|at| (now - 60_000..=now).contains(at)), "{recorded:?}");

    let entries = [(10, 1000), (20, 2000), (90, 3000)].map(|(offset, at)| layout::encode_time(offset, at));
    fs::write(spool.exec.join(layout::times_name(0)), entries.concat()).unwrap();
    fs::remove_file(spool.exec.join(layout::times_name(100))).unwrap();
    let expected: Vec<u64> = [(0, 10), (1000, 10), (2000, 70), (3000, 10), (0, 30)]
        .iter()
        .flat_map(|(at, bytes)| std::iter::repeat_n(*at, *bytes))
        .collect();
    for chunk in [1, 7, 1000] {
        assert_eq!(times(&spool, chunk), (expected.clone(), 5), "{chunk}");
    }
}

#[test]
fn times_that_are_no_times_never_stop_or_loop_the_reader() {
    let mut spool = spool(SMALL);
    spool.writer.append(false, &[b'x'; 90]);
    let path = spool.exec.join(layout::times_name(0));
    let mut random = 0x1234_5678_9abc_def0_u64;
    for round in 0..200 {
        let mut bytes = Vec::new();
        for _ in 0..round % 40 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bytes.extend_from_slice(&(random % 200).to_le_bytes());
        }
        bytes.push(1);
        fs::write(&path, bytes).unwrap();
        assert_eq!(times(&spool, 16).0.len(), 90);
    }
    fs::remove_file(&path).unwrap();
    symlink("/dev/zero", &path).unwrap();
    assert_eq!(times(&spool, 16), (vec![0; 90], 1));
    fs::remove_file(&path).unwrap();
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(times(&spool, 16).0.len(), 90);
}

#[test]
fn without_a_directory_output_is_counted_and_the_reader_gets_a_gap() {
    let mut writer = Writer::new(None, SMALL, Arc::default());
    assert_eq!(writer.append(false, b"hello"), 0);
    assert_eq!((writer.start(), writer.end(), writer.refused_bytes()), (5, 5, 5));
}

#[test]
fn output_refused_by_the_disk_is_a_gap_and_what_follows_is_kept() {
    let mut spool = spool(SMALL);
    spool.writer.append(false, b"before");
    // A directory with the name of the next segment has the effect of a disk that refuses.
    let blocked = spool.exec.join(layout::index_name(100));
    fs::create_dir(&blocked).unwrap();
    assert_eq!(spool.writer.append(false, &[b'x'; 120]), 94);
    assert_eq!((spool.writer.end(), spool.writer.refused_bytes()), (126, 26));
    fs::remove_dir(&blocked).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while spool.writer.segments_end() <= 126 {
        assert!(std::time::Instant::now() < deadline);
        spool.writer.append(true, b"y");
        std::thread::yield_now();
    }
    let runs = spool.read(0, 4096).unwrap();
    assert_eq!(runs[0].as_ref().unwrap().1.len(), 100);
    assert!(matches!(runs[1], Err(Gap { dropped: 26.., why: GapReason::DiskFull })), "{:?}", runs[1]);
    assert!(matches!(&runs[2], Ok((true, bytes)) if !bytes.is_empty()));
}

#[test]
fn a_gap_at_the_beginning_has_the_reason_for_it() {
    let mut spool = spool(SMALL);
    // The disk refuses the first bytes. Later the bound drops some of what was kept.
    let blocked = spool.exec.join(layout::index_name(0));
    fs::create_dir(&blocked).unwrap();
    assert_eq!(spool.writer.append(false, &[b'a'; 10]), 0);
    fs::remove_dir(&blocked).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while spool.writer.append(false, b"b") == 0 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
    let first = spool.writer.start();
    let gap_of = |spool: &Spool, bounded_to| {
        let mut told = status(spool.id);
        (told.output_bytes, told.bounded_to) = (spool.writer.end(), bounded_to);
        let mut reader = Reader::open(spool.state.as_fd(), &told, 0).unwrap();
        reader.next(&mut [0; 16]).unwrap()
    };
    let refused = Gap { dropped: first, why: GapReason::DiskFull };
    assert_eq!(gap_of(&spool, Some(0)), Piece::Gap(refused));
    while spool.bounded_to.load(std::sync::atomic::Ordering::Relaxed) == 0 {
        spool.writer.append(false, &[b'c'; 100]);
    }
    let dropped = spool.writer.start();
    assert_eq!(spool.bounded_to.load(std::sync::atomic::Ordering::Relaxed), dropped);
    let bound = Piece::Gap(Gap { dropped, why: GapReason::Bound });
    assert_eq!(gap_of(&spool, Some(dropped)), bound);
    // A record of a version that did not record the reason.
    assert_eq!(gap_of(&spool, None), bound);
}

#[test]
fn a_full_disk_drops_old_output_for_the_record_but_never_the_last_segment() {
    let mut spool = spool(SMALL);
    spool.writer.append(false, &[b'x'; 50]);
    // Nothing can be renamed over a directory, so the record is refused as by a failing disk.
    fs::remove_file(spool.exec.join(META)).unwrap();
    fs::create_dir_all(spool.exec.join(META).join("in the way")).unwrap();
    let ended = status(spool.id);
    assert!(spool.writer.write_status(&ended).is_err());
    assert_eq!((spool.writer.start(), spool.writer.end()), (0, 50));
}

#[test]
fn a_record_of_an_exec_survives_and_a_foreign_one_is_refused() {
    let spool = spool(SMALL);
    assert_eq!(read_status(spool.state.as_fd(), spool.id).unwrap(), status(spool.id));
    assert_eq!(list(spool.state.as_fd()).unwrap(), [spool.id]);
    let other = ExecId::generate();
    assert!(matches!(read_status(spool.state.as_fd(), other), Err(SpoolError::Absent(_))));
    fs::rename(&spool.exec, spool.exec.with_file_name(other.to_string())).unwrap();
    assert!(matches!(read_status(spool.state.as_fd(), other), Err(SpoolError::Damaged(_))));
    remove_exec(spool.state.as_fd(), other).unwrap();
    assert_eq!(list(spool.state.as_fd()).unwrap(), []);
}

#[test]
fn links_fifos_and_huge_files_instead_of_the_guests_are_refused() {
    let mut spool = spool(SMALL);
    spool.writer.append(false, b"secret?");
    let data = spool.exec.join(layout::data_name(0));
    fs::remove_file(&data).unwrap();
    symlink("/etc/passwd", &data).unwrap();
    assert!(spool.read(0, 100).is_err());

    fs::remove_file(&data).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &data, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .unwrap();
    assert!(spool.read(0, 100).is_err());

    fs::remove_file(&data).unwrap();
    fs::File::create(&data).unwrap().set_len(1 << 40).unwrap();
    let runs = spool.read(0, 1 << 20).unwrap();
    assert_eq!(runs.iter().map(|r| r.as_ref().unwrap().1.len() as u64).sum::<u64>(), SEGMENT_BYTES);

    fs::File::create(spool.exec.join(META)).unwrap().set_len(1 << 40).unwrap();
    assert!(matches!(read_status(spool.state.as_fd(), spool.id), Err(SpoolError::Damaged(_))));
    fs::remove_file(spool.exec.join(META)).unwrap();
    symlink("/etc/passwd", spool.exec.join(META)).unwrap();
    assert!(read_status(spool.state.as_fd(), spool.id).is_err());
}

#[test]
fn an_endless_row_of_segments_is_cut_off() {
    let spool = spool(Bounds::default());
    for n in 0..40 {
        let data = spool.exec.join(layout::data_name(n * SEGMENT_BYTES));
        fs::File::create(data).unwrap().set_len(SEGMENT_BYTES).unwrap();
    }
    let status = read_status(spool.state.as_fd(), spool.id).unwrap();
    let mut reader = Reader::open(spool.state.as_fd(), &status, 0).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let outcome = loop {
        match reader.next(&mut buffer) {
            Ok(Piece::End) => break Ok(()),
            Ok(_) => {}
            Err(e) => break Err(e),
        }
    };
    assert!(matches!(outcome, Err(SpoolError::Damaged(_))), "{outcome:?}");
}

#[test]
fn a_garbage_index_never_stops_or_loops_the_reader() {
    let mut random = 0x1234_5678_9abc_def0_u64;
    for round in 0..200 {
        let mut spool = spool(SMALL);
        spool.writer.append(false, &[b'x'; 90]);
        let mut index = Vec::new();
        for _ in 0..round % 40 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            index.extend_from_slice(&(random % 400).to_le_bytes());
        }
        index.push(1);
        fs::write(spool.exec.join(layout::index_name(0)), index).unwrap();
        let total: usize = spool.read(0, 16).unwrap().iter().map(|r| r.as_ref().unwrap().1.len()).sum();
        assert_eq!(total, 90);
    }
}

#[test]
fn other_names_are_not_segments() {
    assert_eq!(layout::parse_data_name(b"00000000000000000042.out"), Some(42));
    for name in
        ["0.out", "00000000000000000042.idx", "99999999999999999999.out", "0000000000000000-042.out", ".out"]
    {
        assert_eq!(layout::parse_data_name(name.as_bytes()), None, "{name}");
    }
}
