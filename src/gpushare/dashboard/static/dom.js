// Elements without markup in strings: text from the cluster stays text.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

/** Text in backticks as code; an unpaired backtick stays a character. */
export function typed(text) {
  const parts = text.split("`");
  return parts.length % 2 ? parts.map((part, at) => (at % 2 ? h("code", null, part) : part)) : text;
}

export const UNKNOWN = -1;
export const DASH = "–";

const whole = new Intl.NumberFormat("en");
export const count = (value) => (value === UNKNOWN ? DASH : whole.format(value));
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
export function gib(mib) {
  if (mib === UNKNOWN) return DASH;
  const value = mib / 1024;
  if (value >= 10240) return `${whole.format(Math.round(value / 102.4) / 10)} TiB`;
  return `${value >= 100 ? whole.format(Math.round(value)) : Math.round(value * 10) / 10} GiB`;
}
export const share = (part, all) => (part === UNKNOWN || !all ? UNKNOWN : (100 * part) / all);
export function percent(value) {
  if (value === UNKNOWN) return DASH;
  return `${value > 0 && value < 1 ? value.toFixed(1) : Math.round(value)}%`;
}
export const reservedText = ({ mib, core, whom }) => `${gib(mib)}${core ? ` and ${core}% compute` : ""} for ${whom}`;
export function age(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}
/** The time of day; with `dated` the day, too. */
export const clock = (seconds, dated = false) => dated ? `${new Date(seconds * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${clock(seconds).slice(0, 5)}` :
  new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** On a narrow screen each row becomes a card with its heads beside the cells, unless `cards` says no. Roles are named: a table
 * that is laid out as blocks stays one to a screen reader. */
export function table(heads, rows, { caption, empty, label, cards = true } = {}) {
  if (!rows.length && empty) return h("p", { class: "quiet" }, empty);
  const texts = heads.map((head) => head.text ?? head), classes = heads.map((head) => (head.number ? "number" : null));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label ?? caption ?? "Table" },
    h("table", { class: cards ? "data cards" : "data", role: "table" },
      caption && h("caption", { class: "sr" }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, texts.map((text, at) => h("th", { scope: "col", role: "columnheader", class: classes[at] }, text)))),
      h("tbody", { role: "rowgroup" }, rows.map((cells) => row(heads, cells)))));
}
export const row = (heads, cells) =>
  h("tr", { role: "row" }, cells.map((cell, at) => h("td", { role: "cell", class: heads[at].number ? "number" : null, "data-head": heads[at].text ?? heads[at] }, cell)));
export const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);
export const number = (text) => ({ text, number: true });

export const to = {
  node: (name) => `#/node/${encodeURIComponent(name)}`,
  gpu: (name, index) => `#/node/${encodeURIComponent(name)}/gpu/${index}`,
  pod: (key) => `#/pod/${key.split("/").map(encodeURIComponent).join("/")}`,
};
