//! Copies and memsets, host and device memory.

use warpline_cuda_sys_safe::owned::{DeviceMemory, HostMemory, Stream};

use super::kit::*;

use std::sync::Arc;
use warpline_cuda_sys_safe::*;

programs! {
    pageable_sources_are_staged(1, driver, t) {
        let stream = stream(driver, 0)?;
        let memory = memory(driver, 4096)?;
        let mut source = vec![1u8; 4096];
        copy_async(&stream, dev(&memory), host(&mut source), 4096)?;
        source.fill(2);
        t.say("copied", read(driver, &memory)?.iter().all(|&v| v == 1));
    } => ["copied: true"]

    pageable_destinations_are_ready_on_return(1, driver, t) {
        let stream = stream(driver, 0)?;
        let memory = memory(driver, 4096)?;
        fill(&stream, &memory, 3)?;
        let mut target = vec![0u8; 4096];
        copy_async(&stream, host(&mut target), dev(&memory), 4096)?;
        t.say("ready", target.iter().all(|&v| v == 3));
    } => ["ready: true"]

    synchronous_copies(1, driver, t) {
        let device = memory(driver, 4096)?;
        let pinned = HostMemory::pinned(driver, 0, 4096)?;
        set_bytes(&pinned, 5);
        let end = CopyEnd::Host(pinned.as_ptr());
        // SAFETY: all ends outlive the synchronous call.
        unsafe { driver.memcpy(0, &Copy { dst: dev(&device), src: end, bytes: 4096 }) }?;
        set_bytes(&pinned, 6);
        t.say("source may change", read(driver, &device)?.iter().all(|&v| v == 5));
        fill(&Stream::default_of(driver, 0), &device, 7)?;
        // SAFETY: all ends outlive the synchronous call.
        unsafe { driver.memcpy(0, &Copy { dst: end, src: dev(&device), bytes: 4096 }) }?;
        t.say("target is ready", bytes(&pinned).iter().all(|&v| v == 7));
        let mut source = vec![8u8; 4096];
        let copy = Copy { dst: dev(&device), src: host(&mut source), bytes: 4096 };
        // SAFETY: all ends outlive the synchronous call.
        unsafe { driver.memcpy(0, &copy) }?;
        source.fill(9);
        t.say("pageable source may change", read(driver, &device)?.iter().all(|&v| v == 8));
    } => ["source may change: true", "target is ready: true", "pageable source may change: true"]

    pinned_round_trip(1, driver, t) {
        let stream = stream(driver, 0)?;
        let there = memory(driver, 100)?;
        let (from, to) = (HostMemory::pinned(driver, 0, 100)?, HostMemory::registered(driver, 0, 100)?);
        set_bytes(&from, 11);
        copy_async(&stream, dev(&there), CopyEnd::Host(from.as_ptr()), 100)?;
        copy_async(&stream, CopyEnd::Host(to.as_ptr()), dev(&there), 100)?;
        stream.synchronize()?;
        t.say("back", bytes(&to).iter().all(|&v| v == 11));
    } => ["back: true"]

    peer_copies(2, driver, t) {
        let (here, there) = (stream(driver, 0)?, stream(driver, 1)?);
        let near = memory(driver, 64)?;
        let far = DeviceMemory::new(driver, 1, 64)?;
        fill(&here, &near, 21)?;
        here.synchronize()?;
        t.call("pull, by the reader", copy_async(&there, dev(&far), dev(&near), 64));
        t.say("pulled", read(driver, &far)?.iter().all(|&v| v == 21));
        fill(&there, &far, 22)?;
        there.synchronize()?;
        t.call("pull back", copy_async(&here, dev(&near), dev(&far), 64));
        t.say("came back", read(driver, &near)?.iter().all(|&v| v == 22));
    } => ["pull, by the reader: ok", "pulled: true", "pull back: ok", "came back: true"]

    memset_kinds(1, driver, t) {
        let stream = stream(driver, 0)?;
        let memory = memory(driver, 16)?;
        let set = |offset, value, count| {
            let at = memory.range(offset, 0)?;
            // SAFETY: callers keep the memory until the work is done.
            unsafe { driver.memset_async(at, value, count, stream.handle()) }
        };
        set(0, MemsetValue::U8(1), 3)?;
        set(4, MemsetValue::U16(0x0203), 2)?;
        set(8, MemsetValue::U32(0x0405_0607), 1)?;
        t.call("nothing", set(12, MemsetValue::U8(9), 0));
        t.say("bytes", read(driver, &memory)?);
        t.call("misaligned 16", set(1, MemsetValue::U16(1), 1));
        t.call("misaligned 32", set(2, MemsetValue::U32(1), 1));
    } => [
        "nothing: ok",
        "bytes: [1, 1, 1, 0, 3, 2, 3, 2, 7, 6, 5, 4, 0, 0, 0, 0]",
        "misaligned 16: INVALID_VALUE",
        "misaligned 32: INVALID_VALUE",
    ]

    empty_copies(1, driver, t) {
        let stream = stream(driver, 0)?;
        let memory = memory(driver, 16)?;
        let mut nothing = [0u8; 1];
        t.call("to the device", copy_async(&stream, dev(&memory), host(&mut nothing), 0));
        t.call("to the host", copy_async(&stream, host(&mut nothing), dev(&memory), 0));
        t.call("on the device", copy_async(&stream, dev(&memory), dev(&memory), 0));
    } => ["to the device: ok", "to the host: ok", "on the device: ok"]

    pointer_kinds(1, driver, t) {
        let memory = memory(driver, 1024)?;
        let pinned = HostMemory::pinned(driver, 0, 64)?;
        let registered = HostMemory::registered(driver, 0, 64)?;
        let pageable = HostMemory::pageable(64)?;
        let kind = |address| driver.pointer_kind(address);
        let of = |memory: &HostMemory| kind(memory.as_ptr().as_ptr() as u64);
        t.say("device", kind(memory.ptr().addr())?);
        t.say("inside", kind(memory.ptr().addr() + 1023)?);
        t.say("pinned", of(&pinned)?);
        t.say("registered", of(&registered)?);
        t.say("pageable", of(&pageable)?);
    } => [
        "device: Device(0)",
        "inside: Device(0)",
        "pinned: Pinned",
        "registered: Pinned",
        "pageable: Pageable",
    ]

    memory_is_refused(1, driver, t) {
        t.call("nothing", driver.mem_alloc(0, 0));
        t.call("too much", driver.mem_alloc(0, 1 << 46));
        let memory = memory(driver, 4096)?;
        // SAFETY: the driver refuses the call and frees nothing.
        t.call("free the middle", unsafe { driver.mem_free(0, memory.range(512, 0)?) });
        t.say("alignment", memory.ptr().addr() % 512);
        let info = driver.mem_info(0)?;
        t.say("free < total", info.free < info.total);
        let registered = HostMemory::registered(driver, 0, 4096)?;
        // SAFETY: the driver refuses the call and registers nothing.
        let again = unsafe {
            driver.host_register(0, registered.as_ptr(), 4096, HostFlags::default())
        };
        t.call("register twice", again);
        let pageable = HostMemory::pageable(64)?;
        // SAFETY: the driver refuses the call and unregisters nothing.
        t.call("unregister unknown", unsafe { driver.host_unregister(0, pageable.as_ptr()) });
    } => [
        "nothing: INVALID_VALUE",
        "too much: OUT_OF_MEMORY",
        "free the middle: INVALID_VALUE",
        "alignment: 0",
        "free < total: true",
        "register twice: HOST_MEMORY_ALREADY_REGISTERED",
        "unregister unknown: HOST_MEMORY_NOT_REGISTERED",
    ]
}
