// Random permutation: indices sorted by random keys.

// Draws PyTorch's keys: any but the last value of 32 or 64 bits. Only the lowest `bits` bits count.
// PyTorch offsets the keys to signed integers, and its signed sort cancels the offset.
extern "C" __global__ __launch_bounds__(256) void permute_keys(SortPair *pairs, const u64 *state, const __grid_constant__ Permutation p) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 mask = p.bits == 64 ? ~0ull : (1ull << p.bits) - 1;
    PhiloxState from = resolve(p.philox, state);
    u64 counter = from.offset / 4;
    for (u64 first = thread; first < p.n; first += p.threads * 2) {
        Words x = philox(from.seed, thread, counter++);
        for (int i = 0; i < 2; i++) {
            u64 index = first + p.threads * i;
            if (index >= p.n) continue;
            u64 bits = wide(x.w[2 * i], x.w[2 * i + 1]);
            u64 key = bits % (p.bits <= 32 ? 0xFFFFFFFFull : ~0ull);
            pairs[index] = {key & mask, index};
        }
    }
    for (u64 i = p.n + thread; i < p.pairs; i += p.threads) pairs[i] = {~0ull, ~0ull};
}

// Shuffles pairs with equal keys, which sorting leaves in the order of their indices. The thread of
// the first pair of such a run shuffles the run.
extern "C" __global__ __launch_bounds__(256) void permute_ties(SortPair *pairs, const u64 *state, const __grid_constant__ Permutation p) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at + 1 >= p.n) return;
    u64 key = pairs[at].key;
    if (key != pairs[at + 1].key || (at != 0 && key == pairs[at - 1].key)) return;
    u64 count = 2;
    while (at + count < p.n && pairs[at + count].key == key) count++;
    SortPair *run = pairs + at;
    PhiloxState from = resolve(p.philox, state);
    Words words;
    u32 drawn = 0;
    for (u64 i = count - 1; i > 0; i--, drawn++) {
        if (drawn % 4 == 0) words = philox(from.seed, at, from.offset / 4 + drawn / 4);
        u64 other = words.w[drawn % 4] % (u32)(i + 1);
        u64 index = run[i].index;
        run[i].index = run[other].index;
        run[other].index = index;
    }
}

// Writes the sorted indices in the result's dtype.
extern "C" __global__ __launch_bounds__(256) void permute_write(const SortPair *pairs, void *out, const __grid_constant__ Permutation p) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= p.n) return;
    store_integer(out, p.dtype, offset_of(p.order, at), (i64)pairs[at].index);
}
