//! Values that are scrubbed from the answers of their hosts, whichever bay sends the request: every present value,
//! and the former values that are remembered.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use bay_gateway::scrub::Guesses;
use bay_gateway::secrets::{Covered, Held, Named};
use bay_policy::CompiledPolicy;
use bay_types::secret::SecretText;
use bay_types::{BayId, CoreError};
use secrecy::SecretString;

use super::former_values::Former;
use super::{DIR, Secret, Vault, stored};
use crate::keyring::Keyring;

impl Secret {
    /// The hosts of the secret, with those that rules of policies added.
    pub(crate) fn hosts(&self, former: &Former) -> Vec<String> {
        let mut hosts: Vec<String> = Vec::new();
        for named in &self.named {
            match named {
                Named::Place(one) => hosts.extend(one.hosts().iter().cloned()),
                Named::Rule { .. } => hosts.extend(former.rule_hosts(&self.kept.name).cloned()),
            }
        }
        hosts.sort();
        hosts.dedup();
        hosts
    }
}

impl Vault {
    pub(crate) fn former(&self) -> std::sync::MutexGuard<'_, Former> {
        self.former.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps scrubbing a secret's value from answers of its hosts after the secret is gone or changed.
    pub(crate) fn remember(&self, secret: &Secret) -> Result<(), CoreError> {
        let mut former = self.former();
        let hosts = secret.hosts(&former);
        let place = (self.data_dir.as_path(), &*self.keys);
        former.remember(&secret.kept.name, &secret.value, hosts, place)
    }

    /// Remembers the former value of a secret if it gets another value or fewer hosts.
    pub(crate) fn remember_before(&self, after: &Secret) -> Result<(), CoreError> {
        let before = self.secrets().get(&after.kept.name).cloned();
        let Some(before) = before else { return Ok(()) };
        let fewer = {
            let former = self.former();
            let hosts = after.hosts(&former);
            before.hosts(&former).iter().any(|host| !hosts.contains(host))
        };
        if fewer || before.kept.value != after.kept.value { self.remember(&before) } else { Ok(()) }
    }

    /// Notes hosts that rules of a bay's policy add to a secret. Their answers are scrubbed for every bay.
    pub(crate) fn note_rule_hosts(
        &self,
        all: &[Arc<Secret>],
        policy: &CompiledPolicy,
    ) -> Result<(), CoreError> {
        let mut grown = false;
        for secret in all {
            let rules = secret.named.iter().filter(|named| matches!(named, Named::Rule { .. }));
            let uses = rules.flat_map(|named| named.uses(policy));
            let hosts: Vec<String> = uses.flat_map(|one| one.hosts().to_vec()).collect();
            if !hosts.is_empty() {
                let place = (self.data_dir.as_path(), &*self.keys);
                grown |= self.former().note_rule_hosts(&secret.kept.name, hosts, place)?;
            }
        }
        if grown {
            self.changes.send_modify(|changes| *changes += 1);
        }
        Ok(())
    }

    /// Every present and remembered value, with its hosts: a server may repeat a value that it stored to any bay.
    pub(crate) fn covered(&self, bay: BayId, held: &[Held]) -> Vec<Covered> {
        let all: Vec<Arc<Secret>> = self.secrets().values().cloned().collect();
        let former = self.former();
        let own = |name: &str| held.iter().find(|held| held.name == name);
        let sentinel = |name: &str| own(name).and_then(|held| held.sentinels.first().cloned());
        let now = all.iter().map(|secret| Covered {
            name: secret.kept.name.clone(),
            value: Arc::clone(&secret.value),
            hosts: secret.hosts(&former),
            sentinel: sentinel(&secret.kept.name),
            public: secret.public,
            weak: secret.weak,
            guesses: self.guesses(bay, &secret.kept.name, Some(&secret.kept.value)),
        });
        let before = former.values().map(|one| Covered {
            name: one.name.clone(),
            value: Arc::clone(&one.value),
            hosts: one.hosts.clone(),
            sentinel: sentinel(&one.name),
            public: one.public,
            weak: one.weak,
            guesses: self.guesses(bay, &one.name, None),
        });
        now.chain(before).collect()
    }

    /// The counter of how often this bay seems to guess this value. A new value starts a new count.
    pub(crate) fn guesses(&self, bay: BayId, name: &str, value: Option<&SecretText>) -> Arc<Guesses> {
        let mut all = self.guesses.lock().unwrap_or_else(PoisonError::into_inner);
        let of = all.entry((bay, name.to_owned())).or_default();
        if value.is_some() && of.0.as_ref() != value {
            *of = (value.cloned(), Arc::default());
        }
        Arc::clone(&of.1)
    }
}

/// Remembers the values that an earlier release stored with their secret.
pub(crate) fn remember_earlier(
    former: &mut Former,
    secret: &Secret,
    earlier: Vec<SecretText>,
    place: (&Path, &Keyring),
) {
    let hosts = secret.hosts(former);
    let mut kept = true;
    for value in earlier.into_iter().rev() {
        let value = Arc::new(SecretString::from(value));
        kept &= former.remember(&secret.kept.name, &value, hosts.clone(), place).is_ok();
    }
    let (data_dir, keys) = place;
    if let Some(error) =
        kept.then(|| stored::write(&data_dir.join(DIR), &secret.kept, keys)).and_then(Result::err)
    {
        tracing::error!(message = %error.message, "a secret could not be stored in the form of this release");
    }
}
