//! Opening a driver by its specification.

use std::sync::Arc;

use crate::sim::SimConfig;
use crate::{Driver, DriverError, Result, real};

/// Opens the driver that `spec` names, the value of `WARPLINE_DRIVER`:
/// - `None`, an empty text or `cuda`: the machine's driver ([`real::load`]).
/// - `sim`, `sim:3` and the like: simulated devices ([`SimConfig::from_spec`]).
///
/// `visible` takes the place of `CUDA_VISIBLE_DEVICES` for simulated devices. The machine's driver
/// ignores it and reads the environment variable.
///
/// ```
/// let driver = warpline_cuda_sys_safe::open(Some("sim:3"), Some("2,0"))?;
/// assert_eq!(driver.device_count(), 2);
/// # Ok::<(), warpline_cuda_sys_safe::DriverError>(())
/// ```
///
/// # Errors
/// - [`DriverError::InvalidArgument`] if `spec` is not empty, not `cuda`, and not accepted by
///   [`SimConfig::from_spec`].
/// - [`DriverError::NoneSimulated`] if `spec` asks for zero devices.
/// - [`DriverError::DevicesHidden`] if `visible` hides all simulated devices.
/// - Errors of [`real::load`] for the machine's driver.
pub fn open(spec: Option<&str>, visible: Option<&str>) -> Result<Arc<dyn Driver>> {
    open_simulated(spec, visible).unwrap_or_else(real::load)
}

/// Opens a simulated driver. Returns `None` if `spec` names the machine's driver.
fn open_simulated(spec: Option<&str>, visible: Option<&str>) -> Option<Result<Arc<dyn Driver>>> {
    let spec = spec.map_or("", str::trim);
    (!matches!(spec, "" | "cuda")).then(|| simulate(spec, visible))
}

fn simulate(spec: &str, visible: Option<&str>) -> Result<Arc<dyn Driver>> {
    let refused = |reason| DriverError::InvalidArgument { call: "open", reason };
    if spec != "sim" && !spec.starts_with("sim:") && !spec.starts_with("sim,") {
        return Err(refused(format!("`{spec}` is neither `cuda` nor `sim:N`, such as `sim:3`")));
    }
    let mut config = SimConfig::from_spec(spec).map_err(|error| refused(error.to_string()))?;
    config.visible = visible.map(str::to_owned);
    let installed = config.devices;
    let driver = config.build();
    match (driver.device_count(), installed, visible) {
        (0, 0, _) => Err(DriverError::NoneSimulated { spec: spec.into() }),
        (0, _, Some(value)) => {
            Err(DriverError::DevicesHidden { value: value.into(), installed: Some(installed) })
        }
        _ => Ok(driver),
    }
}

/// Returns the number of devices that [`open`] would show, without initialising CUDA: a child that
/// is forked afterwards can still use the devices. Asks NVML for the machine's devices. `visible` is
/// the value of `CUDA_VISIBLE_DEVICES`.
///
/// Returns `None` if only [`open`] can tell: without NVML, if `visible` begins with an instance of
/// a partitioned device (`MIG-…`), or if `spec` is invalid.
#[must_use]
pub fn count_devices(spec: Option<&str>, visible: Option<&str>) -> Option<usize> {
    match open_simulated(spec, visible) {
        None => real::count_devices(visible),
        Some(Ok(driver)) => Some(driver.device_count()),
        Some(Err(error)) => error.is_no_device().then_some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_sets_the_number_of_devices_and_visibility_reduces_it() {
        let count = |spec, visible| open(Some(spec), visible).map(|driver| driver.device_count());
        assert_eq!(count("sim", None).unwrap(), 1);
        assert_eq!(count(" sim:3,lazy ", None).unwrap(), 3);
        assert_eq!(count("sim:3", Some("1,7,0")).unwrap(), 1);
        assert_eq!(count("sim,seed=4", None).unwrap(), 1);
    }

    #[test]
    fn a_driver_without_a_visible_device_is_an_error_with_the_reason() {
        let reason = |spec, visible| open(Some(spec), visible).unwrap_err();
        let none = reason("sim:0", None);
        assert!(matches!(none, DriverError::NoneSimulated { .. }), "{none}");
        assert_eq!(none.to_string(), "no CUDA device is visible: `sim:0` asks for none");
        let hidden = reason("sim:3", Some("7")).to_string();
        assert!(hidden.contains("CUDA_VISIBLE_DEVICES is `7`"), "{hidden}");
        assert!(hidden.contains("none of the 3 devices"), "{hidden}");
        assert!(reason("sim:1", Some("")).is_no_device());
        assert!(!reason("vulkan", None).is_no_device());
    }

    #[test]
    fn a_spec_that_names_no_driver_is_refused() {
        for spec in ["simulated", "cpu", "sim:x", "sim:1,fast", "CUDA:0"] {
            let error = open(Some(spec), None).unwrap_err();
            assert!(matches!(error, DriverError::InvalidArgument { .. }), "{spec}: {error}");
            assert!(error.to_string().contains(spec), "{error}");
        }
    }

    #[test]
    fn devices_are_counted_as_open_shows_them() {
        let count = |spec, visible| count_devices(Some(spec), visible);
        assert_eq!((count("sim:3", None), count("sim:3", Some("2,0"))), (Some(3), Some(2)));
        assert_eq!((count("sim:0", None), count("sim:3", Some("-1"))), (Some(0), Some(0)));
        assert_eq!(count("simulated", None), None);
        assert_eq!(count("cuda", Some("MIG-1")), None);
    }
}
