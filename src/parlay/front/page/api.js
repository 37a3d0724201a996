// The server: one key for all requests, errors as one sentence, events from a fetch.
// EventSource cannot send a key, so streams are read by hand.

const KEY = "parlay-key";
const MAX_EVENT = 4_000_000; // characters; more is no event of ours

export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

let onLocked = () => {};
export const whenLocked = (listener) => { onLocked = listener; };

/** A request with the key; anything but success is a Problem. */
export async function ask(path, options = {}) {
  const { json, ...rest } = options;
  const headers = new Headers(rest.headers);
  if (key.get()) headers.set("Authorization", `Bearer ${key.get()}`);
  if (json !== undefined) {
    headers.set("Content-Type", "application/json");
    rest.body = JSON.stringify(json);
    rest.method ??= "POST";
  }
  let response;
  try {
    response = await fetch(path, { ...rest, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "the server cannot be reached");
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    if (response.status === 401) onLocked();
    throw new Problem(response.status, body.error?.message ?? `the server answered ${response.status}`);
  }
  return response;
}

export const get = async (path) => (await ask(path)).json();

/** The events of a response: {kind, data}, data as text. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      held += value;
      const parts = held.split("\n\n");
      held = parts.pop();
      if (held.length > MAX_EVENT) throw new Problem(0, "the stream makes no sense");
      for (const part of parts) yield parse(part);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(text) {
  const found = { kind: "message", data: "" };
  for (const line of text.split("\n")) {
    if (line.startsWith("event: ")) found.kind = line.slice(7);
    if (line.startsWith("data: ")) found.data += line.slice(6);
  }
  return found;
}
