"""Slots: which sequence sits where in the cache, what earlier turns left there, and in RAM.

Knows tokens, owners, lengths and seconds; nothing of drafts. A conversation that loses its slot is
copied to RAM where that was seen to cost less than reading it again; the least recently used goes
first, and what one owner said is of no use to another.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from time import perf_counter

from parlay.decoding.span import LoadedPasses, Saved, common_prefix
from parlay.engine.exact.prompts import Boundaries
from parlay.engine.faults import Faults
from parlay.errors import BadRequest, DecodeError

# Copies that are made while somebody waits may take this share of reading the text again; those
# made while nobody does, and brought back later, this share for both ways.
_LIGHT, _WORTH = 0.1, 0.5
# Others that answer meanwhile make reading look slower than it is: the fastest counts, and fades.
_FADES = 1.02
_KEPT = 0.7  # of the average of earlier copies
_FORGIVEN = 0.97  # of a copy's price, whenever one is not made for it: it may have been bad luck


class Copying:
    """Seconds per token of three things; what was never seen is None."""

    def __init__(self, *, from_device: bool = False) -> None:
        """`from_device`: the cache is not in RAM, so that nothing is taken to be light unseen."""
        self._away_s: float | None = None if from_device else 0.0
        self._back_s: float | None = None
        self._read_s: float | None = None

    def light(self) -> bool:
        """Whether a copy may be made while somebody waits for the slot."""
        if self._away_s is None or self._read_s is None:
            return self._away_s == 0.0
        if self._away_s <= _LIGHT * self._read_s:
            return True
        self._away_s *= _FORGIVEN
        return False

    @property
    def worth(self) -> bool:
        """Whether a copy is worth making while nobody waits."""
        if self._away_s is None or self._read_s is None:
            return True
        back_s = self._away_s if self._back_s is None else self._back_s
        return self._away_s + back_s <= _WORTH * self._read_s

    def spares(self, n_copied: int, n_spared: int) -> bool:
        """Whether to bring so many tokens back is quicker than to read so many of them."""
        if self._back_s is None or self._read_s is None:
            return True
        return self._back_s * n_copied < self._read_s * n_spared

    def reads_within(self, n_tokens: int, seconds: float) -> bool:
        """Whether so many tokens of a prompt take no longer than that, as far as it was seen."""
        return self._read_s is not None and n_tokens * self._read_s <= seconds

    def saw_copy(self, n_tokens: int, seconds: float) -> None:
        """A conversation of so many tokens was copied to RAM."""
        self._away_s = _averaged(self._away_s, seconds / max(1, n_tokens))

    def saw_return(self, n_tokens: int, seconds: float) -> None:
        """One came back into a slot."""
        self._back_s = _averaged(self._back_s, seconds / max(1, n_tokens))

    def saw_reading(self, n_tokens: int, seconds: float) -> None:
        """A prompt was read, maybe beside others."""
        each = seconds / max(1, n_tokens)
        self._read_s = each if self._read_s is None else min(each, _FADES * self._read_s)


def _averaged(before: float | None, now: float) -> float:
    return now if before is None else _KEPT * before + (1 - _KEPT) * now


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """One conversation."""

    owner: str
    tokens: list[int]
    saved: Saved
    n_firm: int = 0  # of the tokens, cached as they would be whoever had read them

    def shared(self, prompt: list[int], owner: str, cut: Boundaries | None = None) -> int:
        """How much of a prompt it can stand for; what others said is of no use."""
        if owner != self.owner:
            return 0
        n = reusable(common_prefix(self.tokens, prompt), prompt, self.n_firm, cut)
        kept = self.saved.reusable(n)
        return 0 if cut is not None and cut.last(prompt, kept) != kept else kept


def reusable(n_shared: int, prompt: Seq[int], n_firm: int, cut: Boundaries | None) -> int:
    """Of a prompt's shared tokens those that need not be read again; with boundaries only what is
    firm, up to one of them."""
    # At least the last token must be read again: its logits begin the answer.
    n = min(n_shared, len(prompt) - 1)
    if cut is None:
        return n
    return cut.last(prompt, min(n, n_firm))


class PromptCache:
    """Bounded in bytes; the oldest first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._token_bytes = 0.0  # of the last one that was kept
        self._kept: list[Kept] = []

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def n_bytes(self) -> int:
        return sum(kept.saved.n_bytes for kept in self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def holds(self, n_tokens: int) -> bool:
        """Whether there is room for so many tokens, if everything else went."""
        return self._limit > 0 and n_tokens * self._token_bytes <= self._limit

    def put(self, kept: Kept) -> None:
        """Keep it; older ones go as far as they must, and those it continues."""
        self._token_bytes = kept.saved.n_bytes / max(1, len(kept.tokens))
        self._kept = [old for old in self._kept if not _continues(kept, old)]
        self._kept.append(kept)
        while self.n_bytes > self._limit:
            del self._kept[0]

    def best(
        self, prompt: Seq[int], owner: str, cut: Boundaries | None = None
    ) -> tuple[Kept | None, int]:
        """The one that shares most with a prompt, and how much that is."""
        wanted = list(prompt)
        shared = [kept.shared(wanted, owner, cut) for kept in self._kept]
        n = max(shared, default=0)
        return (self._kept[shared.index(n)], n) if n else (None, 0)

    def pop(self, kept: Kept) -> None:
        """It gets a slot again."""
        self._kept.remove(kept)


def _continues(new: Kept, old: Kept) -> bool:
    n = len(old.tokens)
    return new.owner == old.owner and new.tokens[:n] == old.tokens


# Tokens of a prompt that may be read again to spare one idle slot between the busy ones: that is a
# row of padding in each round, or a pass cut in two.
_GAP_TOKENS = 64


@dataclass(slots=True)
class Slot:
    """One place in the cache."""

    seq_id: int
    tokens: list[int] = field(default_factory=list)  # what the target's cache holds
    n_firm: int = 0  # of these, cached as they would be whoever had read them
    busy: bool = False
    last_used: int = 0
    owner: str = ""  # whose tokens they are
    copied: bool = False  # what it holds is in RAM, too


class Slots:
    """Gives a new prompt the free slot that shares most with it."""

    def __init__(
        self,
        target: LoadedPasses,
        n: int,
        cache: PromptCache | None = None,
        worth: int = 0,
        boundaries: Boundaries | None = None,
        copying: Copying | None = None,
    ) -> None:
        """`worth`: tokens from which on a conversation is put away at all; `boundaries`: where
        a prompt goes on from what is firm; None: anywhere."""
        self._target = target
        self.copying = Copying() if copying is None else copying
        self.boundaries = boundaries or Boundaries(1, anywhere_until=target.context_size)
        self.cache = PromptCache(0) if cache is None else cache
        self._worth = worth
        self._slots = [Slot(i) for i in range(n)]
        self._clock = 0
        self._faults = Faults()

    @property
    def n_free(self) -> int:
        return sum(not slot.busy for slot in self._slots)

    @property
    def last_used(self) -> int:
        """Grows whenever a sequence ends."""
        return self._clock

    @property
    def all(self) -> tuple[Slot, ...]:
        return tuple(self._slots)

    def take(
        self, prompt: Seq[int], owner: str = "", *, firm: bool = False
    ) -> tuple[int, int, int] | None:
        """The slot for a prompt, how much of it is cached there, and how much of that is firm;
        None if all are busy. `firm`: nothing else is reused.

        What others' prompts left is of no use: how much is cached would tell what they said.
        """
        free = [slot for slot in self._slots if not slot.busy]
        if not free:
            return None
        wanted = list(prompt)  # lists are compared block by block, with tuples they are not
        shared = {
            slot.seq_id: self._shared(slot, wanted, firm) if slot.owner == owner else 0
            for slot in free
        }
        # Most shared first, but for the gaps that passes pay for in every round; then the slot
        # idle for longest, so that useful prefixes live on.
        worth = {id_: n - _GAP_TOKENS * self._gaps(id_) for id_, n in shared.items()}
        best = max(free, key=lambda slot: (worth[slot.seq_id], -slot.last_used))
        boundaries = self.boundaries if firm else None
        try:
            n = self._exchange(best, prompt, owner, shared[best.seq_id], boundaries)
        except Exception as error:  # what was kept is lost: the prompt is read instead
            self._faults.tell("a kept conversation could not be exchanged", error)
            n = 0
        # Nobody else's, should what follows fail: what the cache holds then is unknown.
        best.tokens, best.owner, best.copied = [], owner, False
        kept = self.keep(best.seq_id, n)
        if boundaries is not None and boundaries.last(wanted, kept) != kept:
            kept = self.keep(best.seq_id, 0)
        best.busy = True
        return best.seq_id, kept, min(best.n_firm, kept)

    def _shared(self, slot: Slot, prompt: list[int], firm: bool) -> int:
        """How much of a prompt a slot's cache can stand for."""
        n = common_prefix(slot.tokens, prompt)
        return reusable(n, prompt, slot.n_firm, self.boundaries if firm else None)

    def _exchange(
        self, slot: Slot, prompt: Seq[int], owner: str, n: int, boundaries: Boundaries | None
    ) -> int:
        """Put away what would be lost with all but n tokens, fetch what serves the prompt better;
        how many of its tokens the slot holds then."""
        found, n_found = self.cache.best(prompt, owner, boundaries)
        if (
            found is not None
            and n_found >= n + max(1, self._worth)
            and self.copying.spares(len(found.tokens), n_found - n)
        ):
            self.cache.pop(found)
            self._put_away(slot)
            self._bring_back(slot, found)
            return n_found
        if 2 * n < len(slot.tokens):
            self._put_away(slot)
        return n

    def _bring_back(self, slot: Slot, found: Kept) -> None:
        started = perf_counter()
        self._target.restore(slot.seq_id, found.saved)
        self.copying.saw_return(len(found.tokens), perf_counter() - started)
        slot.n_firm = found.n_firm

    def _put_away(self, slot: Slot) -> None:
        """Keep the conversation of a slot that somebody waits for, where that is a light thing."""
        if self._is_to_be_copied(slot) and self.copying.light():
            self._copy(slot)

    def tidy(self) -> None:
        """Nobody waits: copy the conversation that would be lost next, before its slot is taken."""
        if all(slot.tokens or slot.busy for slot in self._slots):
            idle = [slot for slot in self._slots if not slot.busy]
            last = min(idle, key=lambda slot: slot.last_used, default=None)
            if last is not None and self._is_to_be_copied(last) and self.copying.worth:
                self._stay(last, self._copy(last).saved)

    def _is_to_be_copied(self, slot: Slot) -> bool:
        n = len(slot.tokens)
        return n >= max(1, self._worth) and not slot.copied and self.cache.holds(n)

    def _copy(self, slot: Slot) -> Kept:
        started, n = perf_counter(), len(slot.tokens)
        kept = Kept(slot.owner, slot.tokens, self._target.save(slot.seq_id), slot.n_firm)
        self.copying.saw_copy(n, perf_counter() - started)
        self.cache.put(kept)
        slot.copied = True
        return kept

    def vacate(self) -> None:
        """Free the idle slots for other uses; what is worth it is put away."""
        for slot in self._slots:
            if not slot.busy and slot.tokens:
                if self._is_to_be_copied(slot) and self.copying.worth:
                    self._copy(slot)
                slot.tokens, slot.n_firm = [], 0
                self._target.clear(slot.seq_id)

    def _gaps(self, seq_id: int) -> int:
        """Idle slots between the busy ones, were this one busy too."""
        ids = [slot.seq_id for slot in self._slots if slot.busy] + [seq_id]
        return max(ids) - min(ids) + 1 - len(ids)

    # -- by name --------------------------------------------------------------

    def copy(self, seq_id: int, owner: str = "") -> Kept:
        """An idle slot's conversation, which stays where it is."""
        slot = self._idle(seq_id)
        if not slot.tokens or slot.owner != owner:
            raise BadRequest(f"slot {seq_id} holds nothing of yours")
        saved = self._target.save(seq_id)
        self._stay(slot, saved)
        return Kept(owner, list(slot.tokens), saved, slot.n_firm)

    def _stay(self, slot: Slot, saved: Saved) -> None:
        """What stays of a sequence that was copied may be shorter than it."""
        if self._target.length(slot.seq_id) < len(slot.tokens):
            self._target.restore(slot.seq_id, saved)

    def fill(self, seq_id: int, kept: Kept) -> None:
        """Put a conversation into an idle slot."""
        slot = self._idle(seq_id)
        if len(kept.tokens) >= self._target.context_size:
            raise BadRequest(
                f"{len(kept.tokens)} tokens were saved, a slot holds"
                f" {self._target.context_size}; raise the context size"
            )
        self._put_away(slot)
        slot.tokens = []
        self._target.restore(seq_id, kept.saved)
        slot.owner = kept.owner
        self.release(seq_id, kept.tokens, kept.n_firm)

    def erase(self, seq_id: int, owner: str = "") -> int:
        """Forget an idle slot's conversation; how many tokens it had."""
        slot = self._idle(seq_id)
        if slot.owner != owner:
            return 0
        n, slot.tokens = len(slot.tokens), []
        self._target.clear(seq_id)
        return n

    def _idle(self, seq_id: int) -> Slot:
        if not 0 <= seq_id < len(self._slots):
            raise BadRequest(f"there is no slot {seq_id}; there are {len(self._slots)}")
        if self._slots[seq_id].busy:
            raise BadRequest(f"slot {seq_id} is making an answer; try again when it is idle")
        return self._slots[seq_id]

    def spare(self) -> int | None:
        """A free slot to try something in; what it held is lost. None: all are busy."""
        free = [slot for slot in self._slots if not slot.busy]
        if not free:
            return None
        spare = min(free, key=lambda slot: slot.last_used)
        spare.tokens, spare.n_firm = [], 0
        return spare.seq_id

    def release(self, seq_id: int, tokens: Seq[int], n_firm: int = 0) -> None:
        """The sequence ended; the cache keeps `tokens` for the next turn."""
        slot = self._slots[seq_id]
        slot.tokens = list(tokens)
        slot.n_firm = min(n_firm, len(slot.tokens))
        slot.busy = slot.copied = False
        self._clock += 1
        slot.last_used = self._clock

    def keep(self, seq_id: int, n: int) -> int:
        """Cut a slot's cache to its first n tokens, or to none where that cannot be done."""
        kept = self._target.reusable(seq_id, n)
        if kept == 0:
            self._target.clear(seq_id)
        elif kept < self._target.length(seq_id) and not self._cut(seq_id, kept):
            return 0
        return kept

    def _cut(self, seq_id: int, n: int) -> bool:
        """Whether the cache could be cut; one that could not is of no use to anybody."""
        try:
            self._target.truncate(seq_id, n)
        except DecodeError:
            self._target.clear(seq_id)
            return False
        return True
