//! The numbers and commands of execs, for entries.

use std::collections::HashMap;

use bay_store::Store;
use bay_types::{BayId, ExecId};

use crate::channel::plain_text;

/// How many execs are remembered. With one more, all are forgotten and read again when they are needed.
const REMEMBERED: usize = 1024;
/// How many arguments of a command are shown.
const ARGUMENTS: usize = 16;
/// How many characters of each argument are shown.
const ARGUMENT: usize = 200;

/// The execs that one reader has needed so far.
#[derive(Debug, Default)]
pub(crate) struct ExecNames(HashMap<ExecId, Option<(u64, Vec<String>)>>);

impl ExecNames {
    /// Number and command of an exec of this bay; `None` if the bay does not have it, or it was deleted.
    pub(crate) async fn of(
        &mut self,
        store: &Store,
        bay: BayId,
        exec: ExecId,
    ) -> Result<Option<(u64, Vec<String>)>, bay_store::StoreError> {
        if let Some(known) = self.0.get(&exec) {
            return Ok(known.clone());
        }
        let row = store.exec_get(bay, exec).await?;
        let name = row.map(|row| {
            let argv = row.spec.argv.iter().take(ARGUMENTS);
            (
                row.number,
                argv.map(|word| plain_text(&word.chars().take(ARGUMENT).collect::<String>())).collect(),
            )
        });
        if self.0.len() >= REMEMBERED {
            self.0.clear();
        }
        self.0.insert(exec, name.clone());
        Ok(name)
    }
}
