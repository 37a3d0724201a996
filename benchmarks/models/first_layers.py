"""A model of the first layers of another: its words and its template, and little to compute.

For whatever must read very long prompts on a small machine; what it says makes no sense.

python -m benchmarks.models.first_layers MODEL.gguf OUT.gguf --layers 1 --context 65536
"""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter

from benchmarks.shared.arguments import parser_of


def write(source: Path, out: Path, n_layers: int, n_context: int) -> None:
    read = GGUFReader(source)
    name = str(read.fields["general.architecture"].contents())
    changed = {f"{name}.block_count": n_layers, f"{name}.context_length": n_context}
    writer = GGUFWriter(out, name)
    for key, field in read.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind = field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(key, changed.get(key, field.contents()), kind, sub_type=inner)
    for tensor in read.tensors:
        if not tensor.name.startswith("blk.") or int(tensor.name.split(".")[1]) < n_layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("source", type=Path, help="GGUF file")
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--context", type=int, default=65536)
    args = parser.parse_args()
    write(args.source, args.out, args.layers, args.context)


if __name__ == "__main__":
    main()
