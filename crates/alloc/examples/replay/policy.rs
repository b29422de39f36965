//! The policies for a replay.

use clap::ValueEnum;
use serde::Serialize;
use warpline_alloc::{AllocatorConfig, ConfigError};

/// Policy of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// PyTorch's rules.
    Torch,
    /// PyTorch's rules with expandable segments.
    TorchExpandable,
    /// This crate's own rules.
    Default,
}

impl Policy {
    /// Returns the allocator's options for the policy.
    ///
    /// # Errors
    /// [`ConfigError`] if the allocator does not know the policy.
    pub fn config(self) -> Result<AllocatorConfig, ConfigError> {
        self.config_with("")
    }

    /// Returns the allocator's options for the policy, followed by further options.
    ///
    /// # Errors
    /// [`ConfigError`] if an option is unknown or its value is not valid for the option.
    pub fn config_with(self, options: &str) -> Result<AllocatorConfig, ConfigError> {
        let policy = match self {
            Self::Torch => "policy:torch",
            Self::TorchExpandable => "policy:torch,expandable_segments:True",
            Self::Default => "policy:default",
        };
        AllocatorConfig::parse(&format!("{policy},{options}"))
    }
}
