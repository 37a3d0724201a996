"""What reaches into ggml's own memory, since ggml has no call for it. Reached through fence.py.

Each part changes a record of ggml's only where everything that is known of that record is found in
it, and gives up otherwise. Knows contexts; nothing of drafts.
"""

from parlay.llama.hacks.recorder import make_recorder
from parlay.llama.hacks.work_memory import make_work_memory

__all__ = ["make_recorder", "make_work_memory"]
