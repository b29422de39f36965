//! Tests of the ResNets of the example: names and sizes of torchvision, and training on each kind of device.

#[path = "../../examples/resnet/model.rs"]
mod model;

use model::ResNet;
use warpline::functional::cross_entropy;
use warpline::{Device, Result, arange, manual_seed, randn, simulated, with_runtime};
use warpline_nn::Module;
use warpline_nn::optim::{Optimizer, SGD, SGDOptions};

/// The numbers of parameters are those that torchvision states.
#[test]
fn resnets_have_torchvisions_names_and_sizes() -> Result<()> {
    for (depth, parameters, entries) in [
        (18, 11_689_512, 122),
        (34, 21_797_672, 218),
        (50, 25_557_032, 320),
        (101, 44_549_160, 626),
        (152, 60_192_808, 932),
    ] {
        let net = ResNet::new(depth, 1000)?;
        let count: usize = net.parameters().iter().map(|p| p.numel()).sum();
        let state = net.state_dict();
        assert_eq!((count, state.len()), (parameters, entries), "ResNet-{depth}");
        for name in [
            "conv1.weight",
            "bn1.running_var",
            "layer1.1.conv2.weight",
            "layer2.0.downsample.0.weight",
            "layer2.0.downsample.1.num_batches_tracked",
            "layer4.1.bn2.bias",
            "fc.bias",
        ] {
            assert!(state.get(name).is_some(), "ResNet-{depth} has no {name}");
        }
        assert_eq!(state.get("layer1.0.conv3.weight").is_some(), depth >= 50);
        // The first bottleneck has more output than input channels, so its shortcut needs a convolution.
        assert_eq!(state.get("layer1.0.downsample.0.weight").is_some(), depth >= 50);
    }
    let error = ResNet::new(20, 10).map(drop).unwrap_err().to_string();
    assert!(error.contains("20 layers"), "{error}");
    Ok(())
}

/// Returns the losses of a few steps on eight images, in a runtime whose generators no other test uses.
fn losses(device: Device, steps: usize) -> Result<Vec<f32>> {
    with_runtime(&simulated(1)?, || train(device, steps))
}

fn train(device: Device, steps: usize) -> Result<Vec<f32>> {
    manual_seed(7);
    let mut net = ResNet::new(18, 4)?;
    let images = randn([8, 3, 32, 32], ())?.to(device)?;
    let classes = arange(8i64, ())?.remainder(4)?.to(device)?;
    net.to(device)?;
    let mut sgd = SGD::new(net.parameters(), SGDOptions::new().lr(0.01).momentum(0.9))?;
    let step = |_| {
        sgd.zero_grad()?;
        let loss = cross_entropy(&net.forward(&images)?, &classes, ())?;
        loss.backward()?;
        sgd.step()?;
        loss.item::<f32>()
    };
    (0..steps).map(step).collect()
}

#[test]
fn a_resnet_learns_eight_images() -> Result<()> {
    let losses = losses(Device::Cpu, 10)?;
    assert!(losses[9] < 0.3 * losses[0], "{losses:?}");
    Ok(())
}

#[test]
fn a_resnet_has_the_same_losses_on_a_simulated_gpu() -> Result<()> {
    let here = losses(Device::Cpu, 2)?;
    let there = losses(Device::cuda(0), 2)?;
    for (a, b) in here.iter().zip(&there) {
        assert!((a - b).abs() < 1e-3 * a.abs(), "{here:?} {there:?}");
    }
    Ok(())
}
