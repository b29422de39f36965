//! Files of tensors and of compiled code.

use std::sync::LazyLock;

use warpline::{DType, arange};
use warpline_nn::{StateDict, load_file, save_file};
use warpline_runtime::testing::{cache_ptx, cached_ptx};

use crate::scratch::Folder;

/// Loads a safetensors file. An input that begins with a brace is an index of several files instead.
pub(crate) fn safetensors(input: &[u8]) {
    static FOLDER: LazyLock<Folder> = LazyLock::new(|| {
        let folder = Folder::new("safetensors");
        let mut state = StateDict::new();
        state.insert("a", arange(3, DType::F32).expect("a tensor"));
        save_file(&state, folder.path().join("a.safetensors"), ()).expect("a saved file");
        folder
    });
    let name = if input.starts_with(b"{") { "input.json" } else { "input.safetensors" };
    match load_file(FOLDER.write(name, input), ()) {
        Ok(state) => {
            let bytes =
                |(_, tensor): (_, &warpline::Tensor)| tensor.numel() * tensor.dtype().size();
            let total: usize = state.iter().map(bytes).sum();
            assert!(total <= input.len() || name == "input.json", "{total} bytes of tensors");
        }
        Err(error) => drop(error.to_string()),
    }
}

/// Reads a file of the cache of compiled code: the input, and the input as the cache itself would store it.
pub(crate) fn disk_cache(input: &[u8]) {
    static FOLDER: LazyLock<Folder> = LazyLock::new(|| Folder::new("disk-cache"));
    let folder = FOLDER.path();
    FOLDER.write("input.ptx", input);
    // A file begins with the hash of the rest, so that another text is never taken for PTX.
    if let Some(ptx) = cached_ptx(folder, "input.ptx") {
        assert!(input.starts_with(b"// sha256 ") && input.ends_with(ptx.as_bytes()));
    }
    let Ok(text) = std::str::from_utf8(input) else { return };
    cache_ptx(folder, "stored.ptx", text);
    assert_eq!(cached_ptx(folder, "stored.ptx").as_deref(), Some(text));
}
