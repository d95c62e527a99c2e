use super::Field;
use super::area::area;
use crate::id::ApprovalId;
use crate::service::{Restart, ServiceName, ServiceState};

area! {
    /// Services of a bay: what was asked of its guest, which owns them.
    Service: ServiceEvent;

    /// Somebody defined a service, or replaced its definition.
    Define(ServiceDefine) = "service.define" {
        /// The service.
        service: Field<ServiceName>,
        /// Its command, or as much of its beginning as the record keeps.
        argv: Vec<String>,
        /// How many arguments are left out of `argv`.
        arguments_left_out: usize,
        /// The user it runs as; root if nobody was named. Absent if it was defined from inside the bay.
        #[serde(skip_serializing_if = "Option::is_none")]
        user: Option<Option<String>>,
        /// The services that must be ready before it starts. Absent if it was defined from inside the bay.
        #[serde(skip_serializing_if = "Option::is_none")]
        needs: Option<Vec<ServiceName>>,
        /// When it is started again. Absent if it was defined from inside the bay.
        #[serde(skip_serializing_if = "Option::is_none")]
        restart: Option<Restart>,
        /// Who asked.
        by: String,
    }

    /// A command of a service that a rule asks about is let run, by an answer that a person gave.
    Approved(ServiceApproved) = "service.approved" {
        /// The approval.
        approval: Field<ApprovalId>,
        /// The service.
        service: Field<ServiceName>,
        /// Its command, or as much of its beginning as the record keeps.
        argv: Vec<String>,
        /// How many arguments are left out of `argv`.
        arguments_left_out: usize,
        /// Who asked for the command.
        by: String,
    }

    /// Somebody asked for a service to start.
    Start(ServiceStart) = "service.start" {
        /// The service.
        service: Field<ServiceName>,
        /// Who asked.
        by: String,
    }

    /// Somebody asked for a service to stop.
    Stop(ServiceStop) = "service.stop" {
        /// The service.
        service: Field<ServiceName>,
        /// Who asked.
        by: String,
    }

    /// Somebody asked for a service to start anew.
    Restart(ServiceRestart) = "service.restart" {
        /// The service.
        service: Field<ServiceName>,
        /// Who asked.
        by: String,
    }

    /// A service reached another state. It is the guest's account.
    Reached(ServiceReached) = "service.reached" {
        /// The service.
        service: Field<ServiceName>,
        /// The state.
        state: Field<ServiceState>,
        /// Why it is in that state.
        reason: String,
        /// How often it was started again after it had ended by itself, since the bay started.
        restarts: u64,
    }

    /// Somebody asked for a service to be removed.
    Remove(ServiceRemove) = "service.remove" {
        /// The service.
        service: Field<ServiceName>,
        /// Who asked.
        by: String,
    }
}
