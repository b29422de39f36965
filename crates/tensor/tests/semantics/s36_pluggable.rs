//! S36: allocators from shared libraries (`CUDAPluggableAllocator`). The tests compile a library with the C compiler.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr;
use std::sync::Arc;

use warpline::cuda::driver::{DeviceMemory, Driver, DriverError};
use warpline::cuda::{CudaPluggableAllocator, MemPool, PoolOptions};
use warpline::{Error, ErrorKind, Result, cuda, empty, ones};

use crate::common::{self, World};
use crate::memory_pools::holds;

rows! {
    worlds(1) s36_a_pool_over_a_library gpu_s36_a_pool_over_a_library => pools;
}

/// Environment variable that is set in the process that changes its allocator.
const ROLE: &str = "WARPLINE_TEST_CHANGE_ALLOCATOR";

/// The library. `test_alloc` calls a function of the test, because a simulated device has no C interface. `cuda_alloc`
/// calls the driver. The source needs no header.
const SOURCE: &str = r#"
typedef void *(*alloc_fn)(long size, int device, void *stream);
typedef void (*free_fn)(void *at, long size, int device, void *stream);
void *dlopen(const char *, int);
void *dlsym(void *, const char *);

static alloc_fn alloc_of_test;
static free_fn free_of_test;
static long calls, live;

void set_callbacks(alloc_fn alloc, free_fn free) { alloc_of_test = alloc; free_of_test = free; }
long alloc_calls(void) { return __atomic_load_n(&calls, __ATOMIC_SEQ_CST); }
long live_allocations(void) { return __atomic_load_n(&live, __ATOMIC_SEQ_CST); }

static void *count(void *at) {
    __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    if (at) __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
    return at;
}

void *test_alloc(long size, int device, void *stream) { return count(alloc_of_test(size, device, stream)); }

void test_free(void *at, long size, int device, void *stream) {
    free_of_test(at, size, device, stream);
    __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
}

static void *driver_function(const char *name) {
    return dlsym(dlopen("libcuda.so.1", 2), name);
}

void *cuda_alloc(long size, int device, void *stream) {
    unsigned long long at = 0;
    int (*alloc)(unsigned long long *, unsigned long) = driver_function("cuMemAlloc_v2");
    return count(alloc(&at, size) == 0 ? (void *)at : 0);
}

void cuda_free(void *at, long size, int device, void *stream) {
    int (*free)(unsigned long long) = driver_function("cuMemFree_v2");
    if (free((unsigned long long)at) == 0) __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
}
"#;

/// The driver and the live memory of this thread's simulated devices.
#[derive(Default)]
struct Simulated {
    driver: Option<Arc<dyn Driver>>,
    live: HashMap<u64, DeviceMemory>,
}

thread_local! {
    static SIMULATED: RefCell<Simulated> = RefCell::default();
}

/// Returns null if the arguments are not those of a request on a simulated device.
extern "C" fn simulated_alloc(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    SIMULATED.with_borrow_mut(|simulated| {
        let driver = simulated.driver.as_ref().filter(|_| stream.is_null() && size > 0);
        let allocate = |driver| DeviceMemory::new(driver, device as usize, size as usize).ok();
        let Some(memory) = driver.and_then(allocate) else { return ptr::null_mut() };
        let at = memory.ptr().addr();
        simulated.live.insert(at, memory);
        at as usize as *mut c_void
    })
}

/// Keeps the memory if the arguments are not those of its allocation.
extern "C" fn simulated_free(at: *mut c_void, size: isize, device: c_int, stream: *mut c_void) {
    let at = at as usize as u64;
    let freed = SIMULATED.with_borrow_mut(|simulated| {
        let fits = simulated.live.get(&at).is_some_and(|memory| {
            (memory.bytes(), memory.device()) == (size as usize, device as usize)
        });
        (fits && stream.is_null()).then(|| simulated.live.remove(&at))
    });
    drop(freed);
}

type AllocFn = extern "C" fn(isize, c_int, *mut c_void) -> *mut c_void;
type FreeFn = extern "C" fn(*mut c_void, isize, c_int, *mut c_void);
type SetCallbacks = extern "C" fn(AllocFn, FreeFn);

/// Sets the driver of [`simulated_alloc`] for this thread.
fn simulate(driver: &Arc<dyn Driver>) {
    SIMULATED.with_borrow_mut(|simulated| simulated.driver = Some(Arc::clone(driver)));
}

/// A compiled library, which is deleted on drop.
struct Library(PathBuf);

impl Library {
    /// Compiles the library. Each test has its own copy with its own counters.
    fn build(test: &str) -> Self {
        let process = std::process::id();
        let out = std::env::temp_dir().join(format!("warpline-{process}-{test}.so"));
        let source = out.with_extension("c");
        std::fs::write(&source, SOURCE).unwrap();
        let command = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&out, &source])
            .arg("-ldl")
            .output();
        std::fs::remove_file(&source).unwrap();
        let output = command.expect("this test needs the C compiler `cc`");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(out)
    }

    /// Loads the functions for a real or for simulated devices.
    fn load(&self, real: bool) -> CudaPluggableAllocator {
        // SAFETY: the library defines the function with this signature.
        let set: SetCallbacks = unsafe { std::mem::transmute(self.symbol("set_callbacks")) };
        set(simulated_alloc, simulated_free);
        let (alloc, free) =
            if real { ("cuda_alloc", "cuda_free") } else { ("test_alloc", "test_free") };
        // SAFETY: these functions allocate and free memory of the drivers that the tests use. The
        // callbacks do not unwind.
        unsafe { CudaPluggableAllocator::load(&self.0, alloc, free) }.unwrap()
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let path = CString::new(self.0.to_str().unwrap()).unwrap();
        let name = CString::new(name).unwrap();
        // SAFETY: the library has no initialisers, and both strings end with a NUL.
        let symbol =
            unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
        assert!(!symbol.is_null());
        symbol
    }

    fn counter(&self, name: &str) -> i64 {
        // SAFETY: the library defines the function with this signature.
        let read: extern "C" fn() -> i64 = unsafe { std::mem::transmute(self.symbol(name)) };
        read()
    }

    /// Returns the number of calls of `alloc`, and of live allocations.
    fn counters(&self) -> (i64, i64) {
        (self.counter("alloc_calls"), self.counter("live_allocations"))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pools(world: &World) -> Result<()> {
    let library = Library::build(&format!("pool-{}", world.name.replace(':', "-")));
    simulate(world.runtime.driver()?);
    let allocator = library.load(world.real);
    for device in 0..world.devices {
        let allocator = allocator.clone();
        let pool = MemPool::over(device, PoolOptions::default(), move |driver, device, bytes| {
            Ok(allocator.alloc(driver, device, bytes)?.into())
        })?;
        let (calls, _) = library.counters();
        let a = cuda::with_mem_pool(&pool, || ones([1000], device))?;
        assert_eq!(library.counters(), (calls + 1, 1));
        assert!(holds(&pool, &a));
        // Other tensors do not use the library, and freed memory of the pool is cached.
        let outside = (&a + 1.0)?;
        assert!(!holds(&pool, &outside));
        let address = a.data_ptr();
        drop(a);
        let b = cuda::with_mem_pool(&pool, || ones([1000], device))?;
        assert_eq!((b.data_ptr(), library.counters()), (address, (calls + 1, 1)));
        // Null is an out-of-memory error, after which everything is usable.
        let error =
            cuda::with_mem_pool(&pool, || empty([1usize << 42], device)).expect_err("16 TiB");
        assert!(matches!(error.kind(), ErrorKind::Alloc), "{error}");
        assert_eq!((&outside + &b)?.to_vec::<f32>()?, vec![3.0; 1000]);
        // Tensors outlive the pool. The last one frees the memory.
        drop(pool);
        assert_eq!(library.counters().1, 1);
        drop(b);
        assert_eq!(library.counters().1, 0);
    }
    SIMULATED.with_borrow(|simulated| assert!(simulated.live.is_empty()));
    Ok(())
}

/// The program of the other process: all its tensors are in memory of the library.
#[test]
fn program_that_changes_the_allocator() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let library = Library::build("current");
    let allocator = library.load(std::env::var("WARPLINE_DRIVER").unwrap() == "cuda");
    cuda::change_current_allocator(&allocator).unwrap();
    simulate(warpline::runtime().driver().unwrap());
    let a = ones([1000], "cuda").unwrap();
    let (calls, live) = library.counters();
    assert!(live > 0);
    for n in 1..3 {
        // Freed memory is not cached.
        let b = ones([1000], "cuda").unwrap();
        assert_eq!(library.counters(), (calls + n, live + 1));
        drop(b);
        assert_eq!(library.counters(), (calls + n, live));
    }
    let sum = (&a + 1.0).unwrap();
    let (graph, captured) = cuda::graph(|| &sum + &a).unwrap();
    graph.replay().unwrap();
    assert_eq!(captured.to_vec::<f32>().unwrap(), vec![3.0; 1000]);
    // The graph's pool is in memory of the library, too.
    assert_eq!(cuda::memory_stats(0).unwrap().segment.all.current, library.counters().1);
    drop((a, sum, graph, captured));
    let error = cuda::change_current_allocator(&allocator).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains("change_current_allocator"), "{error}");
}

/// Runs the program above on a driver.
fn change(driver: &str) {
    let mut command = common::own_test(module_path!(), "program_that_changes_the_allocator");
    let output = command.env(ROLE, "").env("WARPLINE_DRIVER", driver).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
}

#[test]
fn s36_the_current_allocator_is_a_library() {
    change("sim:1");
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s36_the_current_allocator_is_a_library() {
    change("cuda");
}

#[test]
fn s36_a_missing_library_or_function_is_named() {
    let library = Library::build("missing");
    let missing = library.0.with_extension("none");
    for (path, function) in [(&missing, "test_alloc"), (&library.0, "no_such_function")] {
        // SAFETY: nothing is called: the library or the function does not exist.
        let error = unsafe { CudaPluggableAllocator::load(path, function, "test_free") };
        let error = error.expect_err("nothing to load");
        let DriverError::AllocatorLibrary { path: named, symbol, .. } = &error else {
            panic!("{error}");
        };
        let expected = (path != &missing).then_some(function);
        assert_eq!((named, symbol.as_deref()), (path, expected));
        assert!(!error.is_no_device() && error.to_string().contains(path.to_str().unwrap()));
        assert!(matches!(Error::from(error).kind(), ErrorKind::Driver));
    }
}
