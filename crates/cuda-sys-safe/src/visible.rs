//! `CUDA_VISIBLE_DEVICES`, with the rules of the real driver.

/// Returns the indices of the devices that are visible under a value of `CUDA_VISIBLE_DEVICES`, in
/// its order. `uuids` has the UUID of each device, as [`uuid_text`] formats it.
///
/// The value is a list of indices, or of UUID prefixes (`GPU-…`) if its first entry is one. An
/// entry that names no device, or a prefix of several devices, ends the list. An entry that repeats
/// an earlier device empties the list. An index is read as C's `strtol` does, so `1abc` is 1.
pub(crate) fn visible(text: &str, uuids: &[String]) -> Vec<usize> {
    let by_uuid = text.trim_start().starts_with("GPU-");
    let mut seen = Vec::new();
    for entry in text.split(',').map(str::trim) {
        let device = if by_uuid { by_prefix(entry, uuids) } else { index(entry) };
        match device {
            Some(device) if seen.contains(&device) => return Vec::new(),
            Some(device) if device < uuids.len() => seen.push(device),
            _ => break,
        }
    }
    seen
}

fn index(entry: &str) -> Option<usize> {
    let digits = entry.strip_prefix('+').unwrap_or(entry);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

fn by_prefix(entry: &str, uuids: &[String]) -> Option<usize> {
    if !entry.starts_with("GPU-") {
        return None;
    }
    let begins =
        |uuid: &String| uuid.get(..entry.len()).is_some_and(|u| u.eq_ignore_ascii_case(entry));
    let mut matching = (0..uuids.len()).filter(|&device| begins(&uuids[device]));
    let first = matching.next()?;
    matching.next().is_none().then_some(first)
}

/// Formats a UUID as the driver's tools do.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::h200;

    fn three() -> Vec<String> {
        (0..3).map(|device| uuid_text(&h200(device).uuid)).collect()
    }

    #[test]
    fn indices_follow_the_rules_of_cuda() {
        let uuids = three();
        let see = |text: &str| visible(text, &uuids);
        assert_eq!(see("0,1,2"), [0, 1, 2]);
        assert_eq!(see("2,0"), [2, 0]);
        assert_eq!(see(" 1 , 2"), [1, 2]);
        assert_eq!(see("1abc,+2"), [1, 2]);
        assert_eq!(see(""), [0usize; 0]);
        assert_eq!(see("-1"), [0usize; 0]);
        assert_eq!(see("0,-1,1"), [0]);
        assert_eq!(see("0,7,1"), [0]);
        assert_eq!(see("0,,1"), [0]);
        assert_eq!(see("NoDevFiles"), [0usize; 0]);
        assert_eq!(see("0,1,0"), [0usize; 0]);
        assert_eq!(see("99999999999999999999999"), [0usize; 0]);
    }

    #[test]
    fn uuids_may_be_abbreviated() {
        let text = three();
        let see = |entry: &str| visible(entry, &text);
        assert_eq!(text[0].len(), 40);
        assert_eq!(see(&text[1]), [1]);
        assert_eq!(see(&format!("{},{}", &text[2][..9], text[0].to_uppercase())), [2, 0]);
        assert_eq!(see("GPU-"), [0usize; 0], "ambiguous");
        assert_eq!(see(&format!("{},1", text[2])), [2], "indices and UUIDs do not mix");
        assert_eq!(see(&format!("{},{}", text[2], text[2])), [0usize; 0]);
        assert_eq!(see(&format!("{}ff", text[2])), [0usize; 0]);
    }
}
