use std::path::PathBuf;

use bay_types::image::{ImageImport, ImageView};
use clap::{Args, Subcommand};
use jiff::Timestamp;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::age::since;
use crate::output::progress::Meter;
use crate::output::{count, size, table};
use bay_text::escape::{one_line, visible};
use bay_text::percent::segment;

/// Manage the images that bays' root filesystems begin as.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay images ls\n  bay images import host --add ~/.cargo --add ~/.rustup\n  bay images import tar:rootfs.tar --name debian"
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
        }
        Ok(0)
    }
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
