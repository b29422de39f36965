//! Rows of tensors in files.

use warpline_nn as nn;

use crate::generate::Draw;
use crate::model::{Out, Predict, UNKNOWN, Value, within};
use crate::row::{Row, row};

/// Draws tensors, the device to load them to, and in some calls one of the mistakes.
fn several(d: &mut Draw<'_>, mistakes: usize) {
    for _ in 0..1 + d.random.below(3) {
        d.any();
    }
    let place = d.place();
    d.number(place as i64);
    d.mistake(mistakes);
}

/// Predicts tensors that are loaded to device `n[0]`, or the failure of a mistake `n[1]` from 1 to `mistakes`.
fn loaded(t: &[Value], n: &[i64], mistakes: i64) -> Predict {
    within(&n[..1], 0, 2)?;
    within(&n[1..], 0, mistakes)?;
    if n[1] > 0 {
        return Err(&["File"]);
    }
    // A tensor that is expanded from few elements may be larger than the model's tensors.
    if t.iter().any(|v| v.numel() > 4096) {
        return Err(UNKNOWN);
    }
    let out = |v: &Value| {
        let (dtype, sizes) = (v.dtype, v.sizes.clone());
        Out::New { dtype, place: n[0] as usize, sizes }
    };
    Ok(t.iter().map(out).collect())
}

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row!(
            "nn::save_file and nn::load_file",
            |d| several(d, 3),
            |t, n| loaded(t, n, 3),
            |t, n| {
                let folder = crate::prelude::Folder::new();
                let path = folder.0.join("tensors.safetensors");
                let name = |k: usize| format!("tensor.{k}");
                let entries = t.iter().enumerate().map(|(k, t)| (name(k), t.clone()));
                let mut state: nn::StateDict = entries.collect();
                match n[1] {
                    1 => drop(state.insert("__metadata__", t[0].clone())),
                    2 => state.extend([(name(0), t[0].clone()), (name(0), t[0].clone())]),
                    _ => {}
                }
                let path = if n[1] == 3 { path.join("in a file that is no folder") } else { path };
                nn::save_file(&state, &path, ())?;
                let mut loaded = nn::load_file(&path, crate::prelude::place(n[0])?)?;
                let all = (0..t.len()).map(|k| loaded.remove(&name(k)));
                let all = all.collect::<Option<Vec<_>>>();
                crate::prelude::holds(all.is_some() && loaded.is_empty(), "the names are kept")?;
                all.unwrap_or_default()
            }
        )
        .constant()
        .exclusive()
        .weight(3),
        row!(
            "nn::load_file of a damaged file",
            |d| several(d, 7),
            |t, n| loaded(t, n, 7),
            |t, n| {
                let folder = crate::prelude::Folder::new();
                let path = folder.0.join("tensors.safetensors");
                let entries = t.iter().enumerate().map(|(k, t)| (k.to_string(), t.clone()));
                nn::save_file(&entries.collect(), &path, ())?;
                let io =
                    |error: std::io::Error| warpline::Error::invalid("a file", error.to_string());
                let mut bytes = std::fs::read(&path).map_err(io)?;
                match n[1] {
                    1 => bytes.clear(),
                    2 => bytes.truncate(7),
                    3 => bytes.truncate(bytes.len() / 2),
                    4 => drop(bytes.pop()),
                    5 => bytes.push(0),
                    6 => bytes[7] = 1,
                    7 => bytes[8] = b'[',
                    _ => {}
                }
                std::fs::write(&path, &bytes).map_err(io)?;
                let mut loaded = nn::load_file(&path, crate::prelude::place(n[0])?)?;
                let all = (0..t.len()).filter_map(|k| loaded.remove(&k.to_string()));
                all.collect::<Vec<_>>()
            }
        )
        .constant()
        .exclusive()
        .weight(3),
        row!(
            "nn::save_sharded",
            |d| {
                several(d, 1);
                d.int(1, 64);
            },
            |t, n| {
                within(&n[2..], 1, 64)?;
                loaded(t, &n[..2], 1)
            },
            |t, n| {
                let folder = crate::prelude::Folder::new();
                let entries = t.iter().enumerate().map(|(k, t)| (k.to_string(), t.clone()));
                nn::save_sharded(&entries.collect(), &folder.0, n[2] as usize)?;
                let index = folder.0.join("model.safetensors.index.json");
                if n[1] == 1 {
                    let files = std::fs::read_dir(&folder.0).into_iter().flatten().flatten();
                    for file in files.filter(|file| file.path() != index) {
                        let _ = std::fs::remove_file(file.path());
                    }
                }
                let mut loaded = nn::load_file(&index, crate::prelude::place(n[0])?)?;
                let all = (0..t.len()).filter_map(|k| loaded.remove(&k.to_string()));
                all.collect::<Vec<_>>()
            }
        )
        .constant()
        .exclusive()
        .weight(3),
    ]
}
