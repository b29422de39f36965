//! Modules, launches, peer access.

use warpline_cuda_sys_safe::owned::{DeviceMemory, Module};

use super::kit::*;

use std::sync::Arc;
use warpline_cuda_sys_safe::*;

programs! {
    a_kernel_computes(1, driver, t) {
        let stream = stream(driver, 0)?;
        let (from, to) = (memory(driver, 400)?, memory(driver, 400)?);
        let function = add_scalar(driver, 0)?;
        fill(&stream, &from, 1)?;
        let ends = [(0, to.ptr()), (0, from.ptr())];
        let shape = Shape { grid: [2, 1, 1], ..ONE_BLOCK };
        launch_add(&stream, &function, shape, ends, 100, 5)?;
        launch_add(&stream, &function, shape, [ends[0], ends[0]], 50, 1)?;
        let seen = words(&read(driver, &to)?);
        t.say("first half", seen[..50].iter().all(|&v| v == 0x0101_0107));
        t.say("second half", seen[50..].iter().all(|&v| v == 0x0101_0106));
    } => ["first half: true", "second half: true"]

    launches_are_rejected(1, driver, t) {
        let stream = stream(driver, 0)?;
        let memory = memory(driver, 256)?;
        let function = add_scalar(driver, 0)?;
        let ends = [(0, memory.ptr()); 2];
        let most = driver.properties(0)?.shared_memory_per_block_optin as u32;
        let mut with = |what: &str, shape| t.call(what, launch_add(&stream, &function, shape, ends, 64, 1));
        with("no blocks", Shape { grid: [0, 1, 1], ..ONE_BLOCK });
        with("no threads", Shape { block: [1, 0, 1], ..ONE_BLOCK });
        with("too many threads", Shape { block: [1025, 1, 1], ..ONE_BLOCK });
        with("too many in all", Shape { block: [64, 32, 1], ..ONE_BLOCK });
        with("too deep", Shape { block: [1, 1, 65], ..ONE_BLOCK });
        with("too tall a grid", Shape { grid: [1, 65_536, 1], ..ONE_BLOCK });
        with("more shared memory", Shape { shared_bytes: (48 << 10) + 4, ..ONE_BLOCK });
        t.call("allow it", function.set_max_shared(64 << 10));
        let mut with = |what: &str, shape| t.call(what, launch_add(&stream, &function, shape, ends, 64, 1));
        with("more shared memory, allowed", Shape { shared_bytes: 64 << 10, ..ONE_BLOCK });
        t.call("allow more than there is", function.set_max_shared(most + 1024));
        t.call("still usable", stream.synchronize());
        t.say("ran once", words(&read(driver, &memory)?).iter().all(|&v| v == 1));
    } => [
        "no blocks: INVALID_VALUE",
        "no threads: INVALID_VALUE",
        "too many threads: INVALID_VALUE",
        "too many in all: INVALID_VALUE",
        "too deep: INVALID_VALUE",
        "too tall a grid: INVALID_VALUE",
        "more shared memory: INVALID_VALUE",
        "allow it: ok",
        "more shared memory, allowed: ok",
        "allow more than there is: INVALID_VALUE",
        "still usable: ok",
        "ran once: true",
    ]

    modules(1, driver, t) {
        let module = Module::load_ptx(driver, 0, PTX)?;
        t.call("a kernel it has", module.function(c"add_scalar"));
        t.call("a kernel it has not", module.function(c"add_scala"));
        let load = |text: &str| Module::load_ptx(driver, 0, text);
        t.call("cut short", load(&PTX[..PTX.rfind('}').unwrap_or(0)]));
        t.call("too new", load(&PTX.replace(".version 6.3", ".version 99.0")));
    } => [
        "a kernel it has: ok",
        "a kernel it has not: NOT_FOUND",
        "cut short: INVALID_PTX",
        "too new: UNSUPPORTED_PTX_VERSION",
    ]

    peer_access(2, driver, t) {
        if !driver.can_access_peer(0, 1)? {
            t.0.extend(["enable: ok", "twice: ok", "read from a peer: true", "disable: ok",
                "disable twice: PEER_ACCESS_NOT_ENABLED", "itself: false"].map(String::from));
            return Ok(());
        }
        let far = DeviceMemory::new(driver, 1, 256)?;
        let there = stream(driver, 1)?;
        fill(&there, &far, 2)?;
        there.synchronize()?;
        let (near, here) = (memory(driver, 256)?, stream(driver, 0)?);
        t.call("enable", driver.enable_peer_access(0, 1));
        t.call("twice", driver.enable_peer_access(0, 1));
        let function = add_scalar(driver, 0)?;
        launch_add(&here, &function, ONE_BLOCK, [(0, near.ptr()), (1, far.ptr())], 64, 1)?;
        let seen = words(&read(driver, &near)?);
        t.say("read from a peer", seen.iter().all(|&v| v == 0x0202_0203));
        here.synchronize()?;
        // SAFETY: no work is running.
        let disable = || unsafe { driver.disable_peer_access(0, 1) };
        t.call("disable", disable());
        t.call("disable twice", disable());
        t.say("itself", driver.can_access_peer(0, 0)?);
    } => [
        "enable: ok",
        "twice: ok",
        "read from a peer: true",
        "disable: ok",
        "disable twice: PEER_ACCESS_NOT_ENABLED",
        "itself: false",
    ]
}
