//! Sizes and numbers at the edge of what fits, on the CPU and on a simulated GPU.

use warpline::data::{DataLoader, Dataset};
use warpline::{
    DType, Error, Result, arange, cat, full, ones, simulated, tensor, with_runtime, zeros,
};

fn everywhere(test: impl Fn(&str) -> Result<()>) -> Result<()> {
    with_runtime(&simulated(1)?, || {
        test("cpu")?;
        test("cuda")
    })
}

#[test]
fn no_elements_of_a_size_that_does_not_fit() -> Result<()> {
    everywhere(|at| {
        let huge = 1 << 40;
        for sizes in [[huge, huge, 0], [0, huge, huge], [huge, 0, huge]] {
            assert!(matches!(zeros(&sizes, at), Err(Error::SizeOverflow { .. })), "{sizes:?}");
        }
        let none = zeros(&[0], at)?;
        assert!(none.reshape(&[isize::MAX, isize::MAX, 0]).is_err());
        let wide = zeros(&[1, 0], at)?.expand(&[1 << 62, 0])?;
        assert!(matches!(cat(&[&wide, &wide, &wide, &wide], 0), Err(Error::SizeOverflow { .. })));
        let one = ones(&[1], at)?.expand(&[isize::MAX])?;
        assert!(matches!(cat(&[&one, &one, &one], 0), Err(Error::SizeOverflow { .. })));
        assert!(none.chunk(1 << 62, 0).is_err());
        let (a, b) = (zeros(&[1 << 40, 1, 1, 0], at)?, zeros(&[1, 1 << 40, 0, 1], at)?);
        assert!(matches!(a.matmul(&b), Err(Error::SizeOverflow { .. })));
        Ok(())
    })
}

#[test]
fn a_slice_beyond_the_end() -> Result<()> {
    everywhere(|at| {
        let t = arange(6, at)?.reshape(&[2, 3])?;
        assert!(t.slice(0, usize::MAX - 1, usize::MAX, 1).is_err());
        assert_eq!(t.slice(0, 0, 2, usize::MAX / 2)?.to_vec::<i64>()?, [0, 1, 2]);
        Ok(())
    })
}

#[test]
fn a_fill_that_the_dtype_cannot_hold() -> Result<()> {
    everywhere(|at| {
        assert!(full(&[1], 1_000_000, (DType::F16, at)).is_err());
        assert!(full(&[1], -9.25e18, (DType::I64, at)).is_err());
        assert!(full(&[1], 65504, (DType::F16, at)).is_ok());
        let least = full(&[1], i64::MIN as f64, (DType::I64, at))?;
        assert_eq!(least.item::<i64>()?, i64::MIN);
        Ok(())
    })
}

#[test]
fn a_cpu_scalar_beside_a_gpu_tensor() -> Result<()> {
    everywhere(|at| {
        let bytes = tensor([1u8], at)?;
        assert_eq!(bytes.add(&tensor(300i64, "cpu")?)?.to_vec::<u8>()?, [45]);
        Ok(())
    })?;
    with_runtime(&simulated(1)?, || {
        let (host, gpu) = (ones(&[], "cpu")?, ones(&[], "cuda")?);
        assert!(matches!(host.add_(&gpu), Err(Error::DeviceMismatch { .. })));
        assert_eq!(gpu.add_(&host)?.item::<f32>()?, 2.0);
        assert_eq!(host.item::<f32>()?, 1.0);
        Ok(())
    })
}

struct Count(usize);

impl Dataset for Count {
    type Sample = i64;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<i64> {
        Ok(index as i64)
    }
}

#[test]
fn a_loader_with_the_largest_numbers() -> Result<()> {
    for len in [isize::MAX as usize, usize::MAX] {
        let loader = DataLoader::new(Count(len)).batch_size(2)?;
        let batches: Vec<_> = loader.iter()?.take(2).collect::<Result<_>>()?;
        assert_eq!(batches[1].to_vec::<i64>()?, [2, 3]);
    }
    let loader = DataLoader::new(Count(10)).batch_size(4)?.num_workers(2);
    assert_eq!(loader.prefetch_factor(usize::MAX).iter()?.count(), 3);
    Ok(())
}
