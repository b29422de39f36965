//! Nested inputs and outputs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use warpline::{Result, Tensor, arange, ones};
use warpline_parallel::DataParallel;

use super::nets::FnModule;
use super::world::{SimBox, TestResult, values};

crate::on_both! {
    Auto([2, 5]) s28_nested_inputs_and_outputs gpu2_s28_nested_inputs_and_outputs => nested;
    Auto([2, 3, 5]) s28_the_shortest_decides gpu2_s28_the_shortest_decides => shortest;
    Auto([2, 3]) s28_scalars_become_a_vector gpu2_s28_scalars_become_a_vector => scalars;
}

type Map = HashMap<String, Tensor>;
type Ordered = BTreeMap<&'static str, (Tensor, Option<Tensor>)>;
type Nested = (Tensor, Vec<Tensor>, Map, Option<Tensor>, (f64, Arc<Vec<f64>>));

fn nested(devices: usize) -> TestResult {
    let shared = Arc::new(vec![1.0, 100.0]);
    let inside = Arc::clone(&shared);
    let net = FnModule(move |(x, list, map, none, (scale, table)): Nested| -> Result<_> {
        assert!(Arc::ptr_eq(&table, &inside), "shared by reference");
        assert!(none.is_none());
        let sum = x.add(&list[0])?.add(&list[1])?.add(&map["a"])?;
        let out: Ordered =
            [("x", (x, None)), ("sum", (sum.mul(scale)?, Some(sum.mul(table[1])?)))].into();
        Ok((list, (map, none), out, ()))
    });
    let net = DataParallel::new(net, ())?;
    let n = 2 * devices;
    let x = || arange(n as f64, 0);
    let input = || -> anyhow::Result<Nested> {
        let map = Map::from([("a".to_owned(), x()?.mul(2.0)?)]);
        Ok((x()?, vec![x()?, x()?], map, None, (0.5, Arc::clone(&shared))))
    };
    let count = |by: f32| (0..n).map(|v| v as f32 * by).collect::<Vec<_>>();
    for _ in 0..2 {
        let (list, (map, none), out, ()) = net.forward(input()?)?;
        assert_eq!(list.len(), 2);
        assert_eq!(values(&list[1])?, count(1.0));
        assert_eq!(values(&map["a"])?, count(2.0));
        assert!(none.is_none() && out["x"].1.is_none());
        assert_eq!(values(&out["x"].0)?, count(1.0));
        assert_eq!(values(&out["sum"].0)?, count(2.5));
        assert_eq!(values(out["sum"].1.as_ref().expect("a tensor"))?, count(500.0));
    }
    Ok(())
}

/// Like Python's `zip`, the input with the fewest chunks determines the number of replicas.
fn shortest(devices: usize) -> TestResult {
    let (many, few) = (2 * devices, devices - 1);
    let net = DataParallel::new(
        FnModule(|(x, y): (Vec<Tensor>, Tensor)| {
            x.first().map_or_else(|| y.clone().add(0.0), |x| x.sum(())?.add(&y.sum(())?))
        }),
        (),
    )?;
    // The first input has a chunk for each device. The second input has one chunk fewer.
    let out = net.forward((vec![ones([many], 0)?], ones([few], 0)?))?;
    assert_eq!(values(&out)?, vec![3.0; few]);
    // The same holds within lists and maps, in either order.
    for (a, b) in [(many, few), (few, many)] {
        let net = DataParallel::new(
            FnModule(|(list, map): (Vec<Tensor>, Map)| {
                assert_eq!((list.len(), map.len()), (2, 2));
                Ok(vec![list[0].clone(), map["b"].clone()])
            }),
            (),
        )?;
        let map = [("a".to_owned(), ones([a], 0)?), ("b".to_owned(), ones([b], 0)?)];
        let out = net.forward((vec![ones([a], 0)?, ones([b], 0)?], map.into()))?;
        let expected = |n: usize| if n == many { [2 * few] } else { [few] };
        assert_eq!((out[0].size(), out[1].size()), (&expected(a)[..], &expected(b)[..]));
    }
    // An empty list counts as one empty chunk per device.
    let out = net.forward((vec![], ones([devices], 0)?))?;
    assert_eq!(values(&out)?, vec![1.0; devices]);
    Ok(())
}

fn scalars(devices: usize) -> TestResult {
    let net = DataParallel::new(FnModule(|x: Tensor| x.sum(())), ())?;
    let out = net.forward(ones([2 * devices], 0)?)?;
    assert_eq!((out.size(), values(&out)?), (&[devices][..], vec![2.0; devices]));
    let out = net.forward(ones([1], 0)?)?;
    assert_eq!(out.size(), [1], "a single replica has an output, too");
    Ok(())
}

#[test]
fn outputs_of_different_structure_are_refused() {
    SimBox::lazy(2).enter(|| {
        let x = || ones([4, 3], 0);
        let refused = |error: warpline::Error, parts: &[&str]| {
            let text = error.to_string();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        };
        let first = |x: &Tensor| x.device() == warpline::Device::cuda(0);
        let net = DataParallel::new(FnModule(|x: Tensor| x.cpu()), ())?;
        let error = net.forward(x()?).unwrap_err();
        refused(error, &["Gather function not implemented for CPU tensors", "replica 0"]);
        let net = DataParallel::new(
            FnModule(move |x: Tensor| if first(&x) { Ok(x) } else { x.narrow(1, 0, 2) }),
            (),
        )?;
        refused(net.forward(x()?).unwrap_err(), &["replica 1", "[2, 2]", "[2, 3]"]);
        let net = DataParallel::new(FnModule(move |x: Tensor| Ok(first(&x).then_some(x))), ())?;
        refused(net.forward(x()?).unwrap_err(), &["another has none"]);
        // If the first replica returns `None`, the other outputs are ignored, as in PyTorch.
        let net = DataParallel::new(FnModule(move |x: Tensor| Ok((!first(&x)).then_some(x))), ())?;
        assert!(net.forward(x()?)?.is_none());
        let net = DataParallel::new(
            FnModule(move |x: Tensor| Ok(vec![x.clone(); if first(&x) { 2 } else { 1 }])),
            (),
        )?;
        refused(net.forward(x()?).unwrap_err(), &["[2, 1]"]);
        let net = DataParallel::new(
            FnModule(move |x: Tensor| {
                let keys = if first(&x) { vec!["a", "b"] } else { vec!["a"] };
                Ok(keys.into_iter().map(|k| (k, x.clone())).collect::<HashMap<_, _>>())
            }),
            (),
        )?;
        refused(net.forward(x()?).unwrap_err(), &["All dicts must have the same number of keys"]);
        let net = DataParallel::new(
            FnModule(move |x: Tensor| Ok(BTreeMap::from([(if first(&x) { "a" } else { "b" }, x)]))),
            (),
        )?;
        refused(net.forward(x()?).unwrap_err(), &["\"a\""]);
        Ok(())
    });
}
