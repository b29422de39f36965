//! Warpline's maintenance commands: `cargo xtask ptx | tidy | prose | gpu-test | package | outside | custom-op |
//! mutants | ci`.

#![forbid(unsafe_code)]

mod ci;
mod gpu_test;
mod markdown;
mod mutants;
mod outside;
mod package;
mod prose;
mod ptx;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Warpline's maintenance commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compile the CUDA source of every op to the committed PTX, or check that source and PTX agree
    Ptx(ptx::Args),
    /// Check layers, dependencies, file headers, file lengths, locks, links, pages' samples and rows, and unsafe
    Tidy,
    /// Count words that make comments and pages hard to read
    Prose(prose::Args),
    /// Run the GPU tests of every crate, from the workspace or from an archive
    GpuTest(Box<gpu_test::Args>),
    /// Package the crates, check the content of the packages, and build from them
    Package(package::Args),
    /// Test the allocator's package with projects that depend on no other crate of Warpline
    Outside(outside::Args),
    /// Test the packages with a crate that defines its own op
    CustomOp(outside::Args),
    /// Bring former bugs back in a copy, and count the random programs that it takes to find each
    Mutants(mutants::Args),
    /// Run the checks and tests of continuous integration
    Ci(ci::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Ptx(args) => ptx::run(&args),
        Command::Tidy => tidy::run(),
        Command::Prose(args) => prose::run(&args),
        Command::GpuTest(args) => gpu_test::run(&args),
        Command::Package(args) => package::run(&args),
        Command::Outside(args) => outside::alloc_alone(&args),
        Command::CustomOp(args) => outside::custom_op(&args),
        Command::Mutants(args) => mutants::run(&args),
        Command::Ci(args) => ci::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
