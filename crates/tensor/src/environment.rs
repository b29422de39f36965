//! Checks of environment variables: unknown names that begin with `WARPLINE_`, values of
//! `CUDA_VISIBLE_DEVICES` that hide devices by mistake, and the value of `CUBLAS_WORKSPACE_CONFIG`.

use std::ffi::OsStr;

/// Variables that users set. `docs/settings.md` describes their values.
const SETTINGS: &[&str] = &[
    "WARPLINE_ALLOC_CONF",
    "WARPLINE_CACHE",
    "WARPLINE_CUBLAS",
    "WARPLINE_CUDNN",
    "WARPLINE_DISTRIBUTED_DEBUG",
    "WARPLINE_DRIVER",
    "WARPLINE_LIBCUDA",
    "WARPLINE_NCCL",
    "WARPLINE_NVML",
    "WARPLINE_NVRTC",
    "WARPLINE_SECRET",
];

/// Variables that the launcher, the builds and the tests of this workspace use. Names that begin with
/// `WARPLINE_TEST_` are also accepted.
const INTERNAL: &[&str] = &[
    "WARPLINE_CUDA_INCLUDE",
    "WARPLINE_ENDINGS",
    "WARPLINE_ENDING_SEED",
    "WARPLINE_FUZZ",
    "WARPLINE_FUZZ_WORKER",
    "WARPLINE_GOLDENS",
    "WARPLINE_LAUNCHER_STORE",
    "WARPLINE_LOAD_SECONDS",
    "WARPLINE_MASTER_PORT",
    "WARPLINE_MEMORY_VIZ",
    "WARPLINE_PROGRAMS",
    "WARPLINE_PROGRAMS_CHILD",
    "WARPLINE_PROGRAMS_FOLDER",
    "WARPLINE_PROGRAMS_KEEP",
    "WARPLINE_PROGRAM_COVERAGE",
    "WARPLINE_PROGRAM_SEED",
    "WARPLINE_SCHEDULES",
    "WARPLINE_SHUTTLE",
    "WARPLINE_SIM_DEVICES",
    "WARPLINE_SLOW",
];

/// Returns the alphabetically first unknown name that begins with `WARPLINE_`, and the reason for refusing
/// it. No code reads such a variable, so the name is probably a typing error.
pub(crate) fn unknown_variable(
    names: impl Iterator<Item = impl AsRef<OsStr>>,
) -> Option<(String, String)> {
    let ours = |name: &str| {
        name.starts_with("WARPLINE_TEST_") || SETTINGS.contains(&name) || INTERNAL.contains(&name)
    };
    let names = names.map(|name| name.as_ref().to_string_lossy().into_owned());
    let name = names.filter(|name| name.starts_with("WARPLINE_") && !ours(name)).min()?;
    let nearest = SETTINGS.iter().min_by_key(|known| edit_distance(known, &name));
    let meant = nearest.filter(|known| edit_distance(known, &name) <= 3);
    let meant = meant.map_or(".".into(), |known| format!("; did you mean {known}?"));
    Some((name, format!("there is no such variable{meant} There are {}", SETTINGS.join(", "))))
}

/// Returns the edit distance: the number of insertions, deletions and substitutions between two names.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Returns the size in bytes of a cuBLAS workspace from a value of `CUBLAS_WORKSPACE_CONFIG`. The value is one or
/// more pairs `:SIZE:COUNT` with sizes in KiB, and the result is their total. `None` if the value is invalid.
pub(crate) fn cublas_workspace(value: &str) -> Option<usize> {
    let numbers = value.strip_prefix(':')?.split(':').map(|number| {
        // `parse` would also take a sign.
        number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse::<usize>().ok())?
    });
    let numbers = numbers.collect::<Option<Vec<usize>>>()?;
    let (pairs, []) = numbers.as_chunks() else { return None };
    pairs.iter().try_fold(0usize, |sum, [size, count]| {
        sum.checked_add(size.checked_mul(1024)?.checked_mul(*count)?)
    })
}

/// Returns whether a value of `CUDA_VISIBLE_DEVICES` that hides all devices is a common way to do so. Values such as
/// `all` or `cuda:1` hide all devices by mistake.
pub(crate) fn hides_on_purpose(value: &str) -> bool {
    let value = value.trim();
    value.is_empty()
        || value.starts_with('-')
        || ["none", "void", "NoDevFiles"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// Returns the reason why a value hides all of the `count` devices by mistake.
pub(crate) fn why_hidden(value: &str, count: usize) -> String {
    const MAY: &str = "It may list indices or UUIDs, such as `0,1`, or be empty or -1 to hide all";
    let entries: Vec<&str> = value.split(',').map(str::trim).collect();
    let first = entries[0];
    let number = first.starts_with(|c: char| c.is_ascii_digit() || c == '+');
    if !number && !first.starts_with("GPU-") && !first.starts_with("MIG-") {
        return format!(
            "`{first}` is neither an index nor a UUID, so that CUDA shows no device. {MAY}"
        );
    }
    if first.starts_with("MIG-") {
        return format!("{first} is not an instance of this machine's {count} device(s). {MAY}");
    }
    if !first.starts_with("GPU-") && index(first).is_none_or(|index| index >= count) {
        return format!(
            "there is no device {first} among this machine's {count}, which count from 0. {MAY}"
        );
    }
    // CUDA shows no device if the list contains duplicates.
    let same = |a: &str, b: &str| match (index(a), index(b)) {
        (Some(a), Some(b)) => a == b,
        _ => a.eq_ignore_ascii_case(b),
    };
    let twice = |&(i, entry): &(usize, &&str)| entries[..i].iter().any(|known| same(known, entry));
    match entries.iter().enumerate().find(twice) {
        Some((_, entry)) => {
            format!("it names device {entry} twice, so CUDA shows no device. {MAY}")
        }
        None => format!(
            "{first} must be the beginning of the UUID of exactly one of this machine's {count} \
             device(s). {MAY}"
        ),
    }
}

/// Parses the index at the beginning of an entry, like C's `strtol`, which CUDA uses: an optional `+` and digits. The
/// rest of the entry is ignored.
fn index(entry: &str) -> Option<usize> {
    let digits = entry.strip_prefix('+').unwrap_or(entry);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_variable_is_reported_with_the_nearest_name() {
        let (name, reason) = unknown_variable(["HOME", "WARPLINE_DRIVR"].iter()).unwrap();
        assert_eq!(name, "WARPLINE_DRIVR");
        assert!(reason.starts_with("there is no such variable; did you mean WARPLINE_DRIVER? There are WARPLINE_ALLOC_CONF, "), "{reason}");
        let (_, reason) = unknown_variable(["WARPLINE_ALLOCATOR_CONFIG"].iter()).unwrap();
        assert!(reason.starts_with("there is no such variable. There are "), "{reason}");
        assert_eq!(unknown_variable(["WARPLINE_B", "WARPLINE_A"].iter()).unwrap().0, "WARPLINE_A");
        for name in SETTINGS.iter().chain(INTERNAL).chain(&["WARPLINE_TEST_DATA", "WARPLINES"]) {
            assert_eq!(unknown_variable([name].iter()), None, "{name}");
        }
    }

    #[test]
    fn edits_are_counted() {
        for (a, b, count) in [("", "abc", 3), ("kitten", "sitting", 3), ("same", "same", 0)] {
            assert_eq!((edit_distance(a, b), edit_distance(b, a)), (count, count), "{a} {b}");
        }
    }

    #[test]
    fn messages_say_why_devices_are_hidden() {
        let says = |value, said: &str| {
            let why = why_hidden(value, 3);
            assert!(why.starts_with(said) && why.contains("such as `0,1`"), "{value}: {why}");
        };
        says("all", "`all` is neither an index nor a UUID");
        says("cuda:1,0", "`cuda:1` is neither an index nor a UUID");
        says("MIG-1", "MIG-1 is not an instance of this machine's 3 device(s)");
        says("7", "there is no device 7 among this machine's 3, which count from 0");
        says("7,7", "there is no device 7");
        says("99999999999999999999", "there is no device 9999");
        says("0,0", "it names device 0 twice");
        says("1, 2 ,+1", "it names device +1 twice");
        says("GPU-12,gpu-12", "it names device gpu-12 twice");
        says("GPU-123", "GPU-123 must be the beginning of the UUID of exactly one");
    }
}
