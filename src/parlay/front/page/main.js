// The page: tabs, theme, key, connection; each pane is a module of its own.

import { get, key, whenLocked } from "./api.js";
import { byId, fill, h } from "./dom.js";
import { Feed } from "./feed.js";
import { fixed } from "./format.js";
import { Bench } from "./bench.js";
import { Chat } from "./chat.js";
import { Live } from "./live.js";

const feed = new Feed();
const panes = {
  chat: new Chat(byId("pane-chat"), (id) => { show("live"); panes.live.open(id); }),
  live: new Live(byId("pane-live"), feed),
  bench: new Bench(byId("pane-bench")),
};

// -- tabs ------------------------------------------------------------------------------------

const tabs = [...document.querySelectorAll("[role=tab]")];

function show(name, focus = false) {
  for (const tab of tabs) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !chosen;
    if (chosen && focus) tab.focus();
  }
  for (const [other, pane] of Object.entries(panes)) pane.visible?.(other === name);
  if (location.hash !== `#${name}`) {
    history.replaceState(null, "", `#${name}`);
    scrollTo(0, 0);
  }
}

tabs.forEach((tab, i) => {
  const name = tab.id.slice(4);
  tab.addEventListener("click", () => show(name));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(tabs[(i + step + tabs.length) % tabs.length].id.slice(4), true);
  });
});

// -- theme -----------------------------------------------------------------------------------

const THEMES = ["system", "light", "dark"];
const themeButton = byId("theme-button");

function theme() {
  return document.documentElement.dataset.theme ?? "system";
}

function sayTheme() {
  themeButton.textContent = `Theme: ${theme()}`;
}

themeButton.addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  if (next === "system") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("parlay-theme");
  } else {
    document.documentElement.dataset.theme = next;
    localStorage.setItem("parlay-theme", next);
  }
  sayTheme();
  dispatchEvent(new Event("parlay-theme"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("parlay-theme")));

// -- key -------------------------------------------------------------------------------------

const dialog = byId("key-dialog");

function askForKey() {
  byId("key-button").hidden = false;
  if (dialog.open) return;
  byId("key-problem").textContent = key.get() ? "The server does not know this key." : "";
  dialog.showModal();
  byId("key-input").select();
}

whenLocked(askForKey);
byId("key-button").addEventListener("click", askForKey);
dialog.addEventListener("close", () => {
  if (dialog.returnValue !== "ok") return;
  key.set(byId("key-input").value.trim());
  byId("key-input").value = "";
  feed.retry();
});

// -- connection ------------------------------------------------------------------------------

const connection = byId("connection"), banner = byId("banner");
const WORDS = { connecting: "connecting", open: "live", lost: "disconnected", locked: "key needed", private: "figures are for admins" };
let known = "";

feed.addEventListener("state", ({ detail }) => {
  if (detail.state === "connecting" && known !== "") return; // what was wrong stays until it is right
  if (detail.state === known && detail.state === "open") return;
  known = detail.state;
  connection.dataset.state = detail.state;
  connection.textContent = WORDS[detail.state];
  banner.hidden = detail.state !== "lost";
  if (detail.state === "private") get("/health").then((told) => { byId("model").textContent = `${told.model} · ${told.mode}`; }, () => {});
  if (detail.state === "lost") {
    const wait = Math.max(1, Math.round(detail.retry_ms / 1000));
    fill(banner, h("span", {}, `Not connected: ${detail.why}. Trying again in ${wait} s. `),
      h("button", { class: "quiet", onclick: () => feed.retry() }, "Try now"));
  }
});

/** How it decodes, and what exactness costs or would cost here. */
function mode({ mode, exact_class, exact_cost_percent: cost }) {
  if (cost === null || cost === undefined) return mode;
  return mode === "exact" ? `exact (class ${exact_class}, costs ${fixed(cost)} % of the speed)`
    : `${mode} (exact, class ${exact_class}, would cost ${fixed(cost)} % of the speed)`;
}

feed.addEventListener("snapshot", ({ detail }) => {
  const text = `${detail.model} · ${mode(detail)} · ${detail.proposers.join(" + ") || "no proposer"}`;
  if (byId("model").textContent !== text) byId("model").textContent = text;
  panes.chat.know(detail);
});

sayTheme();
show(["chat", "live", "bench"].includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat");
addEventListener("hashchange", () => {
  const name = location.hash.slice(1);
  if (name in panes) show(name);
});
feed.start();
document.body.dataset.ready = "yes";
