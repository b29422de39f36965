//! Tests of kernels that are launched before earlier work of their stream completes.

use super::*;

/// `write` permits the launch of the next kernel, waits 20 ms, and stores 1. `read` and `wait_and_read` copy the value.
const PTX: &str = r#"
.version 8.0
.target sm_90
.address_size 64
.visible .entry write(.param .u64 value) {
    .reg .pred %p; .reg .f32 %f; .reg .u64 %now, %end, %value;
    griddepcontrol.launch_dependents;
    ld.param.u64 %value, [value];
    mov.u64 %end, %globaltimer;
    add.u64 %end, %end, 20000000;
again:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %p, %now, %end;
    @%p bra again;
    mov.f32 %f, 0f3F800000;
    st.volatile.global.f32 [%value], %f;
    ret;
}
.visible .entry read(.param .u64 value, .param .u64 copy) {
    .reg .f32 %f; .reg .u64 %value, %copy;
    ld.param.u64 %value, [value];
    ld.param.u64 %copy, [copy];
    ld.volatile.global.f32 %f, [%value];
    st.global.f32 [%copy], %f;
    ret;
}
.visible .entry wait_and_read(.param .u64 value, .param .u64 copy) {
    .reg .f32 %f; .reg .u64 %value, %copy;
    griddepcontrol.wait;
    ld.param.u64 %value, [value];
    ld.param.u64 %copy, [copy];
    ld.volatile.global.f32 %f, [%value];
    st.global.f32 [%copy], %f;
    ret;
}
"#;

#[test]
#[ignore = "needs a GPU"]
fn gpu_a_kernel_that_waits_is_launched_early() {
    let (_alone, driver) = gpu();
    let capability = driver.properties(0).unwrap().compute_capability;
    assert!(
        capability >= (9, 0),
        "this test needs a GPU with compute capability 9.0, not {capability:?}"
    );
    let module = Module::load_ptx(&driver, 0, PTX).unwrap();
    let [write, read, wait_and_read] =
        [c"write", c"read", c"wait_and_read"].map(|name| module.function(name).unwrap());
    let (stream, memory) = (stream(&driver), DeviceMemory::new(&driver, 0, 8).unwrap());
    let value = memory.ptr();
    // SAFETY: the memory has eight bytes.
    let copy = unsafe { value.offset(4) };
    let observed = |kernel: &Function, waits: bool| {
        upload(&stream, value, &[0.0, -1.0]);
        launch(&stream, &write, 1, &[value], &[]).unwrap();
        launch_as(&stream, kernel, 1, &[value, copy], &[], waits).unwrap();
        download(&stream, copy, 1)[0]
    };
    for kernel in [&read, &wait_and_read] {
        observed(kernel, false);
    }
    for _ in 0..20 {
        assert_eq!(observed(&read, false), 1.0, "a kernel that does not wait is launched in order");
        assert_eq!(observed(&wait_and_read, true), 1.0);
    }
    // A kernel that is wrongly said to wait shows that the launch is early.
    assert_eq!(observed(&read, true), 0.0);
}
