"""A GGUF file as a folder that vLLM reads: weights dequantised, tokenizer and template kept.

Runs in vLLM's own environment (transformers, gguf, accelerate), not in Parlay's.

Example: VENV/bin/python -m benchmarks.models.gguf_to_hf SmolLM2-135M-Instruct.Q4_1.gguf smollm2-hf
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.shared.arguments import parser_of


def main() -> None:
    file, out = _paths()
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"gguf_file": file.name}
    config = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, **where, quantization_config=config, dtype="float32"
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # what is written is not quantised any more
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(file.parent, **where).save_pretrained(out)


def _paths() -> tuple[Path, Path]:
    parser = parser_of(__doc__)
    parser.add_argument("file", type=Path, help="GGUF file")
    parser.add_argument("out", type=Path, help="the folder")
    args = parser.parse_args()
    return args.file, args.out


if __name__ == "__main__":
    main()
