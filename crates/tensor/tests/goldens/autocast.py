"""Writes autocast.json: the dtypes of PyTorch's results in a region of autocast.

`python3 autocast.py` on a machine with a GPU replaces both lists, on another machine only the CPU's. Each op is called
with all operands in float32 and with all in half the width. An op of several operands is also called with only the
first in float32, and with all but the first. A result of `error` is a call that PyTorch refuses.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F

PATH = Path(__file__).with_suffix(".json")
NAMES = {torch.float32: "float32", torch.float16: "half", torch.bfloat16: "half", torch.int64: "int64", torch.bool: "bool"}

# Elementwise ops by their names in both libraries: one and two operands.
UNARY = """neg abs sign square relu floor ceil round exp expm1 log log1p sqrt rsqrt reciprocal sin cos tanh erf sigmoid
sgn trunc frac exp2 log2 log10 tan asin acos atan sinh cosh asinh acosh atanh deg2rad rad2deg erfc erfinv lgamma digamma
sinc logical_not selu isnan isinf isfinite isposinf isneginf signbit nan_to_num logit celu""".split()
UNARY_FUNCTIONAL = """silu gelu hardsigmoid hardswish mish logsigmoid softsign tanhshrink softplus elu leaky_relu relu6
hardtanh softshrink hardshrink""".split()
BINARY = """add sub mul div maximum minimum eq ne lt le gt ge remainder fmod floor_divide atan2 hypot copysign xlogy
logaddexp logaddexp2 heaviside logical_and logical_or logical_xor fmax fmin pow""".split()

CLASSES = torch.tensor([0, 2])
MATRIX, VECTOR, BATCH = (3, 3), (3,), (2, 3, 3)
IMAGE, KERNEL, VOLUME, CUBE = (1, 2, 6, 6), (2, 2, 3, 3), (1, 2, 4, 4, 4), (2, 2, 3, 3, 3)
ROW, WINDOW = (1, 2, 6), (2, 2, 3)
HEADS = (1, 2, 4, 8)


def silu_of_halves(x, weight):
    gate, up = F.linear(x, weight).chunk(2, -1)
    return F.silu(gate) * up



# Name here, sizes of the operands, call.
OPS = [
    ("Tensor::matmul", [MATRIX, MATRIX], torch.matmul),
    ("Tensor::mm", [MATRIX, MATRIX], torch.mm),
    ("Tensor::bmm", [BATCH, BATCH], torch.bmm),
    ("Tensor::mv", [MATRIX, VECTOR], torch.mv),
    ("Tensor::dot", [VECTOR, VECTOR], torch.dot),
    ("Tensor::outer", [VECTOR, VECTOR], torch.outer),
    ("Tensor::kron", [MATRIX, MATRIX], torch.kron),
    ("Tensor::trace", [MATRIX], torch.trace),
    ("Tensor::addmm", [MATRIX, MATRIX, MATRIX], torch.addmm),
    ("Tensor::baddbmm", [BATCH, BATCH, BATCH], torch.baddbmm),
    ("Tensor::addmv", [VECTOR, MATRIX, VECTOR], torch.addmv),
    ("Tensor::tensordot", [MATRIX, MATRIX], lambda a, b: torch.tensordot(a, b, 1)),
    ("einsum[ij,jk,k->ik]", [MATRIX, MATRIX, VECTOR], lambda *x: torch.einsum("ij,jk,k->ik", *x)),
    ("einsum[ii->i]", [MATRIX], lambda *x: torch.einsum("ii->i", *x)),
    ("einsum[bii,ij,b->jb]", [BATCH, MATRIX, (2,)], lambda *x: torch.einsum("bii,ij,b->jb", *x)),
    ("einsum[...ij,ij]", [BATCH, MATRIX], lambda *x: torch.einsum("...ij,ij", *x)),
    ("Tensor::cdist", [MATRIX, MATRIX], torch.cdist),
    ("functional::linear", [MATRIX, MATRIX, VECTOR], F.linear),
    ("functional::linear_silu_mul", [MATRIX, (2, 3)], silu_of_halves),
    ("functional::conv1d", [ROW, WINDOW], F.conv1d),
    ("functional::conv2d", [IMAGE, KERNEL], F.conv2d),
    ("functional::conv3d", [VOLUME, CUBE], F.conv3d),
    ("functional::conv_transpose1d", [ROW, WINDOW], F.conv_transpose1d),
    ("functional::conv_transpose2d", [IMAGE, KERNEL], F.conv_transpose2d),
    ("functional::conv_transpose3d", [VOLUME, CUBE], F.conv_transpose3d),
    ("functional::scaled_dot_product_attention", [HEADS] * 3, F.scaled_dot_product_attention),
    ("functional::layer_norm", [MATRIX, VECTOR, VECTOR], lambda x, w, b: F.layer_norm(x, (3,), w, b)),
    ("functional::add_layer_norm", [MATRIX, MATRIX, VECTOR, VECTOR],
     lambda x, r, w, b: F.layer_norm(x + r, (3,), w, b)),
    ("functional::rms_norm", [MATRIX, VECTOR], lambda x, w: F.rms_norm(x, (3,), w)),
    ("functional::group_norm", [IMAGE, (2,), (2,)], lambda x, w, b: F.group_norm(x, 2, w, b)),
    ("functional::batch_norm", [IMAGE, (2,), (2,)], lambda x, w, b: F.batch_norm(x, None, None, w, b, True)),
    ("functional::instance_norm", [IMAGE, (2,), (2,)], lambda x, w, b: F.instance_norm(x, None, None, w, b)),
    ("functional::normalize", [MATRIX], F.normalize),
    ("functional::cosine_similarity", [MATRIX, MATRIX], F.cosine_similarity),
    ("functional::softmax", [MATRIX], lambda x: F.softmax(x, 1)),
    ("functional::softmin", [MATRIX], lambda x: F.softmin(x, 1)),
    ("functional::log_softmax", [MATRIX], lambda x: F.log_softmax(x, 1)),
    ("functional::glu", [(2, 4)], F.glu),
    ("functional::prelu", [MATRIX, VECTOR], F.prelu),
    ("functional::bilinear", [MATRIX, MATRIX, BATCH, (2,)], F.bilinear),
    ("functional::dropout", [MATRIX], lambda x: F.dropout(x, 0.5)),
    ("functional::embedding", [MATRIX], lambda w: F.embedding(CLASSES.to(w.device), w)),
    ("functional::cross_entropy", [(2, 3)], lambda x: F.cross_entropy(x, CLASSES.to(x.device))),
    ("functional::nll_loss", [(2, 3)], lambda x: F.nll_loss(x, CLASSES.to(x.device))),
    ("functional::mse_loss", [MATRIX, MATRIX], F.mse_loss),
    ("functional::l1_loss", [MATRIX, MATRIX], F.l1_loss),
    ("functional::huber_loss", [MATRIX, MATRIX], F.huber_loss),
    ("functional::smooth_l1_loss", [MATRIX, MATRIX], F.smooth_l1_loss),
    ("functional::kl_div", [MATRIX, MATRIX], lambda a, b: F.kl_div(a, b, reduction="sum")),
    ("functional::binary_cross_entropy", [MATRIX, MATRIX], F.binary_cross_entropy),
    ("functional::binary_cross_entropy_with_logits", [MATRIX, MATRIX], F.binary_cross_entropy_with_logits),
    ("functional::avg_pool1d", [ROW], lambda x: F.avg_pool1d(x, 2)),
    ("functional::avg_pool2d", [IMAGE], lambda x: F.avg_pool2d(x, 2)),
    ("functional::avg_pool3d", [VOLUME], lambda x: F.avg_pool3d(x, 2)),
    ("functional::max_pool1d", [ROW], lambda x: F.max_pool1d(x, 2)),
    ("functional::max_pool2d", [IMAGE], lambda x: F.max_pool2d(x, 2)),
    ("functional::max_pool3d", [VOLUME], lambda x: F.max_pool3d(x, 2)),
    ("functional::adaptive_avg_pool1d", [ROW], lambda x: F.adaptive_avg_pool1d(x, 2)),
    ("functional::adaptive_avg_pool2d", [IMAGE], lambda x: F.adaptive_avg_pool2d(x, 2)),
    ("functional::adaptive_avg_pool3d", [VOLUME], lambda x: F.adaptive_avg_pool3d(x, 2)),
    ("functional::adaptive_max_pool1d", [ROW], lambda x: F.adaptive_max_pool1d(x, 2)),
    ("functional::adaptive_max_pool2d", [IMAGE], lambda x: F.adaptive_max_pool2d(x, 2)),
    ("functional::adaptive_max_pool3d", [VOLUME], lambda x: F.adaptive_max_pool3d(x, 2)),
    ("functional::interpolate[Nearest]", [IMAGE], lambda x: F.interpolate(x, 3)),
    ("functional::interpolate[Bilinear]", [IMAGE], lambda x: F.interpolate(x, 3, mode="bilinear")),
    ("functional::interpolate[NearestExact]", [IMAGE], lambda x: F.interpolate(x, 3, mode="nearest-exact")),
    ("functional::interpolate[Area]", [IMAGE], lambda x: F.interpolate(x, 3, mode="area")),
    ("functional::interpolate[Linear]", [ROW], lambda x: F.interpolate(x, 3, mode="linear")),
    ("functional::interpolate[Trilinear]", [VOLUME], lambda x: F.interpolate(x, 3, mode="trilinear")),
    ("functional::interpolate[Bicubic]", [IMAGE], lambda x: F.interpolate(x, 3, mode="bicubic")),
    ("functional::pad[Constant]", [IMAGE], lambda x: F.pad(x, (1, 1))),
    ("functional::pad[Reflect]", [IMAGE], lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")),
    ("functional::pad[Circular]", [IMAGE], lambda x: F.pad(x, (1, 1, 1, 1), mode="circular")),
    ("functional::pad[Replicate]", [IMAGE], lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate")),
    ("functional::unfold", [IMAGE], lambda x: F.unfold(x, 2)),
    ("functional::pixel_shuffle", [(1, 4, 2, 2)], lambda x: F.pixel_shuffle(x, 2)),
    ("Tensor::sum", [MATRIX], torch.sum),
    ("Tensor::mean", [MATRIX], torch.mean),
    ("Tensor::prod", [MATRIX], torch.prod),
    ("Tensor::amax", [MATRIX], torch.amax),
    ("Tensor::amin", [MATRIX], torch.amin),
    ("Tensor::argmax", [MATRIX], torch.argmax),
    ("Tensor::cumsum", [MATRIX], lambda x: torch.cumsum(x, 0)),
    ("Tensor::cumprod", [MATRIX], lambda x: torch.cumprod(x, 0)),
    ("Tensor::norm", [MATRIX], torch.norm),
    ("Tensor::vector_norm", [MATRIX], torch.linalg.vector_norm),
    ("Tensor::logsumexp", [MATRIX], lambda x: torch.logsumexp(x, 0)),
    ("Tensor::var", [MATRIX], torch.var),
    ("Tensor::std", [MATRIX], torch.std),
    ("Tensor::nansum", [MATRIX], torch.nansum),
    ("Tensor::nanmean", [MATRIX], torch.nanmean),
    ("Tensor::median_all", [MATRIX], torch.median),
    ("Tensor::sort", [MATRIX], lambda x: torch.sort(x)[0]),
    ("Tensor::diff", [MATRIX], torch.diff),
    ("Tensor::rpow", [MATRIX], lambda x: 2.0 ** x),
    ("Tensor::pow[2]", [MATRIX], lambda x: x ** 2),
    ("Tensor::pow[-1.5]", [MATRIX], lambda x: x ** -1.5),
    ("rdiv", [MATRIX], lambda x: 1.0 / x),
    ("Tensor::clamp", [MATRIX], lambda x: torch.clamp(x, 0.1, 0.2)),
    ("Tensor::lerp", [MATRIX, MATRIX], lambda a, b: torch.lerp(a, b, 0.5)),
    ("Tensor::addcmul", [MATRIX, MATRIX, MATRIX], torch.addcmul),
    ("Tensor::addcdiv", [MATRIX, MATRIX, MATRIX], torch.addcdiv),
    ("Tensor::where_cond", [MATRIX, MATRIX], lambda a, b: torch.where(a > 0.5, a, b)),
    ("Tensor::scatter_add", [VECTOR, VECTOR], lambda a, b: a.scatter_add(0, torch.tensor([0, 1, 1]).to(a.device), b)),
    ("Tensor::index_put", [VECTOR, (1,)], lambda a, b: a.index_put((torch.tensor([1]).to(a.device),), b)),
    ("Tensor::index_copy", [VECTOR, (1,)], lambda a, b: a.index_copy(0, torch.tensor([1]).to(a.device), b)),
    ("cat", [VECTOR, VECTOR], lambda a, b: torch.cat([a, b])),
    ("stack", [VECTOR, VECTOR], lambda a, b: torch.stack([a, b])),
]
OPS += [(f"Tensor::{name}", [MATRIX], getattr(torch, name)) for name in UNARY]
OPS += [(f"functional::{name}", [MATRIX], getattr(F, name)) for name in UNARY_FUNCTIONAL]
OPS += [(f"Tensor::{name}", [MATRIX, MATRIX], getattr(torch, name)) for name in BINARY]


def results(device, low):
    def call(op, sizes, dtypes):
        operands = [torch.full(size, 0.5, device=device).to(dtype) for size, dtype in zip(sizes, dtypes)]
        try:
            with torch.autocast(device, dtype=low):
                result = op(*operands)
        except (RuntimeError, TypeError, NotImplementedError):
            return "error"
        return NAMES[result.dtype]

    single = torch.float32
    rows = {}
    for name, sizes, op in OPS:
        rest = len(sizes) - 1
        mixtures = [[single] * (rest + 1), [low] * (rest + 1)]
        if rest > 0:
            mixtures += [[single] + [low] * rest, [low] + [single] * rest]
        rows[name] = [call(op, sizes, dtypes) for dtypes in mixtures]
    return rows


if __name__ == "__main__":
    tables = json.loads(PATH.read_text()) if PATH.exists() else {}
    tables["cpu"] = results("cpu", torch.bfloat16)
    if torch.cuda.is_available():
        tables["cuda"] = results("cuda", torch.float16)
    tables["torch"] = torch.__version__
    lists = [f'"{name}": {{\n' + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in table.items()) + "\n}"
             for name, table in tables.items() if name != "torch"]
    PATH.write_text('{\n"torch": ' + json.dumps(tables["torch"]) + ",\n" + ",\n".join(lists) + "\n}\n")
