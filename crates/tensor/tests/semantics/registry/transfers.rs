//! Entries for copies, and for conversions of dtype and device.

use warpline::autograd::GradcheckOptions;
use warpline::cuda::is_available;
use warpline::{DType, Device, Result, Tensor};

use super::entry::{Entry, KEEP, every};
use super::sample::{each, x};

fn of(name: &'static str, call: fn(&Tensor) -> Result<Tensor>) -> Entry {
    Entry::new(name, KEEP, every, each(&[&[2, 3], &[], &[0, 3]]), move |x: &[Tensor]| call(&x[0]))
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = vec![
        of("Tensor::copy", |x| x.copy()),
        of("Tensor::cpu", |x| x.cpu()),
        of("Tensor::cpu_async", |x| x.cpu_async()?.wait()),
        of("Tensor::to", |x| x.to(Device::Cpu)).with("the CPU"),
        of("Tensor::type_as", |x| x.type_as(x)),
        of("Tensor::to_non_blocking", |x| x.to_non_blocking(Device::Cpu)),
        of("Tensor::cuda", |x| if x.is_cuda() { x.cuda() } else { x.copy() }),
        of(
            "Tensor::pin_memory",
            |x| if is_available()? { x.cpu()?.pin_memory() } else { x.copy() },
        ),
        of("Tensor::share_memory", |x| x.cpu()?.detach().share_memory())
            .constant("it is for leaves"),
    ];
    for dtype in DType::ALL {
        let call = move |x: &[Tensor]| x[0].to(dtype);
        // `eps` is large, because half-width floats represent only large differences.
        let options = GradcheckOptions { eps: 0.25, atol: 0.02, rtol: 0.0 };
        let entry =
            Entry::new("Tensor::to", KEEP, every, [vec![x(&[2, 3])]], call).with(dtype.name());
        entries.push(if dtype.is_float() {
            entry.differences(options)
        } else {
            entry.constant("the result is of integers or bools")
        });
    }
    entries
}
