// The live stream: kept open, opened again when it breaks, later each time.

import { Problem, ask, events } from "./api.js";

const FIRST_MS = 500, LONGEST_MS = 15_000;
const SILENCE_MS = 6_000; // a tick comes every second; longer silence is a broken line

export class Feed extends EventTarget {
  #wait = FIRST_MS;
  #timer;
  #abort;

  start() {
    this.#run();
    addEventListener("online", () => this.retry());
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.retry(); });
  }

  /** Now, if it is waiting. */
  retry() {
    if (this.#timer === undefined) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#run();
  }

  async #run() {
    this.#tell("state", { state: "connecting" });
    this.#abort = new AbortController();
    try {
      const response = await ask("/live/stream", { signal: this.#abort.signal });
      await this.#read(response);
      this.#later(new Problem(0, "the server ended the stream"));
    } catch (error) {
      this.#later(error);
    }
  }

  async #read(response) {
    let watchdog;
    const watch = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => this.#abort.abort(), SILENCE_MS);
    };
    watch();
    try {
      for await (const { kind, data } of events(response)) {
        watch();
        this.#wait = FIRST_MS;
        this.#tell("state", { state: "open" });
        this.#tell(kind, JSON.parse(data));
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  #later(error) {
    const state = { 401: "locked", 403: "private" }[error.status] ?? "lost";
    const wait = state === "lost" ? this.#wait : LONGEST_MS;
    this.#tell("state", { state, why: error.message, retry_ms: wait });
    this.#wait = Math.min(2 * this.#wait, LONGEST_MS);
    this.#timer = setTimeout(() => { this.#timer = undefined; this.#run(); }, wait);
  }

  #tell(kind, detail) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }
}
