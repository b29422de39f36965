//! Small programs of collectives, each with the transcript that NCCL produces on every rank. Every
//! program runs on the simulated NCCL under several schedules, with ranks as threads and as
//! processes, and on the real NCCL with two GPUs. All runs must produce the transcript.

/// Defines programs: name, possible numbers of ranks, body of a rank, and expected transcript. Each
/// program becomes one test with simulated ranks as threads, one with processes, and one on two
/// GPUs.
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
            fn simulated_ranks_in_threads_print_the_transcript() {
                crate::nccl_programs::threads::simulated(&$ranks, program, EXPECTED);
            }

            #[test]
            fn simulated_ranks_in_processes_print_the_transcript() {
                let test = concat!(module_path!(), "::simulated_ranks_in_processes_print_the_transcript");
                crate::nccl_programs::processes::simulated(test, &$ranks, program, EXPECTED);
            }

            #[test]
            #[ignore = "needs two GPUs and NCCL"]
            fn gpu2_nccl_prints_the_transcript() {
                let test = concat!(module_path!(), "::gpu2_nccl_prints_the_transcript");
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
