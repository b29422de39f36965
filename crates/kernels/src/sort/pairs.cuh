// Pairs of a key and an index, ordered by key, then by index.

__device__ __forceinline__ bool less(Pair a, Pair b) {
    return a.key < b.key || (a.key == b.key && a.index < b.index);
}

__device__ __forceinline__ void exchange(Pair& a, Pair& b, bool ascending) {
    if (less(b, a) == ascending) {
        Pair t = a;
        a = b;
        b = t;
    }
}
