//! A connection of the bay whose destination is known.

use std::sync::Arc;

use bay_policy::Host;

use crate::decider::{Caller, RecordId, Refused};
use crate::state::GatewayState;

#[derive(Clone)]
pub(crate) struct BayConnection {
    pub(crate) gateway: Arc<GatewayState>,
    pub(crate) caller: Caller,
    pub(crate) host: Host,
    pub(crate) port: u16,
    /// The permit of the connection. Everything that belongs to the connection holds a clone.
    pub(crate) busy: Arc<dyn Send + Sync>,
}

impl BayConnection {
    pub(crate) async fn refuse(&self, what: &Refused<'_>) -> RecordId {
        self.gateway.decider().refused(&self.caller, what).await
    }

    pub(crate) async fn refuse_protocol(&self, why: &str) {
        self.refuse(&Refused::Protocol { host: &self.host, port: self.port, why }).await;
    }
}
