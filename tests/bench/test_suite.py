"""Suites: the built-in ones are what they claim to be, own files work, bad ones are refused."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from parlay.bench import suite as suite_module
from parlay.bench.suite import Suite, load_suite, suite_hash
from parlay.engine.structured.grammar_check import read_here
from parlay.errors import BadRequest

CORE_12 = {"code": 3, "math": 3, "reasoning": 2, "summary": 2, "chat": 2}
CORE_60 = {
    "code": 6,
    "math": 6,
    "reasoning": 5,
    "summary": 6,
    "chat": 5,
    "extraction": 5,
    "translation": 5,
    "code-editing": 6,
    "agent": 6,
    "boilerplate": 5,
    "multi-turn": 5,
}
STRUCTURED_24 = {"extraction": 6, "classification": 6, "nested": 6, "arguments": 6}
EDITS_16 = {"rename": 5, "insertion": 5, "deletion": 4, "rewrite": 2}
COUNTS = {
    "core-12": CORE_12,
    "core-60": CORE_60,
    "structured-24": STRUCTURED_24,
    "edits-16": EDITS_16,
}
# A changed hash means changed prompts: raise the version in BUILT_IN and in NOTICE.md with it.
SHA256 = {
    "core-12": "5d3147e3c814b724ce5972c4ed199fdb01a1ed2a103e09ac2696ea6e8a6139dc",
    "core-60": "26c51f33401ff7d6725cd3d947f16f68751d4d0c3301ddaf0c146592fb5380c7",
    "structured-24": "75bfbd0193864e3923a491c50de383a3fe4a42ed0839931a156bd535605e5b43",
    "edits-16": "bdcac7b9e0be965bbd85d5667ee4ec48a35562b7a763dafce19dc4984b17702b",
}


def write(folder: Path, *lines: str) -> str:
    path = folder / "mine.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def refused(path: str) -> str:
    with pytest.raises(BadRequest) as caught:
        load_suite(path)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500
    return caught.value.message


def categories(suite: Suite) -> dict[str, int]:
    return dict(Counter(prompt.category for prompt in suite.prompts))


# ---- built-in suites


@pytest.mark.parametrize(("name", "counts"), COUNTS.items())
def test_built_in_suite_has_the_promised_counts_and_unique_ids(
    name: str, counts: dict[str, int]
) -> None:
    suite = load_suite(name)
    assert (suite.name, suite.version) == (name, 1)
    assert (suite.temperature, suite.n_context) == (0.0, 4096)
    assert categories(suite) == counts
    assert len({prompt.id for prompt in suite.prompts}) == len(suite.prompts)
    assert all(prompt.id.startswith(f"{prompt.category}-") for prompt in suite.prompts)


def test_core_60_begins_with_core_12() -> None:
    assert load_suite("core-60").prompts[:12] == load_suite("core-12").prompts


@pytest.mark.parametrize("name", sorted(SHA256))
def test_hash_of_a_built_in_suite_is_pinned(name: str) -> None:
    assert load_suite(name).sha256 == SHA256[name]


def test_every_core_12_prompt_asks_for_256_tokens() -> None:
    assert {prompt.max_tokens for prompt in load_suite("core-12").prompts} == {256}


def test_prompts_leave_room_in_the_context() -> None:
    for prompt in load_suite("core-60").prompts:
        n_bytes = len(json.dumps([prompt.messages, prompt.tools], ensure_ascii=False).encode())
        assert n_bytes < 6000, prompt.id  # about 1,500 tokens at four bytes each
        assert prompt.max_tokens <= 512


def test_agent_prompts_call_known_tools_and_every_call_is_answered() -> None:
    for prompt in load_suite("core-60").prompts:
        assert bool(prompt.tools) == (prompt.category == "agent")
        if prompt.category != "agent":
            continue
        known = {tool["function"]["name"] for tool in prompt.tools}
        calls = [call for m in prompt.messages for call in m.get("tool_calls", [])]
        assert {call["function"]["name"] for call in calls} <= known
        assert all(isinstance(json.loads(c["function"]["arguments"]), dict) for c in calls)
        results = [m["tool_call_id"] for m in prompt.messages if m["role"] == "tool"]
        assert results == [call["id"] for call in calls]


def test_multi_turn_prompts_alternate_and_end_with_the_user() -> None:
    for prompt in load_suite("core-60").prompts:
        if prompt.category == "multi-turn":
            roles = [message["role"] for message in prompt.messages]
            assert len(roles) >= 3
            assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


def test_prompts_do_not_repeat_and_carry_no_stray_blanks() -> None:
    prompts = load_suite("core-60").prompts
    texts = [prompt.messages[-1]["content"] for prompt in prompts]
    assert len(set(texts)) == len(texts)
    assert all(text == text.strip() for text in texts)


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_built_in_suites_stay_small(name: str) -> None:
    file = Path(suite_module.__file__).parent / "suites" / f"{name}.jsonl"
    assert file.stat().st_size < 400_000


def test_every_schema_of_structured_24_compiles_and_is_closed() -> None:
    for prompt in load_suite("structured-24").prompts:
        schema = prompt.json_schema
        assert schema is not None and prompt.prediction is None, prompt.id
        assert read_here("json_schema", json.dumps(schema))
        for part in objects_in(schema):
            assert part["additionalProperties"] is False
            assert part["required"] == list(part["properties"]), prompt.id


def objects_in(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema of an object in it."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from objects_in(part)


def test_every_prompt_of_edits_16_shows_the_file_it_predicts() -> None:
    for prompt in load_suite("edits-16").prompts:
        assert prompt.prediction is not None and prompt.json_schema is None, prompt.id
        assert 40 <= len(prompt.prediction.splitlines()) <= 200, prompt.id
        asked = prompt.messages[-1]["content"]
        assert asked.endswith("\n\n" + prompt.prediction.rstrip()), prompt.id
        # Room for the file twice and a change, at the two bytes a token that hardly any text has.
        assert len(prompt.prediction) / 2.4 < prompt.max_tokens, prompt.id
        assert len(asked) / 2 + prompt.max_tokens < 4096, prompt.id


def test_notice_states_licence_version_and_counts() -> None:
    notice = (Path(suite_module.__file__).parent / "suites" / "NOTICE.md").read_text("utf-8")
    assert "CC BY 4.0" in notice
    assert "version 1" in notice
    for counts in COUNTS.values():
        assert ", ".join(f"{name} {n}" for name, n in counts.items()) in notice


# ---- own files


def test_own_file_takes_plain_prompts_with_defaults(tmp_path: Path) -> None:
    suite = load_suite(write(tmp_path, '{"prompt": "Hello"}', "", '{"prompt": "Bye", "id": "b"}'))
    assert (suite.name, suite.version) == ("mine", None)
    first, second = suite.prompts
    assert (first.id, first.category, first.max_tokens, first.tools) == ("1", "own", 256, ())
    assert first.messages == ({"role": "user", "content": "Hello"},)
    assert second.id == "b"


def test_default_id_is_the_line_number_in_the_file(tmp_path: Path) -> None:
    suite = load_suite(write(tmp_path, "", '{"prompt": "a"}', "  ", '{"prompt": "b"}'))
    assert [prompt.id for prompt in suite.prompts] == ["2", "4"]


def test_own_file_takes_every_field_of_a_built_in_one(tmp_path: Path) -> None:
    core = load_suite("core-60")
    rows = [
        {
            "id": p.id,
            "category": p.category,
            "messages": p.messages,
            "max_tokens": p.max_tokens,
            "tools": p.tools,
            "json_schema": p.json_schema,
            "prediction": p.prediction,
        }
        for p in core.prompts
    ]
    own = load_suite(write(tmp_path, *(json.dumps(row) for row in rows)))
    assert own.prompts == core.prompts
    assert own.sha256 == core.sha256
    assert own.version is None


def test_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "\xc3\xa4"}\r\n')
    assert [p.messages[0]["content"] for p in load_suite(str(path)).prompts] == ["a", "ä"]


def test_last_line_needs_no_line_end(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'{"prompt": "a"}')
    assert len(load_suite(str(path)).prompts) == 1


def test_assistant_message_with_a_tool_call_needs_no_content(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
    ]
    suite = load_suite(write(tmp_path, json.dumps({"messages": messages})))
    assert list(suite.prompts[0].messages) == messages


def test_tool_schema_is_handed_on_unchanged(tmp_path: Path) -> None:
    function = {"name": "f", "strict": True, "parameters": {"type": "object", "required": ["x"]}}
    tools = [{"type": "function", "function": function}]
    suite = load_suite(write(tmp_path, json.dumps({"prompt": "go", "tools": tools})))
    assert list(suite.prompts[0].tools) == tools


def test_schema_and_prediction_are_handed_on_unchanged(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    row = {"prompt": "go", "json_schema": schema, "prediction": " {\n"}
    prompt = load_suite(write(tmp_path, json.dumps(row))).prompts[0]
    assert json.dumps(prompt.json_schema) == json.dumps(schema)
    assert prompt.prediction == " {\n"


def test_prompt_and_suite_are_frozen() -> None:
    suite = load_suite("core-12")
    with pytest.raises(FrozenInstanceError):
        suite.name = "x"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        suite.prompts[0].id = "x"  # type: ignore[misc]


# ---- the hash


def test_hash_ignores_layout_key_order_and_spelled_out_defaults(tmp_path: Path) -> None:
    plain = load_suite(write(tmp_path, '{"id": "a", "prompt": "\\u00e4 b"}')).sha256
    spelled = (
        ' {"max_tokens":256,  "messages" : [{"content":"ä b","role":"user"}],'
        '"tools":[],"category":"own",\t"id":"a"} '
    )
    assert load_suite(write(tmp_path, "", spelled, "")).sha256 == plain


@pytest.mark.parametrize(
    "line",
    [
        '{"id": "a", "prompt": "two  blanks"}',
        '{"id": "b", "prompt": "two blanks"}',
        '{"id": "a", "prompt": "two blanks", "max_tokens": 255}',
        '{"id": "a", "prompt": "two blanks", "category": "chat"}',
        '{"id": "a", "prompt": "two blanks", "json_schema": {}}',
        '{"id": "a", "prompt": "two blanks", "prediction": ""}',
    ],
)
def test_hash_changes_with_every_field(tmp_path: Path, line: str) -> None:
    plain = load_suite(write(tmp_path, '{"id": "a", "prompt": "two blanks"}')).sha256
    assert load_suite(write(tmp_path, line)).sha256 != plain


def test_hash_depends_on_the_order_of_a_schema_s_properties(tmp_path: Path) -> None:
    line = '{"prompt": "a", "json_schema": {"properties": {%s}}}'
    one, other = '"x": {}, "y": {}', '"y": {}, "x": {}'
    first = load_suite(write(tmp_path, line % one)).sha256
    assert load_suite(write(tmp_path, line % one.replace(" ", "  "))).sha256 == first
    assert load_suite(write(tmp_path, line % other)).sha256 != first


def test_hash_depends_on_the_order_of_the_prompts() -> None:
    prompts = load_suite("core-12").prompts
    assert suite_hash(prompts) != suite_hash(prompts[::-1])


# ---- refusals

BAD_LINES = [
    ("{", "not JSON"),
    ("[1]", "object"),
    ('"text"', "object"),
    ("{}", "either prompt or messages"),
    ('{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}', "either prompt or messag"),
    ('{"prompt": "  "}', "prompt is empty"),
    ('{"prompt": 3}', "prompt: "),
    ('{"prompt": "a", "id": 3}', "id: "),
    ('{"prompt": "a", "id": ""}', "id: "),
    ('{"prompt": "a", "id": "x\\ny"}', "control characters"),
    ('{"prompt": "a", "category": "' + "c" * 65 + '"}', "category: "),
    ('{"prompt": "a", "max_tokens": 0}', "max_tokens: "),
    ('{"prompt": "a", "max_tokens": 4097}', "max_tokens: "),
    ('{"prompt": "a", "max_tokens": true}', "max_tokens: "),
    ('{"prompt": "a", "max_tokens": 1.5}', "max_tokens: "),
    ('{"prompt": "a", "temperature": 1}', "unknown field temperature; remove it"),
    ('{"prompt": "a", "x\\ny": 1}', "unknown field x?y; remove it"),
    ('{"messages": []}', "messages is empty"),
    ('{"messages": [{"content": "a"}]}', "messages.0.role is missing"),
    ('{"messages": [{"role": "user"}]}', "give the message a content"),
    ('{"messages": [{"role": "human", "content": "a"}]}', "messages.0.role: "),
    ('{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "messages.0.content: "),
    ('{"messages": [{"role": "assistant", "content": "a"}]}', "last message must be from"),
    ('{"messages": [{"role": "tool", "content": "a"}]}', "needs its tool_call_id"),
    ('{"prompt": "a", "tools": [{"type": "function"}]}', "tools.0.function is missing"),
    ('{"prompt": "a", "tools": [{"type": "x", "function": {"name": "f"}}]}', "tools.0.type: "),
    ('{"prompt": "a", "tools": [{"type": "function", "function": {"name": "f", "n": NaN}}]}', ""),
    ('{"prompt": "a", "tools": [{"type": "function", "function": {"name": "f", "n": 1e999}}]}', ""),
    ('{"prompt": "a", "json_schema": "x"}', "json_schema: "),
    ('{"prompt": "a", "json_schema": {"x": NaN}}', ""),
    ('{"prompt": "a", "prediction": ["x"]}', "prediction: "),
    (
        '{"prompt": "a", "json_schema": {}, '
        '"tools": [{"type": "function", "function": {"name": "f"}}]}',
        "one of json_schema and tools",
    ),
    ('{"prompt": "\\ud800"}', "not JSON"),
    ('{"prompt": ' + "[" * 100_000, "not JSON"),
    ('{"prompt": "a", "max_tokens": ' + "9" * 10_000 + "}", "out of range"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_bad_line_is_refused_with_its_number(tmp_path: Path, line: str, reason: str) -> None:
    message = refused(write(tmp_path, '{"prompt": "fine"}', "", line))
    assert "mine.jsonl line 3: " in message
    assert reason in message


def test_tool_calls_outside_an_assistant_message_are_refused(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    row = {"messages": [{"role": "user", "content": "a", "tool_calls": [call]}]}
    assert "only an assistant message" in refused(write(tmp_path, json.dumps(row)))


def test_bytes_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    assert "line 2: not JSON" in refused(str(path))


def test_repeated_id_names_both_lines(tmp_path: Path) -> None:
    message = refused(write(tmp_path, '{"prompt": "a", "id": "x"}', '{"prompt": "b", "id": "x"}'))
    assert "line 2: id 'x' is already on line 1" in message


def test_given_id_may_not_clash_with_a_default_one(tmp_path: Path) -> None:
    message = refused(write(tmp_path, '{"prompt": "a", "id": "2"}', '{"prompt": "b"}'))
    assert "line 2: id '2' is already on line 1" in message


def test_empty_file_is_refused(tmp_path: Path) -> None:
    assert "no prompts" in refused(write(tmp_path, "", " "))


def test_missing_file_names_the_built_in_suites(tmp_path: Path) -> None:
    message = refused(str(tmp_path / "nothing.jsonl"))
    assert "nothing.jsonl" in message
    assert "core-12, core-60" in message


@pytest.mark.parametrize("name", ["", ".", "core-13", "a\0b", "a\nb", "x" * 5000, "../core-12"])
def test_odd_names_are_refused_on_one_line(name: str) -> None:
    assert "core-12, core-60" in refused(name)


def test_folder_is_refused(tmp_path: Path) -> None:
    assert "irectory" in refused(str(tmp_path))


def test_long_line_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "a"}', '{"prompt": "' + "a" * 1_000_000 + '"}')
    assert "line 2: over 1,000,000 bytes" in refused(path)


def test_line_of_exactly_the_limit_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = '{"prompt": "abc"}'
    monkeypatch.setattr(suite_module, "MAX_LINE_BYTES", len(line) + 1)  # with its line end
    assert len(load_suite(write(tmp_path, line)).prompts) == 1
    assert "line 1: over" in refused(write(tmp_path, line + " "))


def test_too_many_prompts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert suite_module.MAX_PROMPTS == 10_000
    monkeypatch.setattr(suite_module, "MAX_PROMPTS", 1_000)
    lines = ['{"prompt": "a"}'] * 1_001
    assert "line 1001: over 1,000 prompts; split the file" in refused(write(tmp_path, *lines))
    assert len(load_suite(write(tmp_path, *lines[:-1])).prompts) == 1_000


def test_endless_blank_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_module, "MAX_FILE_BYTES", 1000)
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b"\n" * 2000)
    assert "line 1001: file over 1,000 bytes" in refused(str(path))
