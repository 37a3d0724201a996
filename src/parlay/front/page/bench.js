// The bench pane: a quick A/B. Short prompts are asked at the ordinary door, with speculation and
// without, in mirrored order; the server does nothing that it would not do for any client.

import { ask } from "./api.js";
import { announce, fill, h } from "./dom.js";
import { fixed, times, verdict } from "./format.js";

const PROMPTS = [
  "Write a Python function that reverses a linked list, then the same function with type hints.",
  "Explain to a child why the sky is blue.",
  "List the numbers from 1 to 60, one a line.",
  "Repeat this sentence five times: The quick brown fox jumps over the lazy dog.",
];
// Student's t at 97.5 % by degrees of freedom; beyond the table as of a normal distribution.
const T = [12.71, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.2, 2.18, 2.16, 2.14, 2.13];

export class Bench {
  #running = null;

  constructor(pane) {
    this.pairs = h("select", { id: "bench-pairs" }, [1, 2, 3, 5].map((n) => h("option", { value: n, selected: n === 2 }, `${n} ${n === 1 ? "pair" : "pairs"}`)));
    this.tokens = h("select", { id: "bench-tokens" }, [16, 32, 64].map((n) => h("option", { value: n, selected: n === 32 }, `${n} tokens`)));
    this.start = h("button", { class: "primary", type: "submit", id: "bench-start" }, "Start");
    this.cancel = h("button", { class: "quiet", type: "button", id: "bench-cancel", hidden: true, onclick: () => this.#running?.abort() }, "Cancel");
    this.progress = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "Progress of the quick A/B" });
    this.said = h("p", { class: "soft", role: "status" }, "Not run yet.");
    this.result = h("div", { class: "result" });
    const form = h("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); this.#run(); } },
      h("label", { for: "bench-pairs" }, "Each prompt"), this.pairs, h("label", { for: "bench-tokens" }, "Answers of"), this.tokens, this.start, this.cancel);
    fill(pane, h("h2", { class: "hidden-text" }, "Bench"),
      h("section", { class: "card" }, h("h3", {}, "Quick A/B"),
        h("p", { class: "sentence" }, "Short prompts of four kinds, answered with and without speculation in mirrored order. Others' requests are answered meanwhile and disturb it. For a result to rely on: parlay bench."),
        form, this.progress, this.said, this.result));
  }

  async #run() {
    if (this.#running) return;
    this.#running = new AbortController();
    this.#busy(true);
    const pairs = [], total = Number(this.pairs.value) * PROMPTS.length;
    try {
      await this.#answer(PROMPTS[0], true); // what is loaded or measured first is loaded now
      for (let n = 0; n < total; n += 1) {
        this.progress.value = n / total;
        this.said.textContent = `Pair ${n + 1} of ${total}`;
        const prompt = PROMPTS[n % PROMPTS.length], order = n % 2 ? [true, false] : [false, true];
        const sides = {};
        for (const on of order) sides[on] = await this.#answer(prompt, on);
        pairs.push({ plain: sides.false, fast: sides.true });
      }
      this.said.textContent = "";
      fill(this.result, outcome(pairs));
      announce(`Quick A/B done: ${this.result.querySelector(".headline")?.textContent ?? ""}`);
    } catch (error) {
      this.said.textContent = error.name === "AbortError" ? "Cancelled." : `It failed: ${error.message}.`;
    } finally {
      this.#running = null;
      this.#busy(false);
    }
  }

  #busy(on) {
    this.start.disabled = on;
    this.cancel.hidden = !on;
    this.progress.hidden = !on;
    if (on) fill(this.result);
  }

  /** One whole answer: its text, and the milliseconds of a token after the first. */
  async #answer(prompt, speculation) {
    const json = {
      messages: [{ role: "user", content: prompt }], max_tokens: Number(this.tokens.value), temperature: 0,
      speculation, prompt_cache_key: crypto.getRandomValues(new Uint32Array(4)).join("-"), // nobody's earlier answers
    };
    const told = await (await ask("/v1/chat/completions", { json, signal: this.#running.signal })).json();
    const [{ message }] = told.choices;
    return { text: `${message.reasoning_content ?? ""}${message.content ?? ""}`, ms: told.timings.predicted_per_token_ms, drafted: told.speculation.drafted };
  }
}

function outcome(pairs) {
  const timed = pairs.filter(({ plain, fast }) => plain.ms > 0 && fast.ms > 0);
  if (!timed.length) return [h("p", { class: "headline" }, "The answers were too short to compare.")];
  const logs = timed.map(({ plain, fast }) => Math.log(plain.ms / fast.ms));
  const mean = logs.reduce((sum, x) => sum + x, 0) / logs.length;
  const spread = Math.sqrt(logs.reduce((sum, x) => sum + (x - mean) ** 2, 0) / Math.max(1, logs.length - 1));
  const half = logs.length > 1 ? ((T[logs.length - 2] ?? 2) * spread) / Math.sqrt(logs.length) : null;
  const ratio = Math.exp(mean), low = half === null ? null : Math.exp(mean - half), high = half === null ? null : Math.exp(mean + half);
  const told = low !== null && (low > 1 || high < 1);
  const rate = (side) => 1000 / (timed.reduce((sum, pair) => sum + pair[side].ms, 0) / timed.length);
  const same = pairs.filter(({ plain, fast }) => plain.text === fast.text).length;
  const drafted = pairs.some(({ fast }) => fast.drafted);
  const said = told ? ` the speed with speculation: ${verdict(ratio)}.` : " No difference that could be told from noise.";
  const interval = low === null ? "One pair has no interval." : `95 % interval ${times(low)} to ${times(high)}, ${timed.length} pairs.`;
  return [
    drafted ? h("p", { class: "headline" }, h("strong", { class: told ? verdict(ratio) : "unknown" }, times(ratio)), said)
      : h("p", { class: "headline" }, "Nothing was guessed, so both decoded plainly. What is left of a difference is the machine's noise."),
    low === null ? null : bar(ratio, low, high),
    h("p", { class: "sentence" }, `${interval} ${fixed(rate("plain"))} tokens/s without, ${fixed(rate("fast"))} with. ${same} of ${pairs.length} texts identical.`),
  ];
}

/** The interval on a line with a mark at 1. */
function bar(ratio, low, high) {
  const left = Math.min(0.5, low), right = Math.max(2, high);
  const at = (x) => (100 * Math.log(x / left)) / Math.log(right / left);
  const [one, range, point, label] = ["one", "range", "point", "label"].map((name) => h("span", { class: name }));
  label.textContent = "1×";
  label.style.left = `${at(1)}%`;
  one.style.left = `${at(1)}%`;
  range.style.left = `${at(low)}%`;
  range.style.width = `${at(high) - at(low)}%`;
  point.style.left = `${at(ratio)}%`;
  return h("div", { class: "interval", role: "img", "aria-label": `Speed-up ${times(ratio)}, interval ${times(low)} to ${times(high)}` }, one, range, point, label);
}
