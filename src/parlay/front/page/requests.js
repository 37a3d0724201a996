// The last requests, and one of them round by round.

import { get } from "./api.js";
import { announce, fill, h } from "./dom.js";
import { fixed, ms, percent, reason, times, whole } from "./format.js";

const SHOWN = 50;

export class Requests {
  #n = -1;
  #filter = {};
  #rows = [];

  constructor() {
    this.body = h("tbody");
    this.state = h("p", { class: "soft" }, "Loading …");
    const heads = ["when", "route", "status", "tokens", "tok/s", "accepted", "a pass", "speed-up", "first token", ""];
    this.table = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Last requests" },
      h("table", {}, h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name || h("span", { class: "hidden-text" }, "trace"))))), this.body));
    this.trace = h("section", { class: "card trace", id: "trace", tabindex: -1, hidden: true });
    this.element = h("section", { class: "card" }, h("h3", {}, "Last requests"), this.state, this.table, this.trace);
  }

  /** How many were answered so far, and which of them are wanted: read the list when it changed. */
  know(n, filter) {
    const same = filter.route === this.#filter.route && filter.model === this.#filter.model;
    this.#filter = filter;
    if (n !== this.#n) { this.#n = n; this.#load(); } else if (!same) this.#show();
  }

  async #load() {
    try {
      this.#rows = await get("/live/requests");
      this.#show();
    } catch (error) {
      this.#n = -1; // again at the next tick
      this.state.textContent = `The list could not be read: ${error.message}.`;
    }
  }

  #show() {
    const { route, model } = this.#filter;
    const rows = this.#rows.filter((row) => (route === "all" || row.policy === route) && (model === "all" || row.model === model));
    this.state.textContent = rows.length ? "" : "Nothing answered yet.";
    this.table.hidden = !rows.length;
    fill(this.body, rows.slice(0, SHOWN).map((row) => h("tr", {},
      cell(row.time.slice(11, 19)), cell(row.policy), cell(status(row)), cell(`${row.prompt_tokens} + ${row.generated}`, true),
      cell(fixed(row.tokens_per_second), true), cell(percent(row.drafted ? row.token_acceptance : null), true), cell(fixed(row.acceptance_length, 2), true),
      cell(times(row.drafted ? row.speedup : null), true), cell(ms(row.ttft_ms), true),
      h("td", {}, row.traced ? h("button", { class: "quiet", onclick: () => this.open(row.request_id), "aria-label": `Rounds of the request of ${row.time.slice(11, 19)}` }, "rounds") : ""))));
  }

  async open(id) {
    this.trace.hidden = false;
    fill(this.trace, h("p", { role: "status" }, "Loading the rounds …"));
    try {
      const found = await get(`/live/requests/${encodeURIComponent(id)}`);
      fill(this.trace, ...this.#rounds(found));
      announce("The rounds are shown.");
    } catch (error) {
      fill(this.trace, h("p", { class: "problem" }, `${error.message}.`), this.#closer());
    }
    this.trace.scrollIntoView({ block: "start" });
    this.trace.focus({ preventScroll: true });
  }

  #closer() {
    return h("button", { class: "quiet", onclick: () => { this.trace.hidden = true; this.table.focus(); } }, "Close");
  }

  #rounds(found) {
    const rounds = found.answers?.[0];
    const head = h("div", { class: "row" }, h("h4", {}, `Round by round: ${found.request_id}`), this.#closer());
    if (!rounds) return [head, h("p", {}, "The rounds of this request are no longer kept.")];
    const lost = found.rounds - 1 - rounds.length;
    const about = `${whole(found.generated)} tokens in ${whole(found.rounds)} passes on route ${found.policy}; ${found.drafted ? `${percent(found.token_acceptance)} of the guesses held.` : "nothing was guessed."}` +
      (lost > 0 ? ` The first ${lost} rounds are no longer kept.` : "") + (found.answers.length > 1 ? " The first of several answers." : "");
    return [head, h("p", { class: "soft" }, about), strip(rounds), this.#table(rounds)];
  }

  #table(rounds) {
    const heads = ["at token", "time", "proposer", "window", "drafted", "accepted", "made", "took", "expected", "was worth", "why"];
    return h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Rounds" }, h("table", {},
      h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rounds.map((r) => h("tr", {}, cell(r.position, true), cell(`${fixed(r.time_s, 2)} s`, true), cell(r.proposer), cell(r.window, true),
        cell(r.drafted, true), cell(r.accepted, true), cell(r.generated, true), cell(ms(r.round_ms), true), cell(times(r.expected_gain), true),
        cell(times(r.actual_gain), true), cell(r.drafted ? r.reason || "fixed window" : reason(r.reason)))))));
  }
}

const cell = (value, number = false) => h("td", { class: number ? "n" : null }, String(value));
const status = (row) => (row.status === 200 ? row.finish_reason ?? "ok" : row.status === 499 ? "client left" : `failed, ${row.status}`);

/** Every round as a column: what was drafted, and how much of it held. */
function strip(rounds) {
  const tall = Math.max(1, ...rounds.map((r) => r.drafted)) + 1;
  const label = `${rounds.length} rounds, ${rounds.filter((r) => r.drafted && r.accepted === r.drafted).length} whole drafts accepted`;
  return h("div", { class: "strip", role: "img", "aria-label": label }, rounds.slice(-400).map((r) => {
    const column = h("span", { title: `${r.accepted} of ${r.drafted} accepted, ${ms(r.round_ms)}` });
    for (const [kind, n] of [["rejected", r.drafted - r.accepted], ["accepted", r.accepted], ["own", r.generated - r.accepted]]) {
      if (n <= 0) continue;
      const part = h("span", { class: kind });
      part.style.height = `${(100 * n) / tall}%`;
      column.append(part);
    }
    return column;
  }));
}
