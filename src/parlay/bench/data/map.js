"use strict";
// Rows come as data and are written as text: nothing in them is ever read as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.rows;
const NS = "http://www.w3.org/2000/svg";
const LOW = 0.2, HIGH = 8;
const byId = (id) => document.getElementById(id);
const state = {sort: "ratio", down: true};

function make(tag, attributes = {}, text = null) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return node;
}
function draw(tag, attributes) {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}
function place(ratio, width) {
  const share = Math.log(Math.min(HIGH, Math.max(LOW, ratio)) / LOW) / Math.log(HIGH / LOW);
  return Math.round(share * width * 10) / 10;
}
function kind(row) {
  return row.verdict === "faster" ? "helps" : row.verdict === "slower" ? "hurts" : "even";
}
function figure(row) {
  const range = row.low === null ? "no interval" : `${row.low.toFixed(2)} to ${row.high.toFixed(2)}`;
  return `${row.ratio.toFixed(2)}x (${range})`;
}

function plot(row) {
  const svg = draw("svg", {viewBox: "0 0 200 20", role: "img", "aria-label": figure(row)});
  svg.append(draw("line", {class: "one", x1: place(1, 200), x2: place(1, 200), y1: 0, y2: 20}));
  if (row.low !== null) {
    svg.append(draw("line", {class: `whisker ${kind(row)}`, x1: place(row.low, 200),
      x2: place(row.high, 200), y1: 10, y2: 10}));
  }
  svg.append(mark(row, place(row.ratio, 200), 10));
  return svg;
}
// Shape as well as colour: a triangle up helps, a triangle down hurts, a circle is even.
function mark(row, x, y) {
  const look = `${kind(row)}${row.layer === "reported" ? " hollow" : ""}`;
  if (kind(row) === "even") return draw("circle", {class: look, cx: x, cy: y, r: 5});
  const s = kind(row) === "helps" ? -1 : 1;
  const points = `${x},${y + 6 * s} ${x - 6},${y - 5 * s} ${x + 6},${y - 5 * s}`;
  return draw("polygon", {class: look, points: points});
}

const COLUMNS = [["hardware", "hardware"], ["model", "model"], ["params_b", "size"],
  ["method", "method"], ["task", "task"], ["ratio", "speed-up"], ["", "95 % interval"],
  ["source", "source"]];

function line(row) {
  const tr = make("tr", {id: row.id, class: row.layer});
  const cells = [row.hardware, row.model, `${Number(row.params_b.toPrecision(2))}B`, row.method, row.task];
  cells.forEach((text, n) => tr.append(make("td", {"data-label": COLUMNS[n][1]}, text)));
  const words = {faster: "helps", slower: "hurts"}[row.verdict] || "no difference";
  tr.append(make("td", {class: "n", "data-label": "speed-up"}, `${figure(row)}, ${words}`));
  const cell = make("td", {class: "plot"});
  cell.append(plot(row));
  tr.append(cell, source(row));
  return tr;
}
function source(row) {
  const cell = make("td", {"data-label": "source"});
  if (row.layer === "reported") {
    cell.append(make("span", {class: "badge"}, "reported elsewhere"), " ",
      make("a", {href: row.url, rel: "noopener noreferrer"}, row.source));
  } else {
    cell.append(make("a", {href: `#${row.id}`}, row.source));
  }
  return cell;
}

function wanted() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const picked = ["layer", "device", "size", "method", "task"].map((n) => [n, byId(n).value]);
  return rows.filter((row) => picked.every(([name, value]) => !value || row[name] === value) &&
    words.every((word) => row.words.includes(word)));
}
function sorted(list) {
  const key = state.sort, sign = state.down ? -1 : 1;
  return [...list].sort((a, b) => sign * (typeof a[key] === "number" ? a[key] - b[key]
    : String(a[key]).localeCompare(String(b[key]))));
}
function show() {
  const list = sorted(wanted());
  byId("rows").replaceChildren(...list.map(line));
  byId("count").textContent = `${list.length} of ${rows.length} figures`;
  byId("empty").hidden = list.length > 0;
  for (const th of document.querySelectorAll("th[data-key]")) {
    const mine = th.dataset.key === state.sort;
    th.setAttribute("aria-sort", mine ? (state.down ? "descending" : "ascending") : "none");
  }
  overview(list);
  choose();
}
// Speed-up against model size: the whole field at a glance.
function overview(list) {
  const width = window.innerWidth < 600 ? 380 : 760;  // labels keep their size on a phone
  const svg = draw("svg", {viewBox: `0 0 ${width} 220`, role: "img",
    "aria-label": "Speed-up against model size"});
  const y = (ratio) => 195 - place(ratio, 180);
  const share = (size) => Math.min(1, Math.max(0, Math.log10(size / 0.05) / Math.log10(4000)));
  const x = (size) => 50 + share(size) * (width - 70);
  for (const ratio of [0.25, 0.5, 1, 2, 4, 8]) {
    svg.append(draw("line", {class: ratio === 1 ? "one" : "grid", x1: 50, x2: width - 10,
      y1: y(ratio), y2: y(ratio)}));
    label(svg, 4, y(ratio) + 4, `${ratio}x`);
  }
  for (const size of [0.1, 1, 10, 100]) label(svg, x(size) - 8, 215, `${size}B`);
  for (const row of list) {
    const point = mark(row, x(row.params_b), y(row.ratio));
    const title = draw("title", {});
    title.textContent = `${row.hardware}, ${row.model}, ${row.method}, ${row.task}: ${figure(row)}`;
    point.append(title);
    svg.append(point);
  }
  byId("overview").replaceChildren(svg);
}
function label(svg, x, y, text) {
  const node = draw("text", {x: x, y: y});
  node.textContent = text;
  svg.append(node);
}
function choose() {
  for (const tr of document.querySelectorAll("tr.chosen")) tr.classList.remove("chosen");
  const tr = location.hash.length > 1 && byId(decodeURIComponent(location.hash.slice(1)));
  if (tr && tr.tagName === "TR") { tr.classList.add("chosen"); tr.scrollIntoView({block: "center"}); }
}
function fill(name) {
  const values = [...new Set(rows.map((row) => row[name]))].sort();
  for (const value of values) byId(name).append(make("option", {value: value}, value));
}

["device", "size", "method", "task"].forEach(fill);
const head = byId("head");
for (const [key, name] of COLUMNS) {
  const th = make("th", key ? {"data-key": key} : {});
  if (key) {
    const button = make("button", {type: "button"}, name);
    button.addEventListener("click", () => {
      state.down = state.sort === key ? !state.down : key === "ratio";
      state.sort = key;
      show();
    });
    th.append(button);
  } else th.textContent = name;
  head.append(th);
}
byId("filters").addEventListener("input", show);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("reset", () => setTimeout(show, 0));
window.addEventListener("hashchange", choose);
window.addEventListener("resize", () => overview(sorted(wanted())));
show();
document.body.dataset.ready = "yes";
