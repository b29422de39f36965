//! Memory formats, and the strides of results, which are PyTorch's.

use warpline::{DType, MemoryFormat, Result, Tensor, TensorOptions, arange, ones, zeros};

use crate::common::World;

crate::rows! {
    schedules(1) results_keep_the_order_of_their_operands gpu_results_keep_the_order_of_their_operands
        => results;
    schedules(2) copies_keep_the_order_of_dimensions gpu2_copies_keep_the_order_of_dimensions => copies;
}

fn matrix(device: &str) -> Result<Tensor> {
    arange(12, (DType::F32, device))?.reshape([3, 4])
}

fn results(_: &World) -> Result<()> {
    for device in ["cpu", "cuda"] {
        let x = matrix(device)?;
        let turned = x.transpose(0, 1)?;
        for y in [turned.add(1)?, turned.exp()?, (&turned + &turned)?, turned.lt(5)?] {
            assert_eq!((y.size(), y.stride()), (&[4, 3][..], &[1, 4][..]));
        }
        assert_eq!((&turned + 1)?.to_vec::<f32>()?, x.add(1)?.transpose(0, 1)?.to_vec::<f32>()?);
        // The result takes the order of dimensions from the first operand that has one. A row that
        // broadcasts over all rows has no order.
        let plain = turned.contiguous()?;
        assert_eq!((&turned + &plain)?.stride(), [1, 4]);
        assert_eq!((&plain + &turned)?.stride(), [3, 1]);
        let row = ones([3], (DType::F32, device))?;
        assert_eq!((&row + &turned)?.stride(), [1, 4]);
        // The order stays through a conversion of the dtype.
        let integers = turned.to(DType::I64)?;
        assert_eq!(integers.stride(), [1, 4]);
        assert_eq!(integers.sqrt()?.stride(), [1, 4]);
    }
    Ok(())
}

fn copies(_: &World) -> Result<()> {
    let last = TensorOptions::new().memory_format(MemoryFormat::ChannelsLast);
    for device in ["cpu", "cuda"] {
        let x = zeros([2, 3, 4, 5], last.clone().device(device))?;
        assert_eq!(x.stride(), [60, 1, 15, 3]);
        assert!(x.is_contiguous_in(MemoryFormat::ChannelsLast) && !x.is_contiguous());
        for y in [x.copy()?, x.empty_like(())?, x.ones_like(DType::F16)?, x.to(DType::F64)?] {
            assert_eq!(y.stride(), x.stride());
        }
        for to in ["cpu", "cuda", "cuda:1"] {
            let moved = x.to(to)?;
            assert_eq!(moved.stride(), x.stride(), "{device} to {to}");
        }
        let plain = x.empty_like(MemoryFormat::Contiguous)?;
        assert_eq!(plain.stride(), [60, 20, 5, 1]);
        let values = arange(120, (DType::F32, device))?.reshape([2, 3, 4, 5])?;
        let turned = values.to(MemoryFormat::ChannelsLast)?;
        assert_eq!(turned.stride(), x.stride());
        for to in ["cpu", "cuda", "cuda:1"] {
            assert_eq!(
                turned.to(to)?.to_vec::<f32>()?,
                values.to_vec::<f32>()?,
                "{device} to {to}"
            );
            let view = turned.narrow(1, 1, 2)?;
            assert_eq!(view.copy()?.to(to)?.stride(), [40, 1, 10, 2], "dense, in its order");
            assert_eq!(view.to(to)?.to_vec::<f32>()?, values.narrow(1, 1, 2)?.to_vec::<f32>()?);
        }
        assert!(turned.to(MemoryFormat::Contiguous)?.is_contiguous());
        assert!(turned.transpose(0, 1)?.contiguous()?.is_contiguous());
        assert!(values.contiguous_in(MemoryFormat::ChannelsLast3d).is_err(), "four dimensions");
    }
    Ok(())
}
