use clap::Args;

use super::exec::{Options, with_terminal};
use crate::failure::{Failure, Outcome};
use crate::global_options::GlobalOptions;
use crate::{session, terminal};

/// The best available shell of the bay, as a login shell.
const SHELL: &str = "exec \"$(command -v bash || echo /bin/sh)\" -l";

/// Open an interactive shell in a bay.
#[derive(Debug, Args)]
#[command(visible_alias = "sh", after_help = "Example:\n  bay shell web")]
pub(crate) struct Shell {
    /// Name or id of the bay.
    name: String,
    #[command(flatten)]
    options: Options,
}

impl Shell {
    pub(crate) async fn run(self, global: &GlobalOptions) -> Outcome {
        let result = async {
            let bay = crate::naming::bay(&self.name)?;
            let argv = ["/bin/sh", "-c", SHELL].map(str::to_owned).to_vec();
            if terminal::stdin_is_nothing() {
                return Err(bay_client::invalid(
                    "a shell reads its commands from standard input, which is empty (/dev/null)",
                    format!("run it on a terminal, or `bay exec {bay} -- CMD` for one command"),
                )
                .into());
            }
            let mut spec = self.options.spec(argv)?;
            spec.stdin = true;
            with_terminal(&mut spec);
            session::run(&mut global.client(), bay, spec, false, !global.json).await
        };
        result.await.map_err(Failure::in_exec)
    }
}
