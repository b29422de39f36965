//! Tests that compare modules with the ops that they consist of, on every device, and check the gradients of
//! all parameters.

use warpline::functional::{self, PadMode, Padding, conv2d, pad};
use warpline::{ErrorKind, Result, Tensor, manual_seed, ones, randn, tensor};
use warpline_nn::{
    BatchNorm2d, Conv2d, ConvOptions, CrossEntropyLoss, Dropout, Embedding, EmbeddingOptions,
    Flatten, GRU, GRUCell, InstanceNorm1d, LSTM, LSTMCell, LayerNorm, Linear, MaxPool2d, Module,
    MultiheadAttention, MultiheadAttentionForwardOptions, MultiheadAttentionOptions, PReLU, RNN,
    RNNCell, ReLU, RecurrentOptions, Sequential, StateDict,
};

use crate::common::{World, worlds};

fn assert_close(a: &Tensor, b: &Tensor, what: &str) -> Result<()> {
    assert_eq!(a.size(), b.size(), "{what}");
    let off = a.detach().cpu()?.sub(&b.detach().cpu()?)?.abs()?.amax(())?.item::<f32>()?;
    assert!(off < 1e-5, "{what}: {off}");
    Ok(())
}

/// Asserts that every parameter gets a gradient.
fn assert_learns(module: &impl Module, out: &Tensor) -> Result<()> {
    module.zero_grad()?;
    out.square()?.sum(())?.backward()?;
    for (name, parameter) in module.named_parameters() {
        let grad = parameter.grad().unwrap_or_else(|| panic!("{name} has no gradient"));
        assert!(grad.abs()?.amax(())?.item::<f32>()? > 0.0, "{name}");
    }
    module.zero_grad()?;
    assert!(module.parameters().iter().all(|parameter| parameter.grad().is_none()));
    Ok(())
}

/// Returns the parameters of one layer and direction under the names of a cell.
fn layer(state: &StateDict, end: &str) -> StateDict {
    let own = |name: &str| name.strip_suffix(end).map(str::to_owned);
    state.iter().filter_map(|(name, t)| Some((own(name)?, t.clone()))).collect()
}

#[test]
fn a_recurrent_network_equals_its_cells_called_in_sequence() {
    worlds(1, |world: &World| {
        for place in world.places() {
            manual_seed(1);
            let both = RecurrentOptions::from(place).bidirectional(true);
            let x = randn([4, 2, 3], ())?.to(place)?;
            let steps: Vec<Tensor> = (0..4).map(|t| x.select(0, t)).collect::<Result<_>>()?;

            let lstm = LSTM::new(3, 5, both)?;
            let (out, (hidden, cell)) = lstm.forward(&x, None)?;
            assert_eq!((out.size(), hidden.size()), (&[4, 2, 10][..], &[2, 2, 5][..]));
            for (direction, end) in ["_l0", "_l0_reverse"].into_iter().enumerate() {
                let mut own = LSTMCell::new(3, 5, place)?;
                own.load_state_dict(&layer(&lstm.state_dict(), end), true)?;
                let mut state = (own.initial_hidden(&steps[0])?, own.initial_hidden(&steps[0])?);
                let order: Vec<usize> =
                    if direction == 0 { (0..4).collect() } else { (0..4).rev().collect() };
                for t in order {
                    state = own.forward(&steps[t], (&state.0, &state.1))?;
                    let part = out.select(0, t as isize)?.narrow(1, 5 * direction as isize, 5)?;
                    assert_close(&state.0, &part, end)?;
                }
                assert_close(&state.0, &hidden.select(0, direction as isize)?, "the last state")?;
                assert_close(&state.1, &cell.select(0, direction as isize)?, "the last cell")?;
            }
            assert_learns(&lstm, &out)?;

            let (rnn, gru) = (RNN::new(3, 5, place)?, GRU::new(3, 5, place)?);
            let mut cells = (RNNCell::new(3, 5, place)?, GRUCell::new(3, 5, place)?);
            cells.0.load_state_dict(&layer(&rnn.state_dict(), "_l0"), true)?;
            cells.1.load_state_dict(&layer(&gru.state_dict(), "_l0"), true)?;
            let zero = cells.0.initial_hidden(&steps[0])?;
            let mut states = (zero.clone(), zero);
            for x in &steps {
                states = (cells.0.forward(x, &states.0)?, cells.1.forward(x, &states.1)?);
            }
            let (out, hidden) = rnn.forward(&x, None)?;
            assert_close(&states.0, &hidden.select(0, 0)?, "RNN")?;
            assert_learns(&rnn, &out)?;
            let (out, hidden) = gru.forward(&x, None)?;
            assert_close(&states.1, &hidden.select(0, 0)?, "GRU")?;
            assert_learns(&gru, &out)?;
        }
        Ok(())
    });
}

#[test]
fn layers_and_directions_have_pytorchs_names() {
    let options = RecurrentOptions::new()
        .num_layers(2)
        .bidirectional(true)
        .batch_first(true)
        .dropout(0.5)
        .bias(false);
    let mut gru = GRU::new(3, 4, options).unwrap();
    let names: Vec<String> = gru.named_parameters().into_iter().map(|(name, _)| name).collect();
    let expected = ["l0", "l0_reverse", "l1", "l1_reverse"]
        .map(|end| [format!("weight_ih_{end}"), format!("weight_hh_{end}")])
        .concat();
    assert_eq!(names, expected);
    let x = randn([2, 6, 3], ()).unwrap();
    let sizes = |(out, hidden): (Tensor, Tensor)| (out.size().to_vec(), hidden.size().to_vec());
    assert_eq!(sizes(gru.forward(&x, None).unwrap()), (vec![2, 6, 8], vec![4, 2, 4]));
    gru.eval();
    let (one, again) = (gru.forward(&x, None).unwrap().0, gru.forward(&x, None).unwrap().0);
    assert_close(&one, &again, "out of training").unwrap();
    for sizes in [&[4, 1, 4][..], &[5, 2, 4], &[4, 4], &[1, 2, 4]] {
        let error = gru.forward(&x, &ones(sizes, ()).unwrap()).unwrap_err().to_string();
        assert!(error.contains("[4, 2, 4]"), "{sizes:?}: {error}");
    }
    let first = gru.forward(&x.select(0, 0).unwrap(), None).unwrap().0;
    assert_close(&first, &one.select(0, 0).unwrap(), "without a batch").unwrap();
}

#[test]
fn attention_equals_the_attention_of_each_head() {
    worlds(1, |world: &World| {
        for place in world.places() {
            manual_seed(2);
            let options = MultiheadAttentionOptions::from(place).batch_first(true);
            let net = MultiheadAttention::new(6, 2, options)?;
            let x = randn([3, 4, 6], ())?.to(place)?;
            let causal = MultiheadAttentionForwardOptions::new().is_causal(true);
            let out = net.forward(&x, &x, &x, causal)?;
            let all = x.matmul(&net.in_proj_weight.t()?)?;
            let mut heads = Vec::new();
            for head in 0..2 {
                let part = |i: isize| all.narrow(2, 6 * i + 3 * head, 3);
                let scores =
                    part(0)?.matmul(&part(1)?.transpose(1, 2)?)?.mul(3f64.sqrt().recip())?;
                let later = ones([4, 4], place)?.triu(1)?.eq(1.0)?;
                let weights = scores.masked_fill(&later, f64::NEG_INFINITY)?.softmax(-1)?;
                heads.push(weights.matmul(&part(2)?)?);
            }
            let expected = net.out_proj.forward(&warpline::cat(&heads, 2)?)?;
            assert_close(&out, &expected, "attention")?;
            let mask = ones([4, 4], place)?.triu(1)?.eq(1.0)?;
            let masked = MultiheadAttentionForwardOptions::new().attn_mask(&mask);
            assert_close(&net.forward(&x, &x, &x, masked)?, &out, "a mask of bools")?;
            assert_learns(&net, &out)?;
        }
        Ok(())
    });
}

#[test]
fn a_network_of_images_learns_on_every_device() {
    worlds(1, |world: &World| {
        for place in world.places() {
            manual_seed(3);
            let mut net = Sequential::new()
                .with(Conv2d::new(1, 4, 3, ConvOptions::new().padding(1))?)
                .with(BatchNorm2d::new(4, ())?)
                .with(ReLU)
                .with(MaxPool2d::new(2, ()))
                .with(Flatten::new(()))
                .with(Dropout::new(0.25)?)
                .with(Linear::new(16, 3, ())?);
            net.to(place)?;
            let state = net.state_dict();
            let names: Vec<&str> = state.keys().filter(|name| name.starts_with("1.")).collect();
            let buffers = ["1.running_mean", "1.running_var", "1.num_batches_tracked"];
            assert_eq!(names, [&["1.weight", "1.bias"][..], &buffers].concat());
            let x = randn([5, 1, 4, 4], ())?.to(place)?;
            let classes = tensor([0i64, 1, 2, 0, 1], place)?;
            let out = net.forward(&x)?;
            CrossEntropyLoss::new(()).forward(&out, &classes)?.backward()?;
            assert!(net.parameters().iter().all(|parameter| parameter.grad().is_some()));
            assert_eq!(
                state.get("1.num_batches_tracked").map(Tensor::item::<i64>).transpose()?,
                Some(1)
            );
            net.eval();
            assert_close(&net.forward(&x)?, &net.forward(&x)?, "out of training")?;
            assert_eq!(
                state.get("1.num_batches_tracked").map(Tensor::item::<i64>).transpose()?,
                Some(1)
            );
        }
        Ok(())
    });
}

#[test]
fn the_padding_row_of_an_embedding_is_zero_and_gets_no_gradient() {
    let table = Embedding::new(4, 3, EmbeddingOptions::new().padding_idx(1)).unwrap();
    let out = table.forward(&tensor([[1i64, 2, 1]], ()).unwrap()).unwrap();
    assert_eq!(out.select(1, 0).unwrap().to_vec::<f32>().unwrap(), [0.0; 3]);
    out.sum(()).unwrap().backward().unwrap();
    let grad = table.weight.grad().expect("a gradient");
    assert_eq!(grad.sum(1).unwrap().to_vec::<f32>().unwrap(), [0.0, 0.0, 3.0, 0.0]);
    assert!(Embedding::new(4, 3, EmbeddingOptions::new().padding_idx(4)).is_err());
}

#[test]
fn the_error_for_an_input_on_another_device_names_the_parameter_and_both_devices() {
    worlds(1, |_| {
        let x = ones([2, 3], ())?;
        let errors = [
            Linear::new(3, 2, "cuda:0")?.forward(&x).unwrap_err(),
            LayerNorm::new(3, "cuda:0")?.forward(&x).unwrap_err(),
            LSTM::new(3, 2, "cuda:0")?.forward(&x, None).unwrap_err(),
        ];
        for (error, name) in errors.iter().zip(["weight", "weight", "weight_ih_l0"]) {
            assert!(matches!(error.kind(), ErrorKind::DeviceMismatch { .. }), "{error}");
            let text = error.to_string();
            for said in [&format!("`{name}`")[..], "cpu", "cuda:0", "modules.rs"] {
                assert!(text.contains(said), "{text}");
            }
        }
        Ok(())
    });
    worlds(2, |_| {
        let net = Linear::new(3, 2, "cuda:0")?;
        let text = net.forward(&ones([2, 3], "cuda:1")?).unwrap_err().to_string();
        for said in ["`weight`", "cuda:0", "cuda:1"] {
            assert!(text.contains(said), "{text}");
        }
        Ok(())
    });
}

#[test]
fn an_instance_norm_accepts_an_input_without_a_batch_dimension() {
    let norm = InstanceNorm1d::new(3, ()).unwrap();
    let x = randn([3, 5], ()).unwrap();
    let batched = norm.forward(&x.unsqueeze(0).unwrap()).unwrap().squeeze(0).unwrap();
    assert_close(&norm.forward(&x).unwrap(), &batched, "one element").unwrap();
    assert!(norm.forward(&randn([3], ()).unwrap()).is_err());
}

#[test]
fn each_head_may_have_a_mask_of_its_own() {
    let (width, heads) = (4, 2);
    let attention = MultiheadAttention::new(width, heads, ()).unwrap();
    let x = randn([3, 2, width], ()).unwrap();
    let attend = |mask: &Tensor| {
        attention.forward(&x, &x, &x, MultiheadAttentionForwardOptions::new().attn_mask(mask))
    };
    let causal = ones([3, 3], ()).unwrap().triu(1).unwrap().ne(0).unwrap();
    let of_all = attend(&causal).unwrap();
    let each = causal.expand([4, 3, 3]).unwrap();
    let of_each = attend(&each).unwrap();
    assert_close(&of_all, &of_each, "the same mask for all heads").unwrap();
    let error = attend(&causal.expand([3, 3, 3]).unwrap());
    let text = error.unwrap_err().to_string();
    assert!(text.contains("mask") && text.contains("[3, 3, 3]"), "{text}");
}

#[test]
fn a_recurrent_network_accepts_an_empty_batch_but_not_empty_sequences() {
    let options = RecurrentOptions::new().num_layers(2).bidirectional(true);
    let net = LSTM::new(3, 2, options).unwrap();
    let (out, (hidden, _)) = net.forward(&ones([4, 0, 3], ()).unwrap(), None).unwrap();
    assert_eq!((out.size(), hidden.size()), (&[4, 0, 4][..], &[4, 0, 2][..]));
    let text = net.forward(&ones([0, 4, 3], ()).unwrap(), None).unwrap_err().to_string();
    assert!(text.contains("at least one step") && text.contains("[0, 4, 3]"), "{text}");
}

/// Without the check, the ops would broadcast such states.
#[test]
fn a_cell_refuses_states_of_other_sizes() {
    let (x, right) = (ones([3, 4], ()).unwrap(), ones([3, 2], ()).unwrap());
    let (rnn, gru) = (RNNCell::new(4, 2, ()).unwrap(), GRUCell::new(4, 2, ()).unwrap());
    let lstm = LSTMCell::new(4, 2, ()).unwrap();
    for wrong in [ones([1, 2], ()), ones([3, 1], ()), ones([2], ()), ones([1, 3, 2], ())] {
        let wrong = wrong.unwrap();
        let errors = [
            rnn.forward(&x, &wrong).unwrap_err(),
            gru.forward(&x, &wrong).unwrap_err(),
            lstm.forward(&x, (&wrong, &right)).unwrap_err(),
            lstm.forward(&x, (&right, &wrong)).unwrap_err(),
        ];
        for error in errors {
            let text = error.to_string();
            assert!(
                text.contains("[3, 2]") && text.contains(&format!("{:?}", wrong.size())),
                "{text}"
            );
        }
    }
    assert!(gru.forward(&ones([1, 3, 4], ()).unwrap(), &ones([1, 3, 2], ()).unwrap()).is_err());
    let (x, hidden) = (ones([4], ()).unwrap(), ones([2], ()).unwrap());
    assert_eq!(gru.forward(&x, &hidden).unwrap().size(), [2], "without a batch");
}

#[test]
fn the_gradient_of_a_learned_slope_at_zero_is_the_slope() {
    let x = tensor([0f32, -1.0, 2.0], ()).unwrap().requires_grad_(true).unwrap();
    let slopes = PReLU::new(()).unwrap();
    slopes.forward(&x).unwrap().sum(()).unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), [0.25, 0.25, 1.0]);
    assert_eq!(slopes.weight.grad().unwrap().to_vec::<f32>().unwrap(), [-1.0]);
}

#[test]
fn a_convolution_pads_in_every_mode() {
    let x = randn([2, 2, 6, 5], ()).unwrap();
    let plain = functional::ConvOptions::new().dilation([1, 2]);
    let wide = ConvOptions::new().dilation([1, 2]);
    // The convolution's padding, and the same padding as `pad` expects it: left, right, top, bottom. The window
    // is 2 × 3.
    let cases = [(Padding::Zeros([1, 2]), [2, 2, 1, 1]), (Padding::Same, [2, 2, 0, 1])];
    for mode in [PadMode::Reflect, PadMode::Replicate, PadMode::Circular] {
        for (padding, sides) in cases {
            let options = wide.clone().padding(padding).padding_mode(mode);
            let conv = Conv2d::new(2, 3, [2, 3], options).unwrap();
            let around = pad(&x, sides, mode).unwrap();
            let expected = conv2d(&around, &conv.weight, conv.bias.as_deref(), plain).unwrap();
            assert_close(&conv.forward(&x).unwrap(), &expected, "padded").unwrap();
        }
    }
    let strided = wide.padding(Padding::Same).stride([2, 1]).padding_mode(PadMode::Reflect);
    let conv = Conv2d::new(2, 3, [2, 3], strided).unwrap();
    assert!(conv.forward(&x).is_err());
}
