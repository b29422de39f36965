"""Writes small random Llama models as Hugging Face folders, with the logits and the text that transformers computes.

    python crates/nn/examples/llama/transformers.py crates/nn/tests/goldens/llama

Each folder has `config.json`, the weights in `bfloat16`, `tokenizer.json`, and for each prompt:

- in `expected.json`: the prompt, its tokens, and 64 new tokens, each the most likely one, with their text;
- in `expected.safetensors`: the logits after every token of the prompt and after the first 63 new tokens, in `float32`.
"""

import json
import sys
from pathlib import Path

del sys.path[0]  # in this file's folder, the file would hide the package of the same name

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

NEW_TOKENS = 64
# Greedy text is compared exactly, so the best token must lead the second by more than rounding.
LEAD = 0.02
PROMPTS = ["So", "So shaken as we are, so wan with care, find we a time for 3 frighted peaces."]
# The pre-tokenizer of Llama 3.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
COMMON = dict(vocab_size=80, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
COMMON |= dict(max_position_embeddings=256, bos_token_id=0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
# Pairs of a head rotate every 6, 20, 63 and 199 positions. llama3 keeps, interpolates and divides these frequencies.
LLAMA3 |= dict(original_max_position_embeddings=32, rope_theta=100.0)
CONFIGS = {
    "grouped_heads": dict(num_key_value_heads=2, eos_token_id=[1, 79]),
    "tied_embeddings": dict(num_key_value_heads=4, head_dim=16, tie_word_embeddings=True, eos_token_id=1),
    "rope_scaling": dict(num_key_value_heads=1, rope_parameters=LLAMA3, eos_token_id=1),
}


def tokenizer():
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=COMMON["vocab_size"], special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(PROMPTS + ["é 0123456789 abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLM"], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def random_model(config, seed):
    generator = torch.Generator().manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Large weights, so that the attended positions decide about the next token.
            norm = parameter.dim() == 1
            parameter.normal_(1.0 if norm else 0.0, 0.1 if norm else 0.4, generator=generator)
    return model.bfloat16()


@torch.no_grad()
def expected(model, tokenizer, prompt):
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    model.generation_config.eos_token_id = None
    every = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False)
    logits = model(every[:, :-1]).logits[0]
    best = logits[ids.shape[1] - 1 :].topk(2).values
    new = every[0, ids.shape[1] :].tolist()
    lead, distinct = float((best[:, 0] - best[:, 1]).min()), len(set(new))
    text = tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return dict(prompt=prompt, ids=ids[0].tolist(), new=new, text=text), logits, lead, distinct


def main():
    logging.disable_progress_bar()
    root, words = Path(sys.argv[1]), tokenizer()
    for name, options in CONFIGS.items():
        folder = root / name
        config = LlamaConfig(**COMMON, **options)
        for seed in range(10_000):
            folder.mkdir(parents=True, exist_ok=True)
            shards = "40KB" if name == "grouped_heads" else "1GB"
            for file in folder.iterdir():
                file.unlink()
            random_model(config, seed).save_pretrained(folder, max_shard_size=shards)
            model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
            results = [expected(model, words, prompt) for prompt in PROMPTS]
            if all(lead > LEAD and distinct > 20 for *_, lead, distinct in results):
                break
        else:
            sys.exit(f"{name}: no seed gives varied text with a clear best token")
        words.backend_tokenizer.save(str(folder / "tokenizer.json"))
        logits = {f"logits.{i}": logits.contiguous() for i, (_, logits, *_) in enumerate(results)}
        save_file(logits, folder / "expected.safetensors")
        lines = ",\n".join(json.dumps(result, ensure_ascii=False) for result, *_ in results)
        (folder / "expected.json").write_text(f"[\n{lines}\n]\n")
        print(name, "seed", seed, *[f"lead {lead:.3f} distinct {distinct}" for *_, lead, distinct in results])


main()
