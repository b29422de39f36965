//! PTX whose text the loader replaces.

use warpline_runtime::testing::loaded_ptx;

/// Prepares PTX for devices of several capabilities. The first line of the input is the name of the kernel.
pub(crate) fn ptx(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (kernel, ptx) = text.split_once('\n').unwrap_or((text, ""));
    for (capability, version) in
        [((7, 5), 12_000), ((8, 9), 12_080), ((9, 0), 12_030), ((12, 1), 13_000)]
    {
        let (loaded, waits) = loaded_ptx(ptx, kernel, capability, version);
        if waits {
            assert!(capability >= (9, 0), "{loaded}");
            for instruction in ["griddepcontrol.wait", "griddepcontrol.launch_dependents"] {
                assert!(loaded.contains(instruction), "{loaded}");
            }
        }
    }
}
