// The bench pane: does it pay here? The prices of passes, the line above which guessing wins, an A/B.

import { ask, get } from "./api.js";
import { Chart } from "./charts.js";
import { announce, fill, h } from "./dom.js";
import { fixed, ms, percent, span, times } from "./format.js";

export class Bench {
  #state = "";
  #visible = false;

  constructor(pane, feed) {
    this.answer = h("p", { class: "headline" }, "Loading …");
    this.detail = h("p", { class: "sentence" });
    this.curve = new Chart("What a pass costs", "Time of one pass over b tokens, in plain passes; dashed: tokens such a round makes at the acceptance of late. Guessing pays where the dashed line is above.", { height: 240, showlegend: true, xaxis: { title: { text: "tokens in a pass (window + 1)" }, dtick: 2 }, yaxis: { title: { text: "plain passes, or tokens" } } });
    this.line = new Chart("Break-even", "The acceptance a window needs to pay; dashed: the acceptance of late.", { height: 240, showlegend: true, xaxis: { title: { text: "window" }, dtick: 2 }, yaxis: { range: [0, 1.05], tickformat: ".0%" } });
    this.pairs = h("select", { id: "bench-pairs" }, [1, 2, 3, 5].map((n) => h("option", { value: n, selected: n === 2 }, `${n} ${n === 1 ? "pair" : "pairs"}`)));
    this.tokens = h("select", { id: "bench-tokens" }, [16, 32, 64].map((n) => h("option", { value: n, selected: n === 32 }, `${n} tokens`)));
    this.start = h("button", { class: "primary", type: "submit", id: "bench-start" }, "Start");
    this.cancel = h("button", { class: "quiet", type: "button", id: "bench-cancel", hidden: true, onclick: () => this.#cancel() }, "Cancel");
    this.progress = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "Progress of the quick A/B" });
    this.said = h("p", { class: "soft", role: "status" }, "");
    this.result = h("div", { class: "result" });
    const form = h("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); this.#start(); } },
      h("label", { for: "bench-pairs" }, "Repeat"), this.pairs, h("label", { for: "bench-tokens" }, "Answers of"), this.tokens, this.start, this.cancel);
    fill(pane, h("h2", { class: "hidden-text" }, "Bench"),
      h("section", { class: "card pays" }, h("h3", {}, "Does it pay here?"), this.answer, this.detail),
      h("div", { class: "charts" }, this.curve.element, this.line.element),
      h("section", { class: "card" }, h("h3", {}, "Quick A/B"),
        h("p", { class: "sentence" }, "One short prompt of each kind, answered with and without speculation in mirrored order on the models that are loaded. Others' requests are answered meanwhile and disturb it. For a result to rely on: parlay bench."),
        form, this.progress, this.said, this.result));
    feed.addEventListener("bench", ({ detail }) => this.#show(detail));
  }

  visible(on) {
    this.#visible = on;
    if (on) this.#load();
  }

  async #load() {
    try {
      const [costs, bench] = await Promise.all([get("/live/costs"), get("/live/bench")]);
      this.#costs(costs);
      this.#show(bench);
    } catch (error) {
      this.answer.textContent = "Not known now.";
      this.detail.textContent = `${error.message}.`;
    }
  }

  #costs(costs) {
    this.answer.textContent = costs.headline;
    this.detail.textContent = costs.text;
    if (!costs.rows.length) {
      for (const chart of [this.curve, this.line]) chart.clear("Passes were not timed yet. The quick A/B does it.");
      return;
    }
    const rows = costs.rows.map((row) => row.rows);
    const made = costs.windows.filter((w) => w.tokens !== null);
    const traces = [{ type: "scatter", mode: "lines+markers", name: "cost", x: rows, y: costs.rows.map((row) => row.ms / costs.plain_ms), hovertemplate: "%{x} tokens cost %{y:.2f} passes<extra></extra>" }];
    if (made.length) traces.push({ type: "scatter", mode: "lines", name: "tokens made", paint: "recovered", line: { dash: "dash" }, x: made.map((w) => w.window + 1), y: made.map((w) => w.tokens) });
    this.curve.draw(traces, costs.rows.map((row) => `${row.rows}: ${ms(row.ms)}`).join(", "));
    const needed = costs.windows.filter((w) => w.break_even !== null);
    const lines = [{ type: "scatter", mode: "lines+markers", name: "needed", x: needed.map((w) => w.window), y: needed.map((w) => w.break_even) }];
    if (costs.acceptance !== null) lines.push({ type: "scatter", mode: "lines", name: "of late", paint: "recovered", line: { dash: "dash" }, x: needed.map((w) => w.window), y: needed.map(() => costs.acceptance) });
    if (needed.length) this.line.draw(lines, needed.map((w) => `window ${w.window}: ${percent(w.break_even)}`).join(", "));
    else this.line.clear("No window pays here, however good the guesses.");
  }

  async #start() {
    this.start.disabled = true;
    try {
      const response = await ask("/live/bench", { json: { pairs: Number(this.pairs.value), max_tokens: Number(this.tokens.value) } });
      this.#show(await response.json());
    } catch (error) {
      this.said.textContent = `Not started: ${error.message}.`;
      this.start.disabled = false;
    }
  }

  async #cancel() {
    this.cancel.disabled = true;
    await ask("/live/bench", { method: "DELETE" }).catch(() => {});
  }

  #show(bench) {
    const running = bench.state === "running";
    this.start.disabled = running;
    this.cancel.hidden = !running;
    this.cancel.disabled = false;
    this.progress.hidden = !running;
    if (running) {
      this.progress.value = bench.total ? bench.done / bench.total : 0;
      const left = bench.left_s === null ? "" : `, about ${span(bench.left_s)} left`;
      this.said.textContent = `${bench.what}: ${bench.done} of ${bench.total} answers${left}`;
    } else {
      this.said.textContent = { failed: `It failed: ${bench.error}.`, cancelled: "Cancelled.", idle: "Not run yet." }[bench.state] ?? "";
    }
    if (bench.state === this.#state) return;
    const before = this.#state;
    this.#state = bench.state;
    if (bench.result) fill(this.result, this.#outcome(bench.result));
    else if (running) fill(this.result);
    if (bench.state === "done" && before === "running") {
      announce(`Quick A/B done: ${this.result.querySelector(".headline")?.textContent ?? ""}`);
      if (this.#visible) this.#load();
    }
  }

  #outcome(result) {
    const word = { faster: "faster", slower: "slower" }[result.verdict] ?? "unknown";
    const said = word === "unknown" ? " No difference that could be told from noise." : ` the speed with speculation: ${word}.`;
    const head = h("p", { class: "headline" }, h("strong", { class: word }, times(result.ratio)), said);
    const interval = result.low === null ? "No interval could be told." : `95 % interval ${times(result.low)} to ${times(result.high)}${result.scope === "prompts" ? " (for these prompts only)" : ""}, ${result.n_pairs} pairs.`;
    const texts = `${result.identical} of ${result.compared} texts identical.`;
    const rates = `${fixed(result.plain_tokens_per_s)} tokens/s without, ${fixed(result.tokens_per_s)} with.`;
    const others = result.others ? ` ${result.others} other requests were answered meanwhile: worth little.` : "";
    return [head, bar(result), h("p", { class: "sentence" }, `${interval} ${rates} ${texts}${others}`),
      h("p", {}, h("a", { href: result.report, target: "_blank", rel: "noopener" }, "Open the report"))];
  }
}

/** The interval on a line with a mark at 1. */
function bar(result) {
  if (result.low === null) return null;
  const low = Math.min(0.5, result.low), high = Math.max(2, result.high);
  const at = (x) => (100 * Math.log(x / low)) / Math.log(high / low);
  const [one, range, point, label] = ["one", "range", "point", "label"].map((name) => h("span", { class: name }));
  label.textContent = "1×";
  label.style.left = `${at(1)}%`;
  one.style.left = `${at(1)}%`;
  range.style.left = `${at(result.low)}%`;
  range.style.width = `${at(result.high) - at(result.low)}%`;
  point.style.left = `${at(result.ratio)}%`;
  return h("div", { class: "interval", role: "img", "aria-label": `Speed-up ${times(result.ratio)}, interval ${times(result.low)} to ${times(result.high)}` }, one, range, point, label);
}
