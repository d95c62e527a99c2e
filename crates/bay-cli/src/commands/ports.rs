use bay_client::bay_path;
use bay_types::inside::Port;
use clap::Args;

use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::output::table;
use bay_text::clip;
use bay_text::escape::visible;

const PROCESS: usize = 40;

/// List the listening ports of a bay: address, port, process, and the exec or service it belongs to.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bay ports web")]
pub(crate) struct Ports {
    /// Name or id of the bay.
    name: String,
}

impl Ports {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?;
        let ports: Vec<Port> = global.client().get(&bay_path(bay, "/ports")).await?;
        if global.json {
            crate::output::json(&ports)?;
        } else if ports.is_empty() {
            crate::output::talk("nothing listens in the bay");
        } else {
            crate::output::data(&render(&ports))?;
        }
        Ok(0)
    }
}

pub(crate) fn render(ports: &[Port]) -> String {
    let mut table = table::table(&["PROTO", "ADDRESS", "PORT", "REACH", "PID", "PROCESS", "EXEC"]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for port in ports {
        let exec = match &port.service {
            Some(service) => Some(format!("service {service}")),
            None => port.exec_number.map(|n| n.to_string()),
        };
        table.add_row([
            port.protocol.to_string(),
            port.address.to_string(),
            port.port.to_string(),
            if port.loopback { "loopback" } else { "bay" }.to_owned(),
            or_dash(port.pid.map(|pid| pid.to_string())),
            or_dash(port.process.as_deref().map(|name| clip(&visible(name), PROCESS))),
            or_dash(exec.or_else(|| port.exec.map(|id| id.to_string()))),
        ]);
    }
    table.trim_fmt()
}
