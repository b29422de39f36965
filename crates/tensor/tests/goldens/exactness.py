"""Writes exactness.json: exact results of reductions over adversarial rows, and the errors of PyTorch's results.

Usage: python exactness.py > exactness.json, on a machine with a GPU; takes less than a minute.
`python exactness.py --check` needs no PyTorch: it checks the exact arithmetic and prints a summary.

A case is an op, a kind of input and a dtype: "sum.huge.f32". Its line has the exact results in row-major order, then
four pairs: on the CPU by rows and by columns, on the GPU by rows and by columns. "By columns" means that the elements
of a row are not adjacent in memory. A pair is PyTorch's largest error, and a mask of the results whose class is wrong,
bit i for result i. Results of a wrong class do not count for the largest error.

An exact result is rounded once to the dtype, to nearest even, and written as its bits in hexadecimal. After a colon
follows the remainder in thousandths of an ulp, if it is not 0. "nan" stands for every NaN.

Errors are in ulps. An ulp is the distance from the magnitude of the rounded exact result to the next larger one in the
dtype. Zero has the ulp of the denormals. The class of a result is NaN, +inf, -inf or finite. A result of the right
class that is not finite has the error 0. The sign of a zero does not count.

Inputs are made of integers of splitmix64, so that the test in Rust makes the same bits; `inputs` has their checksums.
"""

import decimal
import json
import math
import struct
import sys

ROWS, N, COLUMNS = 8, 1027, 4
MASK, GAMMA = (1 << 64) - 1, 0x9E3779B97F4A7C15
# Bits of the fraction, smallest and largest exponent of normal numbers, total bits.
SPECS = [("f16", 10, -14, 15, 16), ("bf16", 7, -126, 127, 16), ("f32", 23, -126, 127, 32), ("f64", 52, -1022, 1023, 64)]
DTYPES = {name: of for name, *of in SPECS}
# The exponent of the smallest denormal, the unit of which every element is a multiple.
unit = lambda dtype: DTYPES[dtype][1] - DTYPES[dtype][0]
KINDS = ["near_one", "offset", "same_sign", "cancellation", "spread", "denormal", "huge", "nan", "inf", "infs"]
# The epsilon of the norms, a power of two: every dtype represents it.
EPSILON_EXPONENT = -17
NAN, INF = "nan", "inf"

decimal.setcontext(decimal.Context(prec=60, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[]))


def splitmix(seed, i):
    z = (seed + (i + 1) * GAMMA) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


# The column of the special value of a row, and the columns whose results count, for ops with a result per element.
place = lambda row: (389 * row + 101) % N
samples = lambda row: [(131 * row + 7) % N, place(row), N - 1]


def normal(dtype, z, exponents, signed):
    """A normal number with an exponent in the inclusive range `exponents`."""
    fraction, low, _, bits = DTYPES[dtype]
    first, last = exponents
    exponent = first + (z >> 52 & 0x7FF) % (last - first + 1)
    sign = (z >> 63) << (bits - 1) if signed else 0
    return sign | (exponent - low + 1) << fraction | (z & (1 << fraction) - 1)


def element(dtype, kind, row, z):
    fraction, low, high, bits = DTYPES[dtype]
    if kind == "near_one":
        # From 1 - 1/32 to 1 + 1/32, so that products of a row stay in the range of every dtype.
        if z >> 52 & 1:
            return (-low) << fraction | (15 << (fraction - 4)) | (z & (1 << (fraction - 4)) - 1)
        return (1 - low) << fraction | (z & (1 << (fraction - 5)) - 1)
    if kind == "offset":
        # The spread is a few ulps of the mean.
        return -low << fraction | (z & (1 << fraction // 4) - 1)
    if kind == "cancellation":
        return normal(dtype, z, (0, 4), True)
    if kind == "spread":
        return normal(dtype, z, (low, high - 12), True)
    if kind == "denormal":
        return (z >> 63) << (bits - 1) | (z & (1 << fraction) - 1)
    if kind == "huge":
        # Squares and sums overflow; norms and means do not.
        return normal(dtype, z, (high - 8, high - 6), row % 2 == 0)
    return normal(dtype, z, (-2, 2), False)


def inputs(dtype, kind):
    """The bits of the rows."""
    fraction, _, _, bits = DTYPES[dtype]
    seed = (list(DTYPES).index(dtype) * 16 + KINDS.index(kind)) << 32
    sign, rows = 1 << (bits - 1), []
    infinity = sign - (1 << fraction)
    for row in range(ROWS):
        draws = [splitmix(seed, row * N + i) for i in range(N)]
        of = [element(dtype, kind, row, z) for z in draws]
        if kind == "cancellation" or kind == "huge" and row % 2 == 0:
            # The second half negates the first, except for the lower half of the fraction.
            of[N // 2] = 0
            for i in range(N // 2 + 1, N):
                of[i] = of[N - 1 - i] ^ sign ^ (draws[i] & (1 << fraction // 2) - 1)
        if kind == "nan":
            of[place(row)] = infinity | 1 << (fraction - 1)
        if kind == "inf":
            of[place(row)] = infinity | sign * (row % 2)
        if kind == "infs":
            of[place(row)] = infinity
            of[(place(row) + 500) % N] = infinity | sign
        rows.append(of)
    return rows


def factors(dtype):
    """The bits of the second factor of products, N rows of COLUMNS. Symmetric, so that cancelling rows still cancel."""
    seed = (list(DTYPES).index(dtype) * 16 + 15) << 32
    draw = lambda i, j: splitmix(seed, min(i, N - 1 - i) * COLUMNS + j)
    return [[normal(dtype, draw(i, j), (-1, 0), True) for j in range(COLUMNS)] for i in range(N)]


def checksum(rows):
    sum = 0
    for bits in (bits for row in rows for bits in row):
        sum = ((sum << 5 | sum >> 59) ^ bits) * GAMMA & MASK
    return f"{sum:016x}"


def parts(dtype, bits):
    """The signed fraction of an element, and its shift in units. NAN, INF or -INF as text, and 0, for the others."""
    fraction, _, _, width = DTYPES[dtype]
    top = (1 << (width - 1 - fraction)) - 1
    sign, field, low = bits >> (width - 1), bits >> fraction & top, bits & (1 << fraction) - 1
    if field == top:
        return (NAN if low else "-" * sign + INF), 0
    magnitude = low | (field > 0) << fraction
    return (-magnitude if sign else magnitude), max(0, field - 1)


def multiple(dtype, bits):
    of, shift = parts(dtype, bits)
    return of if isinstance(of, str) else of << shift


def value(dtype, bits):
    """An element as a float."""
    of, shift = parts(dtype, bits)
    return float(of) if isinstance(of, str) else math.ldexp(of, unit(dtype) + shift)


def root(numerator, denominator, exponent):
    """The square root of numerator / denominator * 2**exponent, to more than 300 bits, in the same form."""
    shift = max(0, 700 + denominator.bit_length() - numerator.bit_length())
    shift += (exponent - shift) % 2
    quotient, rest = divmod(numerator << shift, denominator)
    of = math.isqrt(quotient)
    # The last bit says that the root goes on, so that no tie is rounded as one.
    return (of << 1 | (rest != 0 or of * of != quotient)), 1, (exponent - shift) // 2 - 1


def rounded(dtype, numerator, denominator=1, exponent=0):
    """Bits and remainder of numerator / denominator * 2**exponent."""
    fraction, low, high, bits = DTYPES[dtype]
    sign, numerator = (1 << (bits - 1) if numerator < 0 else 0), abs(numerator)
    infinity = (1 << (bits - 1)) - (1 << fraction)
    magnitude = numerator.bit_length() - denominator.bit_length() + exponent
    if numerator == 0 or magnitude < low - fraction - 3:
        return 0, 0
    if magnitude > high + 2:
        return sign | infinity, 0
    for of in [max(low, magnitude - 1), max(low, magnitude)]:
        shift = exponent - (of - fraction)
        divisor = denominator << max(0, -shift)
        count, rest = divmod(numerator << max(0, shift), divisor)
        if count < 2 << fraction:
            break
    up = 2 * rest > divisor or 2 * rest == divisor and count % 2 == 1
    remainder = (2000 * (rest - divisor * up) + divisor) // (2 * divisor)
    count += up
    # The fraction's carry goes into the exponent.
    magnitude = count + ((of - low) << fraction)
    if magnitude >= infinity:
        return sign | infinity, 0
    return sign | magnitude, -remainder if sign else remainder


def decimals(dtype, row):
    """The row as decimals, its largest element, and the sum of the exponentials of the distances from it."""
    values = [decimal.Decimal(value(dtype, bits)) for bits in row]
    most = max(values)
    total = decimal.Decimal(0)
    for v in values:
        # e**-2000 is far below the precision of every dtype.
        if v - most > -2000:
            total += (v - most).exp()
    return values, most, total


def exact(dtype, rows, second):
    """The exact results of all ops: op -> list of (bits, remainder), NAN, INF or -INF."""
    results, scale, ratio = {op: [] for op in OPS}, unit(dtype), decimal.Decimal.as_integer_ratio

    def put(op, special, *number):
        results[op].append(special if special is not None else rounded(dtype, *number))

    def put_sum(op, values, scale):
        kinds = {v for v in values if isinstance(v, str)}
        special = NAN if len(kinds) > 1 else next(iter(kinds), None)
        put(op, special, sum(v for v in values if not isinstance(v, str)), 1, scale)

    columns = [[multiple(dtype, line[j]) for line in second] for j in range(COLUMNS)]
    for at, row in enumerate(rows):
        x = [multiple(dtype, bits) for bits in row]
        finite = [v for v in x if not isinstance(v, str)]
        special, nan = len(finite) < N, NAN if NAN in x else None
        not_centred, size = (NAN, nan or INF) if special else (None, None)
        total, squares = sum(finite), sum(v * v for v in finite)
        spread = N * squares - total * total
        put_sum("sum", x, scale)
        put("mean", results["sum"][-1] if special else None, total, N, scale)
        put("var", not_centred, spread, N * (N - 1), 2 * scale)
        put("std", not_centred, *root(spread, N * (N - 1), 2 * scale))
        put("norm", size, *root(squares, 1, 2 * scale))
        put("norm_1", size, sum(map(abs, finite)), 1, scale)
        put("norm_inf", size, max(map(abs, finite)), 1, scale)
        negative = sum(v.startswith("-") if isinstance(v, str) else v < 0 for v in x) % 2
        of_product = nan or ((NAN if 0 in finite else "-" * negative + INF) if special else None)
        odd = [((v & -v).bit_length() - 1 if v else 0) for v in finite]
        put("prod", of_product, math.prod(v >> s for v, s in zip(finite, odd)), 1, sum(odd) + N * scale)

        if nan or INF in x:
            put("logsumexp", nan or INF)
            for op in ["softmax", "log_softmax"]:
                results[op] += [NAN] * len(samples(at))
        else:
            values, most, exponentials = decimals(dtype, row)
            put("logsumexp", None, *ratio(most + exponentials.ln()))
            for i in samples(at):
                distance = values[i] - most
                put("softmax", None, *ratio(distance.exp() / exponentials if distance > -2000 else decimal.Decimal(0)))
                of_log = (x[i],) if isinstance(x[i], str) else (None, *ratio(distance - exponentials.ln()))
                put("log_softmax", *of_log)

        epsilon = 1 << (EPSILON_EXPONENT - 2 * scale)
        for i in samples(at):
            put_sum("cumsum", x[:i + 1], scale)
            if special:
                put("layer_norm", NAN)
                put("rms_norm", nan or (NAN if isinstance(x[i], str) else None), 0)
                continue
            apart, own = N * x[i] - total, x[i]
            for op, distance, *square in [
                ("layer_norm", apart, apart * apart, spread + N * N * epsilon),
                ("rms_norm", own, N * own * own, squares + N * epsilon),
            ]:
                numerator, *rest = root(*square, 0)
                put(op, None, -numerator if distance < 0 else numerator, *rest)

        for j, column in enumerate(columns):
            # No factor is 0. An infinity takes the factor's sign.
            other = {NAN: NAN, INF: "-" + INF, "-" + INF: INF}
            products = [a * b if not isinstance(a, str) else a if b > 0 else other[a] for a, b in zip(x, column)]
            for op in ["dot", "mv", "mm"] if j == 0 else ["mm"]:
                put_sum(op, products, 2 * scale)
    return results


def bits_of(dtype, result):
    """Bits and remainder of an exact result, or NAN and 0."""
    if not isinstance(result, str):
        return result
    return (NAN, 0) if result == NAN else rounded(dtype, -1 if result.startswith("-") else 1, 1, 1 << 20)


def error(dtype, result, bits):
    """The error of PyTorch's result in ulps, or None if its class is wrong."""
    expected, remainder = bits_of(dtype, result)
    right, shift = parts(dtype, expected) if expected != NAN else (NAN, 0)
    actual = multiple(dtype, bits)
    if isinstance(actual, str) or isinstance(right, str):
        return 0.0 if actual == right else None
    # In integers, because a difference of floats may overflow.
    distance, ulp = 1000 * actual - (1000 * right + remainder << shift), 1000 << shift
    # Larger errors say no more, and may be too large for a float.
    return min(abs(distance) / ulp, 1e30) if abs(distance) < ulp << 100 else 1e30


def text(dtype, result):
    bits, remainder = bits_of(dtype, result)
    return NAN if bits == NAN else f"{bits:x}" + (f":{remainder}" if remainder else "")


def pair(dtype, results, outputs):
    """The largest error and the mask of wrong classes. Without outputs, all are wrong."""
    if outputs is None:
        return [0, (1 << len(results)) - 1]
    errors = [error(dtype, *of) for of in zip(results, outputs, strict=True)]
    largest = max((e for e in errors if e is not None), default=0.0)
    return [float(f"{largest:.4g}"), sum(1 << i for i, e in enumerate(errors) if e is None)]


OPS = {
    "sum": lambda f, x, b: x.sum(1),
    "mean": lambda f, x, b: x.mean(1),
    "prod": lambda f, x, b: x.prod(1),
    "var": lambda f, x, b: x.var(1),
    "std": lambda f, x, b: x.std(1),
    "norm": lambda f, x, b: x.norm(2, 1),
    "norm_1": lambda f, x, b: x.norm(1, 1),
    "norm_inf": lambda f, x, b: x.norm(math.inf, 1),
    "logsumexp": lambda f, x, b: x.logsumexp(1),
    "softmax": lambda f, x, b: sampled(f, x.softmax(1)),
    "log_softmax": lambda f, x, b: sampled(f, x.log_softmax(1)),
    "cumsum": lambda f, x, b: sampled(f, x.cumsum(1)),
    "layer_norm": lambda f, x, b: sampled(f, f.nn.functional.layer_norm(x, (N,), eps=2.0**EPSILON_EXPONENT)),
    "rms_norm": lambda f, x, b: sampled(f, f.nn.functional.rms_norm(x, (N,), eps=2.0**EPSILON_EXPONENT)),
    "dot": lambda f, x, b: f.stack([f.dot(row, b[:, 0]) for row in x]),
    "mv": lambda f, x, b: f.mv(x, b[:, 0]),
    "mm": lambda f, x, b: f.mm(x, b),
}


def sampled(f, results):
    return f.stack([results[row, i] for row in range(ROWS) for i in samples(row)])


def pytorch():
    """A function that runs an op in PyTorch: (op, dtype, rows, second) -> bits of the four places, or None."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    integers = {16: torch.int16, 32: torch.int32, 64: torch.int64}
    floats = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}

    def tensor(dtype, lines, bits):
        signed = [[v - (v >> (bits - 1) << bits) for v in line] for line in lines]
        return torch.tensor(signed, dtype=integers[bits]).view(floats[dtype])

    def run(op, dtype, rows, second):
        bits = DTYPES[dtype][3]
        for device in ["cpu", "cuda"]:
            for by_columns in [False, True]:
                x, b = (tensor(dtype, lines, bits).to(device) for lines in [rows, second])
                x = x.t().contiguous().t() if by_columns else x
                try:
                    out = OPS[op](torch, x, b).cpu().contiguous().view(integers[bits]).flatten().tolist()
                    yield [v & (1 << bits) - 1 for v in out]
                except RuntimeError as e:
                    print(op, dtype, device, e, file=sys.stderr)
                    yield None

    return run, {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}


def write(run, about):
    lines, sums = [], {}
    for dtype in DTYPES:
        second = factors(dtype)
        sums[f"factors.{dtype}"] = checksum(second)
        for kind in KINDS:
            rows = inputs(dtype, kind)
            sums[f"{kind}.{dtype}"] = checksum(rows)
            for op, results in exact(dtype, rows, second).items():
                of = " ".join(text(dtype, result) for result in results)
                pairs = [pair(dtype, results, out) for out in run(op, dtype, rows, second)]
                lines.append(f'"{op}.{kind}.{dtype}": {json.dumps([of, *pairs])}')
    print(f'{{"about": {json.dumps(about)},\n"inputs": {json.dumps(sums)},\n"cases": {{\n' + ",\n".join(lines) + "\n}}")


def check():
    """Checks the exact arithmetic against the standard library's."""
    formats = {"f16": "<e", "f32": "<f", "f64": "<d"}
    for i in range(4000):
        z = splitmix(1, i)
        number = math.ldexp((z & MASK >> 1) / 2**63 - 0.5, i % 80 - 40) if i % 2 else value("f64", z)
        for dtype, form in formats.items() if math.isfinite(number) else []:
            try:
                expected = struct.unpack(form, struct.pack(form, number))[0]
            except OverflowError:
                expected = math.copysign(math.inf, number)
            bits, remainder = rounded(dtype, *number.as_integer_ratio())
            assert value(dtype, bits) == expected, (dtype, number, bits)
            if math.isfinite(expected):
                # A rounded number is at its remainder's distance from itself.
                assert abs(error(dtype, (bits, remainder), bits) - abs(remainder) / 1000) < 1e-9
                assert abs(remainder) <= 500
    for kind in ["near_one", "offset", "same_sign", "cancellation", "spread"]:
        rows = inputs("f64", kind)
        results = exact("f64", rows, factors("f64"))
        for at, row in enumerate(rows):
            at = {op: value("f64", of[at][0]) for op, of in results.items()}
            most = max(values := [value("f64", bits) for bits in row])
            assert at["sum"] == math.fsum(values), kind
            expected = most + math.log(math.fsum(math.exp(v - most) for v in values))
            assert math.isclose(at["logsumexp"], expected, rel_tol=1e-13), kind
            assert math.isclose(at["norm"], math.hypot(*values), rel_tol=1e-13), kind
    write(lambda *of: [None] * 4, {})
    print("the exact arithmetic is right", file=sys.stderr)


if __name__ == "__main__":
    check() if "--check" in sys.argv else write(*pytorch())
