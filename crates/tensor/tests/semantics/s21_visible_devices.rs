//! Tests of row S21: `CUDA_VISIBLE_DEVICES` with indices, UUIDs, any order, an empty value, and
//! invalid entries.

use warpline::{Device, Error, ErrorKind, SimulatedOptions, cuda, ones, simulated, with_runtime};

use crate::common;

/// Returns the UUIDs of the visible devices of a simulated machine with three devices, in order.
fn visible(text: Option<&str>) -> Vec<[u8; 16]> {
    let runtime = simulated(SimulatedOptions::new(3).visible(text)).expect("a runtime");
    with_runtime(&runtime, || {
        (0..cuda::device_count().expect("a count"))
            .map(|d| cuda::get_device_properties(d).expect("properties").uuid)
            .collect()
    })
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[test]
fn s21_which_devices_and_in_which_order() {
    let all = visible(None);
    assert_eq!(all.len(), 3);
    let names: Vec<String> = all.iter().map(uuid_text).collect();
    let cases: &[(String, &[usize])] = &[
        ("0,1,2".into(), &[0, 1, 2]),
        ("2,0".into(), &[2, 0]),
        ("1".into(), &[1]),
        (" 2 , 1 ".into(), &[2, 1]),
        (String::new(), &[]),
        ("-1".into(), &[]),
        ("0,-1,2".into(), &[0]),
        ("1,7,0".into(), &[1]),
        ("none".into(), &[]),
        ("0,0".into(), &[]),
        (names[1].clone(), &[1]),
        (format!("{},{}", names[2], names[0]), &[2, 0]),
        (names[2][..12].into(), &[2]),
        (format!("{},GPU-ffffffff-0000,{}", names[2], names[0]), &[2]),
    ];
    for (text, expected) in cases {
        let expected: Vec<_> = expected.iter().map(|&d| all[d]).collect();
        assert_eq!(visible(Some(text)), expected, "CUDA_VISIBLE_DEVICES={text}");
    }
}

#[test]
fn s21_hidden_devices_are_not_there() {
    let runtime = simulated(SimulatedOptions::new(3).visible(Some("2,0"))).expect("a runtime");
    with_runtime(&runtime, || {
        assert_eq!(ones([2], "cuda:1")?.device(), Device::cuda(1));
        let error = ones([2], "cuda:2").expect_err("hidden");
        assert!(
            matches!(error.kind(), ErrorKind::NoSuchDevice { index: 2, count: 2, .. }),
            "{error:?}"
        );
        Ok::<_, Error>(())
    })
    .expect("no failure");
    let runtime = simulated(SimulatedOptions::new(3).visible(Some(""))).expect("a runtime");
    with_runtime(&runtime, || {
        assert!(!cuda::is_available().expect("hidden on purpose"));
        let error = ones([2], "cuda").expect_err("all hidden");
        assert!(matches!(error.kind(), ErrorKind::CudaUnavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("CUDA_VISIBLE_DEVICES is ``"), "{error}");
    });
}

/// Prints the state of the default runtime. The tests below run this test in a separate process.
#[test]
#[ignore = "other tests run it in processes of their own"]
fn the_default_runtime_follows_the_environment() {
    let runtime = warpline::runtime();
    match cuda::is_available() {
        Ok(available) => println!("available={available}"),
        Err(error) => println!("available is an error: {error}"),
    }
    match cuda::device_count() {
        Ok(count) => println!("devices={count}"),
        Err(error) => println!("devices=error: {error}"),
    }
    let host = ones([2], ()).and_then(|t| t.to_vec::<f32>());
    assert_eq!(host.expect("the CPU works, whatever there is"), [1.0, 1.0]);
    println!("blocking={}", runtime.launch_blocking());
    match ones([2], "cuda") {
        Ok(t) => println!("ones={:?}", t.to_vec::<f32>().expect("values")),
        Err(error) => println!("error={error}"),
    }
}

fn child(variables: &[(&str, &str)]) -> String {
    let name = "the_default_runtime_follows_the_environment";
    let mut command = common::own_test(module_path!(), name);
    command.args(["--ignored", "--test-threads=1"]);
    for name in
        ["WARPLINE_DRIVER", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "WARPLINE_LIBCUDA"]
    {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("devices="), "the test was not run: {text}");
    text
}

#[test]
fn s21_the_environment_is_obeyed() {
    let text = child(&[("WARPLINE_DRIVER", "sim:3")]);
    assert!(text.contains("devices=3\nblocking=false\nones=[1.0, 1.0]"), "{text}");
    let text = child(&[("WARPLINE_DRIVER", "sim:3"), ("CUDA_VISIBLE_DEVICES", "2,1")]);
    assert!(text.contains("devices=2\n"), "{text}");
    let text = child(&[("WARPLINE_DRIVER", "sim:3"), ("CUDA_VISIBLE_DEVICES", "")]);
    assert!(text.contains("available=false\ndevices=0\n"), "{text}");
    assert!(text.contains("no CUDA device is visible: CUDA_VISIBLE_DEVICES is ``"), "{text}");
    assert!(!text.contains("NVIDIA GPU"), "there are GPUs: {text}");
}

#[test]
fn s08_the_environment_is_obeyed() {
    let text = child(&[("WARPLINE_DRIVER", "sim:1"), ("CUDA_LAUNCH_BLOCKING", "1")]);
    assert!(text.contains("blocking=true\nones=[1.0, 1.0]"), "{text}");
    let text = child(&[("WARPLINE_DRIVER", "sim:1"), ("CUDA_LAUNCH_BLOCKING", "0")]);
    assert!(text.contains("blocking=false"), "{text}");
}

#[test]
fn s19_a_driver_that_means_nothing_is_named() {
    wrong("WARPLINE_DRIVER", "vulkan", "`cuda`");
    wrong("WARPLINE_DRIVER", "sim:x", "`x`");
    wrong("WARPLINE_DRIVER", "sim:2,foo", "lazy, seed=N, memory=BYTES");
    wrong("WARPLINE_DRIVER", "sim:2,lazy,eager", "`lazy` and `eager`");
}

/// Asserts that an invalid setting does not look like a machine without GPUs: listing devices and
/// using a device both fail with an error that names the variable, its value and the allowed
/// values.
#[track_caller]
fn wrong(variable: &str, value: &str, may_hold: &str) {
    let mut variables = vec![("WARPLINE_DRIVER", "sim:2")];
    variables.retain(|(name, _)| *name != variable && variable != "WARPLINE_LIBCUDA");
    variables.push((variable, value));
    let text = child(&variables);
    let blamed = format!("the environment variable {variable} is `{value}`: ");
    for asked in ["available is an error: ", "devices=error: ", "error="] {
        assert!(text.contains(&format!("{asked}{blamed}")), "{text}");
    }
    assert!(text.contains(may_hold), "{text}");
    assert!(!text.contains("NVIDIA GPU"), "nobody lacks a GPU: {text}");
}

#[test]
fn s19_a_wrong_setting_is_no_machine_without_gpus() {
    for variable in ["WARPLINE_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"] {
        wrong(variable, "foo:1", "expandable_segments");
        wrong(variable, "junk", "max_split_size_mb");
    }
    wrong("WARPLINE_ALLOC_CONF", "max_split_size_mb:x", "a whole number of at least 20");
    wrong("CUDA_VISIBLE_DEVICES", "7", "no device 7 among this machine's 2");
    wrong("CUDA_VISIBLE_DEVICES", "0,0", "it names device 0 twice");
    wrong("CUDA_VISIBLE_DEVICES", "GPU-123", "such as `0,1`");
    wrong("WARPLINE_DRIVR", "sim:2", "did you mean WARPLINE_DRIVER?");
    wrong("CUDA_LAUNCH_BLOCKING", "yes", "may be 0, or 1");
    wrong("WARPLINE_LIBCUDA", "/nonexistent/libcuda.so", "Set the variable");
}

/// Without settings, the driver of the machine is used, or an error states the reason for its
/// absence. Nothing panics, and no device is simulated.
#[test]
fn s19_nothing_is_simulated_unasked() {
    let text = child(&[]);
    let there = text.contains("ones=[1.0, 1.0]") && !text.contains("devices=0");
    let absent = text.contains("devices=0") && text.contains("error=ones: CUDA is not available");
    assert!(there != absent, "{text}");
}
