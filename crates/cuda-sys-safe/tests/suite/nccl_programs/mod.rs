//! Small programs of collectives, each with the transcript that NCCL gives on every rank. Every program
//! runs on the simulated NCCL, with ranks as threads and as processes under several schedules, and with
//! two GPUs on the library itself, and must come out the same.

/// Defines programs: their name, of how many ranks they may be, what a rank does, and what it sees. Each
/// becomes a test with simulated ranks as threads, one with processes and one on two GPUs.
macro_rules! programs {
    ($($name:ident($ranks:expr, $rank:ident, $t:ident) $body:block
        => [$($line:literal),* $(,)?])*) => {$(
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn program($rank: &Rank, $t: &mut Transcript) -> Result<()> {
                $body
                Ok(())
            }

            const EXPECTED: &[&str] = &[$($line),*];

            #[test]
            fn threads_of_the_simulator() {
                crate::nccl_programs::threads::simulated(&$ranks, program, EXPECTED);
            }

            #[test]
            fn processes_of_the_simulator() {
                let test = concat!(module_path!(), "::processes_of_the_simulator");
                crate::nccl_programs::processes::simulated(test, &$ranks, program, EXPECTED);
            }

            #[test]
            #[ignore = "needs two GPUs and NCCL"]
            fn gpu2_nccl_itself() {
                let test = concat!(module_path!(), "::gpu2_nccl_itself");
                crate::nccl_programs::processes::without_multicast(test, || {
                    crate::nccl_programs::threads::real(&[0, 1], program, EXPECTED);
                });
            }
        }
    )*};
}

mod collectives;
mod ends;
mod graphs;
mod groups;
mod kit;
mod numbers;
mod processes;
mod refusals;
mod rounding;
mod splits;
mod threads;
