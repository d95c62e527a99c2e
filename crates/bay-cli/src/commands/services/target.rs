//! One service and the requests about it, sent through the daemon or from inside its bay.

use std::time::Duration;

use bay_client::{Client, empty};
use bay_types::service::{ServiceName, ServiceSpec, ServiceVerb, ServiceView};
use bay_types::{ApiError, ErrorCode};
use http::Method;
use jiff::Timestamp;

use super::{render, show, wait};
use crate::failure::{Failure, Outcome};
use bay_text::escape::one_line;

/// Interval between requests while an approval is pending. Each one is charged to the bay.
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Target {
    /// The path of all services.
    pub(crate) base: String,
    pub(crate) service: ServiceName,
    /// The command that shows its output, for the messages.
    pub(crate) logs: String,
    pub(crate) json: bool,
}

impl Target {
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("{}/{}{rest}", self.base, self.service)
    }

    pub(crate) async fn define(&self, client: &mut Client, spec: &ServiceSpec, no_wait: bool) -> Outcome {
        spec.check()?;
        let defined = self.put(client, spec, no_wait).await?;
        let view = if no_wait { defined } else { wait::until_ready(client, self).await? };
        self.told(&view)
    }

    /// Sends the definition, and unless `no_wait` sends it again while an approval is pending. That happens only
    /// inside a bay: the daemon holds requests of its own callers until there is an answer.
    async fn put(
        &self,
        client: &mut Client,
        spec: &ServiceSpec,
        no_wait: bool,
    ) -> Result<ServiceView, ApiError> {
        let mut told = false;
        loop {
            match client.put(&self.path(""), spec).await {
                Err(error) if error.code == ErrorCode::ApprovalPending && !no_wait => {
                    if !told {
                        crate::output::talk(&format!("waiting: {}", one_line(&error.message)));
                        told = true;
                    }
                    tokio::time::sleep(BETWEEN_QUESTIONS).await;
                }
                answer => return answer,
            }
        }
    }

    pub(crate) async fn show(&self, client: &mut Client) -> Outcome {
        let view: ServiceView = client.get(&self.path("")).await?;
        if self.json {
            crate::output::json(&view)?;
        } else {
            crate::output::data(&show(&view, Timestamp::now()))?;
        }
        Ok(0)
    }

    pub(crate) async fn ask(&self, client: &mut Client, verb: ServiceVerb, no_wait: bool) -> Outcome {
        let path = self.path(&format!("/{verb}"));
        let asked: ServiceView = client.upload(Method::POST, &path, empty()).await?;
        let view = match (no_wait, verb) {
            (true, _) => asked,
            (false, ServiceVerb::Stop) => wait::until_stopped(client, self).await?,
            (false, _) => wait::until_ready(client, self).await?,
        };
        self.told(&view)
    }

    pub(crate) async fn remove(&self, client: &mut Client) -> Outcome {
        let left: Option<ServiceView> = client.delete(&self.path("")).await?;
        if left.is_some() {
            match wait::until_stopped(client, self).await {
                Err(Failure::Api { error, .. }) if error.code == ErrorCode::ServiceNotFound => {}
                Err(failure) => return Err(failure),
                Ok(_) => {}
            }
        }
        if self.json {
            crate::output::json(&serde_json::json!({ "removed": self.service }))?;
        } else {
            crate::output::data(&format!("{} is removed", self.service))?;
        }
        Ok(0)
    }

    /// Prints one line about the service.
    fn told(&self, view: &ServiceView) -> Outcome {
        if self.json {
            crate::output::json(view)?;
        } else {
            crate::output::data(&format!("{} is {}: {}", view.name, view.state, one_line(&view.reason)))?;
        }
        Ok(0)
    }
}

/// Prints all services below a path, or the text `none` if there are none.
pub(crate) async fn list(client: &mut Client, base: &str, json: bool, none: &str) -> Outcome {
    let all: Vec<ServiceView> = client.get(base).await?;
    if json {
        crate::output::json(&all)?;
    } else if all.is_empty() {
        crate::output::talk(none);
    } else {
        crate::output::data(&render(&all, Timestamp::now()))?;
    }
    Ok(0)
}
