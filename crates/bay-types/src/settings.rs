//! Settings that can change while a bay exists: `PATCH /v1/bays/{bay}/limits`.

use serde::{Deserialize, Serialize};

use crate::bay::Limits;
use crate::durability::Durability;

/// A new value of a setting, or the word `"none"` to remove a limit. `null` is refused: it is also how JSON encodes
/// NaN, and a mistake must not remove a limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a number of the right kind, or the word \"none\"")]
pub enum Setting<T> {
    To(T),
    Lift(Nothing),
}

/// The word that removes a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nothing {
    #[serde(rename = "none")]
    None,
}

impl<T: Copy> Setting<T> {
    pub const LIFTED: Self = Setting::Lift(Nothing::None);

    fn value(self) -> Option<T> {
        match self {
            Setting::To(value) => Some(value),
            Setting::Lift(Nothing::None) => None,
        }
    }
}

/// `PATCH /v1/bays/{bay}/limits`: absent settings stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaySet {
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Setting<f64>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub cpu_shares: Option<Setting<u64>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<Setting<u64>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<Setting<u64>>,
    /// If removed, it becomes [`Limits::DEFAULT_PIDS`], so that a fork bomb is contained.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub pids: Option<Setting<u64>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub io_read_mibps: Option<Setting<u64>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub io_write_mibps: Option<Setting<u64>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub idle_stop_s: Option<Setting<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
}

/// The settings of a bay that can change, in force or wanted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub limits: Limits,
    pub idle_stop_s: Option<u64>,
    #[serde(default)]
    pub durability: Durability,
}

/// Refuses `null`, which is neither a value nor `"none"`.
fn given<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<Setting<T>>, D::Error> {
    Setting::deserialize(from).map(Some)
}

impl BaySet {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The resulting settings.
    #[must_use]
    pub fn over(&self, old: &Settings) -> Settings {
        Settings {
            limits: self.limits_over(&old.limits),
            idle_stop_s: self.idle_stop_s.map_or(old.idle_stop_s, Setting::value),
            durability: self.durability.unwrap_or(old.durability),
        }
    }

    fn limits_over(&self, old: &Limits) -> Limits {
        fn pick<T: Copy>(change: Option<Setting<T>>, old: Option<T>) -> Option<T> {
            change.map_or(old, Setting::value)
        }
        Limits {
            cpus: pick(self.cpus, old.cpus),
            memory_mib: pick(self.memory_mib, old.memory_mib),
            disk_mib: pick(self.disk_mib, old.disk_mib),
            pids: Some(pick(self.pids, old.pids).unwrap_or(Limits::DEFAULT_PIDS)),
            cpu_shares: pick(self.cpu_shares, old.cpu_shares),
            io_read_mibps: pick(self.io_read_mibps, old.io_read_mibps),
            io_write_mibps: pick(self.io_write_mibps, old.io_write_mibps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_stays_and_the_word_none_lifts() {
        let change: BaySet =
            serde_json::from_str(r#"{"cpus": 2, "memory_mib": "none", "pids": "none", "io_read_mibps": 5}"#)
                .unwrap();
        let old = Limits { memory_mib: Some(64), disk_mib: Some(100), pids: Some(9), ..Limits::default() };
        let new =
            change.over(&Settings { limits: old, idle_stop_s: Some(60), durability: Durability::Relaxed });
        assert_eq!((new.idle_stop_s, new.durability), (Some(60), Durability::Relaxed));
        assert_eq!(
            new.limits,
            Limits {
                cpus: Some(2.0),
                disk_mib: Some(100),
                pids: Some(Limits::DEFAULT_PIDS),
                io_read_mibps: Some(5),
                ..Limits::default()
            }
        );
        let json = serde_json::to_string(&change).unwrap();
        assert_eq!(serde_json::from_str::<BaySet>(&json).unwrap(), change, "{json}");
        assert!(BaySet::default().is_empty() && !change.is_empty());
    }

    #[test]
    fn null_words_and_odd_numbers_change_nothing() {
        for odd in [
            r#"{"cpus": null}"#,
            r#"{"memory_mib": null}"#,
            r#"{"memory_mib": -1}"#,
            r#"{"memory_mib": 1.5}"#,
            r#"{"memory_mib": "much"}"#,
            r#"{"memory": 1}"#,
            r#"{"durability": "lax"}"#,
        ] {
            assert!(serde_json::from_str::<BaySet>(odd).is_err(), "{odd}");
        }
    }
}
