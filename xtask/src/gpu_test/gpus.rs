//! The GPUs of this machine.

use anyhow::{Result, ensure};
use warpline_cuda_sys_safe::real;

/// Returns the names and compute capabilities of the visible GPUs.
///
/// # Errors
/// An error if the driver cannot be loaded or no GPU is visible.
pub(super) fn names() -> Result<Vec<String>> {
    let driver = real::load()?;
    let count = driver.device_count();
    ensure!(count > 0, "no GPU is visible to the driver");
    let mut names = Vec::new();
    for index in 0..count {
        let properties = driver.properties(index)?;
        let (major, minor) = properties.compute_capability;
        names.push(format!("{}, compute capability {major}.{minor}", properties.name));
    }
    Ok(names)
}

/// Returns the value of `CUDA_VISIBLE_DEVICES` that leaves only the first `count` GPUs visible. `visible` is the
/// current value.
pub(super) fn first(count: usize, visible: Option<&str>) -> String {
    match visible {
        Some(list) => list.split(',').take(count).map(str::trim).collect::<Vec<_>>().join(","),
        None => (0..count).map(|index| index.to_string()).collect::<Vec<_>>().join(","),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_gpus_are_the_first_visible_ones() {
        assert_eq!(first(2, None), "0,1");
        assert_eq!(first(1, Some("3, 1")), "3");
        assert_eq!(first(2, Some("3, 1,0")), "3,1");
    }
}
