//! Tests that every op accesses only the memory that it declares (its footprint). The simulator
//! also runs each kernel on poisoned copies of its operands, and reports undeclared accesses. This
//! check has its own tests elsewhere.

use warpline::{
    DType, Device, ErrorKind, Result, RuntimeConfig, Tensor, arange, cuda, embedding, empty, eye,
    full, linspace, rand, randint, randn, randperm,
};
use warpline_cuda_sys_safe::sim::{CallKind, Schedule, SimConfig};

use crate::boxes::SimBox;
use crate::goldens_suite;

/// Runs a program in which every kernel is checked. Asserts that there are at least `launches`
/// launches.
fn checked(launches: u64, program: impl FnOnce() -> Result<()>) {
    let config = SimConfig {
        schedule: Schedule::Eager,
        check_footprints: true,
        redzones: true,
        ..SimConfig::new(2)
    };
    let world = SimBox::new(config, &RuntimeConfig::default());
    world.enter(program);
    let violations = world.sim.violations();
    let shown: Vec<String> = violations.iter().take(20).map(ToString::to_string).collect();
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), shown.join("\n"));
    assert!(world.sim.overruns().is_empty(), "{:?}", world.sim.overruns());
    let launched = world.count(CallKind::Launch);
    assert!(launched >= launches, "only {launched} launches");
}

#[test]
fn goldens_keep_to_their_footprints() {
    checked(300, || {
        goldens_suite::run(Device::cuda(0));
        Ok(())
    });
}

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Returns views of a `[12, 10]` tensor, each with two dimensions. A kernel must not access
/// elements outside its view.
fn views(base: &Tensor) -> Result<Vec<Tensor>> {
    Ok(vec![
        base.clone(),
        base.t()?,
        base.narrow(0, 2, 7)?,
        base.narrow(1, 3, 5)?,
        base.narrow(1, 1, 6)?.t()?,
        base.slice(0, 1..12, 3)?,
        base.slice(1, ..10, 2)?.t()?,
        base.reshape([2, 6, 10])?.select(1, 4)?,
        base.reshape([3, 4, 10])?.permute([2, 0, 1])?.select(2, 3)?,
        base.narrow(0, 3, 1)?,
        base.narrow(0, 0, 0)?,
    ])
}

fn base(dtype: DType) -> Result<Tensor> {
    arange(120, (DType::I64, "cuda"))?.to(dtype)?.reshape([12, 10])
}

#[test]
fn views_keep_to_their_footprints() {
    checked(100, || {
        for dtype in FLOATS.into_iter().chain([DType::I8, DType::I64, DType::Bool]) {
            for a in views(&base(dtype)?)? {
                a.copy()?;
                a.to(DType::F32)?;
                a.eq(&a)?;
                a.add(1)?;
                a.add(&a)?;
                a.sum(())?;
                a.sum(0)?;
                a.sum_keepdim(1)?;
                if a.numel() > 0 {
                    a.amax(())?;
                    if dtype != DType::Bool {
                        a.argmax(None)?;
                    }
                }
                a.cpu()?;
                if dtype.is_float() {
                    a.exp()?;
                    a.gelu()?;
                    a.mean(-1)?;
                    a.softmax(1)?;
                    a.log_softmax(0)?;
                    a.matmul(&a.t()?)?;
                }
                let index = arange(9, (DType::I64, "cuda"))?.slice(0, 2..9, 3)?;
                for dim in [0, 1] {
                    a.index_select(dim, &index)?;
                    let columns = a.size()[1 - dim as usize].min(1) as isize;
                    a.gather(
                        dim,
                        &index.unsqueeze(1 - dim)?.expand(match dim {
                            0 => [3, columns],
                            _ => [columns, 3],
                        })?,
                    )?;
                }
                embedding(&a, &index)?;
                // In a narrow view the index is out of range, and nothing may be read.
                match cuda::synchronize(0) {
                    Err(error) if matches!(error.kind(), ErrorKind::IndexCheck { .. }) => {}
                    synchronized => synchronized?,
                }
                let row = a.narrow(0, 0, a.size()[0].min(1))?;
                if row.numel() > 0 {
                    a.mul(&row)?;
                    row.expand([4, -1])?.copy()?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn in_place_ops_keep_to_their_footprints() {
    checked(100, || {
        for dtype in FLOATS.into_iter().chain([DType::U8, DType::I32]) {
            for view in 0..views(&base(dtype)?)?.len() {
                let base = base(dtype)?;
                let a = &views(&base)?[view];
                a.add_(1)?;
                a.mul_(2)?;
                a.sub_(&a.copy()?)?;
                a.add_(a)?;
                a.fill_(3)?;
                a.zero_()?;
                a.copy_(&full(a.size(), 5, (dtype, "cuda"))?, ())?;
                a.copy_(&full(a.size(), 5, (DType::I64, "cpu"))?, ())?;
                a.random_(0, 100)?;
                a.bernoulli_(0.5)?;
                if dtype.is_float() {
                    a.div_(2)?;
                    a.normal_(())?;
                    a.uniform_((-1.0, 1.0))?;
                    a.exponential_(2.0)?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn factories_keep_to_their_footprints() {
    checked(30, || {
        let _on_1 = cuda::device(1)?;
        for size in [1, 5, 64, 1000] {
            for dtype in FLOATS {
                rand([size], (dtype, "cuda"))?;
                randn([size], (dtype, "cuda"))?;
                linspace(0.0, 1.0, size, (dtype, "cuda"))?;
                eye((size.min(70), size.min(30)), (dtype, "cuda"))?;
                arange(size as i64, (dtype, "cuda"))?;
                empty([size], (dtype, "cuda"))?.zero_()?;
            }
            randint(-5, 5, [size], "cuda")?;
            randperm(size, "cuda")?;
            arange(size.min(200) as i64, (DType::U8, "cuda"))?;
        }
        let (a, b) = (base(DType::F32)?, base(DType::F32)?);
        warpline::cat(&[&a, &b.narrow(0, 0, 3)?], 0)?;
        warpline::stack(&[&a.t()?, &b.t()?], 1)?;
        Ok(())
    });
}
