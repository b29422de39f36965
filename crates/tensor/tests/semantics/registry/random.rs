//! Entries for random ops. As in PyTorch, the CPU and a GPU draw different numbers.

use warpline::functional::{DropoutOptions, dropout, dropout1d, dropout2d, dropout3d};
use warpline::{DType, Device, Result, Tensor, manual_seed, rand, randint, randn, randperm};

use super::entry::{Entry, KEEP, every, floats, numbers};
use super::in_place::on_copy;
use super::sample::{positive, x};

const CONSTANT: &str = "the result does not depend on elements";
const RANDOM: &str = "devices draw different numbers";

fn of(
    name: &'static str,
    takes: fn(DType) -> bool,
    call: fn(&Tensor, (DType, Device)) -> Result<Tensor>,
) -> Entry {
    let call = move |x: &[Tensor]| call(&x[0], (x[0].dtype(), x[0].device()));
    Entry::new(name, KEEP, takes, [vec![x(&[2, 3])]], call).constant(CONSTANT).differs(RANDOM)
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = vec![
        of("rand", floats, |_, at| rand([2, 3], at)),
        of("randn", floats, |_, at| randn([2, 3], at)),
        of("randint", every, |_, at| randint(0, 2, [2, 3], at)),
        of("randperm", numbers, |_, at| randperm(5, at)),
        of("Tensor::rand_like", floats, |x, _| x.rand_like(())),
        of("Tensor::randn_like", floats, |x, _| x.randn_like(())),
    ];
    entries.extend(in_place());
    entries.extend(dropouts());
    entries.push(
        Entry::new("Tensor::multinomial", KEEP, floats, [vec![positive(&[4])]], |x| {
            x[0].multinomial(3, true)
        })
        .constant("the results are indices")
        .differs(RANDOM),
    );
    entries
}

/// Returns entries of random fills in place. The gradient of an overwritten tensor is zero. Each
/// call sets the seed, so that finite differences compare the same numbers.
fn in_place() -> Vec<Entry> {
    let of = |name, takes: fn(DType) -> bool, call: fn(&Tensor) -> Result<&Tensor>| {
        let seeded = move |x: &[Tensor]| {
            manual_seed(7);
            on_copy(x, call)
        };
        Entry::new(name, KEEP, takes, [vec![x(&[2, 3])]], seeded).differs(RANDOM)
    };
    vec![
        of("Tensor::normal_", floats, |t| t.normal_(())),
        of("Tensor::uniform_", floats, |t| t.uniform_(())),
        of("Tensor::random_", every, |t| t.random_(0, 2)),
        of("Tensor::bernoulli_", every, |t| t.bernoulli_(0.5)),
        of("Tensor::exponential_", floats, |t| t.exponential_(1.0)),
    ]
}

fn dropouts() -> Vec<Entry> {
    let of =
        |name, takes: fn(DType) -> bool, sizes: &[usize], call: fn(&Tensor) -> Result<Tensor>| {
            let seeded = move |x: &[Tensor]| {
                manual_seed(7);
                call(&x[0])
            };
            Entry::new(name, KEEP, takes, [vec![x(sizes)]], seeded)
        };
    vec![
        of("functional::dropout", floats, &[2, 3], |x| dropout(x, 0.4)).differs(RANDOM),
        of("functional::dropout", every, &[2, 3], |x| dropout(x, 0.0)).with("of nothing"),
        of("functional::dropout", every, &[2, 3], |x| {
            dropout(x, DropoutOptions::new().p(0.5).training(false))
        })
        .with("evaluation"),
        of("functional::dropout1d", floats, &[2, 3, 2], |x| dropout1d(x, 0.4)).differs(RANDOM),
        of("functional::dropout2d", floats, &[1, 2, 3, 2], |x| dropout2d(x, 0.4)).differs(RANDOM),
        of("functional::dropout3d", floats, &[1, 2, 1, 3, 2], |x| dropout3d(x, 0.4))
            .differs(RANDOM),
    ]
}
