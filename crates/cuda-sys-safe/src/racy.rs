//! Copying bytes that another process may write at the same time.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Copies bytes one by one with atomic operations, so concurrent writes by another process are not
/// undefined behaviour. The copy may contain part of such a write. Words would be faster, but
/// memory that was sent twice has two addresses in this process, and atomic accesses of different
/// sizes must not overlap.
///
/// # Safety
/// Both ranges are live and do not overlap. During the copy, this process accesses them only by
/// this function.
pub(crate) unsafe fn copy(src: *const u8, dst: *mut u8, bytes: usize) {
    for at in 0..bytes {
        // SAFETY: the byte lies inside the ranges, and an atomic byte needs no alignment. The
        // caller guarantees that all concurrent accesses of this process are atomic bytes, too.
        unsafe {
            let byte = AtomicU8::from_ptr(src.add(at).cast_mut()).load(Relaxed);
            AtomicU8::from_ptr(dst.add(at)).store(byte, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_bytes_are_copied_and_no_others() {
        let source: Vec<u8> = (1..=64).collect();
        for (from, to) in (0..9).flat_map(|from| (0..9).map(move |to| (from, to))) {
            for bytes in 0..=40 {
                let mut out = vec![0; 64];
                // SAFETY: both ranges lie inside their vectors.
                unsafe {
                    super::copy(source.as_ptr().add(from), out.as_mut_ptr().add(to), bytes);
                }
                assert_eq!(out[to..to + bytes], source[from..from + bytes]);
                assert_eq!(out.iter().filter(|&&byte| byte != 0).count(), bytes);
            }
        }
    }
}
