//! Reads rank, store and device of this process from the environment variables that launchers set.

use std::env::VarError;
use std::time::Duration;

use super::{GroupError, Result, Secret};

/// The settings of a rank in the environment.
#[derive(Clone, Debug)]
pub(super) struct Environment {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) local_rank: Option<usize>,
    pub(super) host: String,
    /// Port of the store.
    pub(super) port: u16,
    /// Whether the launcher hosts the store instead of rank 0.
    pub(super) launcher_hosts: bool,
    pub(super) debug: bool,
    pub(super) secret: Option<Secret>,
}

/// Default timeout of a group, the same as PyTorch's for NCCL.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// Number of known launchers.
const LAUNCHERS: usize = 4;

// Each list has the names of one variable in torchrun, Open MPI, MPICH (and Intel MPI), and Slurm. Slurm is last,
// because processes that MPI starts within a Slurm job may have the same Slurm variables.

/// Variables with the rank of the process.
const RANK: [&str; LAUNCHERS] = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];
/// Variables with the number of ranks.
const WORLD_SIZE: [&str; LAUNCHERS] =
    ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"];
/// Variables with the rank among the processes of the same host.
const LOCAL_RANK: [&str; LAUNCHERS] =
    ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];

impl Environment {
    /// Returns the index of the rank's device. `None` if the environment has no local rank.
    pub(super) fn device(&self, devices: usize) -> Result<Option<usize>> {
        match self.local_rank {
            // A launcher may make only one device visible to each rank: the device of this rank.
            Some(_) if devices == 1 => Ok(Some(0)),
            Some(local) if local >= devices && devices > 0 => {
                let problem = format!(
                    "the local rank (LOCAL_RANK) is {local}, but the devices are cuda:0 to cuda:{}",
                    devices - 1
                );
                Err(GroupError::Environment { problems: vec![problem] }.into())
            }
            local_rank => Ok(local_rank),
        }
    }
}

type ReadVariable<'a> = &'a dyn Fn(&str) -> Result<String, VarError>;

/// The problems found so far.
struct Problems(Vec<String>);

impl Problems {
    fn text(&mut self, read: ReadVariable<'_>, name: &str) -> Option<String> {
        match read(name) {
            Ok(text) => Some(text.trim().to_string()),
            Err(VarError::NotPresent) => None,
            Err(VarError::NotUnicode(_)) => {
                self.0.push(format!("{name} is not UTF-8"));
                None
            }
        }
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str, text: &str, kind: &str) -> Option<T> {
        let number = text.parse().ok();
        if number.is_none() {
            self.0.push(format!("{name} is {text:?}, which is not {kind}"));
        }
        number
    }

    /// Returns the name and value of the first variable that is set.
    fn first<'n>(
        &mut self,
        read: ReadVariable<'_>,
        names: &[&'n str],
    ) -> Option<(&'n str, String)> {
        names.iter().find_map(|name| Some((*name, self.text(read, name)?)))
    }
}

/// Reads the environment. Rank and number of ranks come from the same launcher. Variables of MPI and Slurm count only
/// if `RANK` is not set.
pub(super) fn read(read: ReadVariable<'_>) -> Result<Environment> {
    let mut problems = Problems(Vec::new());
    let rank = problems.first(read, &RANK);
    let launcher = rank.as_ref().and_then(|(name, _)| RANK.iter().position(|r| r == name));
    // Read all variables of one launcher, so that a rank is not paired with the world size of another launcher.
    let names = |all: &[&'static str; LAUNCHERS]| launcher.map_or(vec![all[0]], |at| vec![all[at]]);
    let world_size = problems.first(read, &names(&WORLD_SIZE));
    let local_rank = problems.first(read, &names(&LOCAL_RANK));
    let host = problems.text(read, "MASTER_ADDR");
    let own_port = problems.text(read, "WARPLINE_MASTER_PORT");
    let port = problems.text(read, "MASTER_PORT");
    for (name, there) in [
        ("MASTER_ADDR", host.as_ref().is_some_and(|host| !host.is_empty())),
        ("MASTER_PORT", own_port.is_some() || port.is_some()),
    ] {
        if !there {
            problems.0.push(format!("{name} is not set"));
        }
    }
    if rank.is_none() {
        problems.0.push(format!("RANK is not set (nor are {})", RANK[1..].join(", ")));
    }
    if world_size.is_none() {
        problems.0.push(format!("{} is not set", names(&WORLD_SIZE)[0]));
    }
    const COUNT: &str = "a non-negative integer";
    let rank_name = rank.as_ref().map_or("RANK", |(name, _)| name);
    let rank = rank.and_then(|(name, text)| problems.number::<usize>(name, &text, COUNT));
    let world_size = world_size.and_then(|(name, text)| {
        let number = problems.number::<usize>(name, &text, COUNT)?;
        if number == 0 {
            problems.0.push(format!("{name} is 0, but there must be at least one rank"));
        }
        Some(number).filter(|n| *n > 0)
    });
    let local_rank = local_rank.and_then(|(name, text)| problems.number(name, &text, COUNT));
    let agent = problems.text(read, "TORCHELASTIC_USE_AGENT_STORE");
    let agent = agent.is_some_and(|value| value.eq_ignore_ascii_case("true"));
    const PORT: &str = "a port number from 0 to 65535";
    let port = match own_port {
        Some(text) => problems.number::<u16>("WARPLINE_MASTER_PORT", &text, PORT),
        None => {
            let port = port.and_then(|text| problems.number::<u16>("MASTER_PORT", &text, PORT));
            port.map(|port| if agent { agent_store_port(port) } else { port })
        }
    };
    if let (Some(rank), Some(world_size)) = (rank, world_size)
        && rank >= world_size
    {
        problems.0.push(format!("{rank_name} is {rank}, but there are {world_size} ranks"));
    }
    let launcher_hosts = problems.text(read, "WARPLINE_LAUNCHER_STORE").is_some_and(|v| v == "1");
    let secret = problems.text(read, "WARPLINE_SECRET").and_then(|text| {
        let secret = Secret::new(text);
        secret.map_err(|error| problems.0.push(format!("WARPLINE_SECRET: {error}"))).ok()
    });
    // torchrun sets MASTER_ADDR to the host's name. Ranks on one machine without a secret meet at the loopback address
    // instead, which needs no secret. WORLD_SIZE and LOCAL_WORLD_SIZE are the same on all ranks, so all ranks choose
    // the same address.
    let local_world_size =
        problems.text(read, "LOCAL_WORLD_SIZE").and_then(|text| text.parse().ok());
    let one_machine = launcher == Some(0) && local_world_size == world_size;
    let host = match secret {
        None if one_machine => host.map(|_| "127.0.0.1".into()),
        _ => host,
    };
    let debug = problems.text(read, "WARPLINE_DISTRIBUTED_DEBUG");
    let debug = match debug.as_deref() {
        None | Some("" | "OFF" | "INFO") => false,
        Some("DETAIL") => true,
        Some(other) => {
            let text =
                format!("WARPLINE_DISTRIBUTED_DEBUG is {other:?}; it must be OFF, INFO or DETAIL");
            problems.0.push(text);
            false
        }
    };
    match (rank, world_size, host, port) {
        (Some(rank), Some(world_size), Some(host), Some(port)) if problems.0.is_empty() => {
            Ok(Environment {
                rank,
                world_size,
                local_rank,
                host,
                port,
                launcher_hosts,
                debug,
                secret,
            })
        }
        _ => Err(GroupError::Environment { problems: problems.0 }.into()),
    }
}

/// Checks pairs of names and values in place of the environment, for tests of the settings.
///
/// # Errors
/// [`GroupError::Environment`] if a variable is missing or invalid.
pub fn check_variables(variables: &[(&str, &str)]) -> Result<()> {
    let found = read(&|name| {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_string()).ok_or(VarError::NotPresent)
    })?;
    found.device(1).map(drop)
}

/// Returns the store's port if torchrun's agent listens on `MASTER_PORT` itself: the next port, or 65534 after 65535.
fn agent_store_port(port: u16) -> u16 {
    port.checked_add(1).unwrap_or(port - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Environment> {
        read(&|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_string()).ok_or(VarError::NotPresent)
        })
    }

    const STORE: [(&str, &str); 2] = [("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500")];

    #[test]
    fn each_launcher_is_understood() {
        for (rank, size, local) in [
            ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
            ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
            ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        ] {
            let own = [(rank, "3"), (size, "4"), (local, "1")];
            let found = with(&[&STORE[..], &own].concat()).unwrap();
            assert_eq!((found.rank, found.world_size, found.local_rank), (3, 4, Some(1)), "{rank}");
            assert_eq!((found.host.as_str(), found.port), ("10.0.0.1", 29500));
        }
    }

    #[test]
    fn the_usual_variables_come_first_and_launchers_are_not_mixed() {
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_LOCALID", "1")];
        let own = [("RANK", "0"), ("WORLD_SIZE", "1")];
        let found = with(&[&STORE[..], &slurm, &own].concat()).unwrap();
        assert_eq!((found.rank, found.world_size, found.local_rank), (0, 1, None));
        let error = with(&[&STORE[..], &slurm, &own[..1]].concat()).unwrap_err().to_string();
        assert!(error.contains("WORLD_SIZE is not set"), "{error}");
    }

    #[test]
    fn mpi_variables_take_precedence_within_a_slurm_job() {
        let job = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_LOCALID", "0")];
        for [rank, size, local] in [
            ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
            ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
        ] {
            let own = [(rank, "3"), (size, "4"), (local, "1")];
            let found = with(&[&STORE[..], &job, &own].concat()).unwrap();
            assert_eq!((found.rank, found.world_size, found.local_rank), (3, 4, Some(1)), "{rank}");
        }
    }

    #[test]
    fn missing_and_invalid_variables_are_named() {
        let error = with(&[]).unwrap_err().to_string();
        for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
            assert!(error.contains(&format!("{name} is not set")), "{name}: {error}");
        }
        let wrong = [
            ("RANK", "-1"),
            ("WORLD_SIZE", "two"),
            ("LOCAL_RANK", "x"),
            ("MASTER_ADDR", ""),
            ("MASTER_PORT", "65536"),
            ("WARPLINE_DISTRIBUTED_DEBUG", "ON"),
        ];
        let error = with(&wrong).unwrap_err().to_string();
        for (name, value) in wrong {
            assert!(error.contains(name) && error.contains(value), "{name}: {error}");
        }
        let error = with(&[&STORE[..], &[("RANK", "2"), ("WORLD_SIZE", "2")]].concat());
        assert!(error.unwrap_err().to_string().contains("RANK is 2, but there are 2 ranks"));
        let error = with(&[&STORE[..], &[("RANK", "0"), ("WORLD_SIZE", "0")]].concat());
        assert!(error.unwrap_err().to_string().contains("WORLD_SIZE is 0"));
    }

    #[test]
    fn the_device_is_the_local_rank() {
        let device = |local: Option<&'static str>, devices| {
            let ranks = [("RANK", "5"), ("WORLD_SIZE", "8")];
            let local: Vec<_> = local.map(|local| ("LOCAL_RANK", local)).into_iter().collect();
            with(&[&STORE[..], &ranks, &local].concat()).unwrap().device(devices)
        };
        assert_eq!(device(Some("3"), 4).unwrap(), Some(3));
        assert_eq!(device(Some("3"), 1).unwrap(), Some(0));
        assert_eq!(device(None, 4).unwrap(), None);
        let error = device(Some("4"), 4).unwrap_err().to_string();
        assert!(error.contains("LOCAL_RANK") && error.contains("is 4, but"), "{error}");
        // Without any device, `init_process_group` returns the error.
        assert_eq!(device(Some("3"), 0).unwrap(), Some(3));
    }

    #[test]
    fn the_port_of_pytorchs_agent_is_left_alone() {
        let ranks = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "h")];
        let agent = ("TORCHELASTIC_USE_AGENT_STORE", "True");
        let port = |more: &[(&'static str, &'static str)]| {
            with(&[&ranks[..], more].concat()).unwrap().port
        };
        assert_eq!(port(&[("MASTER_PORT", "29500")]), 29500);
        assert_eq!(port(&[("MASTER_PORT", "29500"), agent]), 29501);
        assert_eq!(port(&[("MASTER_PORT", "65535"), agent]), 65534);
        let own = ("WARPLINE_MASTER_PORT", "7000");
        assert_eq!(port(&[("MASTER_PORT", "29500"), agent, own]), 7000);
        assert_eq!(port(&[own]), 7000);
    }

    #[test]
    fn the_secret_is_read_and_never_printed() {
        let own = [("RANK", "0"), ("WORLD_SIZE", "1")];
        let found = |secret| with(&[&STORE[..], &own, &[("WARPLINE_SECRET", secret)]].concat());
        let text = "correct horse battery staple";
        let printed = format!("{:?}", found(text).unwrap());
        assert!(printed.contains("Secret(..)") && !printed.contains("horse"), "{printed}");
        let error = found("hunter2").unwrap_err().to_string();
        assert!(error.contains("WARPLINE_SECRET") && !error.contains("hunter2"), "{error}");
        assert!(found("").is_err());
    }

    #[test]
    fn ranks_of_one_machine_without_a_secret_meet_at_the_loopback() {
        let own = [("RANK", "1"), ("WORLD_SIZE", "4")];
        let host = |more: &[(&'static str, &'static str)]| {
            with(&[&STORE[..], &own, more].concat()).unwrap().host
        };
        assert_eq!(host(&[("LOCAL_WORLD_SIZE", "4")]), "127.0.0.1");
        for local in ["2", "", "four"] {
            assert_eq!(host(&[("LOCAL_WORLD_SIZE", local)]), "10.0.0.1", "{local}");
        }
        let secret = ("WARPLINE_SECRET", "correct horse battery staple");
        assert_eq!(host(&[("LOCAL_WORLD_SIZE", "4"), secret]), "10.0.0.1");
        assert_eq!(host(&[]), "10.0.0.1");
    }

    #[test]
    fn debug_mode_is_read() {
        let own = [("RANK", "0"), ("WORLD_SIZE", "1")];
        for (value, debug) in [("DETAIL", true), ("INFO", false), ("OFF", false)] {
            let mode = [("WARPLINE_DISTRIBUTED_DEBUG", value)];
            assert_eq!(with(&[&STORE[..], &own, &mode].concat()).unwrap().debug, debug);
        }
    }
}
