//! The latency that a secret adds to a request: its value is looked up, the use is on the disk before the request is
//! sent, and the response is scrubbed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use bay_client::local;
use bay_types::ApiError;

use super::lab::{Lab, told};
use super::load::Work;
use super::origin::SHORT;
use super::{DOWNLOAD, OWN, all, megabytes, processor_ms};
use crate::scoring::{Bar, Scored, Series, Unit, score};

/// The name of the secret, which stands for it in requests.
pub(super) const SECRET: &str = "BENCH_TOKEN";
const VALUE: &str = "ghp_Zk3vQ9xLm2Rt7Yb5Nc8Hs1Jf4Pq6Kw0XgVdT";
const REQUESTS: usize = 500;
const SYNCS: usize = 200;

/// The latency that a secret adds, compared with the time of one small durable write.
pub(super) fn with_secret(lab: &Lab, rounds: usize) -> Result<Scored, ApiError> {
    let work = Work::Warm { requests: REQUESTS };
    let milliseconds = |name: &str| Series::of(name, Unit::Milliseconds, &[]);
    let mut plain = milliseconds("without a secret, p50");
    let mut secret = milliseconds("with a secret, p50");
    let mut disk = milliseconds("one fdatasync, p50");
    let mut more =
        Series::of("added by the secret beside one fdatasync, p50", Unit::Milliseconds, &[Bar::Is(1.0)]);
    for _ in 0..rounds {
        let without = all(200, told(&mut lab.inside("mine", SHORT, work)?)?)?.p50 / 1000.0;
        lab.set_secret(SECRET, VALUE)?;
        let header = format!("Authorization: Bearer __{SECRET}__");
        let with = lab.inside_with("mine", SHORT, work, Some(header)).and_then(|mut load| told(&mut load));
        lab.remove_secret(SECRET)?;
        let with = all(200, with?)?.p50 / 1000.0;
        let sync = fdatasync(&lab.dir).map_err(|error| local("measuring the disk", &error))?;
        plain.was(without);
        secret.was(with);
        disk.was(sync);
        more.was(with - without - sync);
    }
    let title = format!("an inspected GET with a secret, {REQUESTS} on one connection");
    Ok(score(&title, &[plain, secret, disk, more], vec![]))
}

const PLAIN: &str = "without a secret";

/// A gigabyte that is searched for a value, compared with one that is not.
pub(super) fn scrubbed(lab: &Lab, rounds: usize) -> Result<Scored, ApiError> {
    let mut plain = Series::of(PLAIN, Unit::MegabytesPerSecond, &[]);
    let mut secret = Series::of("with a secret, scrubbed", Unit::MegabytesPerSecond, &[Bar::Of(0.8, PLAIN)]);
    let milliseconds = |name: &str| Series::of(name, Unit::Milliseconds, &[]);
    let mut busy = [
        milliseconds("processor time of the daemon, without"),
        milliseconds("processor time of the daemon, with"),
    ];
    for _ in 0..rounds {
        let before = processor_ms(lab.daemon(), OWN);
        plain.was(megabytes(&all(200, told(&mut lab.inside("mine", DOWNLOAD, Work::Download)?)?)?));
        let between = processor_ms(lab.daemon(), OWN);
        busy[0].was(between - before);
        lab.set_secret(SECRET, VALUE)?;
        let header = format!("Authorization: Bearer __{SECRET}__");
        let before = processor_ms(lab.daemon(), OWN);
        let with = lab
            .inside_with("mine", DOWNLOAD, Work::Download, Some(header))
            .and_then(|mut load| told(&mut load));
        busy[1].was(processor_ms(lab.daemon(), OWN) - before);
        lab.remove_secret(SECRET)?;
        secret.was(megabytes(&all(200, with?)?));
    }
    let [without, with] = busy;
    Ok(score("a download of 1 GB that is scrubbed of a secret", &[secret, plain, with, without], vec![]))
}

/// Median of the milliseconds until a small write is on the disk.
fn fdatasync(dir: &Path) -> io::Result<f64> {
    let path = dir.join("sync");
    let mut file = File::create(&path)?;
    let mut took = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let begin = Instant::now();
        file.write_all(&[0; 512])?;
        file.sync_data()?;
        took.push(begin.elapsed());
    }
    fs::remove_file(&path)?;
    took.sort_unstable();
    Ok(took[SYNCS / 2].as_secs_f64() * 1000.0)
}
