//! The configuration of a model: `config.json` and `generation_config.json` of a Hugging Face folder.

use std::f32::consts::TAU;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use warpline::DType;

/// Properties of the model, under the names of `config.json`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Config {
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: usize,
    pub(crate) vocab_size: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    #[serde(default = "default_eps")]
    pub(crate) rms_norm_eps: f64,
    /// Maximum number of positions.
    #[serde(default = "default_positions")]
    pub(crate) max_position_embeddings: usize,
    #[serde(default)]
    pub(crate) tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    hidden_act: Option<String>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    /// `rope_theta` and `rope_scaling` in files of transformers 5.
    rope_parameters: Option<Rope>,
    bos_token_id: Option<Tokens>,
    eos_token_id: Option<Tokens>,
    torch_dtype: Option<String>,
    /// `torch_dtype` in files of transformers 5.
    dtype: Option<String>,
}

fn default_eps() -> f64 {
    1e-6
}

fn default_positions() -> usize {
    2048
}

/// One token or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Tokens {
    One(i64),
    Several(Vec<i64>),
}

impl Tokens {
    fn as_slice(&self) -> &[i64] {
        match self {
            Self::One(token) => std::slice::from_ref(token),
            Self::Several(tokens) => tokens,
        }
    }
}

/// Parameters of the rotary embedding.
#[derive(Clone, Debug, Default, Deserialize)]
struct Rope {
    rope_type: Option<String>,
    /// `rope_type` in older files; some files have both.
    r#type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<f32>,
}

fn read(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| {
        let path = path.display();
        format!("{path}: cannot read it; --model is the folder of a Hugging Face model")
    })?;
    serde_json::from_str(&text).with_context(|| format!("{}: it is not JSON", path.display()))
}

impl Config {
    /// Reads the configuration of the model in `folder`.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let value = read(&path)?;
        let mut config = Self::parse(&value).with_context(|| path.display().to_string())?;
        // As in transformers, the tokens that end a generated text are those of generation_config.json.
        let path = folder.join("generation_config.json");
        if path.exists()
            && let Some(tokens) = read(&path)?.get("eos_token_id").filter(|value| !value.is_null())
        {
            config.eos_token_id = serde_json::from_value(tokens.clone())
                .with_context(|| format!("{}: eos_token_id", path.display()))?;
        }
        Ok(config)
    }

    fn parse(value: &Value) -> Result<Self> {
        let architecture = value.pointer("/architectures/0").and_then(Value::as_str);
        ensure!(
            architecture == Some("LlamaForCausalLM"),
            "the architecture is {}, but only LlamaForCausalLM can be read",
            architecture.unwrap_or("not named")
        );
        let config: Self = serde_json::from_value(value.clone()).context("its properties")?;
        let (heads, key_heads) = (config.num_attention_heads, config.key_heads());
        let sizes =
            [config.hidden_size, config.num_hidden_layers, heads, key_heads, config.vocab_size];
        ensure!(!sizes.contains(&0), "a size is 0");
        ensure!(
            heads.is_multiple_of(key_heads),
            "num_key_value_heads is {key_heads}, which does not divide num_attention_heads, {heads}"
        );
        let width = config.head_dim();
        ensure!(width > 0 && width.is_multiple_of(2), "head_dim is {width}, but must be even");
        ensure!(
            !config.attention_bias && !config.mlp_bias,
            "attention_bias or mlp_bias is set, but only layers without a bias can be read"
        );
        let act = config.hidden_act.as_deref().unwrap_or("silu");
        ensure!(act == "silu", "hidden_act is `{act}`, but only `silu` can be computed");
        config.frequencies()?;
        Ok(config)
    }

    /// Returns the number of heads of keys and values.
    pub(crate) fn key_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Returns the width of a head.
    pub(crate) fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// Returns the token that begins a text.
    pub(crate) fn begin(&self) -> Option<i64> {
        self.bos_token_id.as_ref()?.as_slice().first().copied()
    }

    /// Returns the tokens that end a text.
    pub(crate) fn end(&self) -> &[i64] {
        self.eos_token_id.as_ref().map_or(&[], Tokens::as_slice)
    }

    /// Returns the dtype with the given name. `None`: the dtype of the stored weights, or `float32` if the
    /// files do not name it.
    pub(crate) fn dtype(&self, name: Option<&str>) -> Result<DType> {
        let stored = self.dtype.as_deref().or(self.torch_dtype.as_deref());
        match name.or(stored).unwrap_or("float32") {
            "float32" | "f32" => Ok(DType::F32),
            "bfloat16" | "bf16" => Ok(DType::BF16),
            "float16" | "f16" => Ok(DType::F16),
            other => bail!("the dtype `{other}` cannot be used; give --dtype f32, bf16 or f16"),
        }
    }

    /// Returns the angle by which each pair of a head rotates per position. Computes in `f32`, like transformers.
    pub(crate) fn frequencies(&self) -> Result<Vec<f32>> {
        let rope = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let rope = rope.cloned().unwrap_or_default();
        let theta = rope.rope_theta.or(self.rope_theta).unwrap_or(10_000.0) as f32;
        let width = self.head_dim();
        let mut all: Vec<f32> =
            (0..width).step_by(2).map(|i| 1.0 / theta.powf(i as f32 / width as f32)).collect();
        let kind = rope.rope_type.as_ref().or(rope.r#type.as_ref());
        let kind = kind.map_or("default", String::as_str);
        let given = |value: Option<f32>, name| {
            value.with_context(|| format!("the rope scaling `{kind}` has no {name}"))
        };
        match kind {
            // `dynamic` changes the frequencies only for texts longer than max_position_embeddings. This
            // program generates none.
            "default" | "dynamic" => {}
            "linear" => {
                let factor = given(rope.factor, "factor")?;
                all.iter_mut().for_each(|frequency| *frequency /= factor);
            }
            "llama3" => {
                let factor = given(rope.factor, "factor")?;
                let low = given(rope.low_freq_factor, "low_freq_factor")?;
                let high = given(rope.high_freq_factor, "high_freq_factor")?;
                let context = rope.original_max_position_embeddings;
                let context = given(context, "original_max_position_embeddings")?;
                for frequency in &mut all {
                    // The number of turns in the original context. A frequency with many turns is not changed,
                    // a frequency with few turns is divided by the factor, and a frequency between them is
                    // interpolated.
                    let turns = context / (TAU / *frequency);
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    *frequency = (1.0 - kept) * *frequency / factor + kept * *frequency;
                }
            }
            other => bail!(
                "the rope scaling `{other}` cannot be computed, only `linear`, `dynamic` and `llama3`"
            ),
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(change: Value) -> Value {
        let mut value = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 80,
        });
        let changes = change.as_object().unwrap().clone();
        value.as_object_mut().unwrap().extend(changes);
        value
    }

    #[test]
    fn files_of_both_major_versions_of_transformers_are_read() {
        let older = json!({
            "rope_theta": 100.0, "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 4.0},
            "torch_dtype": "bfloat16", "eos_token_id": 7, "bos_token_id": 3,
        });
        let newer = json!({
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0},
            "dtype": "bfloat16", "eos_token_id": [7], "bos_token_id": 3,
        });
        for value in [older, newer] {
            let config = Config::parse(&config(value)).unwrap();
            // LlamaRotaryEmbedding(config).inv_freq of transformers.
            let expected = [0.25, 0.079_056_94, 0.025, 0.007_905_694];
            for (frequency, expected) in config.frequencies().unwrap().iter().zip(expected) {
                assert!((frequency - expected).abs() < 1e-7, "{:?}", config.frequencies());
            }
            assert_eq!((config.begin(), config.end()), (Some(3), &[7][..]));
            assert_eq!(config.dtype(None).unwrap(), DType::BF16);
            assert_eq!(config.dtype(Some("f32")).unwrap(), DType::F32);
        }
    }

    #[test]
    fn a_configuration_that_cannot_be_computed_is_an_error_with_the_reason() {
        for (change, reason) in [
            (json!({"architectures": ["GPT2LMHeadModel"]}), "only LlamaForCausalLM"),
            (json!({"hidden_size": null}), "its properties"),
            (json!({"vocab_size": 0}), "a size is 0"),
            (json!({"num_key_value_heads": 3}), "does not divide"),
            (json!({"head_dim": 5}), "must be even"),
            (json!({"mlp_bias": true}), "without a bias"),
            (json!({"hidden_act": "gelu"}), "only `silu`"),
            (json!({"rope_scaling": {"type": "yarn"}}), "only `linear`, `dynamic` and `llama3`"),
            (json!({"rope_scaling": {"type": "linear"}}), "has no factor"),
        ] {
            let error = Config::parse(&config(change.clone())).unwrap_err();
            assert!(format!("{error:#}").contains(reason), "{change}: {error:#}");
        }
        let dtype = Config::parse(&config(json!({"dtype": "float8"}))).unwrap().dtype(None);
        assert!(dtype.unwrap_err().to_string().contains("give --dtype"));
    }
}
