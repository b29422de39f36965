//! Tests of modules as trees: children, `apply`, printing, sequences, and enums that derive `Module`.

use std::collections::BTreeMap;

use warpline::{ErrorKind, Result, Tensor, ones};
use warpline_nn::init::constant_;
use warpline_nn::{
    AdaptiveAvgPool2d, AvgPool1d, BatchNorm2d, Bilinear, Conv2d, ConvOptions, ConvTranspose2d,
    ConvTransposeOptions, Dropout, Embedding, EmbeddingOptions, Flatten, Forward, GELU, GRUCell,
    GroupNorm, Hooked, LSTM, Layer, LayerNorm, LeakyReLU, Linear, LinearOptions, MaxPool2d, Module,
    MultiheadAttention, PReLU, Parameter, RMSNorm, ReLU, RecurrentOptions, Sequential, Softmax,
    Softplus, Unflatten,
};

/// A module with fields of many kinds.
#[derive(Module)]
struct Net {
    stem: Sequential,
    blocks: Vec<Linear>,
    heads: BTreeMap<String, Linear>,
    extra: Option<Box<Linear>>,
    none: Option<Linear>,
    hooked: Hooked<ReLU>,
    pair: (Linear, ReLU),
    scale: Parameter,
    sizes: Vec<usize>,
    width: usize,
}

fn net() -> Result<Net> {
    let linear = || Linear::new(2, 2, ());
    Ok(Net {
        stem: Sequential::new().with(linear()?).with(Dropout::new(0.5)?),
        blocks: vec![linear()?, linear()?, Linear::new(2, 3, ())?],
        heads: BTreeMap::from([("a".to_owned(), linear()?)]),
        extra: Some(Box::new(linear()?)),
        none: None,
        hooked: Hooked::new(ReLU),
        pair: (linear()?, ReLU),
        scale: Parameter::new(ones([2], ())?)?,
        sizes: vec![1, 2],
        width: 2,
    })
}

fn names(modules: Vec<(String, &dyn Module)>) -> Vec<String> {
    modules.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn children_are_the_modules_in_the_fields() -> Result<()> {
    let net = net()?;
    let children = ["stem", "blocks", "heads", "extra", "hooked", "pair"];
    assert_eq!(names(net.named_children()), children);
    let modules = [
        "", "stem", "stem.0", "stem.1", "blocks", "blocks.0", "blocks.1", "blocks.2", "heads",
        "heads.a", "extra", "hooked", "pair", "pair.0", "pair.1",
    ];
    assert_eq!(names(net.named_modules()), modules);
    let types: Vec<&str> = net.children().iter().map(|child| child.type_name()).collect();
    assert_eq!(types, ["Sequential", "ModuleList", "ModuleDict", "Linear", "ReLU", "ModuleList"]);
    assert_eq!(net.modules().iter().filter(|module| module.is::<Linear>()).count(), 7);
    assert!(net.modules()[0].is::<Net>() && net.modules()[11].is::<ReLU>());
    assert_eq!((net.sizes.len(), net.width), (2, 2));
    assert!(names(net.scale.named_modules()).is_empty(), "a parameter is no module");
    Ok(())
}

#[test]
fn apply_calls_the_function_with_children_first() -> Result<()> {
    let mut net = net()?;
    let mut seen = Vec::new();
    net.apply(|module| {
        if let Some(linear) = module.downcast_mut::<Linear>() {
            constant_(&linear.weight, 3)?;
            linear.bias = None;
        }
        seen.push(module.type_name());
        Ok(())
    })?;
    let stem = ["Linear", "Dropout", "Sequential"];
    let blocks = ["Linear", "Linear", "Linear", "ModuleList"];
    let others = ["Linear", "ModuleDict", "Linear", "ReLU", "Linear", "ReLU", "ModuleList", "Net"];
    assert_eq!(seen, [&stem[..], &blocks, &others].concat());
    for (name, parameter) in net.named_parameters() {
        let expected = if name == "scale" { 1.0 } else { 3.0 };
        assert!(parameter.to_vec::<f32>()?.iter().all(|v| *v == expected), "{name}");
    }
    assert!(net.named_parameters().iter().all(|(name, _)| !name.ends_with("bias")));
    let mut calls = 0;
    let failed = net.apply(|_| {
        calls += 1;
        Err(ErrorKind::LoadState.of("test"))
    });
    assert!(failed.is_err());
    assert_eq!(calls, 1, "apply ends at the first error");
    Ok(())
}

#[test]
fn a_module_prints_its_tree_as_in_pytorch() -> Result<()> {
    let tree = "\
Net(
  (stem): Sequential(
    (0): Linear(in_features=2, out_features=2, bias=True)
    (1): Dropout(p=0.5, inplace=False)
  )
  (blocks): ModuleList(
    (0-1): 2 x Linear(in_features=2, out_features=2, bias=True)
    (2): Linear(in_features=2, out_features=3, bias=True)
  )
  (heads): ModuleDict(
    (a): Linear(in_features=2, out_features=2, bias=True)
  )
  (extra): Linear(in_features=2, out_features=2, bias=True)
  (hooked): ReLU()
  (pair): ModuleList(
    (0): Linear(in_features=2, out_features=2, bias=True)
    (1): ReLU()
  )
)";
    assert_eq!(net()?.to_string(), tree);
    assert_eq!(format!("{:?}", Sequential::new().with(ReLU)), "Sequential(\n  (0): ReLU()\n)");
    assert_eq!(Sequential::new().to_string(), "Sequential()");
    Ok(())
}

/// The lines are those of PyTorch's `print`.
#[test]
fn settings_are_printed_as_in_pytorch() -> Result<()> {
    let conv = ConvOptions::new().stride(2).padding(1).groups(2).bias(false);
    let transposed = ConvTransposeOptions::new().stride(2).output_padding([1, 0]);
    let lstm = RecurrentOptions::new().num_layers(2).batch_first(true).dropout(0.5);
    let printed: [(&dyn Module, &str); 24] = [
        (
            &Linear::new(4, 8, LinearOptions::new().bias(false))?,
            "Linear(in_features=4, out_features=8, bias=False)",
        ),
        (
            &Bilinear::new(2, 3, 4, ())?,
            "Bilinear(in1_features=2, in2_features=3, out_features=4, bias=True)",
        ),
        (&Conv2d::new(1, 20, 5, ())?, "Conv2d(1, 20, kernel_size=(5, 5), stride=(1, 1))"),
        (
            &Conv2d::new(4, 8, [3, 1], conv)?,
            "Conv2d(4, 8, kernel_size=(3, 1), stride=(2, 2), padding=(1, 1), groups=2, bias=False)",
        ),
        (
            &ConvTranspose2d::new(4, 6, 3, transposed)?,
            "ConvTranspose2d(4, 6, kernel_size=(3, 3), stride=(2, 2), output_padding=(1, 0))",
        ),
        (
            &BatchNorm2d::new(20, ())?,
            "BatchNorm2d(20, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)",
        ),
        (&LayerNorm::new([3, 4], ())?, "LayerNorm((3, 4), eps=1e-05, elementwise_affine=True)"),
        (&RMSNorm::new([4], ())?, "RMSNorm((4,), eps=None, elementwise_affine=True)"),
        (&GroupNorm::new(2, 4, ())?, "GroupNorm(2, 4, eps=1e-05, affine=True)"),
        (&LSTM::new(3, 4, lstm)?, "LSTM(3, 4, num_layers=2, batch_first=True, dropout=0.5)"),
        (&GRUCell::new(3, 4, ())?, "GRUCell(3, 4)"),
        (
            &Embedding::new(10, 3, EmbeddingOptions::new().padding_idx(0))?,
            "Embedding(10, 3, padding_idx=0)",
        ),
        (
            &MaxPool2d::new(2, ()),
            "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)",
        ),
        (&AvgPool1d::new(3, ()), "AvgPool1d(kernel_size=(3,), stride=(3,), padding=(0,))"),
        (&AdaptiveAvgPool2d::new([6, 7]), "AdaptiveAvgPool2d(output_size=(6, 7))"),
        (&Flatten::new(()), "Flatten(start_dim=1, end_dim=-1)"),
        (&Unflatten::new(1, [2, 3]), "Unflatten(dim=1, unflattened_size=(2, 3))"),
        (&ReLU, "ReLU()"),
        (&LeakyReLU::new(0.2), "LeakyReLU(negative_slope=0.2)"),
        (&Softplus::new(()), "Softplus(beta=1.0, threshold=20.0)"),
        (&GELU::new(()), "GELU(approximate='none')"),
        (&Softmax::new(-1), "Softmax(dim=-1)"),
        (&PReLU::new(())?, "PReLU(num_parameters=1)"),
        (
            &MultiheadAttention::new(4, 2, ())?,
            "MultiheadAttention(\n  (out_proj): Linear(in_features=4, out_features=4, bias=True)\n)",
        ),
    ];
    for (module, expected) in printed {
        assert_eq!(module.to_string(), expected);
    }
    Ok(())
}

#[test]
fn a_sequence_is_indexed_and_iterated() -> Result<()> {
    let mut net = Sequential::new().with(Linear::new(2, 2, ())?).with(ReLU);
    let chosen: Box<dyn Layer> = Box::new(Linear::new(2, 1, ())?);
    net.push(chosen);
    let last: &Linear = net[2].downcast_ref().expect("a linear map");
    assert_eq!(last.weight.size(), [1, 2]);
    assert!(net[1].is::<ReLU>() && net.get(3).is_none());
    net[0].downcast_mut::<Linear>().expect("a linear map").bias = None;
    assert_eq!(net[2].downcast_mut::<Linear>().expect("a linear map").weight.size(), [1, 2]);
    let mut x = ones([3, 2], ())?;
    for layer in &net {
        x = layer.forward(&x)?;
    }
    assert!(x.equal(&net.forward(&ones([3, 2], ())?)?)?);
    let state: Vec<String> = net.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(state, ["0.weight", "2.weight", "2.bias"]);
    let y = Forward::forward(&net[0], ones([3, 2], ())?)?;
    assert_eq!((y.size(), net.iter().len()), (&[3, 2][..], 3));
    Ok(())
}

/// A block that is chosen while the program runs.
#[derive(Module)]
enum Block<M> {
    Plain(M),
    Residual {
        first: Linear,
        second: Linear,
    },
    Pair(Linear, #[module(name = "other")] Linear),
    #[allow(dead_code)]
    Custom(#[module(skip)] Vec<Tensor>),
    Identity,
}

#[derive(Module)]
struct Blocks {
    blocks: Vec<Block<Linear>>,
}

#[test]
fn the_children_of_an_enum_are_the_fields_of_its_variant() -> Result<()> {
    let linear = || Linear::new(2, 2, ());
    let blocks = vec![
        Block::Plain(linear()?),
        Block::Residual { first: linear()?, second: linear()? },
        Block::Pair(linear()?, linear()?),
        Block::Custom(Vec::new()),
        Block::Identity,
    ];
    let mut net = Blocks { blocks };
    let parameters: Vec<String> = net.state_dict().keys().map(str::to_owned).collect();
    let expected = ["0", "1.first", "1.second", "2.0", "2.other"]
        .map(|name| ["weight", "bias"].map(|end| format!("blocks.{name}.{end}")));
    assert_eq!(parameters, expected.as_flattened());
    let tree = "\
Blocks(
  (blocks): ModuleList(
    (0): Linear(in_features=2, out_features=2, bias=True)
    (1): Residual(
      (first): Linear(in_features=2, out_features=2, bias=True)
      (second): Linear(in_features=2, out_features=2, bias=True)
    )
    (2): Pair(
      (0): Linear(in_features=2, out_features=2, bias=True)
      (other): Linear(in_features=2, out_features=2, bias=True)
    )
    (3): Custom()
    (4): Identity()
  )
)";
    assert_eq!(net.to_string(), tree);
    assert_eq!(net.blocks[0].to_string(), "Linear(in_features=2, out_features=2, bias=True)");
    net.to(warpline::DType::F64)?;
    assert!(net.parameters().iter().all(|parameter| parameter.dtype() == warpline::DType::F64));
    let mut linears = 0;
    net.apply(|module| {
        linears += usize::from(module.is::<Linear>());
        Ok(())
    })?;
    assert_eq!(linears, 5);
    Ok(())
}

#[test]
fn a_sequence_is_collected_from_elements_or_boxed_layers() -> Result<()> {
    let net = Sequential::new()
        .with(Linear::new(2, 3, ())?)
        .with(Dropout::new(0.5)?)
        .with(Linear::new(3, 1, ())?);
    // As in PyTorch, the new sequence shares its modules.
    let mut features: Sequential = net.iter().take(net.len() - 1).cloned().collect();
    assert_eq!(features.state_dict().keys().collect::<Vec<_>>(), ["0.weight", "0.bias"]);
    let shared = |net: &Sequential| net[0].downcast_ref::<Linear>().map(|fc| fc.weight.data_ptr());
    assert_eq!(shared(&features), shared(&net));
    features.eval();
    assert_eq!(features.forward(&ones([1, 2], ())?)?.size(), [1, 3]);

    let widths = [2, 4, 1];
    let boxed = |pair: &[usize]| -> Result<Box<dyn Layer>> {
        Ok(Box::new(Linear::new(pair[0], pair[1], ())?))
    };
    let chain = widths.windows(2).map(boxed).collect::<Result<Sequential>>()?;
    assert_eq!(chain.len(), 2);
    assert!(chain[1].is::<Linear>());
    assert_eq!(chain.forward(&ones([1, 2], ())?)?.size(), [1, 1]);
    Ok(())
}
