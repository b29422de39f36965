//! Lists what programs were compiled to, so that a new one builds before it has been.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=ptx");
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let mut files: Vec<String> = std::fs::read_dir(format!("{root}/ptx"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".ptx.lzma"))
        .collect();
    files.sort();
    let mut text = String::from("&[");
    for file in files {
        let name = file.trim_end_matches(".ptx.lzma");
        text += &format!("({name:?}, include_bytes!({:?})), ", format!("{root}/ptx/{file}"));
    }
    std::fs::write(format!("{out}/ptx.rs"), text + "]").expect("OUT_DIR can be written");
}
