//! Tests of the names of members, and of valid and invalid states.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use warpline::autograd::inference_mode;
use warpline::{Device, ErrorKind, Result, Tensor, full, ones, zeros};
use warpline_nn::{
    Buffer, FileError, IncompatibleKeys, Linear, LoadError, Module, ModuleDict, Parameter, ReLU,
    Sequential, StateDict, Training, Visitor, VisitorMut, save_file, save_sharded,
};

use crate::common::{World, worlds};

/// A module with fields of many types.
#[derive(Clone, Module)]
struct Net<M> {
    layers: Vec<Linear>,
    body: M,
    scale: Parameter,
    bias: Option<Parameter>,
    count: Buffer,
    mask: Buffer,
    #[module(name = "final")]
    last: (Linear, ReLU),
    training: Training,
    eps: f64,
    #[module(skip)]
    _note: std::sync::Arc<()>,
}

fn net() -> Result<Net<Sequential>> {
    Ok(Net {
        layers: vec![Linear::new(2, 2, ())?, Linear::new(2, 2, ())?],
        body: Sequential::new().with(ReLU).with(Linear::new(2, 2, ())?),
        scale: Parameter::new(ones([2], ())?)?,
        bias: None,
        count: Buffer::new(zeros([], ())?),
        mask: Buffer::new(ones([2], ())?).persistent(false),
        last: (Linear::new(2, 3, ())?, ReLU),
        training: Training::default(),
        eps: 0.5,
        _note: std::sync::Arc::default(),
    })
}

fn names(tensors: Vec<(String, Tensor)>) -> Vec<String> {
    tensors.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn members_have_pytorchs_names() {
    let mut net = net().unwrap();
    let parameters = [
        "layers.0.weight",
        "layers.0.bias",
        "layers.1.weight",
        "layers.1.bias",
        "body.1.weight",
        "body.1.bias",
        "scale",
        "final.0.weight",
        "final.0.bias",
    ];
    assert_eq!(names(net.named_parameters()), parameters);
    assert_eq!(names(net.named_buffers()), ["count", "mask"]);
    let mut state = parameters.to_vec();
    state.insert(7, "count");
    assert_eq!(
        net.state_dict().keys().collect::<Vec<_>>(),
        state,
        "all but the buffers that are not persistent"
    );
    assert!(net.training.get());
    net.eval();
    assert!(!net.training.get() && net.eps == 0.5);
}

#[test]
fn a_state_is_loaded_in_place() {
    worlds(1, |world: &World| {
        for place in world.places() {
            let (mut to, from) = (net()?, net()?);
            to.to(place)?;
            let before: Vec<u64> = to.parameters().iter().map(Tensor::data_ptr).collect();
            from.count.fill_(3.0)?;
            to.load_state_dict(&from.state_dict(), true)?;
            let after: Vec<u64> = to.parameters().iter().map(Tensor::data_ptr).collect();
            assert_eq!(before, after);
            for ((name, to), (_, from)) in to.state_dict().iter().zip(from.state_dict().iter()) {
                assert_eq!(to.device(), place);
                assert_eq!(to.to_vec::<f32>()?, from.to_vec::<f32>()?, "{name}");
            }
        }
        Ok(())
    });
}

/// Visits two parameters under one name.
struct Ambiguous(Parameter, Parameter);

impl Module for Ambiguous {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        visitor.member("w", &self.0);
        visitor.member("w", &self.1);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.member("w", &mut self.0);
        visitor.member("w", &mut self.1);
    }
}

#[test]
fn two_tensors_of_one_name_are_neither_saved_nor_loaded() {
    let parameter = || Parameter::new(ones([2], ()).unwrap()).unwrap();
    let mut net = Ambiguous(parameter(), parameter());
    assert_eq!(names(net.named_parameters()), ["w", "w"]);
    let state = net.state_dict();
    let error = net.load_state_dict(&state, true).expect_err("a tensor is missing");
    let Some(LoadError::Ambiguous { names }) = error.find() else { panic!("{error}") };
    assert_eq!(names[..], ["w"]);
    let state = state.with_prefix("net");
    let path = std::env::temp_dir().join(format!("ambiguous-{}.safetensors", std::process::id()));
    for error in [save_file(&state, &path, ()), save_sharded(&state, &path, 100)] {
        let error = error.expect_err("a tensor would be missing");
        let Some(FileError::Invalid { reason, .. }) = error.find() else { panic!("{error}") };
        assert_eq!(reason, "several tensors have the name net.w");
    }
    assert!(!path.exists());
    assert!(save_file(&state.under_prefix("other"), &path, ()).is_ok(), "it is empty");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn an_ambiguous_name_stays_ambiguous_until_it_is_resolved() -> Result<()> {
    let parameter = |value: f32| Parameter::new(full([2], value, ()).unwrap()).unwrap();
    let state = || Ambiguous(parameter(1.0), parameter(2.0)).state_dict();
    let path = std::env::temp_dir().join(format!("resolved-{}.safetensors", std::process::id()));
    let refused = |state: &StateDict| {
        let error = save_file(state, &path, ()).expect_err("a tensor would be missing");
        let Some(FileError::Invalid { reason, .. }) = error.find() else { panic!("{error}") };
        reason.clone()
    };
    let mut all = StateDict::new();
    all.extend(state().with_prefix("model"));
    assert_eq!(refused(&all), "several tensors have the name model.w");
    let collected: StateDict = state().into_iter().filter(|(name, _)| name == "w").collect();
    assert_eq!(refused(&collected), "several tensors have the name w");
    let by_reference: StateDict =
        collected.iter().map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect();
    all.extend(by_reference);
    assert_eq!(refused(&all), "several tensors have each of the names model.w, w");

    // A state whose names are ambiguous is not loaded.
    #[derive(Module)]
    struct One {
        w: Parameter,
    }
    let mut one = One { w: parameter(0.0) };
    for strict in [true, false] {
        let error = one.load_state_dict(&state(), strict).expect_err("which of two tensors?");
        assert!(matches!(error.find(), Some(LoadError::Ambiguous { .. })), "{error}");
    }
    assert_eq!(one.w.to_vec::<f32>()?, [0.0; 2]);

    let mut removed = state();
    removed.remove("w");
    let mut retained = state();
    retained.retain(|name, _| name != "w");
    let mut inserted = state();
    inserted.insert("w", ones([2], ())?);
    let mut replaced = state();
    replaced.extend(One { w: parameter(3.0) }.state_dict());
    for (state, len) in [(removed, 0), (retained, 0), (inserted, 1), (replaced, 1)] {
        assert_eq!(state.len(), len);
        save_file(&state, &path, ())?;
        assert_eq!(state.into_iter().count(), len);
    }
    std::fs::remove_file(path).unwrap();
    Ok(())
}

#[test]
fn states_and_dictionaries_are_iterated_by_reference() -> Result<()> {
    let state = Linear::new(2, 2, ())?.state_dict();
    let mut names = Vec::new();
    for (name, tensor) in &state {
        names.push(format!("{name}: {:?}", tensor.size()));
    }
    assert_eq!(names, ["weight: [2, 2]", "bias: [2]"]);
    let mut dict = ModuleDict::new();
    dict.insert("a", Linear::new(2, 3, ())?)?;
    for (name, linear) in &dict {
        assert_eq!((name, linear.weight.size()), ("a", &[3, 2][..]));
    }
    for (_, linear) in &mut dict {
        linear.bias = None;
    }
    assert!(dict["a"].bias.is_none());
    Ok(())
}

/// Returns the file and the line of a panic in `f`. Panics of other threads go to the hook that was set before.
fn panic_site(f: impl FnOnce()) -> Option<(String, u32)> {
    let (site, hook) = (Arc::new(Mutex::new(None)), Arc::new(std::panic::take_hook()));
    let this = std::thread::current().id();
    let (seen, other) = (Arc::clone(&site), Arc::clone(&hook));
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() != this {
            return other(info);
        }
        *seen.lock().unwrap() = info.location().map(|at| (at.file().to_owned(), at.line()));
    }));
    let result = std::panic::catch_unwind(AssertUnwindSafe(f));
    std::panic::set_hook(Box::new(move |info| hook(info)));
    assert!(result.is_err());
    site.lock().unwrap().take()
}

#[test]
fn an_index_without_an_element_panics_at_the_callers_line() -> Result<()> {
    let state = Linear::new(2, 2, ())?.state_dict();
    let net = Sequential::new().with_named("fc", Linear::new(2, 2, ())?)?;
    let mut other = net.clone();
    let mut dict = ModuleDict::new();
    dict.insert("a", Linear::new(2, 2, ())?)?;
    let line = line!();
    let sites = [
        panic_site(|| drop(state["x"].clone())),
        panic_site(|| drop(net["x"].clone())),
        panic_site(|| other["x"] = net[0].clone()),
        panic_site(|| drop(dict["x"].clone())),
        panic_site(|| dict["x"].bias = None),
    ];
    for (site, line) in sites.into_iter().zip(line + 2..) {
        assert_eq!(site, Some((file!().to_owned(), line)));
    }
    Ok(())
}

#[test]
fn mismatches_are_named_and_nothing_is_loaded() {
    worlds(1, |_| {
        let mut net = net()?;
        net.to("cuda:0")?;
        let before = net.layers[0].weight.to_vec::<f32>()?;
        let mut state: StateDict =
            net.state_dict().into_iter().filter(|(name, _)| name != "scale").collect();
        state.insert("layers.0.weight", full([2, 2], 9.0, ())?);
        state.insert("final.0.bias", full([4], 9.0, ())?);
        state.insert("extra", full([4], 9.0, ())?);
        let error = net.load_state_dict(&state, true).expect_err("three things are wrong");
        let Some(LoadError::Differs { missing, unexpected, mismatched }) = error.find() else {
            panic!("{error}")
        };
        assert_eq!((&missing[..], &unexpected[..]), (&["scale".into()][..], &["extra".into()][..]));
        assert_eq!(mismatched[0].name, "final.0.bias");
        let text = error.to_string();
        for said in [
            "scale",
            "extra",
            "final.0.bias: [4] (torch.float32, on cpu)",
            "[3] (torch.float32, on cuda:0)",
        ] {
            assert!(text.contains(said), "{text}");
        }
        assert_eq!(net.layers[0].weight.to_vec::<f32>()?, before);
        // Without `strict`, names may differ, but shapes may not.
        let error = net.load_state_dict(&state, false).expect_err("a shape differs");
        let Some(LoadError::Differs { missing, unexpected, mismatched }) = error.find() else {
            panic!("{error}")
        };
        assert_eq!((missing.len(), unexpected.len(), mismatched.len()), (0, 0, 1), "{error}");
        state.insert("final.0.bias", full([3], 9.0, ())?);
        net.load_state_dict(&state, false)?;
        assert_eq!(net.layers[0].weight.to_vec::<f32>()?, [9.0; 4]);
        assert_eq!(net.scale.to_vec::<f32>()?, [1.0; 2]);
        Ok(())
    });
}

/// A module with two names for one parameter.
#[derive(Module)]
struct Tied {
    wte: Linear,
    head: Linear,
}

#[test]
fn tied_parameters_stay_tied() {
    worlds(2, |_| {
        let wte = Linear::new(2, 2, ())?;
        let head = Linear { weight: wte.weight.clone(), bias: None };
        let mut tied = Tied { wte, head };
        assert_eq!(names(tied.named_parameters()), ["wte.weight", "wte.bias"]);
        assert_eq!(tied.state_dict().len(), 3, "under both names");
        tied.to("cuda:1")?;
        assert_eq!(tied.head.weight.device(), Device::cuda(1));
        tied.wte.weight.detach().fill_(4.0)?;
        assert_eq!(tied.head.weight.to_vec::<f32>()?, [4.0; 4]);
        tied.share_memory()?;
        assert!(tied.head.weight.storage().same_as(tied.wte.weight.storage()));
        Ok(())
    });
}

#[test]
fn states_can_be_combined_and_split_by_prefix() {
    let state = Linear::new(1, 1, ()).unwrap().state_dict().with_prefix("model");
    assert_eq!(state.keys().collect::<Vec<_>>(), ["model.weight", "model.bias"]);
    assert_eq!(state.under_prefix("model").keys().collect::<Vec<_>>(), ["weight", "bias"]);
    assert!(state.under_prefix("mod").is_empty());
}

#[test]
fn a_lenient_load_returns_the_names_that_differ() {
    let mut net = Linear::new(2, 2, ()).unwrap();
    let mut state = Linear::new(2, 2, ()).unwrap().state_dict();
    let weight = state["weight"].to_vec::<f32>().unwrap();
    let bias = net.state_dict()["bias"].to_vec::<f32>().unwrap();
    assert!(state.remove("bias").is_some() && state.remove("bias").is_none());
    state.insert("scale", ones([2], ()).unwrap());
    let keys = net.load_state_dict(&state, false).unwrap();
    assert_eq!(
        (&keys.missing_keys[..], &keys.unexpected_keys[..]),
        (&["bias".into()][..], &["scale".into()][..])
    );
    assert_eq!(net.weight.to_vec::<f32>().unwrap(), weight);
    assert_eq!(net.state_dict()["bias"].to_vec::<f32>().unwrap(), bias, "it has no counterpart");
    let own = net.state_dict();
    assert_eq!(net.load_state_dict(&own, true).unwrap(), IncompatibleKeys::default());
}

#[test]
fn tensors_of_a_state_are_removed_in_order() {
    let state = || -> StateDict {
        let tensor = |n: usize| zeros([n], ()).unwrap();
        ["a.x", "b.x", "a.y", "b.y"]
            .iter()
            .zip(0..)
            .map(|(name, n)| (name.to_string(), tensor(n)))
            .collect()
    };
    let mut left = state();
    assert_eq!(left.remove("b.x").map(|tensor| tensor.numel()), Some(1));
    assert!(!left.contains_key("b.x") && left.get("b.x").is_none());
    assert_eq!(left.keys().collect::<Vec<_>>(), ["a.x", "a.y", "b.y"]);
    assert_eq!(left["b.y"].numel(), 3, "later tensors are found");
    left.insert("b.x", ones([5], ()).unwrap());
    assert_eq!(left.keys().last(), Some("b.x"));
    let mut left = state();
    left.retain(|name, tensor| name.starts_with("b.") && tensor.numel() > 1);
    assert_eq!((left.len(), left["b.y"].numel()), (1, 3));
    assert!(!left.contains_key("a.x"));
}

#[test]
fn a_deep_copy_shares_no_tensor_and_keeps_ties() {
    worlds(1, |world: &World| {
        for place in world.places() {
            let mut net = net()?;
            net.layers[1].weight = net.layers[0].weight.clone();
            net.scale.requires_grad_(false)?;
            net.to(place)?;
            net.eval();
            net.layers[0].weight.sum(())?.backward()?;
            let copy = net.deep_copy()?;
            assert!(copy.layers[0].weight.is_same(&copy.layers[1].weight), "they stay tied");
            assert!(!copy.training.get() && copy.eps == net.eps);
            assert!(!copy.mask.is_persistent() && copy.count.is_persistent());
            let all =
                |net: &Net<Sequential>| [net.named_parameters(), net.named_buffers()].concat();
            assert_eq!(all(&net).len(), all(&copy).len());
            for ((name, from), (_, to)) in all(&net).into_iter().zip(all(&copy)) {
                assert_ne!(from.data_ptr(), to.data_ptr(), "{name}");
                assert!(to.equal(&from)? && to.device() == place, "{name}");
                assert_eq!(to.requires_grad(), from.requires_grad(), "{name}");
                assert!(to.is_leaf() && to.grad().is_none(), "{name}");
            }
            assert!(net.layers[0].weight.grad().is_some());
            net.layers[0].weight.sum(())?.backward()?; // the module itself was not moved
        }
        Ok(())
    });
}

#[test]
fn a_deep_copy_of_a_moved_module_has_the_present_values() {
    let mut net = Linear::new(2, 2, ()).unwrap();
    let stale = net.clone();
    net.to(warpline::DType::F64).unwrap();
    let copy = stale.deep_copy().unwrap();
    assert!(copy.weight.equal(&net.weight).unwrap() && copy.weight.requires_grad());
    assert_ne!(copy.weight.data_ptr(), net.weight.data_ptr());
}

#[test]
fn a_deep_copy_in_inference_mode_is_refused_if_a_parameter_requires_a_gradient() -> Result<()> {
    let net = Linear::new(2, 2, ())?;
    let error = inference_mode(|| net.deep_copy()).expect_err("it has no gradient there");
    assert!(matches!(error.kind(), ErrorKind::Gradient { .. }), "{error}");
    net.requires_grad_(false)?;
    inference_mode(|| net.deep_copy()).map(drop)
}
