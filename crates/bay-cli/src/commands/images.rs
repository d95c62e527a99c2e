use std::path::PathBuf;

use bay_client::Client;
use bay_types::image::{ImageImport, ImagePrune, ImageView, ImagesPruned};
use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::rm::confirmed;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::age::since;
use crate::output::progress::Meter;
use crate::output::{count, size, table};
use bay_text::escape::{one_line, visible};
use bay_text::percent::segment;

/// Manage the images: the root filesystems that bays start with.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay images ls\n  bay images import host --add ~/.cargo --add ~/.rustup\n  bay images import tar:rootfs.tar --name debian\n  bay images prune"
)]
pub(crate) struct Images {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the images.
    Ls,
    /// Import an image: the host's own tools, a directory or a tar file.
    Import {
        /// `host`, `dir:PATH` or `tar:PATH`.
        source: String,
        /// Name of the image [default: from the source].
        #[arg(long)]
        name: Option<String>,
        /// With `host`: also copy this directory, such as a toolchain in a home directory.
        #[arg(long, value_name = "DIR")]
        add: Vec<String>,
        /// Import again even if nothing changed.
        #[arg(long)]
        force: bool,
    },
    /// Remove an image that no bay uses.
    Rm {
        /// Name or id.
        image: String,
    },
    /// Remove the images that no bay uses. Shows them first. On a terminal it asks; in a script it does not.
    Prune {
        /// Only images that a newer one of the same name and source replaces.
        #[arg(long)]
        superseded: bool,
        /// Only show what would be removed.
        #[arg(long)]
        dry_run: bool,
        /// Do not ask for confirmation.
        #[arg(short, long)]
        yes: bool,
    },
}

impl Images {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        match self.verb {
            Verb::Ls => {
                let images: Vec<ImageView> = client.get("/v1/images").await?;
                if global.json {
                    crate::output::json(&images)?;
                } else if images.is_empty() {
                    crate::output::talk("no images yet: `bay up` imports the host's tools by itself");
                } else {
                    crate::output::data(&render(&images))?;
                }
            }
            Verb::Import { source, name, add, force } => {
                let source = crate::naming::image(&source)?;
                let add = add
                    .iter()
                    .map(|path| crate::naming::absolute(&crate::naming::home(path)))
                    .collect::<Result<Vec<PathBuf>, _>>()?;
                let import = ImageImport { source, name, add, force };
                let mut meter = Meter::new(global.json);
                let view: ImageView = client.work("/v1/images", &import, &mut meter).await?;
                if global.json {
                    crate::output::json(&view)?;
                } else {
                    let files = count(view.files, "file");
                    crate::output::data(&format!(
                        "{} is ready: {files}, {}",
                        visible(&view.name),
                        size(view.bytes)
                    ))?;
                    if !view.left_out.is_empty() {
                        crate::output::talk(&format!("left out: {}", one_line(&view.left_out)));
                    }
                }
            }
            Verb::Rm { image } => {
                let _: serde_json::Value = client.delete(&format!("/v1/images/{}", segment(&image))).await?;
                if global.json {
                    crate::output::json(&serde_json::json!({ "removed": image }))?;
                } else {
                    crate::output::data(&format!("{} is removed", visible(&image)))?;
                }
            }
            Verb::Prune { superseded, dry_run, yes } => {
                return prune(&mut client, superseded, dry_run, yes, global.json).await;
            }
        }
        Ok(0)
    }
}

async fn prune(client: &mut Client, superseded: bool, dry_run: bool, yes: bool, json: bool) -> Outcome {
    let ask = ImagePrune { superseded, images: None, dry_run: true };
    let found: ImagesPruned = client.post("/v1/images/prune", &ask).await?;
    if found.images.is_empty() || dry_run {
        if json {
            crate::output::json(&found)?;
        } else if found.images.is_empty() {
            crate::output::talk(
                "there is nothing to remove: `bay images ls` shows which bays use each image",
            );
        } else {
            crate::output::data(&render(&found.images))?;
        }
        return Ok(0);
    }
    if !json {
        crate::output::talk(&render(&found.images));
    }
    let asks = !yes && !json && crate::terminal::stdin_is_terminal() && crate::output::watched();
    if asks && !confirmed(&format!("{} for good", count(found.images.len() as u64, "image")))? {
        crate::output::talk("nothing was removed");
        return Ok(1);
    }
    // By id: only what was shown is removed.
    let images = Some(found.images.iter().map(|image| image.id).collect());
    let removed: ImagesPruned =
        client.post("/v1/images/prune", &ImagePrune { superseded, images, dry_run: false }).await?;
    if json {
        crate::output::json(&removed)?;
    } else {
        let bytes = removed.images.iter().map(|image| image.bytes).sum();
        let removed = count(removed.images.len() as u64, "image");
        crate::output::data(&format!("{removed} removed, {}", size(bytes)))?;
    }
    Ok(0)
}

/// The source and what was added to it. Two images of one name can differ in that.
fn source(image: &ImageView) -> String {
    let added = image.add.iter().map(|path| format!(" + {}", path.display()));
    visible(&format!("{}{}", image.source, added.collect::<String>()))
}

fn render(images: &[ImageView]) -> String {
    let now = Timestamp::now();
    let mut table = table::table(&["IMAGE", "NAME", "SOURCE", "CREATED", "FILES", "SIZE", "USED BY"]);
    for image in images {
        table.add_row([
            image.id.short(),
            visible(&image.name),
            source(image),
            format!("{} ago", since(image.created_at, now)),
            image.files.to_string(),
            size(image.bytes),
            count(image.bays, "bay"),
        ]);
    }
    table.trim_fmt()
}
