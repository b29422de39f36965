//! The page that maps rows of the CUDA-semantics note to tests.

use super::Complaint;

/// The page's path below the workspace's root.
pub(super) const PAGE: &str = "docs/rows.md";

/// Checks the page's paths. Each path must exist, and each test file that is named after a row must be on a
/// line of that row.
///
/// `files` are the workspace's Rust files. Paths are relative to the workspace's root.
pub(super) fn check(text: &str, files: &[String], exists: impl Fn(&str) -> bool) -> Vec<Complaint> {
    let complaint = |line, text| Complaint::error(PAGE, line, "rows", text);
    let mut complaints = Vec::new();
    let mut named = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let row = line.strip_prefix("| S").and_then(|rest| rest.split(' ').next()?.parse().ok());
        for path in line.split('`').skip(1).step_by(2).filter(|code| code.starts_with("crates/")) {
            if !exists(path) {
                complaints.push(complaint(at + 1, format!("`{path}` does not exist")));
            }
            named.push((row, path));
        }
    }
    for file in files {
        if let Some(row) = row_of(file)
            && !named.contains(&(Some(row), file.as_str()))
        {
            complaints.push(complaint(1, format!("row S{row} does not name `{file}`")));
        }
    }
    complaints
}

/// Returns the row that a test file is named after: 12 for `crates/tensor/tests/semantics/s12_programs.rs`.
fn row_of(file: &str) -> Option<u32> {
    if !file.contains("/tests/") {
        return None;
    }
    let (_, name) = file.rsplit_once('/')?;
    let (digits, _) = name.strip_prefix('s')?.split_once('_')?;
    (digits.len() == 2).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(page: &str, files: &[&str]) -> Vec<(usize, String)> {
        let files: Vec<String> = files.iter().map(|&file| file.to_owned()).collect();
        let exists = |path: &str| path == "crates/a/tests/s" || files.iter().any(|f| f == path);
        check(page, &files, exists).into_iter().map(|c| (c.line, c.text)).collect()
    }

    #[test]
    fn every_path_of_the_page_exists() {
        let page = "# Rows\n| S1 | x, `y` | `crates/a/tests/s`, `crates/a/tests/s/x.rs` |\n";
        assert_eq!(texts(page, &["crates/a/tests/s/x.rs"]), []);
        let missing = "`crates/a/tests/s/x.rs` does not exist".to_owned();
        assert_eq!(texts(page, &[]), [(2, missing)]);
    }

    #[test]
    fn every_file_named_after_a_row_is_on_its_line() {
        let file = "crates/a/tests/s/s02_x.rs";
        let others =
            ["crates/a/tests/s/streams.rs", "crates/a/src/s03_x.rs", "crates/a/tests/s4_x.rs"];
        let right = format!("| S2 | x | `{file}` |\n");
        assert_eq!(texts(&right, &[file, others[0], others[1], others[2]]), []);
        let wrong = format!("`{file}`\n| S3 | x | `{file}` |\n");
        assert_eq!(texts(&wrong, &[file]), [(1, format!("row S2 does not name `{file}`"))]);
    }
}
