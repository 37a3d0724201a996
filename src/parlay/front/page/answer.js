// One answer: tokens coloured by where they came from, and what that was worth.

import { h } from "./dom.js";
import { fixed, ms, percent, reason, times, verdict, whole } from "./format.js";

const PROPOSERS = ["suffix", "ngram", "model"];
export const KINDS = {
  accepted: "guessed, and confirmed",
  recovered: "guessed wrong, the model's own word instead",
  bonus: "the model's own, free after a right guess",
  plain: "the model's own, nothing was guessed",
};

const proposerClass = (name) => (PROPOSERS.includes(name) ? `from-${name}` : "from-other");

/** What the colours and lines mean. */
export function legend() {
  const row = (kind, extra = "") => h("li", {}, h("span", { class: `tok ${kind} ${extra}` }, kind), ` ${KINDS[kind]}`);
  return h("ul", { class: "legend", "aria-label": "What the marks mean" },
    row("accepted", "from-suffix"), row("recovered"), row("bonus"), row("plain"),
    h("li", {}, h("del", { class: "rejected shown" }, "rejected"), " a guess that was wrong"));
}

/** The text of an answer, growing. Each token knows when it came, for the replay. */
export class Text {
  constructor(label) {
    this.element = h("div", { class: "text", role: "group", "aria-label": label, tabindex: 0 });
    this.tokens = []; // {element, at_ms}
    this.counts = { accepted: 0, recovered: 0, bonus: 0, plain: 0 };
    this.by = {};
    this.n_rejected = 0;
    this.text = "";
  }

  push(origins) {
    for (const told of origins) {
      this.counts[told.origin] += 1;
      if (told.origin === "accepted") this.by[told.proposer] = (this.by[told.proposer] ?? 0) + 1;
      this.text += told.text;
      if (told.rejected) this.#reject(told);
      const element = h("span", { class: `tok ${told.origin} ${told.proposer ? proposerClass(told.proposer) : ""}`, title: hint(told) }, told.text);
      this.element.append(element);
      this.tokens.push({ element, at_ms: told.at_ms });
    }
  }

  #reject(told) {
    this.n_rejected += 1;
    const title = `${told.proposer} guessed this, and was wrong`;
    const shown = told.rejected.replaceAll("\n", "↵"); // it must not break the answer's own lines
    this.element.append(h("del", { class: "rejected", title }, shown));
  }

  get n() { return this.tokens.length; }

  /** Seconds from the first token to the last: what decoding took. */
  get decode_s() {
    return this.n > 1 ? (this.tokens[this.n - 1].at_ms - this.tokens[0].at_ms) / 1000 : 0;
  }

  get tokens_per_s() { return this.decode_s > 0 ? (this.n - 1) / this.decode_s : null; }
}

function hint(told) {
  if (told.origin === "accepted") return `accepted: guessed by ${told.proposer}`;
  if (told.origin === "recovered") return `recovered: ${told.proposer} had guessed “${told.rejected ?? ""}”`;
  if (told.origin === "bonus") return `bonus: the model's own, after a whole draft by ${told.proposer}`;
  return "plain: nothing was guessed";
}

/** How the tokens divide, as one bar with words. */
export function share(counts) {
  const total = Object.values(counts).reduce((a, b) => a + b, 0) || 1;
  const parts = Object.entries(counts).filter(([, n]) => n > 0);
  const label = parts.map(([kind, n]) => `${n} ${kind}`).join(", ");
  const bar = h("div", { class: "share", role: "img", "aria-label": `Tokens: ${label}` }, parts.map(([kind, n]) => {
    const piece = h("span", { class: `part ${kind}` });
    piece.style.flexGrow = n;
    return piece;
  }));
  const words = h("ul", { class: "share-words", "aria-hidden": true }, parts.map(([kind, n]) =>
    h("li", {}, h("span", { class: `dot ${kind}` }), `${n} ${kind} (${percent(n / total)})`)));
  return [bar, words];
}

/** The figures under an answer, from its last chunk. `beside`: another answer tells how fast it was. */
export function figures(text, last, onTrace, { beside = false, action = null } = {}) {
  const { speculation: told, timings } = last;
  const guessed = told.accepted ?? 0;
  const off = told.drafted === 0;
  const headline = off || beside
    ? h("p", { class: "headline" }, h("strong", {}, `${fixed(timings.predicted_per_second)} tok/s`), off ? " without a guess" : "")
    : h("p", { class: "headline" }, h("strong", { class: verdict(told.speedup) }, times(told.speedup)), " the speed of plain decoding");
  const sentence = off
    ? `${whole(text.n)} tokens, one pass of the model for each${why(told)}.`
    : `${guessed} of ${text.n} tokens were guessed right; ${told.rounds} passes of the model instead of ${text.n}.`;
  const exact = told.exact ? `Exact: the same bytes with any drafts or none (class ${told.exact_class}${costs(told)}).`
    : told.mode === "exact" ? `Exact was asked for, but not so: ${told.exact_reason}.` : "Faithful: every token is the model's own choice.";
  const rows = [
    ["speed", `${fixed(timings.predicted_per_second)} tokens/s`],
    ["first token after", ms(told.ttft_ms)],
    ["tokens a pass", fixed(told.acceptance_length, 2)],
    ["drafted, accepted", `${told.drafted}, ${told.accepted} (${percent(told.drafted ? told.token_acceptance : null)})`],
    ["draft / verify / other", `${ms(told.draft_ms)} / ${ms(told.verify_ms)} / ${ms(told.overhead_ms)}`],
    ["plain passes because", Object.entries(told.fallbacks).map(([name, n]) => `${reason(name)} ${n}`).join(", ") || "–"],
    ["route", told.policy],
  ];
  return h("div", { class: "figures" }, headline, h("p", { class: "sentence" }, sentence, " ", exact), share(text.counts),
    h("details", {}, h("summary", {}, "All figures"),
      h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      onTrace ? h("button", { class: "quiet", onclick: () => onTrace(last.id) }, "Round by round") : null), action ?? "");
}

function costs({ exact_cost_percent: cost }) {
  return cost === null || cost === undefined ? "" : `, which costs ${fixed(cost)} % of the speed here`;
}

function why(told) {
  const names = Object.keys(told.fallbacks).filter((name) => name !== "request");
  return names.length ? ` (${names.map(reason).join(", ")})` : "";
}

