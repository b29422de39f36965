//! The GPUs of this machine.

use anyhow::{Result, ensure};
use warpline_cuda_sys_safe::real;

/// Their names, as many as the driver shows, at least one.
pub(super) fn find() -> Result<Vec<String>> {
    let driver = real::load()?;
    let count = driver.device_count();
    ensure!(count > 0, "the driver shows no device");
    let mut names = Vec::new();
    for index in 0..count {
        let properties = driver.properties(index)?;
        let (major, minor) = properties.compute_capability;
        names.push(format!("{}, compute capability {major}.{minor}", properties.name));
    }
    Ok(names)
}

/// What `CUDA_VISIBLE_DEVICES` must say to show the first `count` of what it shows now.
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
