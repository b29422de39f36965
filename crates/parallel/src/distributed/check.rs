//! Debug mode: compares the ranks' calls before anything is launched.

use std::time::Duration;

use super::group::GroupShared;
use super::signature::Signature;
use super::{GroupError, RankCall, Result, StoreError};

/// Longest wait for the store before the group's failure is checked again.
const STORE_WAIT: Duration = Duration::from_millis(100);

/// Waits for the matching calls of the other ranks and compares them with this rank's call. If the launch will refuse
/// the call, returns `false` without a comparison.
pub(super) fn compare(group: &GroupShared, seq: u64, call: &Signature) -> Result<bool> {
    let differing = match call.peer {
        None => compare_collective(group, seq, call)?,
        Some(_) => match compare_pairs(group, call)? {
            None => return Ok(false),
            Some(differing) => differing,
        },
    };
    if differing.is_empty() {
        return Ok(true);
    }
    let call = call.to_string();
    Err(GroupError::Mismatch { rank: group.rank(), seq, call, differing }.into())
}

/// Returns the value of a key. Waits until the key is set or the group has failed.
pub(super) fn wait_for_key(group: &GroupShared, key: &str) -> Result<Vec<u8>> {
    loop {
        match group.parts.store.get(key, STORE_WAIT) {
            // The watchdog enforces the group's timeout.
            Err(StoreError::Timeout { .. }) => group.check_alive()?,
            value => return Ok(value?),
        }
    }
}

fn wait_for_text(group: &GroupShared, key: &str) -> Result<String> {
    Ok(String::from_utf8_lossy(&wait_for_key(group, key)?).into_owned())
}

/// Compares a collective. Its description must be equal on all ranks. Between each two ranks, the sent content must
/// equal the received content. Returns the calls that differ.
fn compare_collective(group: &GroupShared, seq: u64, call: &Signature) -> Result<Vec<RankCall>> {
    let (parts, rank, ranks) = (&group.parts, group.rank(), group.ranks());
    let key = |seq: u64, rank: usize| format!("check/{seq}/{rank}");
    let own = encode(call, ranks);
    parts.store.set(&key(seq, rank), own.as_bytes())?;
    let texts = (0..ranks).map(|other| match other == rank {
        true => Ok(own.clone()),
        false => wait_for_text(group, &key(seq, other)),
    });
    let texts: Vec<_> = texts.collect::<Result<_>>()?;
    // All ranks have reached this call, so no rank still reads the key of the previous comparison.
    if let Some(last) = group.replace_last_compared(seq) {
        parts.store.delete(&key(last, rank))?;
    }
    let calls: Vec<Vec<&str>> = texts.iter().map(|text| text.split('\n').collect()).collect();
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

/// Encodes a call as text. For an exchange, adds a line for the content sent to each rank and received from each rank.
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

/// Compares sends and receives. The n-th send from one rank to another must match the other rank's n-th receive from
/// the sender. Returns the calls that differ, or `None` if the launch will refuse the call.
fn compare_pairs(group: &GroupShared, call: &Signature) -> Result<Option<Vec<RankCall>>> {
    let (store, rank, ranks) = (&group.parts.store, group.rank(), group.ranks());
    let calls = if call.parts.is_empty() { std::slice::from_ref(call) } else { &call.parts };
    let count = |end| calls.iter().filter(|call| call.peer == Some(end)).count();
    let known = calls.iter().all(|call| call.peer.is_some_and(|(peer, _)| peer < ranks));
    if !known || count((rank, true)) != count((rank, false)) {
        return Ok(None);
    }
    // Set all keys before the first wait, because the calls of a batch have no order.
    let mut waiting = Vec::new();
    for call in calls {
        let Some((peer, sends)) = call.peer else { continue };
        let number = group.next_pair_seq((peer, sends));
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
        let value = wait_for_text(group, &key)?;
        // Delete the key, which no other rank reads.
        store.delete(&key)?;
        let (content, theirs) = value.split_once('\n').unwrap_or((&value, ""));
        if content != call.content() {
            let call = format!("called {theirs}, which should match {call}");
            differing.push(RankCall { rank: peer, call });
        }
    }
    Ok(Some(differing))
}
