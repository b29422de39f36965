//! Tests that need no GPU. Tests on a GPU are in `tests/gpu_driver/`.

use super::*;

#[test]
fn a_missing_library_lists_the_search() {
    let paths = vec![PathBuf::from("/nonexistent/libcuda.so.1"), "/nonexistent/b.so".into()];
    let error = load_from(&paths).unwrap_err();
    let DriverError::LibraryNotFound { searched, variable, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(searched, &["/nonexistent/libcuda.so.1", "/nonexistent/b.so"]);
    assert_eq!(*variable, "WARPLINE_LIBCUDA");
}

#[cfg(target_os = "linux")]
#[test]
fn another_library_lacks_the_symbols() {
    let error = load_from(&["libc.so.6".into()]).unwrap_err();
    assert!(matches!(error, DriverError::MissingSymbol { symbol: "cuInit", .. }), "{error}");
}

#[test]
fn libraries_are_searched_as_documented() {
    if cfg!(target_os = "linux") {
        let paths = search_paths(None);
        assert_eq!(paths[0], Path::new("libcuda.so.1"));
        assert_eq!(paths[1], Path::new("libcuda.so"));
        assert!(paths.contains(&PathBuf::from("/usr/local/nvidia/lib64/libcuda.so.1")));
    }
    assert_eq!(search_paths(Some(Path::new("/x/libcuda.so"))), [Path::new("/x/libcuda.so")]);
}

#[test]
fn loading_twice_returns_the_same_driver_or_error() {
    match (load(), load()) {
        (Ok(a), Ok(b)) => assert!(Arc::ptr_eq(&a, &b)),
        (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
        (a, b) => panic!("{a:?} and then {b:?}"),
    }
}
