use super::area::area;

area! {
    /// The daemon itself.
    Daemon: DaemonEvent;

    /// Messages about open approvals are about to be sent to another address.
    NotifyAdd(NotifyAdded) = "notify.add" {
        /// The webhook.
        id: String,
        /// Its address.
        url: String,
        /// Who asked.
        by: String,
    }

    /// Messages are about to be no longer sent to an address.
    NotifyRemove(NotifyRemoved) = "notify.rm" {
        /// The webhook.
        id: String,
        /// Who asked.
        by: String,
    }

    /// Events that an earlier release hashed in a chain are leaves of the ledger's tree now.
    LedgerBegun(LedgerBegun) = "ledger.begun" {
        /// How many events the chain had.
        events: u64,
        /// The last hash of the chain.
        chain_head: String,
        /// The first event whose hash did not match the chain, if there was one.
        first_bad: Option<u64>,
    }
}
