//! Every rule against central differences, and its gradients against those of the gradients.

use std::cell::{Cell, RefCell};

use warpline::autograd::{GradcheckOptions, gradcheck, gradgradcheck};
use warpline::functional::*;
use warpline::{
    Device, Result, Scalar, ScatterReduce, SyncPolicy, Tensor, cat, einsum, functional, stack,
    where_cond,
};

use crate::common;

/// Holds functions against differences, on a device.
struct Checks {
    device: Device,
    count: Cell<usize>,
    failures: RefCell<Vec<String>>,
}

impl Checks {
    /// Neither ties nor zeros.
    fn plain(&self, sizes: &[usize], phase: f64) -> Tensor {
        let value = |i: usize| (i as f64 * 0.7 + phase).sin() * 1.3;
        let values: Vec<f64> = (0..sizes.iter().product()).map(value).collect();
        Tensor::from_vec(values, sizes, self.device).unwrap()
    }

    fn leaf(&self, sizes: &[usize], phase: f64) -> Tensor {
        self.plain(sizes, phase).requires_grad_(true).unwrap()
    }

    fn x(&self) -> Tensor {
        self.leaf(&[2, 3], 0.1)
    }

    fn y(&self) -> Tensor {
        self.leaf(&[2, 3], 0.9)
    }

    fn positive(&self, sizes: &[usize], phase: f64) -> Tensor {
        let values = self.plain(sizes, phase).abs().unwrap().add(0.3).unwrap();
        values.requires_grad_(true).unwrap()
    }

    fn indices(&self, values: &[i64], sizes: &[usize]) -> Tensor {
        Tensor::from_vec(values.to_vec(), sizes, self.device).unwrap()
    }

    fn check(&self, name: &str, inputs: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
        let f = |x: &[Tensor]| Ok(vec![f(x)?]);
        self.count.set(self.count.get() + 1);
        for (what, outcome) in [
            ("gradient", gradcheck(f, inputs, GradcheckOptions::default())),
            ("gradient of gradient", gradgradcheck(f, inputs, GradcheckOptions::default())),
        ] {
            if let Err(error) = outcome {
                self.failures.borrow_mut().push(format!("{name}, {what}: {error}"));
            }
        }
    }
}

/// Methods with broadcasts or rules of their own. `table.rs` checks each entry.
fn elementwise(c: &Checks) {
    c.check("softplus", &[c.x()], |x| x[0].softplus(2.0, 1.0));
    c.check("elu", &[c.x()], |x| x[0].elu(0.7));
    c.check("celu", &[c.x()], |x| x[0].celu(0.7));
    c.check("pow2", &[c.positive(&[3], 0.2), c.leaf(&[3], 0.5)], |x| x[0].pow(&x[1]));
    c.check("pow-3", &[c.positive(&[3], 0.2)], |x| x[0].pow(-3));
    c.check("pow0.5", &[c.positive(&[3], 0.2)], |x| x[0].pow(0.5));
    c.check("rpow", &[c.x()], |x| x[0].rpow(2.0));
    c.check("mul", &[c.x(), c.leaf(&[3], 0.4)], |x| x[0].mul(&x[1]));
    c.check("div", &[c.x(), c.positive(&[2, 1], 0.4)], |x| x[0].div(&x[1]));
    c.check("lerp", &[c.x(), c.y(), c.leaf(&[3], 0.3)], |x| x[0].lerp(&x[1], &x[2]));
    c.check("addcmul", &[c.x(), c.y(), c.leaf(&[3], 0.3)], |x| x[0].addcmul(&x[1], &x[2], 0.7));
    c.check("addcdiv", &[c.x(), c.y(), c.positive(&[3], 0.3)], |x| x[0].addcdiv(&x[1], &x[2], 0.7));
    c.check("where", &[c.x(), c.y()], |x| where_cond(&c.plain(&[2, 3], 0.4).gt(0)?, &x[0], &x[1]));
    c.check("clamp_t", &[c.x(), c.y(), c.leaf(&[2, 3], 2.)], |x| {
        x[0].clamp_min(&x[1])?.clamp_max(&x[2])
    });
    c.check("cross_broadcast_clamp", &[c.x()], |x| x[0].clamp(-0.5, 0.5));
    c.check("hardtanh", &[c.x()], |x| x[0].hardtanh(-0.5, 0.5));
    c.check("leaky", &[c.x()], |x| x[0].leaky_relu(0.1));
    c.check("logit", &[c.positive(&[3], 0.2)], |x| x[0].mul(0.3)?.logit(None));
    c.check("threshold", &[c.x()], |x| x[0].threshold(0.2, 1.0));
}

fn reductions(c: &Checks) {
    c.check("sum", &[c.x()], |x| x[0].sum(0));
    c.check("mean", &[c.x()], |x| x[0].mean(1));
    c.check("prod", &[c.x()], |x| x[0].prod(()));
    c.check("prod1", &[c.leaf(&[2, 3], 0.0)], |x| x[0].prod(1));
    c.check("var", &[c.x()], |x| x[0].var(1, 1));
    c.check("std", &[c.x()], |x| x[0].std((), 0));
    c.check("std_mean", &[c.x()], |x| {
        let (s, m) = x[0].std_mean(1, 1)?;
        s.mul(&m)
    });
    for p in [0.5, 1.0, 1.5, 2.0, 3.0, f64::INFINITY, f64::NEG_INFINITY] {
        c.check(&format!("norm{p}"), &[c.x()], |x| x[0].norm(p, 1));
        c.check(&format!("normall{p}"), &[c.x()], |x| x[0].norm(p, ()));
    }
    for p in [0.5, 1.0, 2.0, 3.0, f64::INFINITY] {
        c.check(&format!("cdist{p}"), &[c.leaf(&[3, 2], 0.1), c.leaf(&[4, 2], 0.6)], |x| {
            x[0].cdist(&x[1], p)
        });
    }
    c.check("amax", &[c.x()], |x| x[0].amax(1));
    c.check("max", &[c.x()], |x| Ok(x[0].max(1)?.0));
    c.check("aminmax", &[c.x()], |x| {
        let (l, h) = x[0].aminmax(1)?;
        l.mul(&h)
    });
    c.check("logsumexp", &[c.x()], |x| x[0].logsumexp(1));
    c.check("softmax", &[c.x()], |x| x[0].softmax(1));
    c.check("log_softmax", &[c.x()], |x| x[0].log_softmax(0));
    c.check("softmin", &[c.x()], |x| softmin(&x[0], 1));
    c.check("nansum", &[c.x()], |x| x[0].nansum(1));
    c.check("median", &[c.x()], |x| Ok(x[0].median(1)?.0));
    c.check("kth", &[c.x()], |x| Ok(x[0].kthvalue(2, 1)?.0));
    c.check("sort", &[c.x()], |x| Ok(x[0].sort(1, true)?.0));
    c.check("topk", &[c.x()], |x| Ok(x[0].topk(2, 1, true)?.0));
    c.check("median_all", &[c.x()], |x| x[0].median_all());
    c.check("cumsum", &[c.x()], |x| x[0].cumsum(1));
    c.check("cumprod", &[c.x()], |x| x[0].cumprod(1));
    c.check("cummax", &[c.x()], |x| Ok(x[0].cummax(1)?.0));
    c.check("diff", &[c.x()], |x| x[0].diff(2, 1));
}

fn products(c: &Checks) {
    c.check("matmul", &[c.leaf(&[2, 3], 0.1), c.leaf(&[3, 2], 0.2)], |x| x[0].matmul(&x[1]));
    c.check("matmul_b", &[c.leaf(&[2, 1, 2, 3], 0.1), c.leaf(&[4, 3, 2], 0.2)], |x| {
        x[0].matmul(&x[1])
    });
    c.check("mv", &[c.leaf(&[2, 3], 0.1), c.leaf(&[3], 0.2)], |x| x[0].matmul(&x[1]));
    c.check("vm", &[c.leaf(&[3], 0.1), c.leaf(&[4, 3, 2], 0.2)], |x| x[0].matmul(&x[1]));
    c.check("dot", &[c.leaf(&[3], 0.1), c.leaf(&[3], 0.2)], |x| x[0].matmul(&x[1]));
    c.check("addmm", &[c.leaf(&[2], 0.1), c.leaf(&[2, 3], 0.1), c.leaf(&[3, 2], 0.2)], |x| {
        x[0].addmm(&x[1], &x[2], 0.5, 2.0)
    });
    c.check("einsum", &[c.leaf(&[2, 3], 0.1), c.leaf(&[3, 2], 0.2), c.leaf(&[2], 0.4)], |x| {
        einsum("ij,jk,k->ik", &[&x[0], &x[1], &x[2]])
    });
    c.check("einsum_diag", &[c.leaf(&[3, 3], 0.1)], |x| einsum("ii->i", &[&x[0]]));
    c.check("tensordot", &[c.leaf(&[2, 3], 0.1), c.leaf(&[3, 2], 0.2)], |x| {
        x[0].tensordot(&x[1], 1)
    });
    c.check("kron", &[c.leaf(&[2, 2], 0.1), c.leaf(&[2, 1], 0.2)], |x| x[0].kron(&x[1]));
    c.check("outer", &[c.leaf(&[2], 0.1), c.leaf(&[3], 0.2)], |x| x[0].outer(&x[1]));
    c.check("trace", &[c.leaf(&[2, 3], 0.1)], |x| x[0].trace());
    c.check("linear3", &[c.leaf(&[2, 2, 3], 0.1), c.leaf(&[2, 3], 0.1), c.leaf(&[2], 0.4)], |x| {
        linear(&x[0], &x[1], &x[2])
    });
    c.check("linear1", &[c.leaf(&[3], 0.1), c.leaf(&[2, 3], 0.1), c.leaf(&[2], 0.4)], |x| {
        linear(&x[0], &x[1], &x[2])
    });
}

fn convolutions(c: &Checks) {
    for (n, o) in [
        ("plain", ConvOptions::<2> { ..Default::default() }),
        (
            "all",
            ConvOptions { stride: [2, 1], padding: [1, 2].into(), dilation: [1, 2], groups: 2 },
        ),
    ] {
        c.check(
            &format!("conv2d_{n}"),
            &[c.leaf(&[2, 4, 3, 4], 0.1), c.leaf(&[2, 4 / o.groups, 2, 2], 0.4), c.leaf(&[2], 0.3)],
            |x| conv2d(&x[0], &x[1], Some(&x[2]), &o),
        );
    }
    c.check("conv1d", &[c.leaf(&[1, 2, 5], 0.1), c.leaf(&[2, 2, 3], 0.4)], |x| {
        conv1d(&x[0], &x[1], None, &ConvOptions { padding: Padding::Same, ..Default::default() })
    });
    c.check("conv3d", &[c.leaf(&[1, 1, 2, 3, 2], 0.1), c.leaf(&[2, 1, 2, 2, 1], 0.4)], |x| {
        conv3d(&x[0], &x[1], None, &Default::default())
    });
    c.check(
        "convt2d",
        &[c.leaf(&[1, 2, 2, 3], 0.1), c.leaf(&[2, 2, 2, 2], 0.4), c.leaf(&[4], 0.2)],
        |x| {
            conv_transpose2d(
                &x[0],
                &x[1],
                Some(&x[2]),
                &ConvTransposeOptions {
                    stride: [2, 1],
                    padding: [1, 0],
                    output_padding: [1, 0],
                    dilation: [1, 2],
                    groups: 2,
                },
            )
        },
    );
}

fn norms(c: &Checks) -> Result<()> {
    let (mean, var) = (c.plain(&[3], 0.2), c.plain(&[3], 0.7).abs()?.add(0.2)?);
    c.check("bn_train", &[c.leaf(&[4, 3], 0.1), c.leaf(&[3], 0.5), c.leaf(&[3], 0.8)], |x| {
        batch_norm(
            &x[0],
            None,
            None,
            &BatchNormOptions {
                weight: Some(&x[1]),
                bias: Some(&x[2]),
                training: true,
                ..Default::default()
            },
        )
    });
    c.check("bn_eval", &[c.leaf(&[4, 3], 0.1), c.leaf(&[3], 0.5), c.leaf(&[3], 0.8)], |x| {
        batch_norm(
            &x[0],
            &mean,
            &var,
            &BatchNormOptions {
                weight: Some(&x[1]),
                bias: Some(&x[2]),
                training: false,
                ..Default::default()
            },
        )
    });
    c.check("ln", &[c.leaf(&[2, 3], 0.1), c.leaf(&[3], 0.5), c.leaf(&[3], 0.8)], |x| {
        layer_norm(&x[0], 3, &x[1], &x[2], 1e-5)
    });
    c.check("rms", &[c.leaf(&[2, 3], 0.1), c.leaf(&[3], 0.5)], |x| rms_norm(&x[0], 3, &x[1], 1e-5));
    c.check("gn", &[c.leaf(&[2, 4, 2], 0.1), c.leaf(&[4], 0.5), c.leaf(&[4], 0.8)], |x| {
        group_norm(&x[0], 2, &x[1], &x[2], 1e-5)
    });
    c.check("in", &[c.leaf(&[2, 2, 3], 0.1)], |x| {
        instance_norm(&x[0], None, None, &Default::default())
    });
    c.check("normalize", &[c.x()], |x| normalize(&x[0], 2.0, 1, 1e-12));
    c.check("cos_sim", &[c.x(), c.y()], |x| cosine_similarity(&x[0], &x[1], 1, 1e-8));
    Ok(())
}

fn losses(c: &Checks) -> Result<()> {
    let t = c.indices(&[1, 0, 2], &[3]);
    let w = c.plain(&[3], 0.8).abs()?;
    for red in [Reduction::Mean, Reduction::None] {
        c.check(&format!("ce{red:?}"), &[c.leaf(&[3, 3], 0.1)], |x| {
            cross_entropy(
                &x[0],
                &t,
                &CrossEntropyOptions {
                    weight: Some(&w),
                    label_smoothing: 0.1,
                    ignore_index: 0,
                    reduction: red,
                },
            )
        });
        c.check(&format!("ceplain{red:?}"), &[c.leaf(&[3, 3], 0.1)], |x| {
            cross_entropy(&x[0], &t, &CrossEntropyOptions { reduction: red, ..Default::default() })
        });
        c.check(&format!("nll{red:?}"), &[c.leaf(&[3, 3], 0.1)], |x| {
            nll_loss(
                &x[0],
                &t,
                &NllLossOptions { weight: Some(&w), ignore_index: 0, reduction: red },
            )
        });
        c.check(
            &format!("ceprob{red:?}"),
            &[c.leaf(&[3, 3], 0.1), c.positive(&[3, 3], 0.7)],
            |x| {
                cross_entropy(
                    &x[0],
                    &x[1],
                    &CrossEntropyOptions {
                        weight: Some(&w),
                        label_smoothing: 0.1,
                        reduction: red,
                        ..Default::default()
                    },
                )
            },
        );
        c.check(&format!("mse{red:?}"), &[c.x(), c.y()], |x| mse_loss(&x[0], &x[1], red));
        c.check(&format!("l1{red:?}"), &[c.x(), c.y()], |x| l1_loss(&x[0], &x[1], red));
        c.check(&format!("huber{red:?}"), &[c.x(), c.y()], |x| huber_loss(&x[0], &x[1], red, 0.7));
        c.check(&format!("smooth{red:?}"), &[c.x(), c.y()], |x| {
            smooth_l1_loss(&x[0], &x[1], red, 0.7)
        });
        c.check(&format!("kl{red:?}"), &[c.x(), c.positive(&[2, 3], 0.3)], |x| {
            kl_div(&x[0], &x[1], red, false)
        });
        c.check(&format!("kllog{red:?}"), &[c.x(), c.y()], |x| kl_div(&x[0], &x[1], red, true));
        c.check(&format!("bce{red:?}"), &[c.x(), c.y()], |x| {
            binary_cross_entropy(&x[0].sigmoid()?, &x[1].sigmoid()?, None, red)
        });
        c.check(&format!("bcel{red:?}"), &[c.x(), c.y()], |x| {
            binary_cross_entropy_with_logits(&x[0], &x[1], None, red, Some(&w))
        });
    }
    Ok(())
}

fn attention(c: &Checks) {
    let q = || c.leaf(&[1, 2, 3, 2], 0.1);
    let k = || c.leaf(&[1, 2, 4, 2], 0.5);
    let vv = || c.leaf(&[1, 2, 4, 3], 0.9);
    c.check("sdpa", &[q(), k(), vv()], |x| {
        scaled_dot_product_attention(&x[0], &x[1], &x[2], &Default::default())
    });
    c.check("sdpa_causal", &[q(), c.leaf(&[1, 2, 3, 2], 0.4), c.leaf(&[1, 2, 3, 2], 0.7)], |x| {
        scaled_dot_product_attention(
            &x[0],
            &x[1],
            &x[2],
            &AttentionOptions { is_causal: true, ..Default::default() },
        )
    });
    c.check("sdpa_mask", &[q(), k(), vv(), c.leaf(&[3, 4], 0.3)], |x| {
        scaled_dot_product_attention(
            &x[0],
            &x[1],
            &x[2],
            &AttentionOptions { attn_mask: Some(&x[3]), scale: Some(0.3), ..Default::default() },
        )
    });
    c.check("sdpa_gqa", &[c.leaf(&[1, 4, 3, 2], 0.1), k(), vv()], |x| {
        scaled_dot_product_attention(
            &x[0],
            &x[1],
            &x[2],
            &AttentionOptions { enable_gqa: true, ..Default::default() },
        )
    });
}

fn images(c: &Checks) {
    let im = || c.leaf(&[1, 2, 4, 5], 0.1);
    c.check("maxpool", &[im()], |x| {
        max_pool2d(
            &x[0],
            [2, 3],
            &MaxPoolOptions { stride: Some([1, 2]), padding: [1, 1], ..Default::default() },
        )
    });
    c.check("avgpool", &[im()], |x| {
        avg_pool2d(
            &x[0],
            [2, 3],
            &AvgPoolOptions {
                stride: Some([2, 2]),
                padding: [1, 1],
                ceil_mode: true,
                count_include_pad: false,
                ..Default::default()
            },
        )
    });
    c.check("adapt_avg", &[im()], |x| adaptive_avg_pool2d(&x[0], [3, 2]));
    c.check("adapt_max", &[im()], |x| adaptive_max_pool2d(&x[0], [3, 2]));
    for m in [
        InterpolateMode::Nearest,
        InterpolateMode::NearestExact,
        InterpolateMode::Bilinear,
        InterpolateMode::Bicubic,
        InterpolateMode::Area,
    ] {
        c.check(&format!("interp{m:?}"), &[c.leaf(&[1, 1, 2, 3], 0.1)], |x| {
            interpolate(
                &x[0],
                &InterpolateOptions { size: Some(vec![3, 5]), mode: m, ..Default::default() },
            )
        });
    }
    c.check("unfold", &[im()], |x| unfold(&x[0], [2, 2], &FoldOptions::default()));
    c.check("fold", &[c.leaf(&[1, 4, 4], 0.1)], |x| {
        fold(&x[0], [3, 3], [2, 2], &FoldOptions::default())
    });
    for m in [
        PadMode::Constant(Scalar::Float(2.0)),
        PadMode::Reflect,
        PadMode::Replicate,
        PadMode::Circular,
    ] {
        c.check(&format!("pad{m:?}"), &[c.leaf(&[1, 1, 3, 3], 0.1)], |x| {
            pad(&x[0], &[1, 2, 2, 1], m)
        });
    }
    c.check("padneg", &[c.leaf(&[3, 3], 0.1)], |x| pad(&x[0], &[-1, 2], PadMode::default()));
    c.check("glu", &[c.leaf(&[2, 4], 0.1)], |x| glu(&x[0], 1));
    c.check("pixel", &[c.leaf(&[1, 4, 2, 2], 0.1)], |x| pixel_shuffle(&x[0], 2));
}

fn indexing(c: &Checks) {
    let i = c.indices(&[0, 2, 0, 1, 1, 1], &[2, 3]);
    c.check("embedding", &[c.leaf(&[3, 2], 0.1)], |x| functional::embedding(&i, &x[0], None));
    c.check("gather", &[c.leaf(&[3, 3], 0.1)], |x| x[0].gather(0, &i));
    c.check("index_select", &[c.leaf(&[3, 2], 0.1)], |x| {
        x[0].index_select(0, &c.indices(&[2, 2, 0], &[3]))
    });
    c.check("scatter", &[c.leaf(&[3, 3], 0.1), c.x()], |x| {
        x[0].scatter(0, &c.indices(&[0, 1, 2, 1, 2, 0], &[2, 3]), &x[1])
    });
    c.check("scatter_add", &[c.leaf(&[3, 3], 0.1), c.x()], |x| x[0].scatter_add(0, &i, &x[1]));
    for r in [
        ScatterReduce::Sum,
        ScatterReduce::Mean,
        ScatterReduce::Prod,
        ScatterReduce::Amax,
        ScatterReduce::Amin,
    ] {
        for inc in [true, false] {
            c.check(&format!("scred{r:?}{inc}"), &[c.leaf(&[3, 3], 0.3), c.x()], |x| {
                x[0].scatter_reduce(0, &i, &x[1], r, inc)
            });
        }
    }
    c.check("index_add", &[c.leaf(&[3, 2], 0.1), c.leaf(&[3, 2], 0.5)], |x| {
        x[0].index_add(0, &c.indices(&[0, 2, 0], &[3]), &x[1])
    });
    c.check("index_copy", &[c.leaf(&[3, 2], 0.1), c.leaf(&[2, 2], 0.5)], |x| {
        x[0].index_copy(0, &c.indices(&[0, 2], &[2]), &x[1])
    });
    c.check("index_fill", &[c.leaf(&[3, 2], 0.1)], |x| {
        x[0].index_fill(0, &c.indices(&[0, 2], &[2]), 3.0)
    });
    c.check("index", &[c.leaf(&[3, 2], 0.1)], |x| {
        x[0].index(&[Some(&c.indices(&[0, 2, 0], &[3])), Some(&c.indices(&[0, 1, 0], &[3]))])
    });
    c.check("index_put", &[c.leaf(&[3, 2], 0.1), c.leaf(&[3], 0.5)], |x| {
        x[0].index_put(
            &[Some(&c.indices(&[0, 2, 0], &[3])), Some(&c.indices(&[0, 1, 0], &[3]))],
            &x[1],
            true,
        )
    });
    c.check("take", &[c.x()], |x| x[0].take(&c.indices(&[0, 5, 0], &[3])));
    c.check("masked_select", &[c.x()], |x| x[0].masked_select(&c.plain(&[2, 3], 0.4).gt(0)?));
    c.check("masked_fill", &[c.x()], |x| x[0].masked_fill(&c.plain(&[2, 3], 0.4).gt(0)?, 2.0));
    c.check("masked_scatter", &[c.x(), c.y()], |x| {
        x[0].masked_scatter(&c.plain(&[2, 3], 0.4).gt(0)?, &x[1])
    });
}

fn shapes(c: &Checks) {
    c.check("cat", &[c.x(), c.y()], |x| cat(&[x[0].clone(), x[1].clone(), x[0].clone()], 1));
    c.check("stack", &[c.x(), c.y()], |x| stack(&[x[0].clone(), x[1].clone()], 1));
    c.check("split", &[c.x()], |x| {
        let s = x[0].split(2, 1)?;
        s[0].sum(())?.mul(&s[1])
    });
    c.check("unbind", &[c.x()], |x| {
        let s = x[0].unbind(0)?;
        s[0].mul(&s[1])
    });
    c.check("repeat", &[c.x()], |x| x[0].repeat([2, 1, 2]));
    c.check("rep_int", &[c.x()], |x| x[0].repeat_interleave(2, 1));
    c.check("tril", &[c.leaf(&[3, 3], 0.1)], |x| x[0].tril(0));
    c.check("diag", &[c.leaf(&[3, 3], 0.1)], |x| x[0].diag(1));
    c.check("diag_embed", &[c.x()], |x| x[0].diag_embed(0, -2, -1));
    c.check("rot90", &[c.x()], |x| x[0].rot90(1, [0, 1]));
    c.check("roll", &[c.x()], |x| x[0].roll([1, 2], [0, 1]));
    c.check("flip", &[c.x()], |x| x[0].flip([0, 1]));
    c.check("unfold_t", &[c.leaf(&[5], 0.1)], |x| x[0].unfold(0, 3, 1));
    c.check("as_strided", &[c.leaf(&[6], 0.1)], |x| x[0].as_strided([3, 2], [1, 2], 0));
    c.check("expand", &[c.leaf(&[1, 3], 0.1)], |x| x[0].expand([4, 3]));
    c.check("copy_to", &[c.x()], |x| x[0].copy());
}

fn all(device: Device) -> Result<()> {
    let c = Checks { device, count: Cell::new(0), failures: RefCell::default() };
    elementwise(&c);
    reductions(&c);
    products(&c);
    convolutions(&c);
    norms(&c)?;
    losses(&c)?;
    attention(&c);
    images(&c);
    indexing(&c);
    shapes(&c);
    let failures = c.failures.into_inner();
    assert!(failures.is_empty(), "{device}: {} failed\n{}", failures.len(), failures.join("\n"));
    assert!(c.count.get() > 170, "{}", c.count.get());
    Ok(())
}

#[test]
fn every_rule_agrees_with_differences() {
    common::cpu(|_| all(Device::Cpu));
    common::worlds(1, |_| all(Device::cuda(0)));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_every_rule_agrees_with_differences() {
    common::gpu(1, SyncPolicy::Auto, |_| all(Device::cuda(0)));
}
