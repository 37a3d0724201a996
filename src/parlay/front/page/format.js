// Numbers as people read them. A figure that is not known is a dash.

const DASH = "–";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export const fixed = (value, digits = 1) => (known(value) ? value.toFixed(digits) : DASH);
export const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : DASH);
export const percent = (value, digits = 0) => (known(value) ? `${(100 * value).toFixed(digits)} %` : DASH);
export const times = (value) => (known(value) ? `${value.toFixed(2)}×` : DASH);
export const ms = (value) => {
  if (!known(value)) return DASH;
  return value < 1000 ? `${value.toFixed(value < 10 ? 1 : 0)} ms` : `${(value / 1000).toFixed(2)} s`;
};

export function bytes(value) {
  if (!known(value)) return DASH;
  return value < 2 ** 30 ? `${(value / 2 ** 20).toFixed(0)} MiB` : `${(value / 2 ** 30).toFixed(2)} GiB`;
}

export function span(seconds) {
  if (!known(seconds)) return DASH;
  const [d, hr, m] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (d) return `${d} d ${hr} h`;
  return hr ? `${hr} h ${m} min` : m ? `${m} min ${Math.floor(seconds % 60)} s` : `${Math.floor(seconds)} s`;
}

/** Faster, slower or the same: a change below one percent is none. */
export function verdict(ratio) {
  if (!known(ratio)) return "unknown";
  if (ratio >= 1.01) return "faster";
  return ratio <= 0.99 ? "slower" : "the same";
}

const REASONS = {
  request: "asked for plain", policy: "by policy", grammar: "grammar", reasoning: "reasoning",
  prompt_heavy: "prompt-heavy", memory: "memory", vocab: "vocabulary", low_acceptance: "low acceptance",
  unprofitable: "would not pay", drafter_loading: "drafter loading", draft_error: "drafter failed",
  no_draft: "nothing to propose", exact: "would not be exact",
};
export const reason = (name) => REASONS[name] ?? name;
