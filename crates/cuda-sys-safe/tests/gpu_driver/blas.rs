//! Compares cuBLAS products with products on the host.

use super::*;

#[test]
#[ignore = "needs a GPU"]
fn gpu_cublas_multiplies_matrices() {
    let (_one, driver) = gpu();
    let stream = stream(&driver);
    let blas = Blas::load().expect("name cuBLAS in WARPLINE_CUBLAS");
    assert!(blas.version() >= (12, 0));
    let handle = blas.handle(&*driver, 0).unwrap();
    let (m, n, k, batch) = (17usize, 23usize, 31usize, 3usize);
    let at = |matrix: &[f32], i: usize| matrix[i];
    let a: Vec<f32> = (0..batch * m * k).map(|i| (i % 13) as f32 - 6.0).collect();
    let b: Vec<f32> = (0..batch * k * n).map(|i| (i % 7) as f32 - 3.0).collect();
    let c: Vec<f32> = (0..batch * m * n).map(|i| (i % 5) as f32).collect();
    // Row-major C = 2·A·B + 3·C. The values are small integers, so every sum is exact.
    let mut expected = c.clone();
    for l in 0..batch {
        for i in 0..m {
            for j in 0..n {
                let dot: f32 = (0..k)
                    .map(|p| at(&a, l * m * k + i * k + p) * at(&b, l * k * n + p * n + j))
                    .sum();
                let out = &mut expected[l * m * n + i * n + j];
                *out = 2.0 * dot + 3.0 * *out;
            }
        }
    }
    let workspace = DeviceMemory::new(&driver, 0, 8 * MIB).unwrap();
    for (dtype, size) in
        [(BlasType::F32, 4), (BlasType::F64, 8), (BlasType::F16, 2), (BlasType::BF16, 2)]
    {
        let buffers: Vec<DeviceMemory> = [&a, &b, &c]
            .map(|values| {
                let bytes = encode(dtype, values);
                let memory = DeviceMemory::new(&driver, 0, bytes.len()).unwrap();
                copy(&stream, on(0, memory.ptr()), host(&bytes), bytes.len());
                memory
            })
            .into();
        let workspace = (dtype == BlasType::F32).then_some((workspace.ptr(), workspace.bytes()));
        // The matrices are row-major, so the operands are swapped (see `src/blas/mod.rs`).
        let args = GemmArgs {
            dtype,
            result: dtype,
            transa: false,
            transb: false,
            m: n,
            n: m,
            k,
            alpha: 2.0,
            beta: 3.0,
            a: buffers[1].ptr(),
            lda: n,
            stride_a: (k * n) as i64,
            b: buffers[0].ptr(),
            ldb: k,
            stride_b: (m * k) as i64,
            c: buffers[2].ptr(),
            ldc: n,
            stride_c: (m * n) as i64,
            batch,
            precision: GemmPrecision::DEFAULT,
            workspace,
        };
        let call = |stream: StreamHandle, pointers: &[DevicePtr]| {
            assert_eq!(pointers, [args.c]);
            // SAFETY: the buffers are live, and the launch below makes the context current.
            unsafe { handle.gemm_strided_batched(stream, &args) }
        };
        let footprints = [Footprint {
            ptr: args.c,
            device: 0,
            item_size: size,
            sizes: &[batch * m * n],
            strides: &[1],
            access: Access::ReadWrite,
        }];
        let launch = Launch {
            op: "bmm",
            code: DeviceCode::Library(&call),
            host: unused,
            footprints: &footprints,
            params: &[],
            location: Location::caller(),
        };
        // SAFETY: stream and buffers are live, and the stream is synchronized below.
        unsafe { driver.launch(stream.handle(), &launch) }.unwrap();
        let mut bytes = vec![0u8; batch * m * n * size];
        let count = bytes.len();
        copy(&stream, host_mut(&mut bytes), on(0, args.c), count);
        // The 16-bit types round results that need more bits.
        let exact = matches!(dtype, BlasType::F32 | BlasType::F64);
        let digits = if dtype == BlasType::BF16 { 1.0 / 256.0 } else { 1.0 / 2048.0 };
        for (got, want) in decode(dtype, &bytes).iter().zip(&expected) {
            let tolerance = if exact { 0.0 } else { want.abs() * digits };
            assert!((got - want).abs() <= tolerance, "{dtype:?}: {got} instead of {want}");
        }
    }
    // A leading dimension that is too small is refused by cuBLAS, not by this crate.
    let bad = GemmArgs {
        dtype: BlasType::F32,
        result: BlasType::F32,
        transa: false,
        transb: false,
        m: 4,
        n: 4,
        k: 4,
        alpha: 1.0,
        beta: 0.0,
        a: workspace.ptr(),
        lda: 1,
        stride_a: 0,
        b: workspace.ptr(),
        ldb: 4,
        stride_b: 0,
        c: workspace.ptr(),
        ldc: 4,
        stride_c: 0,
        batch: 1,
        precision: GemmPrecision::DEFAULT,
        workspace: None,
    };
    // SAFETY: cuBLAS refuses the call before it accesses memory.
    let error = unsafe { handle.gemm_strided_batched(stream.handle(), &bad) }.unwrap_err();
    assert!(matches!(error, DriverError::LibraryCall { .. }), "{error}");
}

/// Encodes small integers as elements of `dtype`.
fn encode(dtype: BlasType, values: &[f32]) -> Vec<u8> {
    let bytes = |&v: &f32| -> Vec<u8> {
        match dtype {
            BlasType::F32 => v.to_ne_bytes().into(),
            BlasType::F64 => f64::from(v).to_ne_bytes().into(),
            BlasType::BF16 => ((v.to_bits() >> 16) as u16).to_ne_bytes().into(),
            BlasType::F16 if v == 0.0 => vec![0, 0],
            BlasType::F16 => {
                let bits = v.to_bits();
                let exponent = ((bits >> 23) & 0xff) + 15 - 127;
                let half = (bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3ff);
                (half as u16).to_ne_bytes().into()
            }
        }
    };
    values.iter().flat_map(bytes).collect()
}

fn decode(dtype: BlasType, bytes: &[u8]) -> Vec<f32> {
    let half = |bytes: &[u8]| u32::from(u16::from_ne_bytes(bytes.try_into().unwrap()));
    match dtype {
        BlasType::F32 => {
            bytes.chunks(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
        }
        BlasType::F64 => {
            bytes.chunks(8).map(|b| f64::from_ne_bytes(b.try_into().unwrap()) as f32).collect()
        }
        BlasType::BF16 => bytes.chunks(2).map(|b| f32::from_bits(half(b) << 16)).collect(),
        BlasType::F16 => bytes
            .chunks(2)
            .map(|b| match half(b) {
                zero if zero & 0x7fff == 0 => 0.0,
                bits => {
                    let exponent = (bits >> 10 & 0x1f) + 127 - 15;
                    f32::from_bits((bits & 0x8000) << 16 | exponent << 23 | (bits & 0x3ff) << 13)
                }
            })
            .collect(),
    }
}
