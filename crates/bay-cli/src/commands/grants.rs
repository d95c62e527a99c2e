use bay_client::bay_path;
use bay_types::policy::{GrantAdd, GrantView};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};

use super::policy::grant_line;
use crate::failure::Outcome;
use crate::global_options::GlobalOptions;
use crate::naming;
use crate::output::{data, json, talk};
use bay_text::escape::visible;
use bay_text::percent::segment;

/// Allow a bay exactly one kind of request, any number of times, for a limited time; and revoke such grants.
///
/// A grant answers an ask of the policy, and replaces a missing rule. It does not override a deny, and does not replace
/// a missing rule of the host's policy. It ends when its time is over, or when the bay is stopped, replaced, restored
/// or starts anew.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay grants add web \"PUT https://files.example.com/report.pdf\" --for 10m\n  bay grants ls web\n  bay grants rm web g-1f00ba12"
)]
pub(crate) struct Grants {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the grants of a bay: exact requests that it may send for a limited time. Expired ones are marked `over`.
    #[command(after_help = "Example:\n  bay grants ls web")]
    Ls {
        /// Name or id of the bay.
        name: String,
    },
    /// Allow exactly this request for a limited time, any number of times.
    Add {
        /// Name or id of the bay.
        name: String,
        /// `METHOD https://HOST/PATH`, `FETCH ssh://HOST/REPOSITORY`, `tcp://HOST:PORT` or `tls://HOST`.
        request: String,
        /// For how long, such as 90s, 10m, 2h; at most 30 days.
        #[arg(long = "for", value_name = "TIME", value_parser = time, default_value = "10m")]
        for_s: u64,
        /// The id of the grant [default: a generated one].
        #[arg(long)]
        id: Option<String>,
    },
    /// Revoke grants.
    Rm {
        /// Name or id of the bay.
        name: String,
        /// Ids of the grants, from `bay grants ls`.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

fn time(text: &str) -> Result<u64, String> {
    let wrong = || "give a time such as 90s, 10m or 2h".to_owned();
    let time: SignedDuration = text.parse().map_err(|_| wrong())?;
    u64::try_from(time.as_secs()).ok().filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

impl Grants {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let mut client = global.client();
        match self.verb {
            Verb::Ls { name } => {
                let bay = naming::bay(&name)?;
                let all: Vec<GrantView> = client.get(&bay_path(bay, "/grants")).await?;
                if global.json {
                    json(&all)?;
                } else if all.is_empty() {
                    talk(&format!("{bay} has no grants: `bay grants add {bay} REQUEST` adds one"));
                }
                let now = Timestamp::now();
                for grant in all.iter().filter(|_| !global.json) {
                    data(&grant_line(grant, now))?;
                }
            }
            Verb::Add { name, request, for_s, id } => {
                let bay = naming::bay(&name)?;
                let add = GrantAdd { request, for_s, id, secrets: None };
                let made: GrantView = client.post(&bay_path(bay, "/grants"), &add).await?;
                if global.json {
                    json(&made)?;
                } else {
                    data(&grant_line(&made, Timestamp::now()))?;
                }
            }
            Verb::Rm { name, ids } => {
                let bay = naming::bay(&name)?;
                for id in ids {
                    let path = bay_path(bay, &format!("/grants/{}", segment(&id)));
                    let gone: GrantView = client.delete(&path).await?;
                    if global.json {
                        json(&gone)?;
                    } else {
                        data(&format!("{} of {bay} is revoked", visible(&gone.id)))?;
                    }
                }
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_and_a_limit() {
        assert_eq!(time("10m"), Ok(600));
        assert_eq!(time("1h 30m"), Ok(5400));
        for odd in ["", "10", "-5m", "0s", "soon"] {
            assert!(time(odd).is_err(), "{odd}");
        }
    }
}
