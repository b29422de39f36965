//! Instructions of devices that are newer than the PTX's target.

/// Start of a block that the loader replaces by a single instruction on devices that have the
/// instruction. The required compute capability, the instruction and the end of the comment follow.
/// The block ends with a brace on a line of its own.
const BEGIN: &str = "{ /* sm_";
/// End of the comment in a block.
const END: &str = " */";

/// Specializes `ptx` for a compute capability: replaces each block that names an instruction by
/// that instruction, if the device has it.
#[must_use]
pub fn specialized(ptx: String, (major, minor): (u32, u32)) -> String {
    let capability = 10 * major + minor;
    let (mut out, mut rest) = (String::with_capacity(ptx.len()), ptx.as_str());
    let mut target = 0;
    while let Some((before, block)) = rest.split_once(BEGIN) {
        let parsed = instruction(block).filter(|(needed, ..)| *needed <= capability);
        out += before;
        match parsed {
            Some((needed, instruction, after)) => {
                target = target.max(needed);
                out += instruction;
                rest = after;
            }
            None => {
                out += BEGIN;
                rest = block;
            }
        }
    }
    if target == 0 {
        return ptx;
    }
    out += rest;
    with_target(&out, target)
}

/// Returns the compute capability that a block's instruction needs, the instruction, and the text
/// after the block.
fn instruction(block: &str) -> Option<(u32, &str, &str)> {
    let (needed, rest) = block.split_once(": ")?;
    let (instruction, rest) = rest.split_once(END)?;
    // Braces around the registers of a vector stand inside a line.
    let begins_line =
        |at: usize| rest[..at].rsplit('\n').next().is_some_and(|s| s.trim().is_empty());
    let (end, _) = rest.match_indices('}').find(|&(at, _)| begins_line(at))?;
    Some((needed.parse().ok()?, instruction, &rest[end + 1..]))
}

/// Raises the PTX's target to at least `least`.
pub(super) fn with_target(ptx: &str, least: u32) -> String {
    let line = ptx.lines().find(|line| line.starts_with(".target sm_")).unwrap_or_default();
    let number = line.trim_start_matches(".target sm_");
    // A comma with options may follow the number. A letter may follow too, but only from `sm_90a`
    // on.
    let digits = number.len() - number.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, others) = number.split_at(digits);
    match number.parse::<u32>() {
        Ok(target) if target < least => {
            ptx.replacen(line, &format!(".target sm_{least}{others}"), 1)
        }
        _ => ptx.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = ".version 8.0\n.target sm_75\n\tld.u32 %r1, [%rd1];\n\t{ /* sm_80: new %r2, %r1; */\n\t\
                       .reg .b32 x;\n\told x, %r1;\n\told %r2, x;\n\t}\n\tret;\n";

    #[test]
    fn blocks_are_replaced_where_the_device_has_the_instruction() {
        let newer = ".version 8.0\n.target sm_80\n\tld.u32 %r1, [%rd1];\n\tnew %r2, %r1;\n\tret;\n";
        assert_eq!(specialized(PTX.into(), (8, 0)), newer);
        assert_eq!(specialized(PTX.into(), (12, 1)), newer);
        assert_eq!(specialized(PTX.into(), (7, 5)), PTX);
        let none = ".target sm_75\n\t{ // no such comment\n\t}\n";
        assert_eq!(specialized(none.into(), (9, 0)), none);
    }

    #[test]
    fn a_target_is_never_lowered() {
        let ptx = PTX.replace("sm_75", "sm_90");
        assert!(specialized(ptx, (9, 0)).contains(".target sm_90\n"));
    }

    #[test]
    fn braces_inside_a_line_and_target_options_are_kept() {
        let ptx = PTX.replace("sm_75", "sm_75, debug").replace("old x, %r1;", "old {x, y}, %r1;");
        let newer =
            ".version 8.0\n.target sm_80, debug\n\tld.u32 %r1, [%rd1];\n\tnew %r2, %r1;\n\tret;\n";
        assert_eq!(specialized(ptx, (8, 0)), newer);
    }

    #[test]
    fn some_blocks_may_be_replaced_and_others_not() {
        let two = format!("{PTX}{}", PTX.replace("sm_80", "sm_100"));
        let half = specialized(two, (9, 0));
        assert_eq!(half.matches("new %r2").count(), 2, "one as an instruction, one as a comment");
        assert_eq!(half.matches("old %r2").count(), 1);
    }
}
