//! Tests that the options of modules have an effect: the result of each module equals an explicit call of the
//! op with the same options.

use warpline::functional::{self, PadMode};
use warpline::{
    DType, ErrorKind, IsCloseOptions, Result, Tensor, manual_seed, ones, randn, tensor,
};
use warpline_nn::init::Nonlinearity;
use warpline_nn::*;

fn same(a: &Tensor, b: &Tensor) -> Result<()> {
    assert_eq!(a.size(), b.size());
    assert!(a.allclose(b, IsCloseOptions::new().atol(1e-6).equal_nan(true))?, "{a} is not {b}");
    Ok(())
}

/// Asserts that a call fails with an invalid argument, and that the message names the option.
fn refuses<T>(result: Result<T>, option: &str) {
    let error = result.err().expect(option);
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains(option), "{error}");
    assert!(error.location().is_some_and(|at| at.file() == file!()), "{error}");
}

#[test]
fn maps_take_bias_dtype_and_device() -> Result<()> {
    let options = LinearOptions::new().bias(false).dtype(DType::F64).device("cpu");
    let map = Linear::new(3, 2, options)?;
    assert_eq!((map.weight.dtype(), map.bias.is_none()), (DType::F64, true));
    let x = randn([4, 3], DType::F64)?;
    same(&map.forward(&x)?, &x.matmul(&map.weight.t()?)?)?;
    for options in [DType::F64.into(), (DType::F64, "cpu").into(), LinearOptions::from("cpu")] {
        assert!(Linear::new(3, 2, options)?.bias.is_some());
    }
    assert!(Bilinear::new(3, 4, 2, LinearOptions::new().bias(false))?.bias.is_none());
    assert!(Linear::new(3, 2, LinearOptions::new().device("no device")).is_err());
    Ok(())
}

#[test]
fn convolutions_are_the_function_with_the_same_options() -> Result<()> {
    let x = randn([2, 4, 7, 6], ())?;
    let options =
        ConvOptions::new().stride(2).padding([1, 2]).dilation([1, 2]).groups(2).bias(false);
    let conv = Conv2d::new(4, 6, 3, options)?;
    assert!(conv.bias.is_none());
    assert_eq!(conv.weight.size(), [6, 2, 3, 3]);
    let explicit = functional::ConvOptions::new().stride([2, 2]).padding([1, 2]);
    let explicit = explicit.dilation([1, 2]).groups(2);
    same(&conv.forward(&x)?, &functional::conv2d(&x, &conv.weight, None, explicit)?)?;

    let padded = ConvOptions::new().padding(1).padding_mode(PadMode::Reflect).dtype(DType::F64);
    let conv = Conv1d::new(4, 4, 3, padded)?;
    let row = x.select(2, 0)?.to(DType::F64)?;
    let around = functional::pad(&row, [1, 1], PadMode::Reflect)?;
    same(
        &conv.forward(&row)?,
        &functional::conv1d(&around, &conv.weight, conv.bias.as_deref(), ())?,
    )?;

    let options = ConvTransposeOptions::new().stride(2).padding(1).output_padding([1, 0]);
    let conv = ConvTranspose2d::new(4, 6, [3, 2], options.dilation(2).groups(2))?;
    let explicit = functional::ConvTransposeOptions::new().stride(2).padding(1);
    let explicit = explicit.output_padding([1, 0]).dilation(2).groups(2);
    let expected = functional::conv_transpose2d(&x, &conv.weight, conv.bias.as_deref(), explicit)?;
    same(&conv.forward(&x)?, &expected)?;

    refuses(Conv2d::new(4, 6, 3, ConvOptions::new().groups(3)), "groups");
    refuses(Conv2d::new(4, 6, 3, ConvOptions::new().stride(0))?.forward(&x), "stride");
    let strided = ConvOptions::new().stride(2).padding(Padding::Same);
    refuses(Conv2d::new(4, 6, 3, strided)?.forward(&x), "padding");
    Ok(())
}

#[test]
fn an_embedding_counts_its_padding_from_the_end() -> Result<()> {
    let table = Embedding::new(4, 3, EmbeddingOptions::new().padding_idx(-1))?;
    let out = table.forward(&tensor([3i64, 0], ())?)?;
    assert_eq!(out.select(0, 0)?.to_vec::<f32>()?, [0.0; 3]);
    out.sum(())?.backward()?;
    let grad = table.weight.grad().expect("a gradient").sum(1)?;
    assert_eq!(grad.to_vec::<f32>()?, [3.0, 0.0, 0.0, 0.0]);
    refuses(Embedding::new(4, 3, EmbeddingOptions::new().padding_idx(-5)), "padding_idx");
    Ok(())
}

#[test]
fn a_pretrained_embedding_shares_its_vectors_and_is_frozen_by_default() -> Result<()> {
    let vectors = randn([4, 3], ())?;
    let frozen = Embedding::from_pretrained(&vectors, ())?;
    assert_eq!(frozen.weight.data_ptr(), vectors.data_ptr());
    assert!(!frozen.weight.requires_grad());
    let options = EmbeddingFromPretrainedOptions::new().padding_idx(1);
    let table = Embedding::from_pretrained(&vectors, options.freeze(false))?;
    let out = table.forward(&tensor([1i64, 2], ())?)?;
    same(&out, &vectors.narrow(0, 1, 2)?)?;
    out.sum(())?.backward()?;
    let grad = table.weight.grad().expect("a gradient").sum(1)?;
    assert_eq!(grad.to_vec::<f32>()?, [0.0, 0.0, 3.0, 0.0]);
    assert!(!vectors.requires_grad() && !frozen.weight.requires_grad());
    refuses(Embedding::from_pretrained(&vectors, options.padding_idx(4)), "padding_idx");
    let error = Embedding::from_pretrained(&vectors.i(0)?, ()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { .. }), "{error}");
    assert_eq!(error.op(), "Embedding");
    Ok(())
}

#[test]
fn norms_are_the_functions_with_the_same_options() -> Result<()> {
    let x = randn([4, 6, 5], ())?;
    let norm = LayerNorm::new(5, LayerNormOptions::new().eps(0.5).bias(false))?;
    assert!(norm.weight.is_some() && norm.bias.is_none());
    let explicit = functional::LayerNormOptions::new().eps(0.5);
    same(&norm.forward(&x)?, &functional::layer_norm(&x, 5, explicit)?)?;
    let plain = LayerNorm::new(5, LayerNormOptions::new().elementwise_affine(false))?;
    assert!(plain.weight.is_none() && plain.bias.is_none());

    let norm = RMSNorm::new(5, RMSNormOptions::new().eps(0.5).elementwise_affine(false))?;
    assert!(norm.weight.is_none());
    let explicit = functional::RMSNormOptions::new().eps(0.5);
    same(&norm.forward(&x)?, &functional::rms_norm(&x, 5, explicit)?)?;

    let norm = GroupNorm::new(3, 6, GroupNormOptions::new().eps(0.5).affine(false))?;
    assert!(norm.parameters().is_empty());
    let explicit = functional::GroupNormOptions::new().eps(0.5);
    same(&norm.forward(&x)?, &functional::group_norm(&x, 3, explicit)?)?;

    let norm = BatchNorm1d::new(6, BatchNormOptions::new().eps(0.5).momentum(1.0).affine(false))?;
    let explicit = functional::BatchNormOptions::new().training(true).eps(0.5);
    same(&norm.forward(&x)?, &functional::batch_norm(&x, None, None, explicit)?)?;
    let mean = norm.named_buffers().into_iter().find(|(name, _)| name == "running_mean");
    same(&mean.expect("a running mean").1, &x.mean([0, 2])?)?;
    let untracked = BatchNorm1d::new(6, BatchNormOptions::new().track_running_stats(false))?;
    assert!(untracked.buffers().is_empty());

    let plain = InstanceNorm1d::new(6, ())?;
    assert!(plain.parameters().is_empty() && plain.buffers().is_empty());
    let options = InstanceNormOptions::new().affine(true).track_running_stats(true).eps(0.5);
    let norm = InstanceNorm1d::new(6, options)?;
    assert_eq!((norm.parameters().len(), norm.buffers().len()), (2, 3));
    let explicit = functional::InstanceNormOptions::new().eps(0.5);
    same(&norm.forward(&x)?, &functional::instance_norm(&x, None, None, explicit)?)?;
    Ok(())
}

#[test]
fn recurrent_layers_choose_layers_biases_and_activation() -> Result<()> {
    let x = randn([1, 2, 3], ())?;
    let relu = RecurrentOptions::new().nonlinearity(Nonlinearity::ReLU).bias(false);
    let net = RNN::new(3, 4, relu)?;
    assert_eq!(net.parameters().len(), 2);
    let state = net.state_dict();
    let [ih, hh] = ["weight_ih_l0", "weight_hh_l0"].map(|name| state.get(name).expect(name));
    let hidden = ones([2, 4], ())?;
    let step = x.select(0, 0)?;
    let expected = step.matmul(&ih.t()?)?.add(&hidden.matmul(&hh.t()?)?)?.relu()?;
    same(&net.forward(&x, &hidden.unsqueeze(0)?)?.1.select(0, 0)?, &expected)?;

    let options = RecurrentCellOptions::new().nonlinearity(Nonlinearity::ReLU).bias(false);
    let cell = RNNCell::new(3, 4, options)?;
    let [ih, hh] = [&cell.parameters()[0], &cell.parameters()[1]];
    let expected = step.matmul(&ih.t()?)?.add(&hidden.matmul(&hh.t()?)?)?.relu()?;
    same(&cell.forward(&step, &hidden)?, &expected)?;
    same(&cell.forward(&step, None)?, &step.matmul(&ih.t()?)?.relu()?)?;

    let cell = LSTMCell::new(3, 4, DType::F32)?;
    let zero = cell.initial_hidden(&step)?;
    same(&cell.forward(&step, None)?.1, &cell.forward(&step, (&zero, &zero))?.1)?;
    // The states are a pair of references, a reference to a pair, or an `Option` of one of them.
    let states = cell.forward(&step, None)?;
    let next = cell.forward(&step, (&states.0, &states.1))?.1;
    same(&cell.forward(&step, &states)?.1, &next)?;
    same(&cell.forward(&step, Some((&states.0, &states.1)))?.1, &next)?;
    same(&cell.forward(&step, &Some(states))?.1, &next)?;
    let lstm = LSTM::new(3, 4, ())?;
    let (_, states) = lstm.forward(&x, None)?;
    let parameters = (Parameter::new(states.0.clone())?, Parameter::new(states.1.clone())?);
    same(&lstm.forward(&x, &states)?.0, &lstm.forward(&x, (&states.0, &states.1))?.0)?;
    same(&lstm.forward(&x, &states)?.0, &lstm.forward(&x, &parameters)?.0)?;

    refuses(LSTM::new(3, 4, RecurrentOptions::new().num_layers(0)), "num_layers");
    refuses(GRU::new(3, 4, RecurrentOptions::new().dropout(1.5)), "dropout");
    let tanh = RecurrentOptions::new().nonlinearity(Nonlinearity::Tanh);
    refuses(LSTM::new(3, 4, tanh), "nonlinearity");
    refuses(
        RNN::new(3, 4, RecurrentOptions::new().nonlinearity(Nonlinearity::SELU)),
        "Tanh or ReLU",
    );
    Ok(())
}

#[test]
fn attention_takes_bias_and_dropout() -> Result<()> {
    let plain = MultiheadAttention::new(4, 2, MultiheadAttentionOptions::new().bias(false))?;
    assert!(plain.in_proj_bias.is_none() && plain.out_proj.bias.is_none());
    let all = MultiheadAttentionOptions::new().dropout(1.0).bias(false);
    let x = randn([3, 2, 4], ())?;
    let dropped = MultiheadAttention::new(4, 2, all)?.forward(&x, &x, &x, ())?;
    assert_eq!(dropped.abs()?.amax(())?.item::<f32>()?, 0.0);
    refuses(
        MultiheadAttention::new(4, 2, MultiheadAttentionOptions::new().dropout(-0.1)),
        "dropout",
    );
    Ok(())
}

#[test]
fn pools_and_shapes_are_the_functions_with_the_same_options() -> Result<()> {
    let x = randn([2, 3, 6, 6], ())?;
    let options = MaxPoolOptions::new().stride(2).padding(1).ceil_mode(true);
    let pool = MaxPool2d::new([3, 2], options);
    same(&pool.forward(&x)?, &functional::max_pool2d(&x, [3, 2], options)?)?;
    let options = AvgPoolOptions::new().padding(1).count_include_pad(false).divisor_override(5);
    let pool = AvgPool2d::new(2, options);
    same(&pool.forward(&x)?, &functional::avg_pool2d(&x, [2, 2], options)?)?;
    let pool = AdaptiveAvgPool2d::new(2);
    same(&pool.forward(&x)?, &functional::adaptive_avg_pool2d(&x, [2, 2])?)?;
    let options = InterpolateOptions::new().size(4);
    let resized = functional::interpolate(&x, InterpolateOptions::new().size([4, 4]))?;
    same(&Upsample::new(options).forward(&x)?, &resized)?;
    assert_eq!(Flatten::new(()).forward(&x)?.size(), [2, 108]);
    let tail = FlattenOptions::new().start_dim(2).end_dim(3);
    assert_eq!(Flatten::new(tail).forward(&x)?.size(), [2, 3, 36]);
    assert_eq!(Unflatten::new(1, [3, -1]).forward(&x)?.size(), [2, 3, 1, 6, 6]);
    Ok(())
}

#[test]
fn activations_are_the_ops_with_the_same_options() -> Result<()> {
    let x = randn([2, 4], ())?.mul(3)?;
    same(&LeakyReLU::new(0.2).forward(&x)?, &x.leaky_relu(0.2)?)?;
    same(&LeakyReLU::new(()).forward(&x)?, &x.leaky_relu(0.01)?)?;
    same(&ELU::new(0.5).forward(&x)?, &x.elu(0.5)?)?;
    same(&CELU::new(CELUOptions::new().alpha(0.5)).forward(&x)?, &x.celu(0.5)?)?;
    same(&Softshrink::new(0.1).forward(&x)?, &x.softshrink(0.1)?)?;
    same(&Hardshrink::new(0.1).forward(&x)?, &x.hardshrink(0.1)?)?;
    let softplus = SoftplusOptions::new().beta(2.0).threshold(1.0);
    same(
        &Softplus::new(softplus).forward(&x)?,
        &x.softplus(SoftplusOptions::new().beta(2.0).threshold(1.0))?,
    )?;
    let hardtanh = HardtanhOptions::new().min_val(-0.5).max_val(2.0);
    same(
        &Hardtanh::new(hardtanh).forward(&x)?,
        &x.hardtanh(HardtanhOptions::new().min_val(-0.5).max_val(2.0))?,
    )?;
    same(&GELU::new(Approximate::Tanh).forward(&x)?, &x.gelu_tanh()?)?;
    same(&Softmax::new(0).forward(&x)?, &x.softmax(0)?)?;
    same(&GLU::new(1).forward(&x)?, &functional::glu(&x, 1)?)?;
    let slopes = PReLU::new(PReLUOptions::new().num_parameters(4).init(0.5))?;
    assert_eq!(slopes.weight.size(), [4]);
    same(&slopes.forward(&x)?, &x.leaky_relu(0.5)?)
}

#[test]
fn losses_are_the_functions_with_the_same_options() -> Result<()> {
    manual_seed(0);
    let (x, y) = (randn([3, 4], ())?, randn([3, 4], ())?);
    same(&MSELoss::new(Reduction::Sum).forward(&x, &y)?, &x.sub(&y)?.square()?.sum(())?)?;
    same(&L1Loss::new(()).forward(&x, &y)?, &x.sub(&y)?.abs()?.mean(())?)?;
    let beta = SmoothL1LossOptions::new().beta(0.5);
    same(&SmoothL1Loss::new(beta).forward(&x, &y)?, &functional::smooth_l1_loss(&x, &y, beta)?)?;
    let delta = HuberLossOptions::from(Reduction::Sum).delta(0.5);
    same(&HuberLoss::new(delta).forward(&x, &y)?, &functional::huber_loss(&x, &y, delta)?)?;
    let log = KLDivLossOptions::new().log_target(true).reduction(Reduction::BatchMean);
    same(&KLDivLoss::new(log).forward(&x, &y)?, &functional::kl_div(&x, &y, log)?)?;

    let weight = tensor([1f32, 2.0, 3.0, 4.0], ())?;
    let classes = tensor([0i64, 3, 1], ())?;
    let options =
        CrossEntropyLossOptions::new().weight(&weight).ignore_index(1).label_smoothing(0.1);
    let loss = CrossEntropyLoss::new(options);
    same(&loss.forward(&x, &classes)?, &functional::cross_entropy(&x, &classes, options)?)?;
    let options = NLLLossOptions::new().weight(&weight).reduction(Reduction::Sum);
    let loss = NLLLoss::new(options);
    same(&loss.forward(&x, &classes)?, &functional::nll_loss(&x, &classes, options)?)?;

    let (odds, targets) = (x.sigmoid()?, y.gt(0)?.to(DType::F32)?);
    let options = BCELossOptions::new().weight(&weight);
    let expected = functional::binary_cross_entropy(&odds, &targets, options)?;
    same(&BCELoss::new(options).forward(&odds, &targets)?, &expected)?;
    let options = BCEWithLogitsLossOptions::new().pos_weight(&weight);
    let loss = BCEWithLogitsLoss::new(options);
    let expected = functional::binary_cross_entropy_with_logits(&x, &targets, options)?;
    same(&loss.forward(&x, &targets)?, &expected)?;
    assert_eq!(loss.state_dict().keys().collect::<Vec<_>>(), ["pos_weight"]);

    refuses(
        CrossEntropyLoss::new(CrossEntropyLossOptions::new().label_smoothing(2.0))
            .forward(&x, &classes),
        "label_smoothing",
    );
    refuses(HuberLoss::new(HuberLossOptions::new().delta(0.0)).forward(&x, &y), "delta");
    Ok(())
}

/// Generic code runs every kind of module by `Forward`.
#[test]
fn generic_code_runs_every_module() -> Result<()> {
    fn run<M: Module + Forward<I>, I>(module: &M, input: I) -> Result<M::Output> {
        module.forward(input)
    }
    let x = randn([2, 3, 4], ())?;
    assert_eq!(run(&Linear::new(4, 2, ())?, x.clone())?.size(), [2, 3, 2]);
    let attention = MultiheadAttention::new(4, 2, ())?;
    assert_eq!(run(&attention, (x.clone(), x.clone(), x.clone()))?.size(), [2, 3, 4]);
    let (lstm, gru) = (LSTM::new(4, 5, ())?, GRU::new(4, 5, ())?);
    let (out, (hidden, cell)) = run(&lstm, x.clone())?;
    assert_eq!(out.size(), [2, 3, 5]);
    assert_eq!(run(&lstm, (x.clone(), (hidden.clone(), cell)))?.0.size(), [2, 3, 5]);
    assert_eq!(run(&gru, (x.clone(), hidden))?.0.size(), [2, 3, 5]);
    let cell = GRUCell::new(4, 5, ())?;
    let step = x.select(0, 0)?;
    let hidden = run(&cell, step.clone())?;
    assert_eq!(run(&cell, (step, hidden))?.size(), [3, 5]);
    Ok(())
}

#[test]
fn norms_of_channels_show_their_members() -> Result<()> {
    let mut norm = BatchNorm2d::new(3, ())?;
    let weight = norm.weight.as_ref().expect("a weight");
    init::constant_(weight, 2.0)?;
    assert_eq!(norm.weight.as_ref().expect("a weight").to_vec::<f32>()?, [2.0; 3]);
    assert_eq!(norm.running_var.as_ref().expect("statistics").to_vec::<f32>()?, [1.0; 3]);
    norm.bias = None;
    assert_eq!(norm.state_dict().keys().next(), Some("weight"));
    assert!(InstanceNorm2d::new(3, ())?.weight.is_none());
    Ok(())
}

#[test]
fn dropout_has_pytorchs_default() -> Result<()> {
    assert_eq!(Dropout::new(())?.to_string(), "Dropout(p=0.5, inplace=False)");
    assert_eq!(Dropout::new(0.2)?.to_string(), "Dropout(p=0.2, inplace=False)");
    assert_eq!(GLU::new(()).to_string(), "GLU(dim=-1)");
    let parts = Unflatten::new(1usize, (2i64, -1)).forward(&ones([2, 6], ())?)?;
    assert_eq!(Softmax::new(1i64).forward(&parts)?.size(), [2, 2, 3]);
    Ok(())
}

/// A reference to an optional parameter, such as a module's bias, is accepted as an optional tensor.
#[test]
fn an_optional_parameter_is_an_optional_tensor() -> Result<()> {
    let map = Linear::new(3, 2, ())?;
    let x = randn([4, 3], ())?;
    same(&functional::linear(&x, &map.weight, &map.bias)?, &map.forward(&x)?)?;
    let bias = map.bias.as_ref().expect("a bias");
    same(&functional::linear(&x, &map.weight, bias)?, &map.forward(&x)?)
}

#[test]
fn pads_and_pixel_shuffles_are_the_functions_and_print_as_in_pytorch() -> Result<()> {
    let x = randn([2, 4, 4, 6], ())?;
    let padded = functional::pad(&x, [1, 1, 1, 1], PadMode::Reflect)?;
    same(&ReflectionPad2d::new(1)?.forward(&x)?, &padded)?;
    same(
        &ReplicationPad2d::new((1, 2, 0, 1))?.forward(&x)?,
        &functional::pad(&x, [1, 2, 0, 1], PadMode::Replicate)?,
    )?;
    same(&CircularPad3d::new(1)?.forward(&x)?, &functional::pad(&x, [1; 6], PadMode::Circular)?)?;
    same(&ZeroPad1d::new([1, 2])?.forward(&x)?, &functional::pad(&x, [1, 2], ())?)?;
    let constant = ConstantPad1d::new(2, 3.5)?;
    same(&constant.forward(&x)?, &functional::pad(&x, [2, 2], PadMode::Constant(3.5.into()))?)?;
    let error = ReflectionPad2d::new((1, 2)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains("one number or 4 numbers"), "{error}");

    let (fine, coarse) = (PixelShuffle::new(2), PixelUnshuffle::new(2));
    same(&fine.forward(&x)?, &functional::pixel_shuffle(&x, 2)?)?;
    same(&coarse.forward(&fine.forward(&x)?)?, &x)?;

    let net = Sequential::new().with(ZeroPad2d::new(1)?).with(constant).with(fine).with(coarse);
    let text = net.to_string();
    for line in [
        "(0): ZeroPad2d((1, 1, 1, 1))",
        "(1): ConstantPad1d(padding=(2, 2), value=3.5)",
        "(2): PixelShuffle(upscale_factor=2)",
        "(3): PixelUnshuffle(downscale_factor=2)",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    Ok(())
}
