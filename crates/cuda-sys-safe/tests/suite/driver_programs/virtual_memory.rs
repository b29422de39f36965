//! Reservations, mappings, pools.

use warpline_cuda_sys_safe::owned::Stream;

use super::kit::*;

use std::sync::Arc;
use warpline_cuda_sys_safe::*;

/// Sets bytes at one address and reads them at another.
fn through(
    driver: &Arc<dyn Driver>,
    write: DevicePtr,
    read: DevicePtr,
    value: u8,
) -> Result<Vec<u8>> {
    let stream = Stream::default_of(driver, 0);
    // SAFETY: callers pass mapped addresses, and all work is waited for.
    unsafe { driver.memset_async(write, MemsetValue::U8(value), 4, stream.handle()) }?;
    let mut out = vec![0; 4];
    let src = CopyEnd::Device { device: 0, ptr: read };
    // SAFETY: callers pass mapped addresses, and the copy is synchronous.
    unsafe { driver.memcpy(0, &Copy { dst: host(&mut out), src, bytes: 4 }) }?;
    Ok(out)
}

programs! {
    one_piece_mapped_twice(1, driver, t) {
        let page = driver.mem_granularity(0)?;
        let base = driver.address_reserve(0, 3 * page)?;
        let piece = driver.mem_create(0, page)?;
        // SAFETY: all objects below are live until their release at the end, when no work is left.
        unsafe {
            let second = base.offset(2 * page as i64);
            let both = [(0, MemAccess::ReadWrite)];
            t.call("map", driver.mem_map(base, page, 0, piece));
            t.call("map again", driver.mem_map(second, page, 0, piece));
            t.call("map over it", driver.mem_map(base, page, 0, piece));
            driver.mem_set_access(0, base, page, &both)?;
            driver.mem_set_access(0, second, page, &both)?;
            t.say("seen through the other", through(driver, base, second.offset(0), 7)?);
            driver.synchronize(0)?;
            t.call("release while mapped", driver.mem_release(piece));
            t.call("unmap one", driver.mem_unmap(0, base, page));
            t.say("the other still works", through(driver, second, second, 8)?);
            driver.synchronize(0)?;
            t.call("unmap the other", driver.mem_unmap(0, second, page));
            t.call("free the range", driver.address_free(0, base, 3 * page));
        }
    } => [
        "map: ok",
        "map again: ok",
        "map over it: INVALID_VALUE",
        "seen through the other: [7, 7, 7, 7]",
        "release while mapped: ok",
        "unmap one: ok",
        "the other still works: [8, 8, 8, 8]",
        "unmap the other: ok",
        "free the range: ok",
    ]

    a_peer_reads_a_mapping(2, driver, t) {
        if !driver.can_access_peer(0, 1)? {
            t.0.extend(["read: true", "the owner's access set again: true"].map(String::from));
            return Ok(());
        }
        let page = driver.mem_granularity(1)?;
        let base = driver.address_reserve(1, page)?;
        let piece = driver.mem_create(1, page)?;
        let (near, here) = (memory(driver, 256)?, stream(driver, 0)?);
        let function = add_scalar(driver, 0)?;
        // SAFETY: all objects below are live until their release at the end, when no work is left.
        unsafe {
            driver.mem_map(base, page, 0, piece)?;
            driver.mem_set_access(1, base, page, &[(1, MemAccess::ReadWrite)])?;
            driver.mem_set_access(1, base, page, &[(0, MemAccess::ReadWrite)])?;
            for (what, value) in [("read", 2), ("the owner's access set again", 4)] {
                let there = Stream::default_of(driver, 1);
                driver.memset_async(base, MemsetValue::U8(value), 256, there.handle())?;
                driver.synchronize(1)?;
                let ends = [(0, near.ptr()), (1, base.offset(0))];
                launch_add(&here, &function, ONE_BLOCK, ends, 64, 1)?;
                let expected = u32::from_ne_bytes([value; 4]) + 1;
                t.say(what, words(&read(driver, &near)?).iter().all(|&v| v == expected));
                driver.mem_set_access(1, base, page, &[(1, MemAccess::ReadWrite)])?;
            }
            driver.mem_unmap(1, base, page)?;
            driver.mem_release(piece)?;
            driver.address_free(1, base, page)?;
        }
    } => ["read: true", "the owner's access set again: true"]

    a_copy_spans_mappings(1, driver, t) {
        let page = driver.mem_granularity(0)?;
        let base = driver.address_reserve(0, 2 * page)?;
        let pieces = [driver.mem_create(0, page)?, driver.mem_create(0, page)?];
        // SAFETY: all objects below are live until their release at the end, when no work is left.
        unsafe {
            for (i, piece) in pieces.into_iter().enumerate() {
                driver.mem_map(base.offset((i * page) as i64), page, 0, piece)?;
            }
            driver.mem_set_access(0, base, 2 * page, &[(0, MemAccess::ReadWrite)])?;
            let across = base.offset(page as i64 - 2);
            t.say("across", through(driver, across, across, 3)?);
            driver.synchronize(0)?;
            driver.mem_unmap(0, base, 2 * page)?;
            for piece in pieces {
                driver.mem_release(piece)?;
            }
            driver.address_free(0, base, 2 * page)?;
        }
    } => ["across: [3, 3, 3, 3]"]

    virtual_memory_is_refused(1, driver, t) {
        let page = driver.mem_granularity(0)?;
        t.call("reserve an odd size", driver.address_reserve(0, page + 1));
        t.call("create an odd size", driver.mem_create(0, page / 2 + 1));
        t.call("create too much", driver.mem_create(0, page << 24));
        let base = driver.address_reserve(0, 2 * page)?;
        let piece = driver.mem_create(0, page)?;
        // SAFETY: the mappings are live until their release at the end, when no work is left.
        unsafe {
            t.call("map more than there is", driver.mem_map(base, 2 * page, 0, piece));
            let access = [(0, MemAccess::ReadWrite)];
            t.call("access to nothing", driver.mem_set_access(0, base, page, &access));
            driver.mem_map(base, page, 0, piece)?;
            driver.mem_unmap(0, base, page)?;
            driver.mem_release(piece)?;
            t.call("free", driver.address_free(0, base, 2 * page));
        }
    } => [
        "reserve an odd size: INVALID_VALUE",
        "create an odd size: INVALID_VALUE",
        "create too much: OUT_OF_MEMORY",
        "map more than there is: NOT_SUPPORTED",
        "access to nothing: INVALID_VALUE",
        "free: ok",
    ]

    pools_that_peers_use(2, driver, t) {
        let [own, other] = [stream(driver, 0)?, stream(driver, 1)?];
        let pool = driver.mempool_create(0)?;
        // SAFETY: pool, streams and memory are live until their release. The device is synchronized
        // between uses.
        unsafe {
            let before = driver.mem_alloc_async(pool, 1024, own.handle())?;
            driver.synchronize(0)?;
            let access = [(1, MemAccess::ReadWrite)];
            t.call("set access", driver.mempool_set_access(pool, &access));
            let after = driver.mem_alloc_async(pool, 1024, own.handle())?;
            driver.synchronize(0)?;
            for memory in [before, after] {
                let set = driver.memset_async(memory, MemsetValue::U8(7), 1024, other.handle());
                t.call("set memory", set);
                driver.synchronize(1)?;
                driver.mem_free_async(memory, own.handle())?;
            }
            driver.synchronize(0)?;
            let none = [(0, MemAccess::None)];
            t.call("of its own device", driver.mempool_set_access(pool, &none));
            t.call("destroy", driver.mempool_destroy(pool));
        }
    } => [
        "set access: ok",
        "set memory: ok",
        "set memory: ok",
        "of its own device: INVALID_DEVICE",
        "destroy: ok",
    ]

    pools(1, driver, t) {
        let stream = stream(driver, 0)?;
        let target = memory(driver, 1024)?;
        let pool = driver.mempool_create(0)?;
        // SAFETY: pool, stream and memory are live until their release, which runs in stream order.
        unsafe {
            driver.mempool_release_threshold(pool, u64::MAX)?;
            let a = driver.mem_alloc_async(pool, 1024, stream.handle())?;
            t.say("kind", driver.pointer_kind(a.addr())?);
            driver.memset_async(a, MemsetValue::U8(6), 1024, stream.handle())?;
            copy_async(&stream, dev(&target), CopyEnd::Device { device: 0, ptr: a }, 1024)?;
            t.call("free", driver.mem_free_async(a, stream.handle()));
            t.say("copied", read(driver, &target)?.iter().all(|&v| v == 6));
            t.call("too much", driver.mem_alloc_async(pool, 1 << 46, stream.handle()));
            t.call("trim", driver.mempool_trim(pool, 0));
            t.call("destroy", driver.mempool_destroy(pool));
        }
    } => [
        "kind: Device(0)",
        "free: ok",
        "copied: true",
        "too much: OUT_OF_MEMORY",
        "trim: ok",
        "destroy: ok",
    ]
}
