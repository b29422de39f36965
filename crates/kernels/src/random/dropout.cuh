// out = in * kept * scale, with `kept` as bools. PyTorch's thread for element `i` draws the word
// that decides this element. Each thread here handles the four words of one draw.

template <class T, int vec>
__device__ __forceinline__ void
drop(const T* in, T* out, boolean* kept, PhiloxState from, const Dropout& p, u64 unit) {
    typedef compute_t<T> A;
    const u64 thread = unit % p.threads, call = unit / p.threads;
    const Words words = philox(from.seed, thread, from.offset / 4 + call);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const u64 word = call * 4 + k;
        const u64 i = (word / vec * p.threads + thread) * vec + word % vec;
        if (i < p.numel) {
            const A keep = (A)unit_float(words.w[k]) < (A)p.p ? (A)1 : (A)0;
            store(out[i], load(in[i]) * keep * (A)p.scale);
            kept[i].byte = keep != (A)0;
        }
    }
}

template <class T>
__device__ __forceinline__ void
dropout(const T* in, T* out, boolean* kept, const u64* state, const Dropout& p) {
    const PhiloxState from = resolve(p.philox, state);
    const u64 unit = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (unit >= p.threads * p.rounds) return;
    switch (p.vec) {
    case 1: drop<T, 1>(in, out, kept, from, p, unit); break;
    case 2: drop<T, 2>(in, out, kept, from, p, unit); break;
    case 4: drop<T, 4>(in, out, kept, from, p, unit); break;
    default: drop<T, 8>(in, out, kept, from, p, unit); break;
    }
}

#define DROPOUT(T)                                                                                    \
    extern "C" __global__ void dropout_##T(const T* in, T* out, boolean* kept, const u64* state,      \
                                           const __grid_constant__ Dropout p) {                          \
        dropout(in, out, kept, state, p);                                                             \
    }
