"""The answers that edits-16 asks for, made from its files by the edits themselves.

Knows the suite's prompts by their ids, no model. A small model often paraphrases where it should
copy; with these a benchmark can let any model say the edit that was wanted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

Edit = tuple[str, str]  # a pattern (lines and all), and what takes its place everywhere

_GO_METHODS: Final = r"""// Sum returns the sum of all numbers.
func (g *Grid) Sum() float64 {
	total := 0.0
	for _, value := range g.cells {
		total += value
	}
	return total
}

// Equal says whether two grids are the same.
func (g *Grid) Equal(other *Grid) bool {
	if g.rows != other.rows || g.cols != other.cols {
		return false
	}
	for i := range g.cells {
		if g.cells[i] != other.cells[i] {
			return false
		}
	}
	return true
}

"""
_WORKSHOPS: Final = """## Workshops

Workshops are on the first Saturday of each month at 15:00. They cost nothing for members and
5 coins for others. The next ones are about

- sharpening knives,
- hanging doors.

"""
_ORCHIDS: Final = """  - name: orchids
    area_m2: 30
    temperature:
      day: 23
      night: 19
      alarm_below: 15
      alarm_above: 29
    humidity:
      target: 80
      tolerance: 4
    light:
      start: "08:00"
      end: "18:30"
      watts: 350
    watering:
      every_h: 12
      seconds: 10

"""
_LONGEST: Final = """    /** The longest word, or an empty text. */
    public String longest() {
        String found = "";
        for (String word : order) {
            if (word.length() > found.length()) {
                found = word;
            }
        }
        return found;
    }

"""
_OLEANDER: Final = """[oleander]
light = sun
water = often
degrees = 22
soil = rich
repot = spring

"""
_EDITS: Final[Mapping[str, tuple[Edit, ...]]] = {
    "rename-01": ((r"\bMovement\b", "StockChange"), (r"\bchange\b", "amount")),
    "rename-02": ((r"\bparseTime\b", "readTime"), (r"\bformatTime\b", "writeTime")),
    "rename-03": ((r"\border_lines\b", "positions"),),
    "rename-04": ((r"\bwatering:", "irrigation:"), (r"\bevery_h:", "interval_h:")),
    "rename-05": ((r"Alder Court", "Linden Court"), (r"(?:Mr|Ms|Mrs) \w+", "Ms Okafor")),
    "insertion-01": ((r"(?=// Transpose turns)", _GO_METHODS),),
    "insertion-02": ((r"(?=## Bringing tools back)", _WORKSHOPS),),
    "insertion-03": ((r"(?=  - name: ferns)", _ORCHIDS),),
    "insertion-04": ((r"(?=    /\*\* Forgets everything)", _LONGEST),),
    "insertion-05": ((r"(\[nettle\]\n(?:.+\n)+\n?)", r"\1" + _OLEANDER),),
    "deletion-01": (
        (r"        self\.verbose = False\n", ""),
        (r"    def log\(self, message\):\n(?:        .+\n)+\n", ""),
        (r" +self\.log\(.+\)\n", ""),
    ),
    "deletion-02": (
        (r"\.card\.warning[^{]*\{[^}]*\}\n\n", ""),
        (r"@media [^\n]*\n(?:  .*\n)+\}\n", ""),
    ),
    "deletion-03": (
        (r"function range\(.*?\n\}\n\n", ""),
        (r"function draw\(.*?\n\}\n\n", ""),
        (r" range, draw,", ""),
    ),
    "deletion-04": ((r"# Printing\n(?:print\..+\n)+\n", ""),),
}
_REWRITES: Final = {
    "rewrite-01": """// Stock of a small warehouse: what came in, what went out, what is low.

class Item {
  constructor(sku, name, count = 0, minimum = 5, price = 0) {
    Object.assign(this, { sku, name, count, minimum, price });
  }
}

class Movement {
  constructor(sku, change, day, note = "") {
    Object.assign(this, { sku, change, day, note });
  }
}

class Inventory {
  constructor() {
    this.items = new Map();
    this.movements = [];
  }

  addItem(item) {
    if (this.items.has(item.sku)) {
      throw new Error(`${item.sku} is known already`);
    }
    this.items.set(item.sku, item);
  }

  receive(sku, count, day, note = "") {
    if (count <= 0) {
      throw new Error("receive at least one");
    }
    this.find(sku).count += count;
    this.movements.push(new Movement(sku, count, day, note));
  }

  issue(sku, count, day, note = "") {
    if (count <= 0) {
      throw new Error("issue at least one");
    }
    const item = this.find(sku);
    if (item.count < count) {
      throw new Error(`only ${item.count} of ${sku} are left`);
    }
    item.count -= count;
    this.movements.push(new Movement(sku, -count, day, note));
  }

  find(sku) {
    const item = this.items.get(sku);
    if (item === undefined) {
      throw new Error(`${sku} is not known`);
    }
    return item;
  }
}

module.exports = { Item, Movement, Inventory };
""",
    "rewrite-02": """NEW WATER PIPES

1. From Monday, 2 June, to Friday, 11 July.
2. A week for every six flats, staircase A first.
3. No water in your week from eight to four.
4. The tap in the yard works all the time.
5. Clear one metre on each side of the pipes.
6. Be at home on the first morning, or leave a key.
7. Drilling from nine to twelve and from one to three.
8. Keep the stairs free: they are the way out.
""",
}


def wanted(prompt: str, file: str) -> str:
    """The file that a prompt of edits-16 asks for, given the one it shows."""
    if prompt in _REWRITES:
        return _REWRITES[prompt]
    for pattern, new in _EDITS[prompt]:
        file, n = re.subn(pattern, new, file, flags=re.DOTALL if "function" in pattern else 0)
        if not n:
            raise ValueError(f"{prompt}: nothing of the file matches {pattern!r}")
    return file
