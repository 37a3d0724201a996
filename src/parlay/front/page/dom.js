// Elements from data. Text goes in as text, never as markup.

/** An element; a string child becomes a text node. Properties named on* are listeners. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Exchange everything inside an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

let announcing;
/** Say something to whoever listens instead of looking. */
export function announce(text) {
  clearTimeout(announcing);
  announcing = setTimeout(() => { byId("announcer").textContent = text; }, 150);
}

export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** What a custom property is worth in this theme: for plots, which know no variables. */
export function colour(name) {
  const probe = h("span", { class: "hidden-text" });
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
