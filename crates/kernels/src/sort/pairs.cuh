// Pairs of a key and an index, ordered by key, then by index.

__device__ __forceinline__ bool less(SortPair a, SortPair b) {
    return a.key < b.key || (a.key == b.key && a.index < b.index);
}

__device__ __forceinline__ void exchange(SortPair& a, SortPair& b, bool ascending) {
    if (less(b, a) == ascending) {
        SortPair t = a;
        a = b;
        b = t;
    }
}
