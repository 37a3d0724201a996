"""A small random model as a folder that vLLM reads: four heads, so that two nodes can share them.

SmolLM2 has nine. Runs in vLLM's own environment (torch, transformers), not in Parlay's; tokenizer
and template are those of the folder it is given.

Example: VENV/bin/python -m benchmarks.models.random_hf smollm2-hf random-hf
"""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.shared.arguments import parser_of

_KEPT = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def main() -> None:
    source, out = _folders()
    import torch
    from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

    given = AutoConfig.from_pretrained(source)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=given.vocab_size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        initializer_range=0.02,  # narrow: greedy texts repeat themselves, and n-grams find them
        bos_token_id=given.bos_token_id,
        eos_token_id=given.eos_token_id,
        pad_token_id=given.pad_token_id,
    )
    LlamaForCausalLM(config).float().save_pretrained(out)
    for name in _KEPT:
        shutil.copyfile(source / name, out / name)


def _folders() -> tuple[Path, Path]:
    parser = parser_of(__doc__)
    parser.add_argument("source", type=Path, help="a folder with the tokenizer and the template")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    return args.source, args.out


if __name__ == "__main__":
    main()
