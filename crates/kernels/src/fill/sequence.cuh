// Evenly spaced values. From index `middle` on, they are computed backwards from `last`.
#define SEQUENCE(name, T)                                                                         \
    extern "C" __global__ void sequence_##name(T* out, const __grid_constant__ Sequence p) {      \
        typedef compute_t<T> C;                                                                   \
        const u64 i = thread();                                                                   \
        if (i >= p.numel) return;                                                                 \
        C value;                                                                                  \
        if (p.exact) {                                                                            \
            value = cast<C>(p.first_int + (i64)i * p.step_int);                                   \
        } else if (i < p.middle) {                                                                \
            value = cast<C>(__dadd_rn(p.first, __dmul_rn(p.step, (f64)i)));                       \
        } else {                                                                                  \
            const f64 left = (f64)(p.numel - 1 - i);                                              \
            value = cast<C>(__dsub_rn(p.last, __dmul_rn(p.step, left)));                          \
        }                                                                                         \
        store(out[(i64)i * p.stride], value);                                                     \
    }
