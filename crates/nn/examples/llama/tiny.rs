//! A tiny random model in a temporary folder, with the same files as a downloaded model.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use serde_json::json;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};
use warpline::{DType, Tensor, manual_seed, ones, randn};
use warpline_nn::{StateDict, save_sharded};

const LAYERS: usize = 2;
const WIDTH: usize = 64;
const INNER: usize = 128;
/// Rows of the keys and the values: 2 of 4 heads.
const NARROW: usize = WIDTH / 2;
/// All bytes and the token that ends a text.
const VOCABULARY: usize = 257;

/// A folder that is removed on drop.
pub(crate) struct TinyModel(PathBuf);

impl TinyModel {
    /// Writes the model to a new folder in the system's folder for temporary files.
    pub(crate) fn write() -> Result<Self> {
        let id = std::process::id();
        let new = |n| {
            let folder = std::env::temp_dir().join(format!("warpline-llama-{id}-{n}"));
            std::fs::create_dir(&folder).is_ok().then_some(folder)
        };
        let folder = (0..1000).find_map(new);
        let model = Self(folder.ok_or_else(|| {
            anyhow!("no folder can be made in {}; set TMPDIR", std::env::temp_dir().display())
        })?);
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "intermediate_size": INNER,
            "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
            "vocab_size": VOCABULARY, "max_position_embeddings": 256, "rope_theta": 10000.0,
            "eos_token_id": VOCABULARY - 1, "torch_dtype": "float32",
        });
        std::fs::write(model.folder().join("config.json"), config.to_string())?;
        save_sharded(&weights()?, model.folder(), 100_000)?;
        let path = model.folder().join("tokenizer.json");
        tokenizer()?.save(path, true).map_err(anyhow::Error::from_boxed)?;
        Ok(model)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for TinyModel {
    fn drop(&mut self) {
        // A drop cannot report an error.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes a tokenizer with one token for each byte.
fn tokenizer() -> Result<Tokenizer> {
    let mut bytes: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    bytes.sort_unstable();
    let vocabulary: Vocab = bytes.into_iter().map(String::from).zip(0..).collect();
    let model = BPE::builder().vocab_and_merges(vocabulary, Vec::new()).build();
    let mut tokenizer = Tokenizer::new(model.map_err(anyhow::Error::from_boxed)?);
    let bytes = ByteLevel::default().add_prefix_space(false);
    tokenizer.with_pre_tokenizer(Some(bytes)).with_decoder(Some(bytes));
    let end = AddedToken::from("</s>", true);
    tokenizer.add_special_tokens([end]).map_err(anyhow::Error::from_boxed)?;
    Ok(tokenizer)
}

/// Draws weights on the host, the same in each run.
fn weights() -> warpline::Result<StateDict> {
    manual_seed(1);
    let matrix = |rows, columns| randn([rows, columns], DType::F32)?.mul(0.3);
    let norm = || ones([WIDTH], DType::F32);
    let mut all: Vec<(String, Tensor)> = vec![
        ("model.embed_tokens.weight".into(), matrix(VOCABULARY, WIDTH)?),
        ("model.norm.weight".into(), norm()?),
        ("lm_head.weight".into(), matrix(VOCABULARY, WIDTH)?),
    ];
    for layer in 0..LAYERS {
        for (name, weight) in [
            ("input_layernorm", norm()?),
            ("self_attn.q_proj", matrix(WIDTH, WIDTH)?),
            ("self_attn.k_proj", matrix(NARROW, WIDTH)?),
            ("self_attn.v_proj", matrix(NARROW, WIDTH)?),
            ("self_attn.o_proj", matrix(WIDTH, WIDTH)?),
            ("post_attention_layernorm", norm()?),
            ("mlp.gate_proj", matrix(INNER, WIDTH)?),
            ("mlp.up_proj", matrix(INNER, WIDTH)?),
            ("mlp.down_proj", matrix(WIDTH, INNER)?),
        ] {
            all.push((format!("model.layers.{layer}.{name}.weight"), weight));
        }
    }
    Ok(all.into_iter().collect())
}
