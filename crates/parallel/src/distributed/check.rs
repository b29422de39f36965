//! Debug mode: the ranks' calls are compared before anything is launched.

use std::time::Duration;

use super::group::Shared;
use super::signature::Signature;
use super::{GroupError, RankCall, Result, StoreError};

/// How long the store is waited for before it is seen whether the group has failed meanwhile.
const SLICE: Duration = Duration::from_millis(100);

/// Compares this rank's call with those of the ranks that it needs, waiting for theirs. False where
/// there is nothing to compare, as the call is refused anyway.
pub(super) fn compare(group: &Shared, seq: u64, call: &Signature) -> Result<bool> {
    let compared = match call.peer {
        None => collective(group, seq, call)?,
        Some(_) => match pairs(group, call)? {
            None => return Ok(false),
            Some(differing) => differing,
        },
    };
    if compared.is_empty() {
        return Ok(true);
    }
    let call = call.to_string();
    Err(GroupError::Mismatch { rank: group.rank(), seq, call, differing: compared }.into())
}

/// What a rank has set, waited for.
fn told(group: &Shared, key: &str) -> Result<String> {
    loop {
        match group.parts.store.get(key, SLICE) {
            // The watchdog sees to the timeout.
            Err(StoreError::Timeout { .. }) => group.check_alive()?,
            told => return Ok(String::from_utf8_lossy(&told?).into_owned()),
        }
    }
}

/// A call of all ranks: its text has to be one, and what each sends to each what that one receives.
fn collective(group: &Shared, seq: u64, call: &Signature) -> Result<Vec<RankCall>> {
    let (parts, rank, ranks) = (&group.parts, group.rank(), group.parts.comm.ranks());
    let key = |seq: u64, rank: usize| format!("check/{seq}/{rank}");
    let own = encode(call, ranks);
    parts.store.set(&key(seq, rank), own.as_bytes())?;
    let told = (0..ranks).map(|other| match other == rank {
        true => Ok(own.clone()),
        false => told(group, &key(seq, other)),
    });
    let told: Vec<_> = told.collect::<Result<_>>()?;
    // All have come to this call, so that nobody reads what was compared before.
    if let Some(last) = group.compared_last(seq) {
        parts.store.delete(&key(last, rank))?;
    }
    let calls: Vec<Vec<&str>> = told.iter().map(|told| told.split('\n').collect()).collect();
    let mut differing = Vec::new();
    for (other, theirs) in calls.iter().enumerate().filter(|(_, c)| c[0] != calls[rank][0]) {
        differing.push(RankCall { rank: other, call: format!("called {}", theirs[0]) });
    }
    if !differing.is_empty() || call.parts.is_empty() {
        return Ok(differing);
    }
    for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
        let sent = calls[from].get(1 + to).copied().unwrap_or_default();
        let received = calls[to].get(1 + ranks + from).copied().unwrap_or_default();
        if sent == received {
            continue;
        }
        let name = calls[rank][0];
        differing.push(if to == rank {
            let call =
                format!("called {name}, sending {sent} to rank {to}, which receives {received}");
            RankCall { rank: from, call }
        } else {
            let call =
                format!("called {name}, receiving {received} from rank {from}, which sends {sent}");
            RankCall { rank: to, call }
        });
    }
    Ok(differing)
}

/// A call as text, and of an exchange what goes to each rank and comes from each, a line for each.
fn encode(call: &Signature, ranks: usize) -> String {
    let mut text = call.to_string();
    if call.parts.is_empty() {
        return text;
    }
    for end in (0..ranks).map(|peer| (peer, true)).chain((0..ranks).map(|peer| (peer, false))) {
        let part = call.parts.iter().find(|part| part.peer == Some(end));
        text.push('\n');
        text += &part.map(Signature::content).unwrap_or_default();
    }
    text
}

/// Sends and receives: each has to meet the other end's, which is the next between these two ranks in
/// that direction.
fn pairs(group: &Shared, call: &Signature) -> Result<Option<Vec<RankCall>>> {
    let (store, rank, ranks) = (&group.parts.store, group.rank(), group.parts.comm.ranks());
    let calls = if call.parts.is_empty() { std::slice::from_ref(call) } else { &call.parts };
    let count = |end| calls.iter().filter(|call| call.peer == Some(end)).count();
    let known = calls.iter().all(|call| call.peer.is_some_and(|(peer, _)| peer < ranks));
    if !known || count((rank, true)) != count((rank, false)) {
        return Ok(None);
    }
    // All are told before the first is waited for: they are in no order among them.
    let mut waiting = Vec::new();
    for call in calls {
        let Some((peer, sends)) = call.peer else { continue };
        let number = group.next_of_pair((peer, sends));
        let (from, to) = if sends { (rank, peer) } else { (peer, rank) };
        let key = |sends| {
            let end = if sends { "send" } else { "recv" };
            format!("check/{from}/{to}/{number}/{end}")
        };
        store.set(&key(sends), format!("{}\n{call}", call.content()).as_bytes())?;
        waiting.push((call, peer, key(!sends)));
    }
    let mut differing = Vec::new();
    for (call, peer, key) in waiting {
        let told = told(group, &key)?;
        // Nobody else reads it.
        store.delete(&key)?;
        let (content, theirs) = told.split_once('\n').unwrap_or((&told, ""));
        if content != call.content() {
            let call = format!("called {theirs}, which is to meet {call}");
            differing.push(RankCall { rank: peer, call });
        }
    }
    Ok(Some(differing))
}
