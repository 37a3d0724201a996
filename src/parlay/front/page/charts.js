// Charts by plotly, from the package the server runs with; loaded when the first one is needed.

import { colour, h } from "./dom.js";

let loading = null;
function plotly() {
  loading ??= new Promise((resolve, reject) => {
    document.head.append(h("script", { src: "/page/plotly.min.js", onload: () => resolve(window.Plotly),
      onerror: () => { loading = null; reject(new Error("the charts could not be loaded")); } }));
  });
  return loading;
}

const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };

/** One chart in a figure: title, a line of words for those who cannot see it, the plot. */
export class Chart {
  #drawn = "";
  #busy = false;
  #next = null;

  constructor(title, about, layout = {}) {
    this.layout = layout;
    this.plot = h("div", { class: "plot", role: "img", "aria-label": `${title}: no data yet` });
    this.words = h("p", { class: "empty-words" }, "No rounds yet.");
    this.title = title;
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, title), h("p", {}, about)), this.plot, this.words);
    addEventListener("parlay-theme", () => { this.#drawn = ""; if (this.last) this.draw(...this.last); });
  }

  /** `label`: the same in words. Draws the latest only, however often it is called. */
  async draw(traces, label, more = {}) {
    this.last = [traces, label, more];
    const state = JSON.stringify([traces, more]);
    if (state === this.#drawn || this.element.closest("[hidden]")) return;
    if (this.#busy) { this.#next = this.last; return; }
    this.#busy = true;
    try {
      const Plotly = await plotly();
      this.words.hidden = true;
      await Plotly.react(this.plot, traces.map(painted), this.#layout(more), CONFIG);
      this.#drawn = state;
      this.plot.setAttribute("aria-label", `${this.title}: ${label}`);
    } catch (error) {
      this.words.hidden = false;
      this.words.textContent = error.message;
    } finally {
      this.#busy = false;
    }
    if (this.#next) { const next = this.#next; this.#next = null; this.draw(...next); }
  }

  /** Nothing to show, and why. */
  clear(words) {
    this.last = null;
    this.#drawn = "";
    this.words.hidden = false;
    this.words.textContent = words;
    this.plot.setAttribute("aria-label", `${this.title}: ${words}`);
    if (window.Plotly && this.plot.classList.contains("js-plotly-plot")) window.Plotly.purge(this.plot);
    this.plot.replaceChildren();
  }

  #layout(more) {
    const ink = colour("soft"), line = colour("line");
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, fixedrange: true, tickfont: { size: 12 } };
    const { xaxis, yaxis, ...rest } = { ...this.layout, ...more };
    return {
      height: 190, margin: { l: 44, r: 12, t: 8, b: 34 }, font: { family: "system-ui, sans-serif", size: 12, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, hovermode: "closest", showlegend: false,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, ...rest,
      xaxis: { ...axis, ...this.layout.xaxis, ...xaxis }, yaxis: { ...axis, rangemode: "tozero", ...this.layout.yaxis, ...yaxis },
    };
  }
}

/** Colours are names of this page's; what a trace says is plain text. */
function painted(trace) {
  const { paint, ...rest } = trace;
  const found = colour(paint ?? "accent");
  const line = { width: 2, ...rest.line, color: found };
  const marker = { ...rest.marker, color: found };
  if (marker.pattern) marker.pattern = { ...marker.pattern, fillmode: "overlay", fgcolor: colour("paper"), solidity: 0.3, size: 6 };
  return { hoverlabel: { namelength: -1 }, ...rest, line, marker };
}

/** Words from outside, harmless in a plot: plotly reads tags in texts. */
export const tame = (text) => String(text).replaceAll("<", "‹").replaceAll("&", "+").slice(0, 40);
