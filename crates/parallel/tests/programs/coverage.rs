//! The committed table of calls: for each row, the number of valid calls, and the number of calls with a mistake by kind
//! of error.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::ops;

/// Returns the table of `count` programs from the seed `first`. The keys of `calls` are the name of a row and the
/// predicted outcome, separated by a tab.
pub(crate) fn table(first: u64, count: u64, calls: &BTreeMap<String, u64>) -> String {
    let mut text = format!("row\tvalid\tinvalid\terrors in {count} programs from seed {first}\n");
    for row in ops::table() {
        let prefix = format!("{}\t", row.name);
        let own = calls.iter().filter_map(|(call, n)| Some((call.strip_prefix(&prefix)?, n)));
        let (mut valid, mut invalid, mut errors) = (0, 0, Vec::new());
        for (outcome, n) in own {
            if outcome == "Ok" {
                valid += n;
            } else {
                invalid += n;
                errors.push(format!("{outcome} {n}"));
            }
        }
        let _ = writeln!(text, "{}\t{valid}\t{invalid}\t{}", row.name, errors.join(", "));
    }
    text
}

/// Other systems have no channels.
///
/// `WARPLINE_PROGRAM_COVERAGE=../tensor/tests/coverage/programs.tsv WARPLINE_PROGRAMS=20000` writes the table.
#[cfg(target_os = "linux")]
#[test]
fn the_table_of_calls_lists_each_row() {
    let text = include_str!("../../../tensor/tests/coverage/programs.tsv");
    let listed: Vec<&str> =
        text.lines().skip(1).filter_map(|line| line.split('\t').next()).collect();
    let rows: Vec<&str> = ops::table().iter().map(|row| row.name).collect();
    assert_eq!(listed, rows);
    let mut names = rows;
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "two rows have one name");
}
