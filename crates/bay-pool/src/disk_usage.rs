//! Where the disk goes: which extents each bay, checkpoint, image and repository holds, and which of them only it holds.
//!
//! Quotas could answer this too, but they are off on most pools, and one of their two kinds does not know what is shared.
//! So the extents are read from the trees of the filesystem. The trees of a bay are read only as far as they are younger
//! than the bay, because everything older belongs to its image or its repository. So the time depends on what bays
//! wrote. It is bounded: after [`MAX_EXTENTS`] or [`WITHIN`] the report is marked as incomplete.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bay_sys::btrfs::{self, Extent};
use bay_types::checkpoint::Point;
use bay_types::disk::{
    BaySpace, CheckpointSpace, DiskUsage, ImageSpace, PoolFile, RepoSpace, Space, WorkspaceSpace,
};
use bay_types::{BayId, CheckpointName};

use crate::backing::Space as Filesystem;
use crate::beginning::Beginning;
use crate::error::Result;
use crate::pool::Pool;
use crate::subvolume::{self, entries, open_dir};

/// Most extents that one report counts. It holds 24 bytes for each.
const MAX_EXTENTS: usize = 4_000_000;
/// How long a report may count.
const WITHIN: Duration = Duration::from_secs(10);
/// Most checkpoints of a bay that a report lists. A bay has fewer.
const MAX_CHECKPOINTS: usize = 4096;

/// Index of something that is removed as a whole: a bay's root, one of its checkpoints, an image.
type Item = u32;

/// The extents that were found so far.
struct Count {
    /// Place on the disk, item, bytes.
    extents: Vec<(u64, Item, u64)>,
    /// The group of each item. The items of a bay are one group.
    groups: Vec<u32>,
    next_group: u32,
    /// Bytes of each item that cannot be shared.
    unshared: Vec<u64>,
    until: Instant,
    /// A limit was reached: nothing more is counted.
    stopped: bool,
    /// A subvolume could not be read.
    unread: bool,
}

impl Count {
    fn new() -> Self {
        Self {
            extents: Vec::new(),
            groups: Vec::new(),
            next_group: 0,
            unshared: Vec::new(),
            until: Instant::now() + WITHIN,
            stopped: false,
            unread: false,
        }
    }

    fn group(&mut self) -> u32 {
        self.next_group += 1;
        self.next_group
    }

    fn item(&mut self, group: u32) -> Item {
        self.groups.push(group);
        self.unshared.push(0);
        Item::try_from(self.groups.len() - 1).unwrap_or(Item::MAX)
    }

    /// Adds what a subvolume holds that was written after a generation. A subvolume that is being removed counts as
    /// empty.
    fn add(&mut self, item: Item, path: &Path, since: u64) {
        if !subvolume::exists(path) {
            return;
        }
        let Self { extents, unshared, until, stopped, .. } = self;
        let mut visited = 0_u32;
        let counted = open_dir(path).and_then(|top| {
            btrfs::extents_since(&top, since, &mut |Extent { place, disk_bytes }| {
                match place {
                    Some(place) => extents.push((place, item, disk_bytes)),
                    None => {
                        let own = &mut unshared[item as usize];
                        *own = own.saturating_add(disk_bytes);
                    }
                }
                visited = visited.wrapping_add(1);
                // The clock is read now and then: an extent takes less time than the reading.
                *stopped |= extents.len() >= MAX_EXTENTS
                    || (visited.is_multiple_of(1024) && Instant::now() >= *until);
                !*stopped
            })
        });
        if let Err(error) = counted {
            tracing::debug!(path = %path.display(), %error, "a subvolume is left out of the report");
            self.unread = true;
        }
    }

    fn finish(mut self) -> Counted {
        self.extents.sort_unstable();
        // A file that was overwritten in part refers to an extent more than once.
        self.extents.dedup_by_key(|(place, item, _)| (*place, *item));
        let items: Vec<Space> =
            self.unshared.iter().map(|own| Space { own_bytes: *own, shared_bytes: 0 }).collect();
        let mut counted = Counted {
            items,
            groups: vec![Space::default(); self.next_group as usize + 1],
            total: self.unshared.iter().sum(),
            complete: !self.stopped && !self.unread,
        };
        for (item, own) in self.unshared.iter().enumerate() {
            counted.groups[self.groups[item] as usize].own_bytes += own;
        }
        for same in self.extents.chunk_by(|one, other| one.0 == other.0) {
            let bytes = same[0].2;
            counted.total = counted.total.saturating_add(bytes);
            let group = |at: &(u64, Item, u64)| self.groups[at.1 as usize] as usize;
            let one_group = same.iter().all(|at| group(at) == group(&same[0]));
            for at in same {
                let item = &mut counted.items[at.1 as usize];
                if same.len() == 1 { item.own_bytes += bytes } else { item.shared_bytes += bytes }
            }
            let mut of: Vec<usize> = same.iter().map(group).collect();
            of.sort_unstable();
            of.dedup();
            for group in of {
                let group = &mut counted.groups[group];
                if one_group { group.own_bytes += bytes } else { group.shared_bytes += bytes }
            }
        }
        counted
    }
}

struct Counted {
    items: Vec<Space>,
    groups: Vec<Space>,
    /// Bytes of everything, each extent once.
    total: u64,
    complete: bool,
}

impl Counted {
    fn of(&self, item: Item) -> Space {
        self.items[item as usize]
    }
}

struct BayItems {
    id: BayId,
    group: u32,
    parts: [Item; 3],
    checkpoints: Vec<(CheckpointName, Item, u64)>,
}

impl Pool {
    /// Where the disk goes. Names of bays are the caller's to add.
    pub fn disk_usage(&self) -> Result<DiskUsage> {
        let mut count = Count::new();
        let bays: Vec<BayItems> =
            self.bay_list()?.into_iter().filter_map(|id| self.count_bay(&mut count, id)).collect();
        let kept: Vec<(String, u32)> = entries(&self.corner("kept"))?
            .into_iter()
            .filter_map(|path| {
                let name = path.file_name().and_then(OsStr::to_str)?.to_owned();
                let group = count.group();
                let item = count.item(group);
                count.add(item, &path, 0);
                Some((name, group))
            })
            .collect();
        let repos = self.repo_list()?;
        let checkouts: Vec<u32> = repos
            .iter()
            .map(|repo| {
                let group = count.group();
                for path in self.repo_checkouts(repo.id).unwrap_or_default() {
                    let item = count.item(group);
                    count.add(item, &path, 0);
                }
                group
            })
            .collect();
        let images = self.image_list()?;
        let roots: Vec<u32> = images
            .iter()
            .map(|image| {
                let group = count.group();
                let item = count.item(group);
                if let Ok(root) = self.image_root(image.id) {
                    count.add(item, &root, 0);
                }
                group
            })
            .collect();
        let counted = count.finish();
        let group = |group: &u32| counted.groups[*group as usize];

        let bays: Vec<BaySpace> = bays.into_iter().map(|bay| bay_space(&counted, bay)).collect();
        let repos: Vec<RepoSpace> = repos
            .into_iter()
            .zip(&checkouts)
            .map(|(repo, at)| RepoSpace {
                id: repo.id,
                location: repo.location,
                bays: repo.bays,
                git_bytes: repo.bytes,
                checkouts: group(at),
            })
            .collect();
        let images = images.into_iter().zip(&roots).map(|(image, at)| ImageSpace {
            id: image.id,
            name: image.name,
            bays: image.bays,
            space: group(at),
        });
        let images = images.collect();
        let workspaces =
            kept.iter().map(|(name, at)| WorkspaceSpace { name: name.clone(), space: group(at) }).collect();

        let space = Filesystem::of(self.base())?;
        let memory: u64 =
            bays.iter().flat_map(|bay| &bay.checkpoints).map(|checkpoint| checkpoint.memory_bytes).sum();
        let git: u64 = repos.iter().map(|repo| repo.git_bytes).sum();
        let listed = counted.total.saturating_add(memory).saturating_add(git);
        let used = space.total.saturating_sub(space.free);
        let corners = entries(&self.base().join("corners"))?;
        Ok(DiskUsage {
            pool: self.base().to_owned(),
            total_bytes: space.total,
            free_bytes: space.free,
            file: self.pool_file()?,
            images,
            repos,
            bays,
            workspaces,
            other_daemons: (corners.len() as u64).saturating_sub(1),
            rest_bytes: used.saturating_sub(listed),
            complete: counted.complete,
        })
    }

    fn count_bay(&self, count: &mut Count, id: BayId) -> Option<BayItems> {
        let since = open_dir(&self.bay_dir(id)).and_then(|dir| btrfs::made_in_generation(&dir)).ok()?;
        let group = count.group();
        let disk = self.bay_disk(id);
        let parts = [disk.root, disk.workspace, disk.state].map(|path| {
            let item = count.item(group);
            count.add(item, &path, since);
            item
        });
        if let Some(Beginning::Snapshot(beginning)) = self.beginning(id) {
            let [_, workspace, _] = parts;
            count.add(workspace, &beginning, since);
        }
        let mut checkpoints = Vec::new();
        for (name, places) in self.checkpoint_places(id) {
            let item = count.item(group);
            for path in places {
                count.add(item, &path, since);
            }
            let memory = self.checkpoint_disk_bytes(Point { bay: id, checkpoint: name }).unwrap_or(0);
            checkpoints.push((name, item, memory));
        }
        Some(BayItems { id, group, parts, checkpoints })
    }

    /// The subvolumes of each checkpoint of a bay, oldest first.
    fn checkpoint_places(&self, bay: BayId) -> Vec<(CheckpointName, Vec<PathBuf>)> {
        let top = self.bay_dir(bay).join("checkpoints");
        let mut all: Vec<(CheckpointName, Vec<PathBuf>)> = Vec::new();
        for (place, parts) in
            [("shown", &["root", "workspace"][..]), ("older", &["root", "workspace"]), ("inner", &["state"])]
        {
            for dir in entries(&top.join(place)).unwrap_or_default().into_iter().take(MAX_CHECKPOINTS) {
                let name = dir.file_name().and_then(OsStr::to_str).and_then(|name| name.parse().ok());
                let Some(name) = name else { continue };
                let paths = parts.iter().map(|part| dir.join(part));
                match all.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => known.extend(paths),
                    None => all.push((name, paths.collect())),
                }
            }
        }
        all.sort_by_key(|(name, _)| *name);
        all
    }

    fn pool_file(&self) -> Result<Option<PoolFile>> {
        let Some(backing) = self.backing() else { return Ok(None) };
        let host = Filesystem::of(&backing.dir)?;
        Ok(Some(PoolFile {
            first_bytes: backing.first_size(),
            may_grow_bytes: backing.room_to_grow()?,
            host_total_bytes: host.total,
            host_free_bytes: host.free,
            reserve_bytes: backing.reserve(&host),
        }))
    }
}

fn bay_space(counted: &Counted, bay: BayItems) -> BaySpace {
    let checkpoints: Vec<CheckpointSpace> = bay
        .checkpoints
        .into_iter()
        .map(|(name, item, memory_bytes)| CheckpointSpace { name, files: counted.of(item), memory_bytes })
        .collect();
    let memory: u64 = checkpoints.iter().map(|checkpoint| checkpoint.memory_bytes).sum();
    let mut space = counted.groups[bay.group as usize];
    space.own_bytes = space.own_bytes.saturating_add(memory);
    let [root, workspace, state] = bay.parts.map(|item| counted.of(item));
    BaySpace { id: bay.id, name: String::new(), space, root, workspace, state, checkpoints }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_one_item_holds_is_its_own_and_the_rest_is_shared() {
        let mut count = Count::new();
        let (bay, image) = (count.group(), count.group());
        let (root, checkpoint, base) = (count.item(bay), count.item(bay), count.item(image));
        count.extents = vec![
            (1, root, 10),
            (1, root, 10),
            (2, root, 20),
            (2, checkpoint, 20),
            (3, checkpoint, 40),
            (4, base, 80),
            (5, base, 160),
            (5, checkpoint, 160),
        ];
        count.unshared[root as usize] = 1;
        let counted = count.finish();
        let space = |own_bytes, shared_bytes| Space { own_bytes, shared_bytes };
        assert_eq!(counted.of(root), space(11, 20));
        assert_eq!(counted.of(checkpoint), space(40, 180));
        assert_eq!(counted.of(base), space(80, 160));
        assert_eq!(
            counted.groups[bay as usize],
            space(71, 160),
            "the bay frees what its checkpoints share with it"
        );
        assert_eq!(counted.groups[image as usize], space(80, 160));
        assert_eq!(counted.total, 311);
    }
}
