"""Texts on which two tokenizers are compared: code, accents, scripts, emoji, control marks.

Plain data; knows no tokenizer.
"""

from __future__ import annotations

SAMPLES = {
    "prose": "The quick brown fox jumps over the lazy dog. It didn't look back, did it?",
    "code": "def f(x: int) -> str:\n    return f'{x:>08b}'  # 0b1010\n\n\tif (a != b) {c += 1;}\n",
    "json": '{"name": "a\\"b", "values": [1, 2.5e-3, null, true], "nested": {"k": []}}',
    "numbers": "3.14159 1,000,000 0xFF 2026-11-15T04:05:06Z 12345678901234567890",
    "accents": "Çà et là, l'été où naïve Ångström, Øresund, straße, łódź, ñandú",
    "chinese": "今天天气很好,我们去公园散步吧。機械学習とは何ですか?",
    "korean": "안녕하세요, 반갑습니다. 오늘은 비가 옵니다.",
    "arabic": "مرحبا بالعالم، كيف حالك اليوم؟",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 ✅❌ 🤷‍♂️",
    "spaces": "a  b   c\t\td\n\n\n   e \r\n f\u00a0g\u3000h",
    "marks": "<|im_start|>user\nhi<|im_end|> <s>[INST] x [/INST]</s> <|endoftext|>",
    "rare": "\u200b\ufeff\u0301 ﷽ \U0001d518\U0001d52b\U0001d526 \U0001f9ff zzzzzzzzzzzzzzzz",
}
