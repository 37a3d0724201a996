"""Plain decoding from large pages against a mapped file: both loaded, interleaved, one ratio.

Example: python -m benchmarks.measurements.large_pages --target default --pairs 10
"""

from __future__ import annotations

from benchmarks.shared.arguments import parser_of
from benchmarks.shared.ratios import ratio_of_repeats, shown
from parlay import Parlay

PROMPT = "Write a short story about a lighthouse keeper."


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--target", default="default")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    loaded = {
        name: Parlay(args.target, draft="none", large_pages=name == "large pages", context_size=512)
        for name in ("mapped", "large pages")
    }
    if not loaded["large pages"].engine.model.in_large_pages:
        raise SystemExit("this system gives no large pages, or has no room for a copy")
    texts = {
        name: p.generate(PROMPT, temperature=0, max_tokens=args.tokens).text
        for name, p in loaded.items()
    }
    speeds: dict[str, list[float]] = {"large pages": [], "mapped": []}
    for pair in range(args.pairs):
        names = list(loaded) if pair % 2 else list(loaded)[::-1]
        speed = {
            name: loaded[name]
            .generate(PROMPT, temperature=0, max_tokens=args.tokens)
            .tokens_per_second
            for name in names
        }
        for name, figures in speeds.items():
            figures.append(speed[name])
        print(" ".join(f"{name} {speed[name]:.1f} tok/s" for name in loaded), flush=True)
    print(f"large pages / mapped: {shown(ratio_of_repeats(*speeds.values()))}")
    print(f"same text: {texts['mapped'] == texts['large pages']}")
    for parlay in loaded.values():
        parlay.close()


if __name__ == "__main__":
    main()
