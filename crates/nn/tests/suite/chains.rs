//! Chains of modules and of schedulers, of any length, are dropped without recursion.

use std::any::Any;

use warpline::{Result, Tensor, ones};
use warpline_nn::optim::{LambdaLR, SGD, Scheduler, SequentialLR, StepLR};
use warpline_nn::{Hooked, Layer, ReLU, Sequential};

/// Makes the end of a chain.
type Start = fn() -> Result<Box<dyn Any>>;
/// Makes a value that owns the former one.
type Link = fn(Box<dyn Any>) -> Result<Box<dyn Any>>;

fn owned<T: 'static>(former: Box<dyn Any>) -> T {
    *former.downcast().expect("the same kind")
}

/// Modules and schedulers that own modules and schedulers of their kind.
const CHAINS: &[(&str, Start, Link)] = &[
    (
        "sequences",
        || Ok(Box::new(Sequential::new())),
        |former| Ok(Box::new(Sequential::new().with(ReLU).with(owned::<Sequential>(former)))),
    ),
    (
        "boxed layers with hooks",
        || Ok(Box::new(Box::new(ReLU) as Box<dyn Layer>)),
        |former| {
            let hooked = Hooked::new(owned::<Box<dyn Layer>>(former));
            Ok(Box::new(Box::new(hooked) as Box<dyn Layer>))
        },
    ),
    (
        "modules in forward hooks",
        || Ok(Box::new(Hooked::<_, Tensor>::new(ReLU))),
        |former| {
            let (hooked, former) = (Hooked::new(ReLU), owned::<Hooked<ReLU>>(former));
            hooked.register_forward_hook(move |_, _, _| Ok(Some(former.forward(ones([1], ())?)?)));
            Ok(Box::new(hooked))
        },
    ),
    (
        "modules in forward pre-hooks",
        || Ok(Box::new(Hooked::<_, Tensor>::new(ReLU))),
        |former| {
            let (hooked, former) = (Hooked::new(ReLU), owned::<Hooked<ReLU>>(former));
            hooked.register_forward_pre_hook(move |_, _| Ok(Some(former.forward(ones([1], ())?)?)));
            Ok(Box::new(hooked))
        },
    ),
    (
        "modules in backward hooks",
        || Ok(Box::new(Hooked::<_, Tensor>::new(ReLU))),
        |former| {
            let (hooked, former) = (Hooked::new(ReLU), owned::<Hooked<ReLU>>(former));
            hooked.register_full_backward_hook(move |_, _| {
                former.forward(ones([1], ())?)?;
                Ok(None)
            });
            Ok(Box::new(hooked))
        },
    ),
    (
        "schedulers of functions",
        || Ok(Box::new(LambdaLR::new(&mut sgd()?, |_| 1.0, ())?)),
        |former| {
            let former = owned::<LambdaLR>(former);
            Ok(Box::new(LambdaLR::new(&mut sgd()?, move |_| former.last_lr()[0], ())?))
        },
    ),
    (
        "sequences of schedulers",
        || {
            let mut sgd = sgd()?;
            let first = Box::new(StepLR::new(&mut sgd, 1, ())?);
            Ok(Box::new(SequentialLR::new(&mut sgd, vec![first], &[])?))
        },
        |former| {
            let mut sgd = sgd()?;
            let first = Box::new(StepLR::new(&mut sgd, 1, ())?);
            let former = Box::new(owned::<SequentialLR>(former));
            Ok(Box::new(SequentialLR::new(&mut sgd, vec![first, former], &[10])?))
        },
    ),
];

fn sgd() -> Result<SGD> {
    SGD::new(vec![ones([1], ())?.requires_grad_(true)?.clone()], ())
}

#[test]
fn chains_of_modules_and_schedulers_are_dropped_without_recursion() {
    for &(kind, start, link) in CHAINS {
        // A drop that recursed would need more than this stack.
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let chain = small.spawn(move || -> Result<()> {
            let mut end = start()?;
            for _ in 0..8_000 {
                end = link(end)?;
            }
            drop(end);
            Ok(())
        });
        chain.expect("a thread").join().expect("no overflow").expect(kind);
    }
}
