//! Tests of Transformer encoders, compared with compositions of their parts, and of masks of padded keys.

use warpline::functional::{gelu, relu};
use warpline::{DType, IsCloseOptions, Result, Tensor, manual_seed, ones, randn, tensor};
use warpline_nn::{
    LayerNorm, Module, MultiheadAttention, MultiheadAttentionForwardOptions,
    MultiheadAttentionOptions, TransformerEncoder, TransformerEncoderForwardOptions,
    TransformerEncoderLayer, TransformerEncoderLayerOptions, TransformerEncoderOptions,
};

use crate::common::{World, worlds};

fn assert_close(a: &Tensor, b: &Tensor, what: &str) -> Result<()> {
    assert_eq!(a.size(), b.size(), "{what}");
    assert!(a.allclose(b, IsCloseOptions::new().atol(1e-6))?, "{what}: {a} is not {b}");
    Ok(())
}

/// Computes the result of a layer from its parts.
fn composed(
    layer: &TransformerEncoderLayer,
    x: &Tensor,
    norm_first: bool,
    gelus: bool,
) -> Result<Tensor> {
    let attend = |x: &Tensor| layer.self_attn.forward(x, x, x, ());
    let feed = |x: &Tensor| {
        let hidden = layer.linear1.forward(x)?;
        layer.linear2.forward(&if gelus { gelu(&hidden, ())? } else { relu(&hidden)? })
    };
    if norm_first {
        let x = (x + attend(&layer.norm1.forward(x)?)?)?;
        return &x + feed(&layer.norm2.forward(&x)?)?;
    }
    let x = layer.norm1.forward(&(x + attend(x)?)?)?;
    layer.norm2.forward(&(&x + feed(&x)?)?)
}

#[test]
fn an_encoder_layer_is_the_composition_of_its_parts() {
    worlds(1, |world: &World| {
        for place in world.places() {
            for (norm_first, batch_first, gelus) in
                [(false, false, false), (true, true, false), (false, true, true)]
            {
                manual_seed(3);
                let mut options = TransformerEncoderLayerOptions::from(place)
                    .dim_feedforward(7)
                    .norm_first(norm_first)
                    .batch_first(batch_first);
                if gelus {
                    options = options.activation(|x| gelu(x, ())).layer_norm_eps(1e-3);
                }
                let mut layer = TransformerEncoderLayer::new(6, 2, options)?;
                layer.eval();
                assert_eq!(layer.linear1.weight.size(), [7, 6]);
                let x = randn([3, 4, 6], place)?;
                let out = layer.forward(&x, ())?;
                assert_close(&out, &composed(&layer, &x, norm_first, gelus)?, "a layer")?;
                out.square()?.sum(())?.backward()?;
                assert!(layer.parameters().iter().all(|parameter| parameter.grad().is_some()));
            }
        }
        Ok(())
    });
}

#[test]
fn dropout_is_active_in_training_only() -> Result<()> {
    let x = randn([3, 4, 6], ())?;
    let mut layer =
        TransformerEncoderLayer::new(6, 2, TransformerEncoderLayerOptions::new().dropout(0.5))?;
    assert!(
        !layer
            .forward(&x, ())?
            .allclose(&layer.forward(&x, ())?, IsCloseOptions::new().atol(1e-6))?
    );
    layer.eval();
    assert!(
        layer
            .forward(&x, ())?
            .allclose(&layer.forward(&x, ())?, IsCloseOptions::new().atol(1e-6))?
    );
    let error = TransformerEncoderLayer::new(6, 4, ()).unwrap_err().to_string();
    assert!(error.contains("heads"), "{error}");
    assert!(
        TransformerEncoderLayer::new(6, 2, TransformerEncoderLayerOptions::new().dropout(2.0))
            .is_err()
    );
    let plain =
        TransformerEncoderLayer::new(6, 2, TransformerEncoderLayerOptions::new().bias(false))?;
    assert!(plain.norm1.bias.is_none() && plain.linear2.bias.is_none());
    assert!(plain.self_attn.in_proj_bias.is_none());
    Ok(())
}

#[test]
fn an_encoder_equals_its_layers_called_in_sequence() -> Result<()> {
    manual_seed(4);
    let layer = TransformerEncoderLayer::new(6, 2, ())?;
    let norm = TransformerEncoderOptions::new().norm(LayerNorm::new(6, ())?);
    let mut encoder = TransformerEncoder::new(&layer, 2, norm)?;
    let names: Vec<String> = encoder.state_dict().keys().map(str::to_owned).collect();
    assert_eq!(names.len(), 2 * 12 + 2);
    for name in ["layers.1.self_attn.in_proj_weight", "layers.0.norm2.bias", "norm.weight"] {
        assert!(names.iter().any(|own| own == name), "{name}");
    }
    // The layers begin with the same values, but each has its own memory.
    let (first, second) = (&encoder.layers[0], &encoder.layers[1]);
    for ((a, b), own) in first.parameters().iter().zip(second.parameters()).zip(layer.parameters())
    {
        assert!(a.equal(&b)? && a.requires_grad() && b.requires_grad());
        assert!(a.data_ptr() != b.data_ptr() && a.data_ptr() != own.data_ptr());
    }
    encoder.eval();
    let (x, causal) =
        (randn([5, 2, 6], ())?, TransformerEncoderForwardOptions::new().is_causal(true));
    let expected = encoder.layers[1].forward(&encoder.layers[0].forward(&x, causal)?, causal)?;
    let expected = encoder.norm.as_ref().expect("a norm").forward(&expected)?;
    assert_close(&encoder.forward(&x, causal)?, &expected, "an encoder")?;
    // A mask of the later positions has the same effect as `is_causal`.
    let later = ones([5, 5], DType::Bool)?.triu(1)?;
    let masked = TransformerEncoderForwardOptions::new().mask(&later);
    assert_close(&encoder.forward(&x, masked)?, &expected, "a mask")
}

#[test]
fn padded_keys_have_no_influence() -> Result<()> {
    worlds(1, |world: &World| {
        for place in world.places() {
            manual_seed(5);
            let options = MultiheadAttentionOptions::from(place).batch_first(true);
            let attention = MultiheadAttention::new(6, 2, options)?;
            let x = randn([2, 4, 6], place)?;
            let short = x.narrow(1, 0, 3)?;
            let mask = |sizes: [usize; 2]| ones(sizes, (DType::Bool, place))?.triu(1);
            let padding = tensor([[false, false, false, true]; 2], place)?;
            let numbers = padding.to(DType::F32)?.masked_fill(&padding, f64::NEG_INFINITY)?;
            let (causal, wide) = (mask([3, 3])?, mask([4, 4])?);
            let added = wide.to(DType::F32)?.masked_fill(&wide, f64::NEG_INFINITY)?;
            let options = MultiheadAttentionForwardOptions::new;
            let plain = attention.forward(&short, &short, &short, ())?;
            let causal = attention.forward(&short, &short, &short, options().attn_mask(&causal))?;
            for (given, expected, what) in [
                (options().key_padding_mask(&padding), &plain, "bools"),
                (options().key_padding_mask(&numbers), &plain, "numbers"),
                (options().key_padding_mask(&padding).is_causal(true), &causal, "causal"),
                (
                    options().key_padding_mask(&padding).attn_mask(&wide),
                    &causal,
                    "two masks of bools",
                ),
                (
                    options().key_padding_mask(&padding).attn_mask(&added),
                    &causal,
                    "bools and numbers",
                ),
                (
                    options().key_padding_mask(&numbers).attn_mask(&wide),
                    &causal,
                    "numbers and bools",
                ),
            ] {
                let out = attention.forward(&x, &x, &x, given)?;
                assert_close(&out.narrow(1, 0, 3)?, expected, what)?;
            }
        }
        Ok(())
    });
    Ok(())
}
