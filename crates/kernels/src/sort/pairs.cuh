// Keys of a row's elements with their places, and the order of such pairs: that of the keys, then of the places.

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
