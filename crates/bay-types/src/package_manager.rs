//! How software is installed in a bay.

use serde::{Deserialize, Serialize};

use crate::text_enum::text_enum;

/// A program that installs packages in a bay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PackageManager {
    Apt,
    Apk,
}

text_enum!(PackageManager { Apt = "apt", Apk = "apk" });
