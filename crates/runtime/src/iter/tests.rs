//! Tests of the launches that an op makes.

use std::sync::Arc;

use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::smallvec;
use warpline_cuda_sys_safe::HostLaunch;
use warpline_cuda_sys_safe::null::NullDriver;

use super::*;
use crate::host::HostElement;
use crate::testing::{self, KERNELS, SINGLE, Tensor, small_sim};
use crate::{DType, ErrorKind, ResultExt as _, Runtime, RuntimeConfig, Site, Storage, Target};

static LAUNCHES: AtomicUsize = AtomicUsize::new(0);

struct Count;

// SAFETY: touches no memory.
unsafe impl HostLoop<u32, 1> for Count {
    const VARIANT: &'static str = "fill";

    unsafe fn strided(_: &HostLaunch<'_>, _: &Index<1>, _: &u32) {
        LAUNCHES.fetch_add(1, Ordering::Relaxed);
    }
}

/// If offsets exceed 32 bits, only the dimension with the far stride is cut, so that there are few
/// launches.
#[test]
fn far_strides_are_cut_into_few_launches() {
    let runtime = Runtime::new(small_sim(1).build(), RuntimeConfig::default()).unwrap();
    let device = runtime.device(0).unwrap();
    let stream = device.device().stream_from_pool(0).unwrap();
    let n = 1usize << 20;
    let bytes = (1 << 32) + n;
    let host = Storage::pageable(&runtime, bytes).unwrap();
    let memory = Storage::device(&runtime, bytes, &stream).unwrap();
    let targets =
        [(Target::Cpu(&runtime), &host), (Target::Cuda(&runtime, device, &stream), &memory)];
    static COUNT: Kernels<u32, 1> = Kernels::new(by_dtype!(all T => {
        // SAFETY: the loop touches nothing, and no GPU runs the kernel.
        Some(unsafe { Variant::new::<Count>(&KERNELS, [T::DTYPE], SINGLE) })
    }));
    for (target, storage) in targets {
        for (sizes, strides, launches) in [
            ([2usize, n], [1isize << 30, 1], 1),
            ([2, n], [1 << 31, 1], 2),
            ([n, 2], [1, 1 << 31], 2),
            ([3, n], [1 << 31, 1], 3),
            ([2, 1 << 30], [1 << 31, 2], 2),
            ([2, 1 << 31], [1 << 31, 1], 4),
        ] {
            let layout =
                Layout::from_parts(sizes.as_slice().into(), smallvec![strides[0], strides[1]], 0);
            LAUNCHES.store(0, Ordering::Relaxed);
            let view = View { storage, layout: &layout, dtype: DType::U8 };
            COUNT.launch(target, Site::here("fill_"), view.dtype, [view], 0).unwrap();
            stream.synchronize().unwrap();
            let counted = LAUNCHES.load(Ordering::Relaxed);
            assert_eq!(counted, launches, "{sizes:?} {strides:?} {target:?}");
        }
    }
}

#[test]
fn a_launch_is_enqueued_on_its_stream_and_rejects_host_memory() {
    let driver = Arc::new(NullDriver::new(1));
    let runtime = Runtime::new(driver, RuntimeConfig::default()).unwrap();
    let device = runtime.device(0).unwrap();
    let stream = device.device().stream_from_pool(0).unwrap();
    let target = Target::Cuda(&runtime, device, &stream);
    let a = Tensor::garbage(target, DType::F32, &[1000, 7]);
    let turned = a.with(|l| l.transpose(0, 1));
    let before = stream.last_op();
    let out = Tensor::garbage(target, DType::F32, &[7, 1000]);
    let copied = stream.last_op();
    testing::copy(target, turned.view(), out.view()).unwrap();
    assert!(before < copied && copied < stream.last_op());

    let host = Tensor::garbage(Target::Cpu(&runtime), DType::F32, &[1000, 7]);
    let error = testing::copy(target, host.view(), a.view());
    assert!(matches!(error.kind(), Some(ErrorKind::DeviceMismatch { .. })));
}

/// A view of another dtype would be read beyond its end, because the loop has the dtypes of its
/// variant.
#[test]
fn views_of_other_dtypes_than_the_variants_are_rejected() {
    let runtime = Runtime::new(small_sim(1).build(), RuntimeConfig::default()).unwrap();
    let target = Target::Cpu(&runtime);
    let [a, b] = [DType::F32, DType::U8].map(|dtype| Tensor::garbage(target, dtype, &[3]));
    let error = testing::copy(target, b.view(), a.view());
    assert!(matches!(error.kind(), Some(ErrorKind::DTypeMismatch { .. })), "{error:?}");
    static NONE: Kernels<u32, 1> = Kernels::new([None; DType::ALL.len()]);
    let error = NONE.launch(target, Site::here("fill_"), DType::F32, [a.view()], 0);
    assert!(matches!(error.kind(), Some(ErrorKind::UnsupportedDType { dtype: DType::F32 })));
}
