//! Tests of rows S19 and S21: availability and visibility of devices.

use warpline::{Device, Result, SimulatedOptions, cuda, ones, simulated, with_runtime};

use crate::common::{self, World};

rows! {
    worlds(1) s19_devices_are_available gpu_s19_devices_are_available => available;
}

/// A program that runs with and without CUDA.
fn program() -> Result<(Device, f32)> {
    let device = if cuda::is_available()? { Device::Cuda(None) } else { Device::Cpu };
    let x = ones([4, 4], device)?;
    let y = x.matmul(&x)?;
    Ok((y.device(), y.sum(())?.item()?))
}

fn available(world: &World) -> Result<()> {
    assert!(cuda::is_available()?);
    assert_eq!(program()?, (Device::cuda(0), 64.0));
    assert!(!cuda::get_device_name(world.devices - 1)?.is_empty());
    assert!(cuda::get_device_capability(0)? >= (3, 0));
    Ok(())
}

#[test]
fn s19_the_same_program_without_cuda() {
    common::cpu(|_| {
        assert_eq!(program()?, (Device::Cpu, 64.0));
        Ok(())
    });
}

#[test]
fn s21_visible_devices_choose_and_order() {
    let uuids = |visible: Option<&str>| -> Vec<[u8; 16]> {
        let runtime = simulated(SimulatedOptions::new(3).visible(visible)).unwrap();
        with_runtime(&runtime, || {
            (0..cuda::device_count().unwrap())
                .map(|i| cuda::get_device_properties(i).unwrap().uuid)
                .collect()
        })
    };
    let all = uuids(None);
    assert_eq!(all.len(), 3);
    let pick = |indices: &[usize]| indices.iter().map(|&i| all[i]).collect::<Vec<_>>();
    for (text, expected) in [
        ("0,1,2", pick(&[0, 1, 2])),
        ("2,0", pick(&[2, 0])),
        ("1", pick(&[1])),
        ("", pick(&[])),
        ("-1", pick(&[])),
        // An invalid entry ends the list.
        ("0,-1,1", pick(&[0])),
        ("0,7,1", pick(&[0])),
        ("0,0", pick(&[])),
    ] {
        assert_eq!(uuids(Some(text)), expected, "CUDA_VISIBLE_DEVICES={text}");
    }
    let name = |uuid: [u8; 16]| {
        let hex: Vec<String> = uuid.iter().map(|b| format!("{b:02x}")).collect();
        let hex = hex.concat();
        format!(
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    };
    let text = format!("{},{}", name(all[2]), name(all[1]));
    assert_eq!(uuids(Some(&text)), pick(&[2, 1]), "CUDA_VISIBLE_DEVICES={text}");
}
