//! The policies a trace can be replayed under.

use clap::ValueEnum;
use serde::Serialize;
use warpline_alloc::{AllocatorConfig, ConfigError};

/// How the allocator gets and reuses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// PyTorch's rules.
    Torch,
    /// PyTorch's rules with expandable segments.
    TorchExpandable,
    /// This crate's own.
    Default,
}

impl Policy {
    /// The allocator's options for it.
    ///
    /// # Errors
    /// The policy is not one that the allocator has.
    pub fn config(self) -> Result<AllocatorConfig, ConfigError> {
        self.config_with("")
    }

    /// The same, and further options.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn config_with(self, options: &str) -> Result<AllocatorConfig, ConfigError> {
        let policy = match self {
            Self::Torch => "policy:torch",
            Self::TorchExpandable => "policy:torch,expandable_segments:True",
            Self::Default => "policy:default",
        };
        AllocatorConfig::parse(&format!("{policy},{options}"))
    }
}
