//! Host memory of a few elements.

use std::cell::UnsafeCell;

/// Zeroed host memory inside the storage itself, which saves an allocation. Many CPU tensors are small: losses, numbers of
/// steps, sizes. The memory does not move, because a storage lies in an `Arc`.
#[derive(Debug)]
pub(super) struct SmallMemory(UnsafeCell<[u128; 4]>);

// SAFETY: the bytes are accessed only through `as_ptr`. As for all host memory, the storage's host lock orders the accesses.
unsafe impl Sync for SmallMemory {}

impl SmallMemory {
    /// Size in bytes.
    pub(super) const BYTES: usize = size_of::<Self>();

    pub(super) fn zeroed() -> Self {
        Self(UnsafeCell::new([0; 4]))
    }

    /// Returns the address of the first byte, which is aligned for each dtype.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.0.get().cast()
    }
}

#[cfg(test)]
mod tests {
    use warpline_cuda_sys_safe::DriverError;

    use super::SmallMemory;
    use crate::launch::{read_bytes, write_bytes};
    use crate::storage::StorageInner;
    use crate::{Runtime, RuntimeConfig, Storage};

    #[test]
    fn a_small_storage_needs_no_further_allocation() {
        let reason = DriverError::NoDevice { reason: "a test".into() };
        let runtime = Runtime::without_cuda(reason, &RuntimeConfig::default());
        for bytes in [0, 1, SmallMemory::BYTES, SmallMemory::BYTES + 1] {
            let storage = Storage::pageable(&runtime, bytes).unwrap();
            let own = storage.key() as u64..(storage.key() + size_of::<StorageInner>()) as u64;
            assert_eq!(own.contains(&storage.address()), bytes <= SmallMemory::BYTES);
            assert!(storage.address().is_multiple_of(16), "aligned for each dtype");
            let mut read = vec![1; bytes];
            read_bytes((&storage, 0), &mut read).unwrap();
            assert_eq!(read, vec![0; bytes]);
            write_bytes((&storage, 0), &vec![7; bytes]).unwrap();
            read_bytes((&storage.clone(), 0), &mut read).unwrap();
            assert_eq!(read, vec![7; bytes]);
        }
    }
}
