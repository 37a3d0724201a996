"""DFlash, EAGLE-3 and NextN drafters on tiny models: plain text, and llama.cpp's own drafts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from parlay import Parlay
from parlay.bench.peer import LlamaServer, PeerSettings
from parlay.decoding.round import Fallback
from parlay.engine.exact.choice import ExactChoice
from parlay.errors import LoadError, VocabularyMismatch
from parlay.proposers.block import DFlashProposer
from parlay.proposers.stepwise import AssistantProposer, ChainProposer, HeadProposer
from tests import tiny_drafters, tiny_models
from tests.serving import PATIENCE_S

# Asked once, of an engine that has not read it: of the same prompt again less would be read.
ONCE = "Where the sea begins, and on"
PROMPTS = ("Hello there, how are you", "abc def", "The cat sat on the mat and")
WINDOW = 4
N_TOKENS = 80


@dataclass(frozen=True)
class Pair:
    """A target that says few different tokens, so that a random drafter is right now and then."""

    target: Path
    drafter: Path
    spec_type: str  # llama.cpp's name
    proposer: type


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state-drafters")


KINDS = (
    *("dflash", "eagle3", "nextn", "nextn-file", "dspark"),
    *("chain-file", "chain-hy_v3", "assistant"),
)


@pytest.fixture(scope="session", params=KINDS)
def pair(request: pytest.FixtureRequest, folder: Path) -> Pair:
    if request.param == "assistant":
        target = tiny_drafters.few_words(tiny_models.write_gemma4(folder / "gemma4.gguf"))
        drafter = tiny_drafters.write_assistant(folder / "assistant.gguf")
        drafter = tiny_drafters.few_words(drafter, head="token_embd.weight")
        return Pair(target, drafter, "draft-mtp", AssistantProposer)
    if request.param == "chain-hy_v3":
        target = tiny_drafters.write_chain(folder / "hy.gguf", architecture="hy_v3", seed=9)
        target = tiny_drafters.few_words(target)
        return Pair(target, target, "draft-mtp", ChainProposer)
    if request.param == "chain-file":
        target = tiny_drafters.few_words(tiny_drafters.write_chain(folder / "chain.gguf"))
        head = tiny_drafters.write_chain(folder / "links.gguf", only_head=True)
        return Pair(target, tiny_drafters.few_words(head), "draft-mtp", ChainProposer)
    if request.param.startswith("nextn"):
        target = tiny_drafters.few_words(tiny_drafters.write_nextn(folder / "nextn.gguf"))
        head = tiny_drafters.write_nextn(folder / "lone.gguf", only_head=True)
        head = tiny_drafters.few_words(head)
        lone = request.param == "nextn-file"
        return Pair(target, head if lone else target, "draft-mtp", HeadProposer)
    target = tiny_drafters.few_words(tiny_models.write_llama(folder / f"{request.param}-t.gguf"))
    if request.param == "dflash":
        drafter = tiny_drafters.write_dflash(folder / "dflash.gguf")
        return Pair(target, drafter, "draft-dflash", DFlashProposer)
    if request.param == "dspark":
        drafter = tiny_drafters.write_dflash(folder / "dspark.gguf", markov_rank=8)
        return Pair(target, drafter, "draft-dspark", DFlashProposer)
    drafter = tiny_drafters.write_eagle3(folder / "eagle3.gguf")
    return Pair(target, drafter, "draft-eagle3", HeadProposer)


@pytest.fixture(scope="module", autouse=True)
def widest_class() -> Iterator[None]:
    """Whole drafts fit into the passes, whatever those cost on this machine now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactChoice, "_cost", lambda _self, _price, width: 1.0 / width)
        yield


@pytest.fixture(scope="module")
def parlay(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parlay]:
    """One engine for all tests of a pair."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARLAY_CACHE", str(tmp_path_factory.mktemp("cache")))
        # llama.cpp's server keeps keys in f16; so must we, to draft the same.
        with Parlay(
            pair.target,
            draft=str(pair.drafter),
            window=WINDOW,
            mode="exact",
            context_size=512,
            slots=2,
            cache_type_k="f16",
            drafter_cache_type_k="f16",
        ) as made:
            yield made


def test_llama_cpps_own_server_drafts_and_accepts_the_same(parlay: Parlay, pair: Pair) -> None:
    pytest.importorskip("xllamacpp")
    drafter = None if pair.drafter == pair.target else str(pair.drafter)
    peer = PeerSettings(
        str(pair.target), pair.spec_type, drafter, n_max=WINDOW, n_context=512, threads=1
    )
    # One prompt: between two the server keeps a NextN head's last state of the first.
    with closing(LlamaServer(peer)) as server:
        body = {"prompt": ONCE, "n_predict": N_TOKENS, "temperature": 0}
        theirs = httpx.post(f"{server.url}/completion", json=body, timeout=PATIENCE_S).json()
    ours = parlay.generate(ONCE, temperature=0, max_tokens=N_TOKENS, raw=True)
    assert ours.text == theirs["content"]
    counts = ours.speculation
    timings = theirs["timings"]
    assert counts.n_accepted == timings["draft_n_accepted"] > 0
    assert counts.n_drafted == timings["draft_n"]


def test_the_kind_is_read_from_the_file_and_the_text_stays_plain(
    parlay: Parlay, pair: Pair
) -> None:
    assert isinstance(parlay.engine.drafts.proposers["model"], pair.proposer)
    for prompt in PROMPTS:
        drafted = parlay.generate(prompt, temperature=0, max_tokens=N_TOKENS, raw=True)
        assert (
            drafted.text
            == parlay.generate(
                prompt, temperature=0, max_tokens=N_TOKENS, raw=True, draft="none"
            ).text
        )
        assert drafted.speculation.n_accepted > 0


def test_a_sampled_text_is_the_same_with_and_without_drafts(parlay: Parlay) -> None:
    options = {"max_tokens": N_TOKENS, "raw": True, "temperature": 1.0, "seed": 5}
    drafted = parlay.generate(PROMPTS[0], **options)
    assert drafted.text == parlay.generate(PROMPTS[0], draft="none", **options).text
    assert drafted.speculation.n_accepted > 0


def test_several_at_once_and_one_more_turn_say_what_they_say_alone(parlay: Parlay) -> None:
    alone = [
        parlay.generate(p, temperature=0, max_tokens=40, raw=True, draft="none").text
        for p in PROMPTS
    ]
    streams = [parlay.stream(p, temperature=0, max_tokens=40, raw=True) for p in PROMPTS]
    for stream in streams:
        list(stream)
    assert [stream.answer.text for stream in streams] == alone
    longer = PROMPTS[0] + alone[0] + " and then"
    plain = parlay.generate(longer, temperature=0, max_tokens=40, raw=True, draft="none").text
    assert parlay.generate(longer, temperature=0, max_tokens=40, raw=True).text == plain


@pytest.mark.parametrize("same", [True, False])
def test_nothing_is_exact_while_a_drafter_reads_states_and_that_changes_sums(
    folder: Path, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the target gives is compared with the record when the drafter is attached."""
    target = tiny_drafters.few_words(tiny_models.write_llama(folder / "spoiled.gguf"))
    drafter = tiny_drafters.write_dflash(folder / "spoils.gguf")
    monkeypatch.setattr(ExactChoice, "unchanged", lambda *_: same)
    with Parlay(target, draft="suffix", mode="exact", context_size=512) as parlay:
        reasons = [parlay.generate(PROMPTS[0], temperature=0, max_tokens=4, raw=True).exact_reason]
        parlay.engine.load_drafters([drafter])
        reasons.append(
            parlay.generate(PROMPTS[0], temperature=0, max_tokens=4, raw=True).exact_reason
        )
        parlay.engine.drop_drafters(Fallback.MEMORY)
        reasons.append(
            parlay.generate(PROMPTS[0], temperature=0, max_tokens=4, raw=True).exact_reason
        )
    assert reasons == [None, None if same else "states", None]


def test_a_drafter_that_the_target_refuses_leaves_nobody_to_bet_on_and_answers_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before was freed while it was still asked for drafts, and nobody was told."""
    target = tiny_drafters.few_words(tiny_models.write_llama(folder / "refusing.gguf"))
    first, second = (
        tiny_drafters.write_dflash(folder / f"{name}.gguf") for name in ("first", "second")
    )

    def refuse(*_: object) -> None:
        raise LoadError("the drafter reads a layer that the target has not")

    with Parlay(target, draft="suffix", window=WINDOW, mode="exact", context_size=512) as parlay:
        engine = parlay.engine
        engine.load_drafters([first])
        plain = parlay.generate(
            PROMPTS[0], temperature=0, max_tokens=20, raw=True, draft="none"
        ).text
        with monkeypatch.context() as patch:
            patch.setattr(engine.target, "capture", refuse)
            with pytest.raises(LoadError, match="that the target has not"):
                engine.load_drafters([second])
        assert engine.drafts.named == ["suffix"]
        assert engine.target.captured == ()
        assert parlay.generate(PROMPTS[0], temperature=0, max_tokens=20, raw=True).text == plain
        engine.load_drafters([second])
        assert (
            parlay.generate(PROMPTS[0], temperature=0, max_tokens=20, raw=True, draft="model").text
            == plain
        )


def test_a_drafter_may_come_late_and_go_again(pair: Pair) -> None:
    if pair.drafter == pair.target:
        pytest.skip("a target's own head is there from the start")
    with Parlay(
        pair.target, draft="suffix", window=WINDOW, mode="exact", context_size=512
    ) as parlay:
        plain = parlay.generate(PROMPTS[0], temperature=0, max_tokens=30, raw=True, draft="none")
        parlay.engine.load_drafters([pair.drafter])
        longer = PROMPTS[0] + plain.text  # the cache holds it, the drafter never saw it
        drafted = parlay.generate(longer, temperature=0, max_tokens=60, raw=True, draft="model")
        assert drafted.speculation.n_drafted > 0
        assert (
            drafted.text
            == parlay.generate(longer, temperature=0, max_tokens=60, raw=True, draft="none").text
        )
        parlay.engine.drop_drafters(Fallback.MEMORY)
        assert parlay.generate(longer, temperature=0, max_tokens=60, raw=True).text == drafted.text
        assert parlay.engine.target.captured == ()


def test_a_target_that_keeps_its_states_to_itself_is_named(folder: Path) -> None:
    target = tiny_models.write_gemma3(folder / "gemma3.gguf")
    drafter = tiny_drafters.write_dflash(folder / "for-gemma3.gguf")
    with pytest.raises(LoadError, match="gemma3"):
        Parlay(target, draft=str(drafter), window=2, context_size=64)


def test_a_drafter_of_another_width_was_made_for_another_target(folder: Path) -> None:
    target = tiny_models.write_llama(folder / "narrow.gguf", n_embd=32)
    drafter = tiny_drafters.write_dflash(folder / "wide.gguf")
    with pytest.raises(LoadError, match="64 wide"):
        Parlay(target, draft=str(drafter), window=2, context_size=64)


def test_a_drafter_that_reads_layers_that_are_not_there_was_made_for_another_target(
    folder: Path,
) -> None:
    target = tiny_models.write_llama(folder / "flat.gguf")
    drafter = tiny_drafters.write_dflash(folder / "deep.gguf", layers=(0, 7))
    with pytest.raises(LoadError, match=r"reads layers \[0, 7\]"):
        Parlay(target, draft=str(drafter), window=2, context_size=64)


def test_another_vocabulary_cannot_be_translated_for_a_drafter_of_states(folder: Path) -> None:
    target = tiny_models.write_llama(folder / "words.gguf")
    drafter = tiny_drafters.write_dflash(folder / "words-d.gguf", vocab=tiny_models.OTHER_TEXTS)
    with pytest.raises(VocabularyMismatch) as refused:
        Parlay(target, draft=str(drafter), window=2, context_size=64, translate=True)
    assert "--translate" not in str(refused.value)


def test_a_head_of_another_architecture_was_made_for_another_target(folder: Path) -> None:
    target = tiny_models.write_qwen35(folder / "qwen35.gguf")
    head = tiny_drafters.write_nextn(folder / "head.gguf", only_head=True)
    with pytest.raises(LoadError, match="is a head for glm4moe"):
        Parlay(target, draft=str(head), window=2, context_size=64)


def test_a_chain_of_an_architecture_that_runs_one_layer_is_refused_in_a_line(folder: Path) -> None:
    target = tiny_drafters.write_nextn(folder / "two.gguf", n_links=2)
    with pytest.raises(LoadError, match="has 2 NextN layers, of which"):
        Parlay(target, draft=str(target), window=2, context_size=64)


def test_a_chain_drafts_no_more_tokens_than_it_has_layers(folder: Path) -> None:
    target = tiny_drafters.few_words(
        tiny_drafters.write_chain(folder / "two-links.gguf", n_links=2)
    )
    with Parlay(target, draft=str(target), window=7, context_size=512) as made:
        answer = made.generate(PROMPTS[0], temperature=0, max_tokens=N_TOKENS, raw=True)
        assert 1.8 < answer.speculation.n_drafted / answer.speculation.n_rounds <= 2


@pytest.mark.parametrize(("width", "head_size"), [(32, 32), (64, 16)])
def test_an_assistant_that_reads_other_keys_is_refused_in_a_line(
    folder: Path, width: int, head_size: int
) -> None:
    target = tiny_models.write_gemma4(folder / "for-another.gguf")
    assistant = tiny_drafters.write_assistant(
        folder / "other.gguf", n_embd=48, target_width=width, head_size=head_size
    )
    with pytest.raises(LoadError, match="reads the keys of another target than for-another"):
        Parlay(target, draft=str(assistant), window=2, context_size=64)


def test_an_assistant_for_a_target_that_is_no_gemma_4_is_refused_in_a_line(folder: Path) -> None:
    target = tiny_models.write_llama(folder / "no-gemma.gguf")
    assistant = tiny_drafters.write_assistant(folder / "for-gemma.gguf")
    with pytest.raises(LoadError, match="reads the keys of another target than no-gemma"):
        Parlay(target, draft=str(assistant), window=2, context_size=64)


def test_a_plain_drafter_captures_nothing(tiny_llama: Path, tiny_drafter: Path) -> None:
    with Parlay(tiny_llama, draft=str(tiny_drafter), window=2, context_size=64) as made:
        assert made.engine.target.captured == ()
