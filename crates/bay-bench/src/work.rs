//! Real work inside a bay, compared with the bare host and the peers: builds, installs, tests, and tools that walk
//! large trees.
//!
//! Each piece runs long enough, or often enough in one exec, that its start does not matter.

use std::path::{Path, PathBuf};
use std::process::Command;

use bay_types::ApiError;
use bay_types::bay::Mount;

use crate::peers::{installed, output_of, timed};
use crate::place::{Place, docker_mounts};
use crate::scoring::{Bar, Scored, Series, Unit, score};
use crate::setup::Setup;

const HOST: &str = "bare host";
/// The largest permitted ratio to the host for a single piece of work.
const WORST: f64 = 1.15;
/// The largest permitted geometric mean of the ratios of all pieces of work.
const ON_AVERAGE: f64 = 1.05;

/// A crate without dependencies that takes some seconds to build.
const MAKE_CRATE: &str = r#"
mkdir -p crate/src && cd crate
printf '[package]\nname = "bench"\nversion = "0.1.0"\nedition = "2021"\n' > Cargo.toml
: > src/main.rs
m=0; while [ $m -lt 40 ]; do
  f=0; { echo 'use std::collections::BTreeMap;'
  while [ $f -lt 20 ]; do
    echo "pub fn f$f(n: u64) -> String { let mut map: BTreeMap<String, Vec<u64>> = BTreeMap::new(); for i in 0..n { map.entry(format!(\"{}\", i % 7)).or_default().push(i * $f); } map.iter().map(|(k, v)| format!(\"{k}:{}\", v.iter().sum::<u64>())).collect::<Vec<_>>().join(\",\") }"
    f=$((f+1)); done; } > src/m$m.rs
  echo "mod m$m;" >> src/main.rs
  m=$((m+1)); done
{ echo 'fn main() {'; m=0; while [ $m -lt 40 ]; do echo "println!(\"{}\", m$m::f$((m % 20))(9));"; m=$((m+1)); done; echo '}'; } >> src/main.rs
"#;
const MAKE_TESTS: &str = r#"
mkdir -p suite && cd suite
m=0; while [ $m -lt 40 ]; do
  { f=0; while [ $f -lt 25 ]; do
    printf 'def test_%s(tmp_path):\n    file = tmp_path / "x"\n    file.write_text("y" * 1000)\n    assert sum(ord(c) for c in file.read_text()) == 121000\n' $f
    f=$((f+1)); done; } > test_$m.py
  m=$((m+1)); done
"#;
const MAKE_PACKAGE: &str = r#"
mkdir -p package && cd package
printf '{"name":"bench","version":"1.0.0","dependencies":{"express":"4.21.2","eslint":"8.57.1"}}\n' > package.json
"#;

/// A piece of work: its requirements on the host, its preparation in each place, and what is timed.
struct Piece {
    title: &'static str,
    program: &'static str,
    make: &'static str,
    run: String,
}

/// `rust` is the toolchain, which has the same path in every place.
fn pieces(rust: Option<&Path>) -> Vec<Piece> {
    let rust = rust.map_or_else(String::new, |rust| rust.display().to_string());
    let often =
        |line: &str| format!("i=0; while [ $i -lt 10 ]; do {line} > /dev/null || exit 1; i=$((i+1)); done");
    vec![
        Piece {
            title: "cargo build",
            program: "cargo",
            make: MAKE_CRATE,
            run: format!(
                "cd crate && rm -rf target && PATH='{rust}/bin':$PATH CARGO_HOME=$PWD/home cargo build -q --offline"
            ),
        },
        Piece {
            title: "npm ci from a local cache",
            program: "npm",
            make: MAKE_PACKAGE,
            run: "cd package && rm -rf node_modules && npm ci --offline --cache ../npm-cache --no-audit --no-fund --silent"
                .to_owned(),
        },
        Piece {
            title: "pytest",
            program: "pytest-3",
            make: MAKE_TESTS,
            run: "cd suite && /usr/bin/python3 -B -m pytest -q -p no:cacheprovider --basetemp=../pytest-tmp > /dev/null".to_owned(),
        },
        Piece { title: "git status, large tree", program: "git", make: "", run: often("git -C large status --short") },
        Piece { title: "ripgrep, large tree", program: "rg", make: "", run: often("rg -c 'file 4999' large") },
    ]
}

/// The work that is done in every place, and what it needs there.
pub(crate) struct Chores {
    pieces: Vec<Piece>,
    /// The repository of many files, if a piece reads one.
    large: Option<PathBuf>,
    cache: PathBuf,
    /// The toolchain, which has the same path in every place.
    rust: Option<PathBuf>,
    /// The pieces that were left out, and why.
    pub(crate) notes: Vec<String>,
}

pub(crate) async fn work(setup: &mut Setup, rounds: usize) -> Result<Vec<Scored>, ApiError> {
    let mut chores = Chores::prepare(setup, |_| true)?;
    chores.large = Some(setup.large_repository()?);
    let (places, mut left_out) = places(setup, chores.rust.as_deref()).await?;
    chores.notes.append(&mut left_out);
    let bars = |name: &str| if name == "bay" { vec![Bar::Of(WORST, HOST)] } else { Vec::new() };
    let mut scored = chores.measure_and_remove(setup, &places, rounds, bars)?;
    let reached = scored.iter().map(|table| table.lines[0].bars[0].reached.unwrap_or(f64::NAN));
    #[allow(clippy::cast_precision_loss, reason = "five")]
    let mean = reached.product::<f64>().powf(1.0 / scored.len().max(1) as f64);
    if let Some(last) = scored.last_mut() {
        last.notes.push(format!(
            "geometric mean over all pieces: {mean:.3} of the bare host (bar: ≤ {ON_AVERAGE}), {}",
            if mean <= ON_AVERAGE { "reached" } else { "missed" }
        ));
        last.notes.extend(chores.notes);
    }
    Ok(scored)
}

impl Chores {
    /// Selects the pieces with wanted titles whose programs are installed.
    pub(crate) fn prepare(setup: &Setup, want: impl Fn(&str) -> bool) -> Result<Self, ApiError> {
        let mut notes = Vec::new();
        let rust = sysroot();
        let cache = setup.work.join("npm-cache");
        let mut wanted = pieces(rust.as_deref());
        wanted.retain(|piece| {
            if !want(piece.title) {
                return false;
            }
            let there = installed(piece.program) && (piece.program != "cargo" || rust.is_some());
            if !there {
                notes.push(format!("{} is left out: {} is not installed", piece.title, piece.program));
            }
            there
        });
        if wanted.iter().any(|piece| piece.program == "npm")
            && let Err(why) = prime_npm(&setup.work, &cache)
        {
            notes.push(format!("npm is left out: its cache could not be filled: {}", why.message));
            wanted.retain(|piece| piece.program != "npm");
        }
        Ok(Self { pieces: wanted, large: None, cache, rust, notes })
    }

    /// The host's toolchain as a mount of a bay.
    pub(crate) fn mounts(&self) -> Vec<Mount> {
        toolchain(self.rust.as_deref())
    }

    /// The host's toolchain as mounts of a Docker container.
    pub(crate) fn docker_mounts(&self) -> Vec<String> {
        docker_mounts(self.rust.as_deref())
    }

    /// Measures everything in all places in turn, and removes their bays and containers.
    pub(crate) fn measure_and_remove(
        &self,
        setup: &Setup,
        places: &[(Place, &'static str)],
        rounds: usize,
        bars: impl Fn(&str) -> Vec<Bar>,
    ) -> Result<Vec<Scored>, ApiError> {
        let measured = self.measure(setup, places, rounds, bars);
        for (place, _) in places {
            match place {
                Place::Bay(name) => drop(timed(&mut setup.bay(&["rm", "--yes", name]))?),
                Place::Docker(container) => drop(timed(Command::new("docker").args(["rm", "-f", container]))),
                _ => {}
            }
        }
        measured
    }

    fn measure(
        &self,
        setup: &Setup,
        places: &[(Place, &'static str)],
        rounds: usize,
        bars: impl Fn(&str) -> Vec<Bar>,
    ) -> Result<Vec<Scored>, ApiError> {
        for (place, _) in places {
            if let Some(large) = &self.large {
                bring(setup, place, large, "large")?;
            }
            if self.cache.exists() {
                bring(setup, place, &self.cache, "npm-cache")?;
                bring(setup, place, &self.cache.with_file_name("package"), "package")?;
            }
            for piece in &self.pieces {
                timed(&mut place.sh(setup, piece.make, false))
                    .map_err(|why| about(&format!("preparing {} in {place:?}", piece.title), why))?;
            }
        }
        let mut scored = Vec::new();
        for piece in &self.pieces {
            let mut series: Vec<Series> =
                places.iter().map(|(_, name)| Series::of(*name, Unit::Milliseconds, &bars(name))).collect();
            // One round that does not count, to fill the caches in every place.
            for round in 0..=rounds {
                for ((place, _), one) in places.iter().zip(&mut series) {
                    let took = timed(&mut place.sh(setup, &piece.run, false))
                        .map_err(|why| about(&format!("{} in {place:?}", piece.title), why))?;
                    if round > 0 {
                        one.took(took);
                    }
                }
            }
            scored.push(score(piece.title, &series, vec![]));
        }
        Ok(scored)
    }
}

fn toolchain(rust: Option<&Path>) -> Vec<Mount> {
    rust.map(|rust| Mount { source: rust.to_owned(), target: rust.to_owned() }).into_iter().collect()
}

/// All places that work here, and the names of those that do not.
async fn places(
    setup: &mut Setup,
    rust: Option<&Path>,
) -> Result<(Vec<(Place, &'static str)>, Vec<String>), ApiError> {
    let mut places = Vec::new();
    let mut left_out = Vec::new();
    places.push((Place::Bay(setup.up_host(toolchain(rust), None).await?), "bay"));
    places.push((Place::Host(directory(setup, "host")?), HOST));
    let mut optional = vec![
        (Place::Bwrap(directory(setup, "bwrap")?), "bwrap"),
        (Place::Runsc(directory(setup, "runsc")?), "runsc"),
    ];
    match setup.peers.docker_container(&docker_mounts(rust)) {
        Ok(container) => optional.push((Place::Docker(container), "docker (overlay2)")),
        Err(why) => left_out.push(format!("docker is left out: {}", why.message)),
    }
    for (place, name) in optional {
        // Some tools discard written files when a command ends.
        let probe = timed(&mut place.sh(setup, "touch probe", false))
            .and_then(|_| timed(&mut place.sh(setup, "test -e probe", false)));
        match probe {
            Ok(_) => places.push((place, name)),
            Err(why) => left_out.push(format!("{name} is left out: {}", why.message)),
        }
    }
    Ok((places, left_out))
}

/// A directory of the host for the work of one place.
pub(crate) fn directory(setup: &Setup, name: &str) -> Result<PathBuf, ApiError> {
    let dir = setup.work.join(format!("work-{name}"));
    std::fs::create_dir_all(&dir).map_err(|error| bay_client::local("preparing the bench", &error))?;
    Ok(dir)
}

fn about(what: &str, why: ApiError) -> ApiError {
    ApiError { message: format!("{what}: {}", why.message), ..why }
}

/// Copies a directory of the host to that place.
fn bring(setup: &Setup, place: &Place, from: &Path, name: &str) -> Result<(), ApiError> {
    let source = from.display().to_string();
    match place {
        Place::Host(dir) | Place::Bwrap(dir) | Place::Runsc(dir) => {
            timed(Command::new("cp").args(["-a", &source]).arg(dir.join(name)))
        }
        Place::Bay(bay) => timed(&mut setup.bay(&["cp", &source, &format!("{bay}:/workspace/{name}")])),
        Place::Docker(container) => {
            timed(Command::new("docker").args(["cp", &source, &format!("{container}:/work/{name}")]))
        }
    }
    .map(drop)
}

fn sysroot() -> Option<PathBuf> {
    let text = output_of(Command::new("rustc").args(["--print", "sysroot"])).ok()?;
    Some(PathBuf::from(text.trim())).filter(|path| path.join("bin/cargo").exists())
}

/// Fills a cache with what the package needs, and writes the lock file beside it.
fn prime_npm(work: &Path, cache: &Path) -> Result<(), ApiError> {
    let script = format!(
        "cd '{}' && {{ {MAKE_PACKAGE} }} && npm_config_omit_lockfile_registry_resolved=false npm install --cache '{}' --no-audit --no-fund --silent && rm -rf node_modules",
        work.display(),
        cache.display()
    );
    timed(Command::new("sh").args(["-ec", &script])).map(drop)
}
