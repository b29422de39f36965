//! Tests of learning-rate schedules.

use warpline::{Result, full};
use warpline_nn::optim::{
    Anneal, ConstantLR, ConstantLROptions, CosineAnnealingLR, CosineAnnealingWarmRestarts,
    CosineAnnealingWarmRestartsOptions, ExponentialLR, LinearLR, LinearLROptions, MultiStepLR,
    OneCycleLR, OneCycleLROptions, Optimizer, OptimizerState, PlateauMode, ReduceLROnPlateau,
    ReduceLROnPlateauOptions, SGD, SGDOptions, Scheduler, SchedulerState, SequentialLR, StepLR,
    ThresholdMode,
};

use super::close;

fn sgd_of(lr: f64) -> Result<SGD> {
    let weight = full([1], 0.0, ())?.requires_grad_(true)?;
    SGD::new(vec![weight], SGDOptions::new().lr(lr).momentum(0.9))
}

/// Returns the learning rates of epochs 0 to `epochs`. Checks that a run restored halfway has the same rates.
fn rates(
    lr: f64,
    epochs: usize,
    make: impl Fn(&mut SGD) -> Result<Box<dyn Scheduler>>,
) -> Result<Vec<f64>> {
    let mut sgd = sgd_of(lr)?;
    let mut scheduler = make(&mut sgd)?;
    let mut all = vec![sgd.lr(0)];
    let mut saved: Option<(SchedulerState, OptimizerState)> = None;
    for epoch in 0..epochs {
        scheduler.step(&mut sgd)?;
        assert_eq!(scheduler.last_lr(), [sgd.lr(0)]);
        all.push(sgd.lr(0));
        if epoch == epochs / 2 {
            saved = Some((scheduler.state_dict(), sgd.state_dict()?));
        }
    }
    // Continue from the middle with a new optimizer and scheduler.
    let (state, of_sgd) = saved.expect("a middle");
    let mut sgd = sgd_of(lr)?;
    let mut scheduler = make(&mut sgd)?;
    sgd.load_state_dict(&of_sgd)?;
    scheduler.load_state_dict(&SchedulerState::from_tensors(&state.to_tensors()?)?)?;
    for epoch in epochs / 2 + 1..epochs {
        scheduler.step(&mut sgd)?;
        assert_eq!(sgd.lr(0), all[epoch + 1], "epoch {epoch}");
    }
    Ok(all)
}

macro_rules! boxed {
    ($scheduler:ident($($argument:expr),*)) => {
        |sgd: &mut SGD| Ok(Box::new($scheduler::new(sgd, $($argument),*)?) as Box<dyn Scheduler>)
    };
}

#[test]
fn schedules_have_pytorchs_values() {
    let check = |expected: &[f64], values: Result<Vec<f64>>| close(&values.unwrap(), expected);
    check(&[1.0, 1.0, 0.1, 0.1, 0.01, 0.01], rates(1.0, 5, boxed!(StepLR(2, 0.1))));
    check(&[1.0, 0.5, 0.5, 0.125, 0.125], rates(1.0, 4, boxed!(MultiStepLR(&[1, 3, 3], 0.5))));
    check(&[1.0, 0.5, 0.25, 0.125], rates(1.0, 3, boxed!(ExponentialLR(0.5))));
    check(
        &[0.5, 0.5, 1.0, 1.0],
        rates(1.0, 3, boxed!(ConstantLR(ConstantLROptions::new().factor(0.5).total_iters(2)))),
    );
    check(
        &[0.5, 0.625, 0.75, 0.875, 1.0, 1.0],
        rates(1.0, 5, boxed!(LinearLR(LinearLROptions::new().start_factor(0.5).total_iters(4)))),
    );
    let cosine = |i: f64| 0.1 + 0.45 * (1.0 + (std::f64::consts::PI * i / 4.0).cos());
    // After the minimum, the rate rises again.
    let expected: Vec<f64> = (0..10).map(|i| cosine(f64::from(i))).collect();
    check(&expected, rates(1.0, 9, boxed!(CosineAnnealingLR(4, 0.1))));
    let expected = [0.0, 1.0, 2.0, 3.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 0.0].map(cosine);
    let restarts = CosineAnnealingWarmRestartsOptions::new().t_mult(2).eta_min(0.1);
    check(&expected, rates(1.0, 12, boxed!(CosineAnnealingWarmRestarts(4, restarts))));
    check(
        &[0.25, 0.5, 1.0, 1.0, 0.5, 0.25],
        rates(1.0, 5, |sgd| {
            let warm = Box::new(LinearLR::new(
                sgd,
                LinearLROptions::new().start_factor(0.25).total_iters(3),
            )?);
            let down = Box::new(ExponentialLR::new(sgd, 0.5)?);
            let all = SequentialLR::new(sgd, vec![warm, down], &[3])?;
            Ok(Box::new(all) as Box<dyn Scheduler>)
        })
        .map(|mut rates| {
            // The linear schedule gives 1/4, 1/2 and 3/4. The exponential schedule starts at the initial rate.
            close(&rates[..3], &[0.25, 0.5, 0.75]);
            rates[2] = 1.0;
            rates
        }),
    );
}

#[test]
fn one_cycle_goes_up_and_down_and_momentum_the_other_way() {
    let mut sgd = sgd_of(1.0).unwrap();
    let options = OneCycleLROptions::new()
        .pct_start(0.4)
        .anneal_strategy(Anneal::Linear)
        .div_factor(10.0)
        .final_div_factor(100.0);
    let mut scheduler = OneCycleLR::new(&mut sgd, 1.0, 10, options).unwrap();
    let mut all = vec![(sgd.lr(0), sgd.setting(0, "momentum").unwrap())];
    for _ in 1..10 {
        scheduler.step(&mut sgd).unwrap();
        all.push((sgd.lr(0), sgd.setting(0, "momentum").unwrap()));
    }
    let (rates, momenta): (Vec<f64>, Vec<f64>) = all.into_iter().unzip();
    let up = |i: f64| 0.1 + 0.9 * i / 3.0;
    let down = |i: f64| 1.0 + (0.001 - 1.0) * i / 6.0;
    let expected: Vec<f64> = (0..4).map(|i| up(f64::from(i))).collect();
    close(&rates[..4], &expected);
    let expected: Vec<f64> = (0..7).map(|i| down(f64::from(i))).collect();
    close(&rates[3..], &expected);
    close(&[momenta[0], momenta[3], momenta[9]], &[0.95, 0.85, 0.95]);
    scheduler.step(&mut sgd).unwrap();
    let error = scheduler.step(&mut sgd).expect_err("beyond the end").to_string();
    assert!(error.contains("step 11 is beyond the 10 steps"), "{error}");
}

#[test]
fn rates_go_down_on_a_plateau() {
    let mut sgd = sgd_of(1.0).unwrap();
    let options = ReduceLROnPlateauOptions::new().patience(1).cooldown(1).factor(0.5);
    let mut scheduler = ReduceLROnPlateau::new(&sgd, options).unwrap();
    let mut all = Vec::new();
    for loss in [1.0, 0.5, 0.5, 0.6, 0.7, 0.7, 0.7, 0.1] {
        scheduler.step(&mut sgd, loss).unwrap();
        all.push(sgd.lr(0));
    }
    assert_eq!(all, [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]);
}

#[test]
fn a_plateau_is_measured_by_mode_and_threshold() {
    let lowered = |options: ReduceLROnPlateauOptions, metrics: [f64; 2]| {
        let mut sgd = sgd_of(1.0).unwrap();
        let mut scheduler = ReduceLROnPlateau::new(&sgd, options.patience(0)).unwrap();
        for metric in metrics {
            scheduler.step(&mut sgd, metric).unwrap();
        }
        sgd.lr(0) < 1.0
    };
    let options = ReduceLROnPlateauOptions::new();
    let higher = options.mode(PlateauMode::Max);
    assert!(!lowered(higher, [1.0, 2.0]) && lowered(higher, [2.0, 1.0]));
    // 10 to 8 is an improvement by 2, or by a fifth.
    for (mode, worth, too_little) in
        [(ThresholdMode::Absolute, 1.0, 3.0), (ThresholdMode::Relative, 0.1, 0.3)]
    {
        let options = options.threshold_mode(mode);
        assert!(!lowered(options.threshold(worth), [10.0, 8.0]));
        assert!(lowered(options.threshold(too_little), [10.0, 8.0]));
    }
}

/// The rates of PyTorch's constructors without optional arguments.
#[test]
fn schedules_without_options_have_pytorchs_defaults() {
    let check = |expected: &[f64], rates: Result<Vec<f64>>| close(&rates.expect("rates"), expected);
    let third = 1.0 / 3.0;
    check(&[1.0, 1.0, 0.1], rates(1.0, 2, boxed!(StepLR(2, ()))));
    check(&[1.0, 0.1], rates(1.0, 1, boxed!(MultiStepLR(&[1], ()))));
    let constant = [third, third, third, third, third, 1.0];
    check(&constant, rates(1.0, 5, boxed!(ConstantLR(()))));
    let linear: Vec<f64> = (0..6).map(|i| third + 2.0 * third * f64::from(i) / 5.0).collect();
    check(&linear, rates(1.0, 5, boxed!(LinearLR(()))));
    check(&[1.0, 0.5, 0.0], rates(1.0, 2, boxed!(CosineAnnealingLR(2, ()))));
    check(&[1.0, 0.5, 1.0, 0.5, 1.0], rates(1.0, 4, boxed!(CosineAnnealingWarmRestarts(2, ()))));
}

#[test]
fn a_cycle_that_begins_at_the_top_has_rates() -> Result<()> {
    // The first phase has 0.1 × 10 − 1 = 0 steps.
    let options = OneCycleLROptions::new().pct_start(0.1).anneal_strategy(Anneal::Linear);
    let rates = rates(0.1, 9, |sgd| Ok(Box::new(OneCycleLR::new(sgd, 0.1, 10, options)?)))?;
    close(&rates[..1], &[0.1]);
    assert!(rates.windows(2).all(|pair| pair[1] < pair[0]), "{rates:?}");
    Ok(())
}

#[test]
fn an_optimizers_error_names_the_line_that_called() {
    let none = SGD::new(Vec::<warpline::Tensor>::new(), ()).unwrap_err().to_string();
    let mut sgd = sgd_of(0.1).unwrap();
    let state = OptimizerState::default();
    let other = sgd.load_state_dict(&state).unwrap_err().to_string();
    for text in [none, other] {
        assert!(text.contains("schedules.rs"), "{text}");
    }
}
