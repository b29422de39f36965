//! Lists the committed PTX files, so that a new program builds before its PTX exists.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=ptx");
    // Cargo runs this script in the package's folder.
    let mut files: Vec<String> = std::fs::read_dir("ptx")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".ptx.lzma"))
        .collect();
    files.sort();
    // The compiler inserts the folder, because cargo does not run this script again after the folder has moved.
    let folder = "env!(\"CARGO_MANIFEST_DIR\")";
    let mut text = String::from("&[");
    for file in files {
        let name = file.trim_end_matches(".ptx.lzma");
        text += &format!("({name:?}, include_bytes!(concat!({folder}, \"/ptx/{file}\"))),\n");
    }
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(format!("{out}/ptx.rs"), text + "]").expect("OUT_DIR can be written");
}
