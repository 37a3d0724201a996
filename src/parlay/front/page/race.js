// Two answers to the same prompt on one clock: which was faster, and whether they say the same.

import { calm, fill, h } from "./dom.js";
import { fixed, times, verdict } from "./format.js";

export class Race {
  #frame = null;

  /** `told`: what the server says of the second. */
  constructor(plain, fast, told) {
    this.told = told;
    this.sides = [plain, fast];
    this.identical = plain.text === fast.text;
    this.ratio = plain.tokens_per_s && fast.tokens_per_s ? fast.tokens_per_s / plain.tokens_per_s : null;
    this.clock = h("span", { class: "clock" }, "0.0 s");
    this.button = h("button", { class: "primary", type: "button", onclick: () => this.play(true) }, "Replay both");
    this.bars = this.sides.map((_, i) => h("span", { class: i ? "bar fast" : "bar plain" }));
    this.element = h("div", { class: "race" }, this.#verdict(), this.#lanes(), this.#same(),
      h("div", { class: "row" }, this.button, this.clock));
  }

  /** The outcome in words. */
  get words() {
    if (this.ratio === null) return "too short to compare";
    if (!this.told.drafted) return "nothing was guessed, so both decoded plainly";
    return `${times(this.ratio)} the speed with speculation`;
  }

  #verdict() {
    const [plain, fast] = this.sides;
    const took = `${fixed(fast.decode_s, 2)} s instead of ${fixed(plain.decode_s, 2)} s`;
    if (this.ratio === null || !this.told.drafted) {
      const noise = this.ratio === null ? "" : ` What is left of a difference (${took}) is the machine's noise.`;
      const [first, ...rest] = this.words;
      return h("p", { class: "headline" }, `${first.toUpperCase()}${rest.join("")}.${noise}`);
    }
    return h("p", { class: "headline" }, h("strong", { class: verdict(this.ratio) }, times(this.ratio)), ` the speed with speculation: ${took}`);
  }

  #lanes() {
    const names = ["without", "with"];
    return h("div", { class: "lanes", "aria-hidden": true }, this.bars.map((bar, i) =>
      h("div", { class: "lane" }, h("span", { class: "name" }, names[i]), h("span", { class: "track" }, bar), h("span", { class: "rate" }, `${fixed(this.sides[i].tokens_per_s)} tok/s`))));
  }

  #same() {
    const [plain, fast] = this.sides;
    const small = "One run each is a look, not a measurement: the bench pane repeats it. The second run finds the prompt in the cache, so only writing is compared.";
    if (this.identical) {
      return h("p", { class: "sentence" }, h("span", { class: "mark same" }, "✓ identical"), ` Both texts are the same, ${plain.text.length} characters. ${small}`);
    }
    const length = Math.min(plain.text.length, fast.text.length);
    let where = 0;
    while (where < length && plain.text[where] === fast.text[where]) where += 1;
    const reason = this.told.exact ? "In exact mode that must not happen: please report it." : "In faithful mode another rounding may choose another word.";
    return h("p", { class: "sentence" }, h("span", { class: "mark differs" }, "≠ different"), ` The texts part at character ${where + 1}. ${reason} ${small}`);
  }

  /** Show both again as they came; at once where motion is not wanted and nobody asked. */
  play(asked) {
    cancelAnimationFrame(this.#frame);
    const length = Math.max(...this.sides.map((side) => side.decode_s));
    if ((!asked && calm()) || length <= 0) return this.#at(length, length);
    const begun = performance.now();
    const step = () => {
      const now = (performance.now() - begun) / 1000;
      this.#at(Math.min(now, length), length);
      if (now < length && this.element.isConnected) this.#frame = requestAnimationFrame(step);
    };
    step();
    return undefined;
  }

  #at(seconds, length) {
    fill(this.clock, `${seconds.toFixed(1)} s`);
    this.sides.forEach((side, i) => {
      const first = side.tokens[0]?.at_ms ?? 0;
      let n = 0;
      for (const { element, at_ms } of side.tokens) {
        const come = (at_ms - first) / 1000 <= seconds + 1e-6;
        element.classList.toggle("later", !come);
        n += come;
      }
      this.bars[i].style.width = `${(100 * n) / Math.max(1, side.n)}%`;
      this.bars[i].classList.toggle("done", n === side.n);
    });
    if (seconds >= length) this.button.textContent = "Replay both";
  }
}
