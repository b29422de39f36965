//! Entries for variances, norms, distances, and counts.

use warpline::functional::{cosine_similarity, normalize};
use warpline::{
    BincountOptions, DiffOptions, HistcOptions, NormOptions, Result, Tensor, VarOptions,
    VectorNormOptions,
};

use super::entry::{Entry, F32, F32_ON_GPU, KEEP, every, floats, integers};
use super::sample::{Arg, each, indices, positive, within, x};

fn matrices() -> Vec<Vec<Arg>> {
    each(&[&[2, 3], &[4, 2, 3]])
}

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = variances();
    entries.extend(norms());
    entries.extend(distances());
    entries.extend(others());
    entries
}

fn variances() -> Vec<Entry> {
    let one = |name, call: fn(&Tensor) -> Result<Tensor>| {
        Entry::new(name, KEEP, floats, matrices(), move |x: &[Tensor]| call(&x[0]))
    };
    let two = |name, call: fn(&Tensor) -> Result<(Tensor, Tensor)>| {
        Entry::new(name, KEEP, floats, matrices(), move |x: &[Tensor]| call(&x[0]))
    };
    vec![
        one("Tensor::var", |x| x.var(1)),
        one("Tensor::var", |x| x.var(VarOptions::new().correction(0))).with("of all"),
        one("Tensor::var_keepdim", |x| x.var_keepdim(0)),
        one("Tensor::std", |x| x.std(1)),
        one("Tensor::std", |x| x.std(VarOptions::new().correction(0))).with("of all"),
        one("Tensor::std_keepdim", |x| x.std_keepdim(0)),
        two("Tensor::var_mean", |x| x.var_mean(1)),
        two("Tensor::var_mean_keepdim", |x| {
            x.var_mean_keepdim(VarOptions::new().dim([0, 1]).correction(0))
        }),
        two("Tensor::std_mean", |x| x.std_mean(1)),
        two("Tensor::std_mean_keepdim", |x| {
            x.std_mean_keepdim(VarOptions::new().dim([0, 1]).correction(0))
        }),
    ]
}

fn norms() -> Vec<Entry> {
    let mut entries = Vec::new();
    for p in [0.5, 1.0, 1.5, 2.0, 3.0, f64::INFINITY, f64::NEG_INFINITY] {
        let of = |name, variant: &str, call: fn(&Tensor, f64) -> Result<Tensor>| {
            Entry::new(name, F32_ON_GPU, floats, matrices(), move |x: &[Tensor]| call(&x[0], p))
                .with(format!("p = {p}{variant}"))
        };
        entries.push(of("Tensor::norm", "", |x, p| x.norm(NormOptions::new().p(p).dim(1))));
        entries.push(of("Tensor::norm", " of all", |x, p| x.norm(p)));
        entries.push(of("Tensor::norm_keepdim", "", |x, p| {
            x.norm_keepdim(NormOptions::new().p(p).dim(0))
        }));
        entries.push(of("Tensor::vector_norm", "", |x, p| {
            x.vector_norm(VectorNormOptions::new().ord(p).dim(1))
        }));
        entries.push(of("Tensor::vector_norm_keepdim", "", |x, p| {
            x.vector_norm_keepdim(VectorNormOptions::new().ord(p).dim(0))
        }));
    }
    entries.push(
        Entry::new("Tensor::norm", F32_ON_GPU, floats, matrices(), |x| {
            x[0].norm(NormOptions::new().p(0.0).dim(1))
        })
        .with("p = 0")
        .constant("the result is a count"),
    );
    let call = |x: &[Tensor]| normalize(&x[0], ());
    entries.push(Entry::new("functional::normalize", F32_ON_GPU, floats, matrices(), call));
    entries
}

fn distances() -> Vec<Entry> {
    let points = || vec![vec![x(&[3, 2]), x(&[4, 2])], vec![x(&[2, 3, 2]), x(&[2, 1, 2])]];
    let mut entries: Vec<Entry> = [0.5, 1.0, 2.0, 3.0, f64::INFINITY]
        .map(|p| {
            Entry::new("Tensor::cdist", F32, floats, points(), move |x: &[Tensor]| {
                x[0].cdist(&x[1], p)
            })
            .with(format!("p = {p}"))
        })
        .into();
    // If there are more than 25 points, a matrix product computes the distances.
    let many = [vec![within(&[26, 2], -2.0..2.0), within(&[1, 2], 2.5..4.0)]];
    let call = |x: &[Tensor]| x[0].cdist(&x[1], ());
    entries.push(Entry::new("Tensor::cdist", F32, floats, many, call).with("by a product"));
    let pairs = [vec![x(&[2, 3]), x(&[2, 3])], vec![x(&[2, 3]), x(&[1, 3])]];
    let call = |x: &[Tensor]| cosine_similarity(&x[0], &x[1], ());
    entries.push(Entry::new("functional::cosine_similarity", F32_ON_GPU, floats, pairs, call));
    entries
}

fn others() -> Vec<Entry> {
    let counts = "the results are counts";
    let rows = || each(&[&[5], &[3, 4]]);
    vec![
        Entry::new("Tensor::nansum", KEEP, every, matrices(), |x| x[0].nansum(1)),
        Entry::new("Tensor::nansum_keepdim", KEEP, every, matrices(), |x| x[0].nansum_keepdim(0)),
        Entry::new("Tensor::nanmean", KEEP, floats, matrices(), |x| x[0].nanmean(1)),
        Entry::new("Tensor::nanmean_keepdim", KEEP, floats, matrices(), |x| {
            x[0].nanmean_keepdim(0)
        }),
        Entry::new("Tensor::count_nonzero", KEEP, every, matrices(), |x| x[0].count_nonzero(1))
            .constant(counts),
        Entry::new("Tensor::diff", KEEP, every, rows(), |x| x[0].diff(())),
        Entry::new("Tensor::diff", KEEP, every, rows(), |x| {
            x[0].diff(DiffOptions::new().n(2).dim(0))
        })
        .with("twice"),
        Entry::new("Tensor::bincount", KEEP, integers, [vec![positive(&[7])]], |x| {
            x[0].bincount(BincountOptions::new().minlength(5))
        })
        .constant(counts),
        Entry::new(
            "Tensor::bincount",
            KEEP,
            every,
            [vec![indices(&[0, 2, 0, 1, 2], &[5]), positive(&[5])]],
            |x| x[0].bincount(BincountOptions::new().weights(Some(&x[1]))),
        )
        .with("weights")
        .constant("PyTorch has no gradient of `bincount`"),
        Entry::new("Tensor::histc", KEEP, floats, [vec![within(&[9], 0.2..3.8)]], |x| {
            x[0].histc(HistcOptions::new().bins(4).max(4.0))
        })
        .constant(counts),
    ]
}
