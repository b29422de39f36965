//! Rows of channels. Both ends are in this process.

use std::time::Duration;

use warpline::multiprocessing::Channel;
use warpline::with_runtime;

use crate::generate::Draw;
use crate::model::{Predict, UNKNOWN, Value, new, within};
use crate::row::{DTYPES, Row, row};

/// Draws a tensor without a gradient, a number from 0 to `cases - 1`, and in some calls one of the mistakes.
fn sent(d: &mut Draw<'_>, cases: i64, mistakes: usize) {
    d.tensor(&DTYPES, |v| !v.tracked());
    d.int(0, cases - 1);
    d.mistake(mistakes);
}

/// Predicts a copy of the tensor, or the failure with the kind that `kinds` lists for mistake `n[1]`.
fn arrives(t: &[Value], n: &[i64], cases: i64, kinds: &[&'static [&'static str]]) -> Predict {
    within(&n[..1], 0, cases - 1)?;
    within(&n[1..], 0, kinds.len() as i64)?;
    if t[0].tracked() || t[0].numel() > 4096 {
        return Err(UNKNOWN);
    }
    match n[1] {
        0 => new(&t[0], t[0].dtype, &t[0].sizes),
        mistake => Err(kinds[mistake as usize - 1]),
    }
}

pub(crate) fn rows() -> Vec<Row> {
    let rows = vec![
        row!(
            "Channel::send and Channel::recv",
            |d| sent(d, 6, 6),
            |t, n| arrives(
                t,
                n,
                6,
                &[
                    &["CannotShare"],
                    &["PeerGone"],
                    &["PeerGone"],
                    &["TimedOut"],
                    &["InvalidArgument"],
                    &["InvalidArgument"]
                ]
            ),
            |t, n| {
                let (here, there) = Channel::pair()?;
                let limit = if n[1] == 4 { 1 } else { 20_000 };
                for end in [&here, &there] {
                    let limit = if n[1] == 6 { 0 } else { limit };
                    end.set_timeout(Some(Duration::from_millis(limit)))?;
                }
                let shared = t[0].share_memory()?;
                match n[1] {
                    1 => return here.send(&t[0].copy()?).map(|()| vec![]),
                    2 => {
                        drop(there);
                        return here.send(&shared).map(|()| vec![]);
                    }
                    3 => {
                        drop(here);
                        return there.recv().map(|_| vec![]);
                    }
                    5 => {
                        here.send(&shared)?;
                        return there.recv_event(&shared).map(|()| vec![]);
                    }
                    4 => return there.recv().map(|_| vec![]),
                    _ => here.send(&shared)?,
                }
                let received = there.recv()?;
                crate::prelude::holds(received.is_shared(), "the memory is shared")?;
                // The ends and the tensors are dropped in one of six orders.
                let (mut ends, mut tensors) = ([Some(here), Some(there)], [Some(shared), None]);
                let copy = received.copy()?;
                tensors[1] = Some(received);
                for k in [n[0] % 2, 1 - n[0] % 2].map(|k| k as usize) {
                    if n[0] < 2 {
                        ends[k] = None;
                    } else if n[0] < 4 {
                        tensors[k] = None;
                    } else {
                        (ends[k], tensors[1 - k]) = (None, None);
                    }
                }
                copy
            }
        )
        .weight(3),
        row!(
            "Channel::send_event and Channel::recv_event",
            |d| sent(d, 2, 4),
            |t, n| arrives(
                t,
                n,
                2,
                &[&["InvalidArgument"], &["CannotShare"], &["CannotShare"], &["PeerGone"]]
            ),
            |t, n| {
                let (here, there) = Channel::pair()?;
                for end in [&here, &there] {
                    end.set_timeout(Some(Duration::from_secs(20)))?;
                }
                let shared = t[0].share_memory()?;
                here.send(&shared)?;
                let received = there.recv()?;
                let (from, to) = if n[0] == 0 { (here, there) } else { (there, here) };
                match n[1] {
                    1 => {
                        from.send_event(&t[0].copy()?.share_memory()?)?;
                        to.recv_event(&received)?;
                    }
                    2 => from.send_event(&t[0].copy()?)?,
                    3 => to.recv_event(&t[0].copy()?)?,
                    4 => {
                        drop(to);
                        from.send_event(&shared)?;
                    }
                    _ => {
                        from.send_event(&shared)?;
                        to.recv_event(&received)?;
                    }
                }
                received.copy()?
            }
        )
        .weight(3),
        row!(
            "a tensor comes back from another thread",
            |d| sent(d, 3, 2),
            |t, n| arrives(t, n, 3, &[&["PeerGone"], &["CannotShare"]]),
            |t, n| {
                let (here, there) = Channel::pair()?;
                for end in [&here, &there] {
                    end.set_timeout(Some(Duration::from_secs(20)))?;
                }
                let world = warpline::runtime();
                let echo = move || -> warpline::Result<()> {
                    for _ in 0..=n[0] {
                        let received = there.recv()?;
                        there.send(&received.copy()?.share_memory()?)?;
                    }
                    Ok(())
                };
                let local = |here: &Channel| -> warpline::Result<warpline::Tensor> {
                    let mut own = t[0].copy()?;
                    for _ in 0..=n[0] + i64::from(n[1] == 1) {
                        here.send(&if n[1] == 2 { own.copy()? } else { own.share_memory()? })?;
                        own = here.recv()?.copy()?;
                    }
                    Ok(own)
                };
                std::thread::scope(move |s| {
                    let other = s.spawn(move || with_runtime(&world, echo));
                    let own = local(&here);
                    // The other end then receives an error instead of waiting.
                    drop(here);
                    let other =
                        other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    let own = own?;
                    other.map(|()| own)
                })?
            }
        )
        .weight(2),
    ];
    rows.into_iter().map(Row::exclusive).collect()
}
