// The chat pane: talk to the model with speculation, without, or the same prompt both ways.

import { ask, events } from "./api.js";
import { announce, fill, h } from "./dom.js";
import { times } from "./format.js";
import { Text, figures, legend } from "./answer.js";
import { Race } from "./race.js";

const MAX_TURNS = 24; // of the conversation that go to the server
const MAX_SHOWN = 40; // exchanges on the page
const MODES = [["with", "With speculation"], ["without", "Without"], ["both", "Side by side"]];
const EXAMPLES = [
  ["Text that repeats itself", "Write ten times: The quick brown fox jumps over the lazy dog."],
  ["Edit some code", "Rename total to amount in this code and return all of it:\n\ndef total(prices):\n    total = 0\n    for price in prices:\n        total = total + price\n    print(total)\n    return total"],
  ["Something new", "Write a short story about a lighthouse keeper who finds a letter."],
];

export class Chat {
  #turns = [];
  #running = null;

  constructor(pane, onTrace) {
    this.onTrace = onTrace;
    this.log = h("div", { class: "log" });
    this.empty = this.#empty();
    this.log.append(this.empty);
    this.form = this.#form();
    fill(pane, h("h2", { class: "hidden-text" }, "Chat"), this.log, this.form);
  }

  /** What the server says about itself. */
  know(snapshot) {
    for (const option of this.guess.options) option.disabled = option.value !== "" && !snapshot.proposers.length;
  }

  #empty() {
    return h("div", { class: "empty" },
      h("h3", {}, "See which words were guessed"),
      h("p", {}, "A cheap proposer guesses the next tokens, the model checks several guesses in one pass. What it confirms costs nearly nothing; what it rejects was wasted work. The text stays the model's own."),
      legend(),
      h("p", { class: "try" }, "Try one:"),
      h("div", { class: "examples" }, EXAMPLES.map(([name, prompt]) =>
        h("button", { class: "example", type: "button", onclick: () => { this.input.value = prompt; this.#grow(); this.input.focus(); } },
          h("strong", {}, name), h("span", {}, prompt.split("\n")[0])))));
  }

  #form() {
    this.input = h("textarea", { id: "prompt", rows: 1, placeholder: "Ask something", autocomplete: "off",
      oninput: () => this.#grow(), onkeydown: (event) => this.#key(event) });
    this.send = h("button", { class: "primary", type: "submit", id: "send" }, "Send");
    this.stop = h("button", { class: "quiet", type: "button", id: "stop", hidden: true, onclick: () => this.#running?.abort() }, "Stop");
    this.length = h("select", { id: "length" }, [64, 128, 256, 512].map((n) => h("option", { value: n, selected: n === 128 }, `${n} tokens`)));
    this.temperature = h("select", { id: "temperature" },
      h("option", { value: "0" }, "always the likeliest"), h("option", { value: "0.8" }, "some chance (0.8)"));
    this.guess = h("select", { id: "guess" }, h("option", { value: "" }, "when it pays"),
      [2, 4, 8].map((n) => h("option", { value: n }, `always, ${n} tokens`)));
    this.rejected = h("input", { type: "checkbox", id: "show-rejected", onchange: () => { this.log.classList.toggle("show-rejected", this.rejected.checked); } });
    const modes = h("fieldset", { class: "segments" }, h("legend", { class: "hidden-text" }, "How to answer"),
      MODES.map(([value, label]) => h("label", {}, h("input", { type: "radio", name: "mode", value, checked: value === "with" }), h("span", {}, label))));
    return h("form", { class: "composer", onsubmit: (event) => { event.preventDefault(); this.#submit(); } },
      h("div", { class: "line" }, modes,
        h("details", { class: "options" }, h("summary", {}, "Options"),
          h("div", { class: "option-rows" },
            h("label", { for: "length" }, "At most"), this.length,
            h("label", { for: "temperature" }, "Choice"), this.temperature,
            h("label", { for: "guess" }, "Guess"), this.guess,
            h("button", { class: "quiet", type: "button", onclick: () => this.#renew() }, "New conversation"))),
        h("label", { class: "check" }, this.rejected, h("span", {}, "Show rejected guesses"))),
      h("div", { class: "line entry" }, h("label", { class: "hidden-text", for: "prompt" }, "Prompt"), this.input, this.stop, this.send));
  }

  #grow() {
    this.input.rows = Math.min(8, Math.max(1, this.input.value.split("\n").length));
  }

  #key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.form.requestSubmit();
    }
  }

  #renew() {
    this.#running?.abort();
    this.#turns = [];
    fill(this.log, this.empty);
    this.input.focus();
  }

  get #mode() { return this.form.elements.mode.value; }

  async #submit() {
    const prompt = this.input.value.trim();
    if (!prompt || this.#running) return;
    this.input.value = "";
    this.#grow();
    this.empty.remove();
    this.#turns.push({ role: "user", content: prompt });
    this.#turns = this.#turns.slice(-MAX_TURNS);
    while (this.log.children.length >= MAX_SHOWN) this.log.firstChild.remove();
    const exchange = h("article", { class: "exchange", "aria-label": `Answer to: ${prompt.slice(0, 60)}` },
      h("p", { class: "asked" }, prompt));
    this.log.append(exchange);
    this.#busy(true);
    try {
      await (this.#mode === "both" ? this.#both(exchange) : this.#one(exchange, this.#mode === "with"));
    } finally {
      this.#busy(false);
    }
  }

  #busy(on) {
    this.#running = on ? new AbortController() : null;
    this.send.disabled = on;
    this.stop.hidden = !on;
  }

  #body(on, seed) {
    const speculation = on && this.guess.value ? { window: Number(this.guess.value) } : on;
    return {
      messages: this.#turns, max_tokens: Number(this.length.value), temperature: Number(this.temperature.value),
      seed, speculation, stream: true, stream_options: { include_origins: true },
    };
  }

  /** Stream one answer into a box; gives its text and its last chunk, or null if it failed. */
  async #stream(box, label, speculation, seed) {
    const text = new Text(label);
    const state = h("p", { class: "state", role: "status" }, "Reading the prompt …");
    box.append(text.element, state);
    state.scrollIntoView({ block: "nearest" });
    let last = null;
    try {
      const response = await ask("/v1/chat/completions", { json: this.#body(speculation, seed), signal: this.#running.signal });
      for await (const { data } of events(response)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        for (const choice of chunk.choices) if (choice.origins) text.push(choice.origins);
        if (text.n) state.textContent = "Writing …";
        if (chunk.speculation) last = chunk;
      }
      if (!last) throw new Error("the connection broke in the middle of the answer");
      state.remove();
    } catch (error) {
      const stopped = error.name === "AbortError";
      fill(state, stopped ? "Stopped." : `No answer: ${error.message}.`);
      state.className = stopped ? "state" : "state problem";
      announce(state.textContent);
      if (!text.n) text.element.remove();
    }
    return { text, last };
  }

  async #one(exchange, speculation) {
    const box = h("div", { class: "answer" });
    exchange.append(box);
    const { text, last } = await this.#stream(box, "Answer", speculation, newSeed());
    if (!last) return;
    const shown = figures(text, last, this.onTrace, { action: speculation ? this.#anyway(last) : null });
    box.append(shown);
    shown.scrollIntoView({ block: "nearest" });
    this.#turns.push({ role: "assistant", content: text.text });
    const gain = last.speculation.drafted ? `, ${times(last.speculation.speedup)} the speed of plain decoding` : "";
    announce(`Answer complete: ${text.n} tokens${gain}.`);
  }

  /** The controller saw nothing to win: let them see what a bet would have brought. */
  #anyway({ speculation: told }) {
    if (told.drafted || !told.fallbacks.unprofitable) return null;
    const again = () => {
      if (this.#running) return;
      this.guess.value = "4";
      this.#turns.pop();
      this.input.value = this.#turns.pop()?.content ?? "";
      this.form.requestSubmit();
    };
    return h("p", { class: "row" }, h("span", { class: "soft" }, "A pass over several tokens costs too much here for these guesses."),
      h("button", { class: "quiet", type: "button", onclick: again }, "Guess anyway"));
  }

  async #both(exchange) {
    const seed = newSeed();
    const sides = [["Without speculation", false], ["With speculation", true]].map(([name, on]) => {
      const box = h("section", { class: "answer", "aria-label": name }, h("h3", {}, name));
      return { name, on, box };
    });
    const note = h("p", { class: "note" }, "One after the other, so that neither slows the other down; then both again on one clock.");
    const beside = h("div", { class: "sides" }, sides.map((side) => side.box));
    exchange.append(note, beside);
    // The plain side comes last: its answer is remembered, and would be what the other guesses.
    for (const side of [...sides].reverse()) {
      Object.assign(side, await this.#stream(side.box, side.name, side.on, seed));
      if (!side.last) return;
      side.box.append(figures(side.text, side.last, this.onTrace, { beside: true }));
    }
    const race = new Race(sides[0].text, sides[1].text, sides[1].last.speculation);
    beside.before(race.element);
    race.element.scrollIntoView({ block: "start" });
    this.#turns.push({ role: "assistant", content: sides[1].text.text });
    announce(`Both done: ${race.words}. ${race.identical ? "Identical texts." : "The texts differ."}`);
    race.play(false);
  }
}

const newSeed = () => Math.floor(Math.random() * 2 ** 31);
