use bay_text::escape::visible;
use bay_types::backend::BackendView;
use clap::Args;

use super::show::capability_lines;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::table::section;

/// List the backends that can run bays on this host, with their capabilities. `bay up --backend` chooses one.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bay backends\n  bay backends --json\n  bay up --backend gvisor")]
pub(crate) struct Backends {}

impl Backends {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let backends: Vec<BackendView> = global.client().get("/v1/backends").await?;
        if global.json {
            crate::output::json(&backends)?;
        } else {
            crate::output::data(&backends.iter().map(render).collect::<Vec<_>>().join("\n\n"))?;
        }
        Ok(0)
    }
}

fn render(backend: &BackendView) -> String {
    let new_bays = if backend.is_default { "if they name no backend" } else { "on request: --backend" };
    let mut lines = vec![
        ("new bays", new_bays.to_owned()),
        ("isolation", visible(backend.capabilities.isolation.as_str())),
        ("means", visible(&backend.detail)),
    ];
    lines.extend(capability_lines(&backend.capabilities));
    section(&visible(backend.name.as_str()), &lines)
}
