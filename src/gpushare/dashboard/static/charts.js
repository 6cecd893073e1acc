// Lines over time as SVG, with the value under the pointer, and the same as a table.

import { clock, h, number, s, table } from "./dom.js";

const WIDE = 560, NARROW = 340, HEIGHT = 150, LEFT = 40, BOTTOM = 22, TOP = 10, RIGHT = 8;
/** From this span on, times include the day. */
const DATED_FROM_S = 20 * 3600;

/** `series`: [{name, colour, values}] beside `times` (s); values may be null. `format` writes a value. */
export function lines(title, times, series, { format, most, note }) {
  // Text keeps its size on a narrow screen.
  const width = matchMedia("(max-width: 640px)").matches ? NARROW : WIDE;
  const known = series.flatMap((one) => one.values.filter((value) => value !== null));
  const top = most ?? nice(Math.max(2, ...known.slice(-20000)));
  const from = times[0] ?? 0, until = Math.max(times.at(-1) ?? 1, from + 1);
  const x = (time) => LEFT + ((width - LEFT - RIGHT) * (time - from)) / (until - from);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.min(value / top, 1));
  const grid = [0, 0.5, 1].map((part) => [
    s("line", { x1: LEFT, x2: width - RIGHT, y1: y(part * top), y2: y(part * top), class: "grid" }),
    s("text", { x: LEFT - 6, y: y(part * top) + 4, "text-anchor": "end", class: "axis" }, format(part * top)),
  ]);
  const span = until - from, when = (time) => clock(time, span > DATED_FROM_S), marks = [from, from + span / 2, until];
  const ticks = marks.map((time, at) => s("text", { x: x(time), y: HEIGHT - 6, "text-anchor": ["start", "middle", "end"][at], class: "axis" }, when(time)));
  const paths = series.map((one) => [
    one.area && s("path", { d: area(times, one.values, x, y), class: "area", fill: `var(${one.colour})` }),
    s("path", { d: path(times, one.values, x, y), class: "line", stroke: `var(${one.colour})` }),
  ]);
  const cursor = s("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor", visibility: "hidden" });
  const read = h("span", { class: "reading" });
  const last = (at) => series.map((one) => h("span", { class: "swatch" }, h("i", { style: { background: `var(${one.colour})` } }), one.name, " ", h("b", null, one.values[at] === null || at < 0 ? "–" : format(one.values[at]))));
  const readAt = (at, time) => read.replaceChildren(...last(at), h("span", { class: "quiet" }, time));
  readAt(times.length - 1, "now");
  const latest = series.map((one) => `${one.name} ${one.values.at(-1) === null || !one.values.length ? "unknown" : format(one.values.at(-1))}`).join(", ");
  const picture = s("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${title}: now ${latest}`, preserveAspectRatio: "none" }, grid, ticks, paths, cursor);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect(), time = from + (span * (((event.clientX - box.left) / box.width) * width - LEFT)) / (width - LEFT - RIGHT);
    const at = nearest(times, time);
    if (at < 0) return;
    cursor.setAttribute("x1", x(times[at]));
    cursor.setAttribute("x2", x(times[at]));
    cursor.setAttribute("visibility", "visible");
    readAt(at, when(times[at]));
  });
  picture.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); readAt(times.length - 1, "now"); });
  const some = times.map((_, at) => at).filter((at) => at % Math.ceil(times.length / 24 || 1) === 0).reverse();
  return h("section", { class: "card chart" }, h("div", { class: "head" }, h("h2", null, title), note && h("span", { class: "quiet" }, note)), read, picture,
    h("details", null, h("summary", null, "As a table"),
      table([{ text: "Time" }, ...series.map((one) => number(one.name))], some.map((at) => [when(times[at]), ...series.map((one) => (one.values[at] === null ? "–" : format(one.values[at])))]), { label: `${title} as a table`, cards: false })));
}

function path(times, values, x, y) {
  let d = "", pen = false;
  for (let at = 0; at < times.length; at++) {
    if (values[at] === null) { pen = false; continue; }
    d += `${pen ? "L" : "M"}${x(times[at]).toFixed(1)} ${y(values[at]).toFixed(1)}`;
    pen = true;
  }
  return d;
}

function area(times, values, x, y) {
  if (values.every((value) => value === null)) return "";
  const line = path(times, values.map((value) => value ?? 0), x, y);
  return line && `${line}L${x(times.at(-1)).toFixed(1)} ${y(0)}L${x(times[0]).toFixed(1)} ${y(0)}Z`;
}

function nearest(times, time) {
  let best = -1, least = Infinity;
  times.forEach((one, at) => { const far = Math.abs(one - time); if (far < least) { least = far; best = at; } });
  return best;
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
}
