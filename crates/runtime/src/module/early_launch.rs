//! Kernels that wait for earlier work of their stream themselves, so that the driver may launch them before that work
//! completes (programmatic dependent launch).

use super::newer::with_target;

/// Least compute capability that has the instructions.
const CAPABILITY: (u32, u32) = (9, 0);
/// Least driver version that captures early launches in graphs: CUDA 12.3.
const VERSION: u32 = 12_030;
/// Waits until all earlier work of the stream has completed and its writes are visible.
const WAIT: &str = "\tgriddepcontrol.wait;\n";
/// Permits the launch of the next kernel of the stream, once all blocks have come to this instruction or ended.
const RELEASE: &str = "\tgriddepcontrol.launch_dependents;\n";
/// Start of all such instructions.
const PREFIX: &str = "griddepcontrol.";
/// Start of a comment that marks the place of the wait. The instructions to insert before the wait follow.
const PLACE: &str = "/* wait after: ";
/// End of the comment.
const END: &str = " */";

/// Lets the kernel in `ptx` begin with a wait and end with a release of the next kernel, if the device has these
/// instructions and graphs can hold such launches. The wait precedes all accesses to memory, so an early launch changes
/// no order. Returns the PTX and whether the kernel waits.
///
/// A kernel with the comment `/* wait after: INSTRUCTIONS */` waits there instead, after these instructions. All threads
/// must reach the comment, and no access to global memory may precede it.
///
/// A kernel whose source has such instructions, or whose PTX has an unknown form, stays as it is.
pub(super) fn waiting(ptx: String, capability: (u32, u32), version: u32) -> (String, bool) {
    if capability < CAPABILITY || version < VERSION || ptx.contains(PREFIX) {
        return (ptx, false);
    }
    let Some([begin, end]) = body(&ptx) else { return (ptx, false) };
    let (head, rest) = ptx.split_at(begin);
    let (instructions, tail) = rest.split_at(end - begin);
    let [before, setup, after] = place(instructions).unwrap_or(["", "", instructions]);
    let ptx = [head, before, setup, WAIT, after, RELEASE, tail].concat();
    // The memory is not read-only while the kernel waits, and such loads could be moved before the wait.
    let ptx = ptx.replace("ld.global.nc", "ld.global");
    (with_target(&ptx, 10 * CAPABILITY.0 + CAPABILITY.1), true)
}

/// Returns the positions of the first instruction of the kernel in `ptx` and of its return.
fn body(ptx: &str) -> Option<[usize; 2]> {
    const OPEN: &str = "\n{\n";
    let entry = ptx.find(".entry ")?;
    let begin = entry + ptx[entry..].find(OPEN)? + OPEN.len();
    let end = begin + ptx[begin..].find("\n}")?;
    let mut returns = ptx[begin..end].match_indices("\tret;");
    let (at, _) = returns.next()?;
    returns.next().is_none().then_some([begin, begin + at])
}

/// Returns the text before the comment that marks the place of the wait, the instructions in the comment, and the text
/// after the comment.
fn place(instructions: &str) -> Option<[&str; 3]> {
    let (before, rest) = instructions.split_once(PLACE)?;
    let (setup, after) = rest.split_once(END)?;
    Some([before, setup, after])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = ".version 8.0\n.target sm_75\n.func f(\n)\n{\n\tret;\n}\n.visible .entry k(\n\t.param .u64 a\n)\n{\n\t\
                       .reg .b64 \t%rd<2>;\n\n\tld.global.nc.f32 \t%f1, [%rd1];\n$L__BB0_2:\n\tret;\n\n}\n";

    #[test]
    fn a_kernel_waits_before_its_instructions_and_releases_at_its_end() {
        let (ptx, waits) = waiting(PTX.to_owned(), (9, 0), VERSION);
        assert!(waits);
        let expected = ".version 8.0\n.target sm_90\n.func f(\n)\n{\n\tret;\n}\n.visible .entry k(\n\t.param .u64 a\n)\n{\n\t\
                        griddepcontrol.wait;\n\t.reg .b64 \t%rd<2>;\n\n\tld.global.f32 \t%f1, [%rd1];\n$L__BB0_2:\n\t\
                        griddepcontrol.launch_dependents;\n\tret;\n\n}\n";
        assert_eq!(ptx, expected);
        assert!(waiting(PTX.to_owned(), (12, 1), 13_000).1);
    }

    #[test]
    fn a_comment_marks_the_place_of_the_wait() {
        let marked = PTX.replace("\tld.", "\tadd;\n\t/* wait after: setp; @p exit; */\n\tld.");
        let (ptx, waits) = waiting(marked.clone(), (9, 0), VERSION);
        assert!(waits);
        let expected = "{\n\t.reg .b64 \t%rd<2>;\n\n\tadd;\n\tsetp; @p exit;\tgriddepcontrol.wait;\n\n\tld.global.f32 \t";
        assert!(ptx.contains(expected), "{ptx}");
        assert_eq!(ptx.matches(PREFIX).count(), 2);
        assert_eq!(waiting(marked.clone(), (8, 9), VERSION), (marked, false));
    }

    #[test]
    fn older_devices_and_other_forms_of_ptx_are_left_alone() {
        let own = PTX.replace("\tld.", "\tgriddepcontrol.wait;\n\tld.");
        let two = PTX.replace("$L__BB0_2:\n", "\tret;\n$L__BB0_2:\n");
        let one_line = ".version 8.0\n.target sm_75\n.visible .entry k() { ret; }\n".to_owned();
        let new = (9, 0);
        for (ptx, capability, version) in [
            (PTX.to_owned(), (8, 9), VERSION),
            (PTX.to_owned(), new, 12_020),
            (own, new, VERSION),
            (two, new, VERSION),
            (one_line, new, VERSION),
        ] {
            assert_eq!(waiting(ptx.clone(), capability, version), (ptx, false));
        }
    }
}
