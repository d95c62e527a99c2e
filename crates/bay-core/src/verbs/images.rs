//! The verbs on images, from which roots are made.

use std::sync::Arc;

use bay_store::Draft;
use bay_types::event::pool::{ImageImported, ImageRemoved};
use bay_types::image::{ImageImport, ImagePrune, ImageView, ImagesPruned};
use bay_types::principal::Principal;
use bay_types::{Action, CoreError, ErrorCode, Hint, ImageId};

use super::{ends_id, is_id_end};
use crate::authorize::Verb;
use crate::background::{blocking, to_the_end};
use crate::channel::plain_text;
use crate::daemon::Daemon;
use crate::progress::ProgressReporter;

/// The most directories that one import may add with `--add`.
const MAX_ADD: usize = 64;
/// The most images that one request may name.
const MAX_PRUNED: usize = 10_000;
/// In events: the daemon removed an image because a newer one replaces it.
const BY_SUPERSEDING: &str = "superseded";

fn bays_of(daemon: &Daemon, image: ImageId) -> Vec<String> {
    daemon
        .bays
        .list()
        .iter()
        .filter(|handle| {
            let row = handle.row();
            row.image_id == image || row.replace_with == Some(image)
        })
        .map(|handle| handle.name.to_string())
        .collect()
}

fn counted(daemon: &Daemon, mut image: ImageView) -> ImageView {
    // The pool may know of bays of other daemons.
    image.bays = image.bays.max(bays_of(daemon, image.id).len() as u64);
    image
}

pub async fn list(daemon: &Daemon, who: &Principal) -> Result<Vec<ImageView>, CoreError> {
    daemon.permit(who, Verb::ImageList)?;
    let images = daemon.with_pool(bay_pool::Pool::image_list).await?;
    Ok(images.into_iter().map(|image| counted(daemon, image)).collect())
}

pub async fn import(
    daemon: &Arc<Daemon>,
    who: &Principal,
    import: ImageImport,
    reporter: ProgressReporter,
) -> Result<ImageView, CoreError> {
    daemon.permit(who, Verb::ImageImport)?;
    let (daemon, who) = (Arc::clone(daemon), *who);
    to_the_end(async move { Ok(import_image(&daemon, import, who, reporter).await?.0) }).await
}

/// Removes an image, unless a bay uses it.
pub async fn remove(daemon: &Arc<Daemon>, who: &Principal, given: &str) -> Result<(), CoreError> {
    daemon.permit(who, Verb::ImageDelete)?;
    let (daemon, who, given) = (Arc::clone(daemon), *who, given.to_owned());
    to_the_end(async move { remove_image(&daemon, given, who).await }).await
}

/// Removes images that no bay uses: all, or those that the request selects. With `dry_run`, only lists them.
pub async fn prune(
    daemon: &Arc<Daemon>,
    who: &Principal,
    prune: ImagePrune,
) -> Result<ImagesPruned, CoreError> {
    daemon.permit(who, Verb::ImagePrune)?;
    if prune.images.as_ref().is_some_and(|images| images.len() > MAX_PRUNED) {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("one request can name at most {MAX_PRUNED} images"),
            Hint::new("name none to mean all that no bay uses; {} lists them", [Action::ListImages]),
        ));
    }
    let (daemon, who) = (Arc::clone(daemon), *who);
    to_the_end(async move { prune_images(&daemon, prune, who).await }).await
}

async fn prune_images(
    daemon: &Daemon,
    prune: ImagePrune,
    caller: Principal,
) -> Result<ImagesPruned, CoreError> {
    let dry_run = prune.dry_run;
    if dry_run {
        let images = unused(daemon, &prune).await?;
        return Ok(ImagesPruned { images, dry_run });
    }
    let _excluded = daemon.alone().await?;
    let images = remove_all(daemon, unused(daemon, &prune).await?, &caller.by()).await?;
    Ok(ImagesPruned { images, dry_run })
}

/// The images that a prune removes.
async fn unused(daemon: &Daemon, prune: &ImagePrune) -> Result<Vec<ImageView>, CoreError> {
    let all = daemon.with_pool(bay_pool::Pool::image_list).await?;
    let wanted = |image: &ImageView| {
        prune.images.as_ref().is_none_or(|images| images.contains(&image.id))
            && (!prune.superseded || is_superseded(image, &all))
    };
    let unused = all.iter().filter(|image| wanted(image)).cloned().map(|image| counted(daemon, image));
    Ok(unused.filter(|image| image.bays == 0).collect())
}

/// Removes images one after the other. A bay of another daemon may have taken one meanwhile. That one stays,
/// although an event says that it is removed.
async fn remove_all(daemon: &Daemon, images: Vec<ImageView>, by: &str) -> Result<Vec<ImageView>, CoreError> {
    let mut removed = Vec::new();
    for image in images {
        let id = image.id;
        let event = Draft::of(ImageRemoved { image: id.into(), name: image.name.clone(), by: by.to_owned() });
        daemon.store.event_append(None, &event).await.map_err(|e| e.to_api())?;
        match daemon.with_pool(move |pool| pool.image_remove(id)).await {
            Ok(()) => removed.push(image),
            Err(error) if matches!(error.code, ErrorCode::ImageInUse | ErrorCode::ImageNotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}

/// Whether a newer image has the same name and source. A new bay then starts from this one only if the request
/// names its id, or another bay to begin from: names and sources mean the newest.
fn is_superseded(image: &ImageView, all: &[ImageView]) -> bool {
    all.iter().any(|newer| {
        newer.name == image.name
            && newer.source == image.source
            && (newer.created_at, newer.id) > (image.created_at, image.id)
    })
}

/// Removes the superseded images of the host's own tools that no bay uses any more. The caller does not wait for it.
pub(crate) fn remove_superseded_soon(daemon: &Arc<Daemon>) {
    let daemon = Arc::clone(daemon);
    tokio::spawn(async move {
        let removed = async {
            let prune = ImagePrune { superseded: true, ..ImagePrune::default() };
            let of_the_host = |images: Vec<ImageView>| -> Vec<ImageView> {
                images.into_iter().filter(|image| image.source == "host").collect()
            };
            // Without the lock first: usually there is none, and the making of bays must not wait for that answer.
            if of_the_host(unused(&daemon, &prune).await?).is_empty() {
                return Ok(Vec::new());
            }
            let _excluded = daemon.alone().await?;
            let images = of_the_host(unused(&daemon, &prune).await?);
            remove_all(&daemon, images, BY_SUPERSEDING).await
        };
        match removed.await {
            Ok(removed) => {
                for image in removed {
                    tracing::info!(image = %image.id, name = %image.name, "a superseded image was removed");
                }
            }
            // The next import, the next removal of a bay, or the next start of the daemon tries again.
            Err(error) => tracing::info!(message = %error.message, "superseded images stay for now"),
        }
    });
}

/// Imports an image and reports progress. Returns the reporter for the work that follows.
pub(super) async fn import_image(
    daemon: &Arc<Daemon>,
    import: ImageImport,
    caller: Principal,
    mut reporter: ProgressReporter,
) -> Result<(ImageView, ProgressReporter), CoreError> {
    let host_or_path =
        import.source == "host" || ["dir:/", "tar:/"].iter().any(|kind| import.source.starts_with(kind));
    if !host_or_path || import.source.contains('\0') || import.add.len() > MAX_ADD {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            "the source of an image is `host`, `dir:/path` or `tar:/path`",
            Hint::new("{} imports this host's own tools", [Action::ImportHostImage]),
        ));
    }
    let pool = daemon.pool()?;
    // One import at a time: two imports of the same source would only slow each other down.
    let _turn = match daemon.importing.try_lock() {
        Ok(turn) => turn,
        Err(_) => {
            reporter.stage("waiting for another import");
            daemon.importing.lock().await
        }
    };
    let event = Draft::of(ImageImported {
        source: import.source.clone(),
        name: import.name.clone(),
        add: import.add.clone(),
        by: caller.by(),
    });
    daemon.store.event_append(None, &event).await.map_err(|e| e.to_api())?;
    let (image, reporter) = blocking(move || {
        let image = pool
            .image_import(&import, caller.uid(), &mut |p| reporter.progress(p))
            .map_err(|e| e.to_api())?;
        Ok((image, reporter))
    })
    .await?;
    tracing::info!(image = %image.id, name = %image.name, files = image.files, bytes = image.bytes, "image ready");
    remove_superseded_soon(daemon);
    Ok((counted(daemon, image), reporter))
}

/// An image by its id, name or source, the newest of several; or by a unique end of its id.
fn pick(images: &[ImageView], given: &str) -> Result<ImageView, CoreError> {
    let named = images
        .iter()
        .filter(|image| image.id.to_string() == given || image.name == given || image.source == given)
        .max_by_key(|image| image.created_at);
    if let Some(image) = named {
        return Ok(image.clone());
    }
    let shown: String = given.chars().take(100).collect();
    let missing = |message: String| {
        let hint = Hint::new("{} lists the images", [Action::ListImages]);
        CoreError::new(ErrorCode::ImageNotFound, message, hint)
    };
    by_end(images, given)?.cloned().ok_or_else(|| missing(format!("there is no image {shown:?}")))
}

/// The one image whose id ends so. An end that several ids have is refused with these ids.
fn by_end<'a>(images: &'a [ImageView], given: &str) -> Result<Option<&'a ImageView>, CoreError> {
    let ending: Vec<&ImageView> = images.iter().filter(|image| ends_id(&image.id, given)).collect();
    match ending[..] {
        [] => Ok(None),
        [image] => Ok(Some(image)),
        _ => {
            let candidates: Vec<String> =
                ending.iter().map(|image| format!("{} ({})", image.id, plain_text(&image.name))).collect();
            Err(CoreError::new(
                ErrorCode::ImageNotFound,
                format!("the ids of {} images end in {given:?}: {}", ending.len(), some(&candidates)),
                Hint::new("give more digits, or a whole id; {} lists the images", [Action::ListImages]),
            ))
        }
    }
}

/// The whole id of the image that a new bay is to begin as, if the request names it by the end of its id.
pub(super) async fn whole_id(daemon: &Daemon, given: &str) -> Result<Option<ImageId>, CoreError> {
    if !is_id_end(given) {
        return Ok(None);
    }
    let images = daemon.with_pool(bay_pool::Pool::image_list).await?;
    if images.iter().any(|image| image.name == given || image.source == given) {
        return Ok(None);
    }
    Ok(by_end(&images, given)?.map(|image| image.id))
}

async fn remove_image(daemon: &Daemon, given: String, caller: Principal) -> Result<(), CoreError> {
    let _excluded = daemon.alone().await?;
    let image = pick(&daemon.with_pool(bay_pool::Pool::image_list).await?, &given)?;
    let bays = bays_of(daemon, image.id);
    if !bays.is_empty() {
        return Err(CoreError::new(
            ErrorCode::ImageInUse,
            format!("the image {} is used by {}", image.name, some(&bays)),
            "remove those bays first",
        ));
    }
    let event = Draft::of(ImageRemoved { image: image.id.into(), name: image.name.clone(), by: caller.by() });
    daemon.store.event_append(None, &event).await.map_err(|e| e.to_api())?;
    daemon.with_pool(move |pool| pool.image_remove(image.id)).await
}

/// A few names for a message.
pub(crate) fn some(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let head = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{head} and {more} more"),
        _ => head,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_superseded_by_a_newer_one_of_its_name_and_source() {
        let (old, new) = (image("host", 1), image("host", 2));
        let tools = image("tools", 1);
        let other = ImageView { source: "dir:/x".to_owned(), ..image("host", 3) };
        let all = vec![old.clone(), new.clone(), tools.clone(), other];
        let superseded: Vec<_> =
            all.iter().filter(|image| is_superseded(image, &all)).map(|image| image.id).collect();
        assert_eq!(superseded, [old.id]);
    }

    fn image(name: &str, seconds: i64) -> ImageView {
        ImageView {
            id: ImageId::generate(),
            name: name.to_owned(),
            source: "host".to_owned(),
            key: String::new(),
            created_at: jiff::Timestamp::from_second(seconds).unwrap(),
            files: 0,
            bytes: 0,
            add: vec![],
            left_out: String::new(),
            bays: 0,
        }
    }

    #[test]
    fn an_image_is_found_by_what_the_list_shows_of_it() {
        let (old, new) = (image("host", 1), image("host", 2));
        let all = vec![new.clone(), old.clone()];
        let id = |given: &str| pick(&all, given).map(|image| image.id).map_err(|e| e.code);
        assert_eq!(id("host"), Ok(new.id));
        assert_eq!(id(&old.id.to_string()), Ok(old.id));
        assert_eq!(id(&old.id.short()), Ok(old.id));
        assert_eq!(id(&old.id.short()[2..]), Ok(old.id));
        for unknown in ["", "other", &old.id.short()[3..], "gggggggg"] {
            assert_eq!(id(unknown), Err(ErrorCode::ImageNotFound), "{unknown}");
        }
        let twins = vec![old.clone(), ImageView { name: "twin".to_owned(), ..old.clone() }];
        let refused = pick(&twins, &old.id.short()).unwrap_err().message;
        assert!(refused.contains("(host)") && refused.contains("(twin)"), "{refused}");
    }
}
