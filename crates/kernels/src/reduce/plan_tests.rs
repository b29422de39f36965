//! How the work of reductions is shared out.

use super::tests::result_sizes;
use super::*;
use warpline_runtime::iter::Walk;
use warpline_runtime::testing::{Tensor, on_every_target};

/// The plan of a sum of `f32` at an address that is a multiple of 4 bytes, and its kernel and grid on 132
/// multiprocessors.
fn planned(
    sizes: &[usize],
    strides: &[isize],
    dims: &[usize],
    at: u64,
) -> (Plan, Kernel, [u64; 3]) {
    let planned = std::cell::Cell::new(None);
    on_every_target(|target| {
        let Target::Cpu(_) = target else { return };
        let small = Tensor::garbage(target, DType::F32, &[1]);
        let layout = Layout::from_parts(sizes.into(), strides.into(), 0);
        let a = View { layout: &layout, ..small.view() };
        let layout = Layout::contiguous(&result_sizes(sizes, dims, false)).unwrap();
        let out = View { layout: &layout, ..small.view() };
        let mut plan = Plan::new("sum", a, dims, out, false).unwrap();
        let kernel = plan.kernel(at, 4);
        let grid = plan.share_out("sum", kernel, 4, 132).unwrap();
        planned.set(Some((plan, kernel, grid.map(u64::from))));
    });
    planned.into_inner().unwrap()
}

#[test]
fn each_layout_has_its_kernel() {
    let kernel = |sizes: &[usize], strides: &[isize], dims: &[usize], at| {
        planned(sizes, strides, dims, at).1
    };
    assert_eq!(kernel(&[64, 64], &[64, 1], &[1], 4), Kernel::Rows);
    assert_eq!(kernel(&[64, 64], &[64, 1], &[0], 16), Kernel::Columns);
    assert_eq!(kernel(&[64, 64], &[64, 1], &[0], 4), Kernel::Strided);
    assert_eq!(kernel(&[64, 62], &[64, 1], &[0], 16), Kernel::Strided);
    assert_eq!(kernel(&[64, 64], &[66, 1], &[0], 16), Kernel::Strided);
    assert_eq!(kernel(&[64, 64], &[64, 2], &[1], 16), Kernel::Strided);
    assert_eq!(kernel(&[8, 64, 64], &[4096, 64, 1], &[0, 2], 4), Kernel::Rows);
    assert_eq!(kernel(&[8, 64, 64], &[4096, 64, 1], &[1], 16), Kernel::Columns);
}

#[test]
fn the_work_is_shared_out_to_the_whole_gpu_and_none_is_left() {
    let cases: &[(&[usize], &[isize], &[usize])] = &[
        (&[1 << 20], &[1], &[0]),
        (&[1 << 28], &[1], &[0]),
        (&[1 << 20], &[2], &[0]),
        (&[1 << 16, 64], &[64, 1], &[0]),
        (&[1 << 16, 63], &[63, 1], &[0]),
        (&[100, 1 << 17], &[1 << 17, 1], &[1]),
        (&[1 << 19, 3], &[4, 1], &[0, 1]),
        (&[64, 256, 56, 56], &[256 * 3136, 3136, 56, 1], &[0, 2, 3]),
    ];
    for (sizes, strides, dims) in cases {
        let (plan, kernel, [x, y, z]) = planned(sizes, strides, dims, 0);
        assert!(x * y * z >= 120, "{sizes:?} over {dims:?}: {x} x {y} x {z} blocks of {kernel:?}");
        let (run, segments) = (u64::from(plan.run), u64::from(plan.segments));
        assert_eq!(run * (segments - 1) + u64::from(plan.last_run), plan.extent);
        let chunk = u64::from(plan.segment_chunk);
        assert!(z * chunk >= segments && (z - 1) * chunk < segments);
        assert!((y - 1) * u64::from(plan.across) < run);
        assert!(plan.lanes.is_power_of_two() && plan.across.is_power_of_two());
        assert!(plan.across <= plan.lanes && plan.lanes <= kernel.block());
    }
}

#[test]
fn a_grid_holds_a_block_for_every_result() {
    let (plan, kernel, _) = planned(&[2, 255], &[255, 2], &[1], 0);
    for outputs in [2, 1 << 20, (1 << 31) - 1] {
        let mut plan = Plan { outputs, ..plan };
        let [x, ..] = plan.share_out("any", kernel, 4, 132).unwrap();
        assert!(i32::try_from(x).is_ok(), "{x} blocks");
        let outs = kernel.block() / plan.lanes;
        assert!(u64::from(x) * u64::from(outs) >= outputs);
    }
}

#[test]
fn what_32_bits_do_not_count_is_cut_or_refused() {
    let (mut plan, kernel, [_, y, z]) = planned(&[(5 << 30) + 3], &[1], &[0], 0);
    assert_eq!((plan.run, plan.segments, plan.last_run), (1 << 30, 6, 3));
    assert_eq!((plan.segment_stride, z, kernel), (1 << 30, 6, Kernel::Rows));
    assert!(y > 80, "{y} blocks");
    plan.extent = 1 << 47;
    let refused = |plan: &mut Plan| plan.share_out("sum", kernel, 4, 132).unwrap_err().to_string();
    assert!(refused(&mut plan).contains("140737488355328 elements"));
    plan.reduced = Walk::new("sum", [(1 << 31, [1]), (2, [1 << 40])]).unwrap();
    assert!(refused(&mut plan).contains("elements"));
}
