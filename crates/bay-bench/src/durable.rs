//! Databases that wait for the disk: in a bay, on the pool's filesystem without a bay, and on the host's filesystem. And
//! such that do not: in a relaxed bay, and on the host with their own setting.

use std::path::{Path, PathBuf};

use bay_types::{ApiError, ErrorCode};

use crate::peers::{output_of, timed};
use crate::place::Place;
use crate::scoring::{Bar, Scored, Series, Unit, score};
use crate::setup::Setup;

const POOL: &str = "the pool's filesystem, no bay";
const HOST: &str = "the host's filesystem";
const UNFLUSHED: &str = "the host's filesystem, the database set not to flush";
const RELAXED: &str = "bay, relaxed";
const POOL_UNFLUSHED: &str = "the pool's filesystem, no bay, the database set not to flush";
/// Where the database itself is set not to flush.
const SET_NOT_TO_FLUSH: [&str; 2] = [UNFLUSHED, POOL_UNFLUSHED];
/// Transactions of one row each in a round. Enough that the start of the program does not count where none waits.
const SQLITE_ROWS: usize = 3000;
/// Seconds of one round of pgbench.
const PGBENCH_SECONDS: u32 = 6;

/// The places, each with an empty world-writable directory.
struct Places {
    all: Vec<(Place, &'static str)>,
    on_pool: [PathBuf; 2],
    bays: [String; 2],
}

impl Places {
    async fn make(setup: &mut Setup) -> Result<Self, ApiError> {
        let bays = [setup.up_host(vec![], None).await?, setup.up_host(vec![], None).await?];
        timed(&mut setup.bay(&["set", &bays[1], "--durability", "relaxed"]))?;
        let on_pool = ["durable", "unflushed"]
            .map(|name| setup.pool.join(format!("bench-{name}-{}", std::process::id())));
        let [on_host, unflushed] = ["durable", "unflushed"].map(|name| setup.work.join(name));
        for dir in on_pool.iter().chain([&on_host, &unflushed]) {
            std::fs::create_dir_all(dir).map_err(|error| bay_client::local("preparing the bench", &error))?;
        }
        let all = vec![
            (Place::Bay(bays[0].clone()), "bay"),
            (Place::Host(on_pool[0].clone()), POOL),
            (Place::Host(on_host), HOST),
            (Place::Bay(bays[1].clone()), RELAXED),
            (Place::Host(on_pool[1].clone()), POOL_UNFLUSHED),
            (Place::Host(unflushed), UNFLUSHED),
        ];
        let places = Self { all, on_pool, bays };
        for (place, _) in &places.all {
            timed(&mut place.sh(setup, "mkdir -p d && chmod 777 d . && chmod o+x ..", false))?;
        }
        Ok(places)
    }

    fn series(&self) -> Vec<Series> {
        let strict = [Bar::Of(0.95, POOL), Bar::Of(0.6, HOST)];
        let relaxed = [Bar::Of(3.0, HOST), Bar::Of(0.8, UNFLUSHED)];
        let bars_of = |name: &str| match name {
            "bay" => &strict[..],
            RELAXED => &relaxed[..],
            _ => &[],
        };
        self.all.iter().map(|(_, name)| Series::of(*name, Unit::PerSecond, bars_of(name))).collect()
    }

    fn remove(self, setup: &mut Setup) -> Result<(), ApiError> {
        for bay in &self.bays {
            timed(&mut setup.bay(&["rm", "--yes", bay]))?;
        }
        for dir in &self.on_pool {
            let _ = std::fs::remove_dir_all(dir);
        }
        Ok(())
    }
}

pub(crate) async fn sqlite(setup: &mut Setup, rounds: usize) -> Result<Scored, ApiError> {
    let places = Places::make(setup).await?;
    let mut series = places.series();
    let script = |flush: &str| {
        format!(
            "rm -f d/x.db*; {{ echo 'PRAGMA journal_mode=WAL; PRAGMA synchronous={flush}; CREATE TABLE t (a, b);'; \
         i=0; while [ $i -lt {SQLITE_ROWS} ]; do echo \"INSERT INTO t VALUES ($i, 'row $i');\"; i=$((i+1)); done; }} > d/x.sql; \
         sync; sqlite3 d/x.db < d/x.sql > /dev/null"
        )
    };
    let measured = (|| {
        for _ in 0..rounds {
            for ((place, name), one) in places.all.iter().zip(&mut series) {
                let flush = if SET_NOT_TO_FLUSH.contains(name) { "OFF" } else { "FULL" };
                let took = timed(&mut place.sh(setup, &script(flush), false))?;
                #[allow(clippy::cast_precision_loss, reason = "a few thousand")]
                one.was(SQLITE_ROWS as f64 / took.as_secs_f64());
            }
        }
        Ok::<_, ApiError>(())
    })();
    places.remove(setup)?;
    measured?;
    Ok(score("SQLite, one fsync per transaction: transactions a second", &series, vec![]))
}

pub(crate) async fn postgres(setup: &mut Setup, rounds: usize) -> Result<Scored, ApiError> {
    let bin = postgres_programs()?;
    let places = Places::make(setup).await?;
    let mut series = places.series();
    let path = format!("PATH={}:$PATH; export PATH; cd d; ", bin.display());
    let start = |fsync: &str| {
        format!(
            "{path} initdb -A trust -U bench -D pg > /dev/null && \
         pg_ctl -D pg -w -l pg/log -o \"-c listen_addresses= -c fsync={fsync} -k $PWD\" start > /dev/null && \
         createdb -h $PWD -U bench bench && pgbench -h $PWD -U bench -q -i -s 5 bench 2> /dev/null"
        )
    };
    let run = format!("{path} pgbench -h $PWD -U bench -c 4 -j 2 -N -T {PGBENCH_SECONDS} bench 2> /dev/null");
    let stop = format!("{path} pg_ctl -D pg -m immediate stop > /dev/null");
    let measured = (|| {
        for (place, name) in &places.all {
            let fsync = if SET_NOT_TO_FLUSH.contains(name) { "off" } else { "on" };
            timed(&mut place.sh(setup, &start(fsync), true))?;
        }
        for _ in 0..rounds {
            for ((place, _), one) in places.all.iter().zip(&mut series) {
                one.was(transactions(&output_of(&mut place.sh(setup, &run, true))?)?);
            }
        }
        Ok::<_, ApiError>(())
    })();
    for (place, _) in &places.all {
        let _ = timed(&mut place.sh(setup, &stop, true));
    }
    places.remove(setup)?;
    measured?;
    Ok(score("pgbench, 4 clients, fsync on: transactions a second", &series, vec![]))
}

/// The directory of the newest PostgreSQL server of Debian's packages.
pub(crate) fn postgres_programs() -> Result<PathBuf, ApiError> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    found.retain(|bin| bin.join("initdb").exists() && Path::new("/usr/bin/pgbench").exists());
    found.sort();
    found.pop().ok_or_else(|| {
        ApiError::new(
            ErrorCode::HostUnfit,
            "there is no PostgreSQL server with pgbench on this host",
            "install postgresql and postgresql-contrib",
        )
    })
}

/// `tps = 123.4 (without initial connection time)`
fn transactions(text: &str) -> Result<f64, ApiError> {
    let line = text.lines().find_map(|line| line.strip_prefix("tps = "));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| ApiError::new(ErrorCode::HostUnfit, "pgbench did not say how many transactions", ""))
}
