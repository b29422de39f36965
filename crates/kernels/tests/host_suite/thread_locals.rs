//! Tests of CPU ops in a thread that destroys its thread-locals.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};

use warpline_cuda_sys_safe::DriverError;
use warpline_kernels::fill::fill;
use warpline_kernels::matmul::matmul;
use warpline_runtime::launch::read_bytes;
use warpline_runtime::{DType, Layout, Runtime, RuntimeConfig, Scalar, Storage, Target, View};

const N: usize = 64;

/// Checks the product of two matrices.
fn product() {
    let reason = DriverError::NoDevice { reason: "this test runs on the CPU".into() };
    let runtime = Runtime::without_cuda(reason, &RuntimeConfig::default());
    let target = Target::Cpu(&runtime);
    let layout = Layout::contiguous(&[N, N]).unwrap();
    let [a, b] = [(); 2].map(|()| Storage::pageable(&runtime, N * N * 4).unwrap());
    let [a, b] = [&a, &b].map(|storage| View { storage, layout: &layout, dtype: DType::F32 });
    fill(target, a, Scalar::Float(1.0)).unwrap();
    matmul(target, a, a, b).unwrap();
    let mut first = [0; 4];
    read_bytes((b.storage, 0), &mut first).unwrap();
    assert_eq!(f32::from_ne_bytes(first), N as f32);
}

static WORKED: AtomicBool = AtomicBool::new(false);

/// Multiplies matrices when it is destroyed.
struct Multiplies;

impl Drop for Multiplies {
    fn drop(&mut self) {
        // A panic in the destructor of a thread-local would abort the process.
        WORKED.store(catch_unwind(product).is_ok(), Ordering::Relaxed);
    }
}

thread_local! {
    static LAST: Multiplies = const { Multiplies };
}

#[test]
fn a_product_works_in_the_destructor_of_a_thread_local() {
    let thread = std::thread::spawn(|| {
        // Thread-locals are destroyed in reverse order, so those of the product are destroyed before this one.
        LAST.with(|_| ());
        product();
    });
    thread.join().unwrap();
    assert!(WORKED.load(Ordering::Relaxed));
}
