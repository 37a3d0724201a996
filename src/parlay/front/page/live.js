// The live pane: what the server does now, filtered by route and model, and its last requests.

import { ask } from "./api.js";
import { Chart } from "./charts.js";
import { announce, fill, h } from "./dom.js";
import { bytes, fixed, percent, reason, span, times, verdict, whole } from "./format.js";
import { Requests } from "./requests.js";

const KEPT = 300; // points of each course
const PATTERNS = { draft: "/", verify: "", overhead: "." };

export class Live {
  #groups = new Map(); // "route model" -> points
  #snapshot = null;
  #visible = false;
  #alerts = "";

  constructor(pane, feed) {
    this.pane = pane;
    this.requests = new Requests();
    this.#build();
    feed.addEventListener("history", ({ detail }) => this.#history(detail));
    feed.addEventListener("snapshot", ({ detail }) => this.#take(detail));
    feed.addEventListener("state", ({ detail }) => { this.pane.classList.toggle("stale", detail.state === "lost"); });
  }

  visible(on) {
    this.#visible = on;
    if (on) this.#draw();
  }

  /** One request, round by round. */
  open(id) { this.requests.open(id); }

  #build() {
    this.tiles = ["tokens a second", "speed-up", "guesses accepted", "tokens a pass"].map((name) => {
      const value = h("strong", {}, "–"), small = h("small", {}, "waiting for the server");
      return { value, small, element: h("div", { class: "tile" }, h("h3", {}, name), value, small) };
    });
    this.alerts = h("div", { class: "alerts", role: "status" });
    this.route = h("select", { id: "filter-route", onchange: () => this.#draw() }, h("option", { value: "all" }, "all routes"));
    this.model = h("select", { id: "filter-model", onchange: () => this.#draw() }, h("option", { value: "all" }, "all names"));
    const time = { xaxis: { title: { text: "seconds ago" } } };
    this.charts = {
      speed: new Chart("Tokens per second", "All sequences together; dotted: what plain decoding would have made of the same time.", time),
      gain: new Chart("Speed-up", "Above the line speculation wins, below it loses.", time),
      window: new Chart("Window", "Tokens drafted in a round, mean of each second.", time),
      positions: new Chart("Acceptance by position", "Of the last rounds: how often the first, second, … guess held, if the ones before it did.", { yaxis: { range: [0, 1.05], tickformat: ".0%" }, xaxis: { dtick: 1, title: { text: "position in the draft" } } }),
      split: new Chart("Where the time goes", "Of the last rounds, milliseconds for each token.", { barmode: "stack", showlegend: true, height: 165, legend: { orientation: "h", traceorder: "normal", y: 1.05, yanchor: "bottom", x: 0 }, xaxis: { title: { text: "ms a token" } }, yaxis: { showticklabels: false } }),
      fallbacks: new Chart("Why it did not guess", "Plain rounds among the last, by reason.", { margin: { l: 130, r: 12, t: 8, b: 34 }, xaxis: { title: { text: "rounds" } } }),
    };
    this.slots = h("ul", { class: "slots" });
    this.queue = h("p", {}, "–");
    this.memory = h("div", { class: "memory" });
    this.recalled = h("span", {});
    this.remembered = h("p", { class: "soft", hidden: true }, this.recalled, " ",
      h("button", { type: "button", id: "forget", onclick: () => this.#forget() }, "Forget them"));
    const filters = h("div", { class: "filters" },
      h("label", { for: "filter-route" }, "Route"), this.route, h("label", { for: "filter-model" }, "Model"), this.model,
      this.about = h("span", { class: "soft" }));
    fill(this.pane, h("h2", { class: "hidden-text" }, "Live figures"), this.alerts, filters,
      h("div", { class: "tiles" }, this.tiles.map((tile) => tile.element)),
      h("div", { class: "charts" }, Object.values(this.charts).map((chart) => chart.element)),
      h("div", { class: "charts" },
        h("section", { class: "card" }, h("h3", {}, "Slots and queue"), this.slots, this.queue),
        h("section", { class: "card" }, h("h3", {}, "Memory against the plan"), this.memory, this.remembered)),
      this.requests.element);
  }

  // -- data -----------------------------------------------------------------

  #history({ groups }) {
    this.#groups.clear();
    for (const { route, model, points } of groups) this.#groups.set(`${route}\n${model}`, points.slice(-KEPT));
  }

  #take(snapshot) {
    this.#snapshot = snapshot;
    for (const group of snapshot.groups) {
      const name = `${group.route}\n${group.model}`;
      const points = this.#groups.get(name) ?? [];
      points.push({ time: snapshot.time, ...group.now });
      if (points.length > KEPT) points.shift();
      this.#groups.set(name, points);
    }
    const names = new Set(snapshot.groups.map((group) => `${group.route}\n${group.model}`));
    for (const name of this.#groups.keys()) if (!names.has(name)) this.#groups.delete(name);
    this.#options(this.route, "all routes", snapshot.groups.map((group) => group.route));
    this.#options(this.model, "all names", snapshot.groups.map((group) => group.model));
    this.#sayAlerts(snapshot.alerts);
    if (this.#visible && !document.hidden) this.#draw();
  }

  #options(select, all, names) {
    const wanted = ["all", ...[...new Set(names)].filter((name) => name !== "all").sort()];
    const have = [...select.options].map((option) => option.value);
    if (wanted.join("\n") === have.join("\n")) return;
    const chosen = select.value;
    fill(select, wanted.map((name) => h("option", { value: name, selected: name === chosen }, name === "all" ? all : name)));
  }

  /** The group the filters choose; several groups of one route, or of one model, are added up. */
  #chosen() {
    const { value: route } = this.route, { value: model } = this.model;
    const fits = (group) => (route === "all" || group.route === route) && (model === "all" || group.model === model);
    if (route === "all" && model === "all") return [this.#snapshot.groups[0]];
    return this.#snapshot.groups.slice(1).filter(fits);
  }

  async #forget() {
    await ask("/memory", { method: "DELETE" });
    this.recalled.textContent = "Forgotten.";
    announce("What earlier answers left is forgotten.");
  }

  // -- what is seen ---------------------------------------------------------

  #draw() {
    const snapshot = this.#snapshot;
    if (!snapshot || !this.#visible) return;
    this.requests.know(snapshot.answered, { route: this.route.value, model: this.model.value });
    this.about.textContent = `up ${span(snapshot.uptime_s)} · ${whole(snapshot.answered)} answered · ${snapshot.viewers} watching`;
    this.#machine(snapshot);
    const groups = this.#chosen();
    const recent = added(groups);
    this.#tiles(groups, recent);
    this.#courses(groups);
    this.#bars(recent);
  }

  #tiles(groups, recent) {
    const now = groups.reduce((sum, group) => sum + group.now.tokens_per_s, 0);
    const total = groups.reduce((sum, group) => sum + group.generated, 0);
    const [speed, gain, accepted, length] = this.tiles;
    speed.value.textContent = fixed(now);
    speed.small.textContent = now > 0 ? `${whole(total)} tokens in all` : `idle; ${whole(total)} tokens in all`;
    const none = "no rounds yet";
    gain.value.textContent = times(recent.speedup);
    gain.value.className = verdict(recent.speedup);
    gain.small.textContent = !recent.rounds ? none : recent.drafted ? `over plain decoding, last ${recent.rounds} rounds` : `nothing drafted in ${recent.rounds} rounds`;
    accepted.value.textContent = recent.drafted ? percent(recent.accepted / recent.drafted) : "–";
    accepted.small.textContent = recent.drafted ? `${recent.accepted} of ${recent.drafted} drafted` : recent.rounds ? "nothing drafted" : none;
    length.value.textContent = recent.rounds ? fixed(recent.generated / recent.rounds, 2) : "–";
    length.small.textContent = recent.rounds ? "1 is plain decoding" : none;
  }

  #courses(groups) {
    const points = groups.length === 1 ? this.#groups.get(`${groups[0].route}\n${groups[0].model}`) ?? [] : summed(groups.map((g) => this.#groups.get(`${g.route}\n${g.model}`) ?? []));
    const x = points.map((point) => Math.round(point.time - this.#snapshot.time));
    const { speed, gain, window } = this.charts;
    if (!points.some((point) => point.rounds)) {
      for (const chart of [speed, gain, window]) chart.clear("Nothing was answered in these minutes. Send a chat, and watch.");
      return;
    }
    const xaxis = since(x[0] ?? 0);
    const plain = points.map((p) => (p.speedup ? p.tokens_per_s / p.speedup : null));
    speed.draw([
      { type: "scatter", mode: "lines", name: "made", x, y: points.map((p) => p.tokens_per_s), fill: "tozeroy", fillcolor: "rgba(0,114,178,0.10)" },
      { type: "scatter", mode: "lines", name: "plain would make", x, y: plain, paint: "soft", line: { dash: "dot" } },
    ], `now ${fixed(points.at(-1).tokens_per_s)}`, { xaxis });
    const line = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { width: 1.5, dash: "dot", color: "#808890" } };
    const gains = points.map((p) => p.speedup);
    gain.draw([{ type: "scatter", mode: "lines+markers", marker: { size: 4 }, name: "speed-up", x, y: gains }], `latest ${times(gains.findLast((g) => g !== null))}`, { xaxis, shapes: [line], yaxis: { ticksuffix: "×" } });
    const windows = points.map((p) => p.window);
    window.draw([{ type: "scatter", mode: "lines+markers", marker: { size: 4 }, line: { shape: "hv" }, name: "drafted a round", x, y: windows }], `latest ${fixed(windows.findLast((w) => w !== null), 1)}`, { xaxis, yaxis: { rangemode: "tozero" } });
  }

  #bars(recent) {
    const { positions, split, fallbacks } = this.charts;
    const shares = recent.positions;
    if (shares.length) positions.draw([{ type: "bar", name: "accepted", x: shares.map((_, i) => i + 1), y: shares }], shares.map((s, i) => `${i + 1}: ${percent(s)}`).join(", "));
    else positions.clear("Nothing was drafted yet.");
    const parts = ["draft", "verify", "overhead"].map((name) => [name, recent.generated ? recent[`${name}_ms`] / recent.generated : 0]);
    if (recent.rounds) {
      const paints = { draft: "recovered", verify: "accent", overhead: "bonus" };
      split.draw(parts.map(([name, value]) => ({ type: "bar", orientation: "h", name: `${name} ${fixed(value, 2)}`, x: [value], y: [""], paint: paints[name], marker: { pattern: { shape: PATTERNS[name] } }, hovertemplate: `${name} %{x:.2f} ms<extra></extra>` })), parts.map(([name, value]) => `${name} ${fixed(value, 2)} ms`).join(", "));
    } else split.clear("No rounds yet.");
    const reasons = Object.entries(recent.fallbacks).sort((a, b) => a[1] - b[1]);
    if (reasons.length) fallbacks.draw([{ type: "bar", orientation: "h", name: "rounds", y: reasons.map(([name]) => reason(name)), x: reasons.map(([, n]) => n), paint: "soft" }], reasons.map(([name, n]) => `${reason(name)} ${n}`).join(", "));
    else fallbacks.clear(recent.rounds ? "Every round had a guess." : "No rounds yet.");
  }

  #machine(snapshot) {
    fill(this.slots, snapshot.slots.map((slot) => {
      const full = slot.cached / snapshot.context_size;
      const meter = h("span", { class: "fill" });
      meter.style.width = `${100 * full}%`;
      const words = slot.busy ? `${slot.prompt} + ${slot.generated} tokens` : slot.cached ? `idle, ${slot.cached} kept` : "idle";
      return h("li", { class: slot.busy ? "slot busy" : "slot" }, h("span", { class: "name" }, `slot ${slot.id}`), h("span", { class: "track", "aria-hidden": true }, meter), h("span", {}, words));
    }));
    const { waiting, size } = snapshot.queue;
    this.queue.textContent = waiting ? `${waiting} waiting, room for ${size}` : `nobody waits; room for ${size}`;
    const recalled = snapshot.remembered_tokens;
    this.remembered.hidden = recalled === null || recalled === undefined;
    this.recalled.textContent = `${whole(recalled ?? 0)} tokens of earlier answers are remembered for guesses.`;
    const { memory } = snapshot;
    const where = memory.place === "gpu" ? "GPU" : "RAM";
    const most = Math.max(memory.used_bytes, memory.planned_bytes ?? 0) || 1;
    const row = (name, value, kind) => {
      const meter = h("span", { class: `fill ${kind}` });
      meter.style.width = `${(100 * (value ?? 0)) / most}%`;
      return h("div", { class: "slot" }, h("span", { class: "name" }, name), h("span", { class: "track", "aria-hidden": true }, meter), h("span", {}, bytes(value)));
    };
    fill(this.memory, row("planned", memory.planned_bytes, "planned"), row("used", memory.used_bytes, "used"),
      h("p", { class: "soft" }, `${where}, models and caches planned; ${memory.place === "gpu" ? "all that the device holds" : "the engine's process"} used. The machine's memory is ${fixed(memory.used_pct, 0)} % full; at ${fixed(memory.limit_pct, 0)} % the drafter is given up.`));
  }

  #sayAlerts(alerts) {
    const state = alerts.map((alert) => alert.kind).join();
    if (state === this.#alerts) return;
    this.#alerts = state;
    fill(this.alerts, alerts.map((alert) => h("p", { class: "alert" }, h("strong", {}, `! ${alert.kind.replaceAll("_", " ")}`), ` ${alert.message}`)));
    if (alerts.length) announce(`Alert: ${alerts.map((alert) => alert.message).join("; ")}`);
  }
}

/** A time axis from the oldest point to now, a minute at least. */
function since(oldest) {
  const length = Math.min(KEPT, Math.max(60, -oldest));
  const tickvals = [1, 0.75, 0.5, 0.25, 0].map((part) => -Math.round(part * length));
  return { range: [-length, 0.5], tickvals, ticktext: tickvals.map((t) => (t === 0 ? "now" : String(-t))) };
}

/** The last rounds of some groups, as one. */
function added(groups) {
  const sum = { rounds: 0, generated: 0, drafted: 0, accepted: 0, draft_ms: 0, verify_ms: 0, overhead_ms: 0, fallbacks: {}, positions: [], speedup: null };
  let weight = 0, gain = 0, best = 0;
  for (const { recent } of groups) {
    for (const name of ["rounds", "generated", "drafted", "accepted", "draft_ms", "verify_ms", "overhead_ms"]) sum[name] += recent[name];
    for (const [name, n] of Object.entries(recent.fallbacks)) sum.fallbacks[name] = (sum.fallbacks[name] ?? 0) + n;
    const spent = recent.draft_ms + recent.verify_ms + recent.overhead_ms;
    if (recent.speedup !== null) { gain += recent.speedup * spent; weight += spent; }
    if (recent.drafted > best) { best = recent.drafted; sum.positions = recent.acceptance_by_position; }
  }
  if (weight) sum.speedup = gain / weight;
  return sum;
}

/** Courses of several groups, second by second. */
function summed(courses) {
  const seconds = new Map();
  for (const point of courses.flat()) {
    const at = Math.round(point.time);
    const old = seconds.get(at);
    if (!old) { seconds.set(at, { ...point, time: at }); continue; }
    const n = old.rounds + point.rounds;
    const mean = (name) => (!point.rounds ? old[name] : !old.rounds ? point[name] : (old[name] * old.rounds + point[name] * point.rounds) / n);
    Object.assign(old, { speedup: mean("speedup"), window: mean("window"), tokens_per_s: old.tokens_per_s + point.tokens_per_s, rounds: n });
  }
  return [...seconds.values()].sort((a, b) => a.time - b.time);
}

