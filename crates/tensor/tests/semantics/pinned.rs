//! Tests of row S26: page-locked memory.

use warpline::{DType, Device, ErrorKind, Result, ResultExt, TensorOptions, arange, ones};

use crate::common::World;

rows! {
    worlds(1) s26_pin_memory_returns_a_page_locked_copy gpu_s26_pin_memory_returns_a_page_locked_copy => pin;
}

fn pin(_: &World) -> Result<()> {
    let t = arange(100, ())?.reshape([10, 10])?;
    assert!(!t.is_pinned());
    let pinned = t.pin_memory()?;
    assert!(pinned.is_pinned() && pinned.device().is_cpu());
    assert_ne!(pinned.data_ptr(), t.data_ptr(), "a copy");
    assert_eq!(pinned.to_vec::<i64>()?, t.to_vec::<i64>()?);
    assert_eq!(pinned.pin_memory()?.data_ptr(), pinned.data_ptr(), "pinned already");
    assert!(pinned.t()?.narrow(0, 2, 3)?.is_pinned(), "views are, too");
    assert_eq!(t.t()?.pin_memory()?.to_vec::<i64>()?, t.t()?.to_vec::<i64>()?);
    // An op on a page-locked tensor runs on the CPU, and its result is in ordinary memory.
    let sum = (&pinned + 1)?;
    assert!(!sum.is_pinned());
    assert_eq!(sum.i((0, 0))?.item::<i64>()?, 1);
    let device = ones([2], "cuda")?;
    let error = device.pin_memory().expect_err("device memory");
    assert!(
        matches!(error.kind(), ErrorKind::CannotPin { device: Device::Cuda(Some(0)) }),
        "{error}"
    );
    assert!(!device.is_pinned());
    let options = TensorOptions::new().device("cuda").pin_memory(true);
    assert!(matches!(ones([2], options).kind(), Some(ErrorKind::CannotPin { .. })));
    let converted = TensorOptions::new().dtype(DType::F64).pin_memory(true);
    let half = t.to(converted)?;
    assert!(half.is_pinned() && half.dtype() == DType::F64);
    Ok(())
}
