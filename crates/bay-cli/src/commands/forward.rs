use std::net::{IpAddr, Ipv4Addr};

use clap::Args;
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::forward::{Change, Forwarding, PortPair, Wanted};
use crate::global_options::GlobalOptions;
use crate::output::{talk, watched};
use crate::session::{self, Ends};

/// Reach TCP ports of a bay from this host, until Ctrl-C or the bay's removal.
///
/// Every connection to the port of this host becomes a connection to the port on the bay's loopback. WebSockets and
/// hot reloading work, because nothing in between interprets the bytes. The forward survives a restart of what
/// listens in the bay, of the bay, and of the daemon: connections end then, and new ones work when the port is back.
/// It ends with an error if no daemon answers for a minute.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay forward web 5173              http://127.0.0.1:5173 on this host\n  bay forward web 5173:8080 5432    port 5173 as 8080, and port 5432\n  bay forward web --all             every port from 1024 on, as they appear and disappear\n  bay exec web --forward 5173 -- npm run dev"
)]
pub(crate) struct Forward {
    /// Name or id of the bay.
    name: String,
    /// The bay's port, and after a colon the port of this host if it is another one.
    #[arg(value_name = "PORT[:HOST_PORT]", required_unless_present = "all")]
    ports: Vec<PortPair>,
    /// Follow `bay ports`: forward the TCP ports from 1024 on, at most 100, each under its own number while something
    /// listens on it.
    #[arg(long)]
    all: bool,
    /// Address of this host to listen at. An address that is not loopback lets other machines in.
    #[arg(long, value_name = "ADDR", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    listen: IpAddr,
}

impl Forward {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let bay = crate::naming::bay(&self.name)?.to_owned();
        let mut ends = Ends::listen().map_err(|e| bay_client::local("listening for signals", &e))?;
        if !self.listen.is_loopback() {
            talk(&format!(
                "warning: everybody who can reach {} over the network can reach these ports of {bay}, without a password",
                self.listen
            ));
        }
        let wanted = Wanted { bay: bay.clone(), pairs: self.ports, all: self.all, listen: self.listen };
        let forwarding = Forwarding::open(global.client(), wanted).await?;
        let json = global.json;
        let show = |change| shown(change, &bay, json);
        forwarding.listening().try_for_each(show)?;
        if !json && watched() {
            talk("bay: forwarding until Ctrl-C");
        }
        tokio::select! {
            failure = forwarding.run(show) => Err(failure),
            number = ends.next() => Ok(session::code_of_signal(number)),
        }
    }
}

fn shown(change: Change, bay: &str, json: bool) -> Result<(), Failure> {
    let (event, address, port) = match change {
        Change::Opened(address, port) => ("open", address, port),
        Change::Closed(address, port) => ("closed", address, port),
    };
    if json {
        return crate::output::json_line(&json!({ "event": event, "address": address, "port": port }));
    }
    let ended = if event == "closed" { " (ended: nothing listens there any more)" } else { "" };
    crate::output::data(&format!("{address} -> {bay}:{port}{ended}"))
}
