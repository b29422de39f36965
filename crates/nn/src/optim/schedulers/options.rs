//! Options of schedulers. The defaults are PyTorch's.

use super::{Anneal, PlateauMode, ThresholdMode};

warpline::__options! {
    /// Options of [`StepLR`](super::StepLR). A number converts into options with that `gamma`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    StepLROptions [] [] {
        /// Sets the factor of a decay. Default: 0.1.
        gamma: f64 = 0.1, f64;
    }
}

warpline::__options! {
    /// Options of [`MultiStepLR`](super::MultiStepLR). A number converts into options with that `gamma`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    MultiStepLROptions [] [] {
        /// Sets the factor of a decay. Default: 0.1.
        gamma: f64 = 0.1, f64;
    }
}

warpline::__options! {
    /// Options of [`ConstantLR`](super::ConstantLR).
    #[derive(Clone, Copy, Debug, PartialEq)]
    ConstantLROptions [] [] {
        /// Sets the factor, from 0 to 1. Default: 1/3.
        factor: f64 = 1.0 / 3.0, f64;
        /// Sets the epoch from which the factor is 1. Default: 5.
        total_iters: u32 = 5, u32;
    }
}

warpline::__options! {
    /// Options of [`LinearLR`](super::LinearLR).
    #[derive(Clone, Copy, Debug, PartialEq)]
    LinearLROptions [] [] {
        /// Sets the factor of epoch 0. Must be above 0 and at most 1. Default: 1/3.
        start_factor: f64 = 1.0 / 3.0, f64;
        /// Sets the factor from epoch `total_iters` on, from 0 to 1. Default: 1.
        end_factor: f64 = 1.0, f64;
        /// Sets the number of epochs in which the factor changes. Default: 5.
        total_iters: u32 = 5, u32;
    }
}

warpline::__options! {
    /// Options of [`CosineAnnealingLR`](super::CosineAnnealingLR). A number converts into options with that `eta_min`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    CosineAnnealingLROptions [] [] {
        /// Sets the minimum of the learning rates. Default: 0.
        eta_min: f64 = 0.0, f64;
    }
}

warpline::__options! {
    /// Options of [`CosineAnnealingWarmRestarts`](super::CosineAnnealingWarmRestarts).
    #[derive(Clone, Copy, Debug, PartialEq)]
    CosineAnnealingWarmRestartsOptions [] [] {
        /// Sets the ratio of each cycle's length to the length of the previous cycle. Default: 1.
        t_mult: u32 = 1, u32;
        /// Sets the minimum of the learning rates. Default: 0.
        eta_min: f64 = 0.0, f64;
    }
}

warpline::__options! {
    /// Options of [`OneCycleLR`](super::OneCycleLR).
    #[derive(Clone, Copy, Debug, PartialEq)]
    OneCycleLROptions [] [] {
        /// Sets the fraction of the steps in which the learning rate rises, from 0 to 1. Default: 0.3.
        pct_start: f64 = 0.3, f64;
        /// Sets the curve between learning rates. Default: [`Anneal::Cos`].
        anneal_strategy: Anneal = Anneal::Cos, Anneal;
        /// Sets whether the momentum (the first beta of Adam) changes in the opposite direction of the learning rate.
        /// Default: `true`.
        cycle_momentum: bool = true, bool;
        /// Sets the lowest momentum. Default: 0.85.
        base_momentum: f64 = 0.85, f64;
        /// Sets the highest momentum. Default: 0.95.
        max_momentum: f64 = 0.95, f64;
        /// Sets the ratio of the highest to the initial learning rate. Default: 25.
        div_factor: f64 = 25.0, f64;
        /// Sets the ratio of the initial to the final learning rate. Default: 1e4.
        final_div_factor: f64 = 1e4, f64;
        /// Sets whether the decrease has two phases: to the initial learning rate, in as many steps as the increase
        /// takes, then to the final learning rate. Default: `false`, one phase.
        three_phase: bool = false, bool;
    }
}

warpline::__options! {
    /// Options of [`ReduceLROnPlateau`](super::ReduceLROnPlateau).
    #[derive(Clone, Copy, Debug, PartialEq)]
    ReduceLROnPlateauOptions [] [] {
        /// Sets which values of the metric are better. Default: [`PlateauMode::Min`].
        mode: PlateauMode = PlateauMode::Min, PlateauMode;
        /// Sets the factor by which a reduction multiplies the learning rates. Must be below 1. Default: 0.1.
        factor: f64 = 0.1, f64;
        /// Sets the number of epochs without improvement that are tolerated before a reduction. Default: 10.
        patience: u32 = 10, u32;
        /// Sets the smallest change that counts as an improvement. Default: 1e-4.
        threshold: f64 = 1e-4, f64;
        /// Sets how `threshold` is measured. Default: [`ThresholdMode::Relative`].
        threshold_mode: ThresholdMode = ThresholdMode::Relative, ThresholdMode;
        /// Sets the number of epochs after a reduction that do not count as epochs without improvement. Default: 0.
        cooldown: u32 = 0, u32;
        /// Sets the lowest learning rate. Default: 0.
        min_lr: f64 = 0.0, f64;
        /// Sets the smallest change of a learning rate; smaller reductions are skipped. Default: 1e-8.
        eps: f64 = 1e-8, f64;
    }
}

warpline::__options_from_number! {
    StepLROptions gamma;
    MultiStepLROptions gamma;
    CosineAnnealingLROptions eta_min;
}
