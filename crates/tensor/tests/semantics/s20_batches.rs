//! Tests of row S20: batches of a loader move to a device with `.to(cuda0)`.

use warpline::data::{DataLoader, TensorDataset};
use warpline::{DType, Device, Result, arange};

use crate::common::World;

crate::rows! {
    schedules(1) s20_batches_move_to_the_device gpu_s20_batches_move_to_the_device => batches;
}

fn batches(world: &World) -> Result<()> {
    let device = Device::cuda(world.devices - 1);
    let inputs = arange(30, DType::F32)?.reshape([10, 3])?;
    let targets = arange(10, ())?;
    for (workers, pinned) in [(0, false), (0, true), (2, true)] {
        let data = TensorDataset::new(inputs.clone(), targets.clone())?;
        let loader = DataLoader::new(data).batch_size(4)?.num_workers(workers).pin_memory(pinned);
        let (mut sum, mut seen) = (0.0, Vec::new());
        for batch in loader.iter()? {
            let (input, target) = batch?;
            assert_eq!((input.is_pinned(), target.is_pinned()), (pinned, pinned));
            let input = input.to_non_blocking(device)?;
            let target = target.to(device)?;
            assert_eq!((input.device(), target.device()), (device, device));
            assert_eq!(input.size()[0], target.size()[0]);
            sum += (&input * 2.0)?.sum(())?.item::<f32>()?;
            seen.extend(target.to_vec::<i64>()?);
        }
        assert_eq!(sum, 2.0 * 435.0);
        assert_eq!(seen, (0..10).collect::<Vec<i64>>());
    }
    Ok(())
}
