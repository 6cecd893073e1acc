// All GPUs on one canvas: a block per node, a cell per GPU. Drawn by colour; only changes are redrawn.

import { UNKNOWN, gib, reservedText, percent, share, h, count, counted } from "./dom.js";
import { framed } from "./frames.js";
import { CLOSED, CORDONED, IN_SERVICE, STATES, UNHEALTHY } from "./store.js";

const STEPS = 9;
const MODES = ["share", "cgpu", "core_mem", "mps", "topology", "dra", "default"];
// Colours by index: unknown, out of service, steps of the ramp, above the whole, modes, states.
const NO_FIGURE = 0, BROKEN = 1, RAMP = 2, ABOVE = RAMP + STEPS, MODE = ABOVE + 1, STATE = MODE + MODES.length;
const COLOURS = STATE + STATES.length;

export const METRICS = [
  { id: "allocated", name: "Memory allocated", column: "allocated_mib", of: "total_mib" },
  { id: "used", name: "Memory used", column: "used_mib", of: "total_mib", real: true },
  { id: "core", name: "Compute allocated", column: "allocated_core" },
  { id: "busy", name: "Compute used", column: "busy_percent", real: true },
  { id: "mode", name: "Mode" },
  { id: "health", name: "Health" },
];

const SIZES = [76, 64, 54, 46, 40, 34, 30, 26, 22, 18, 16, 14, 12, 10, 9, 8, 7, 6, 5, 4];
const LABELLED = 120, LABEL = 20, LEAST_LABELLED = 118, FIGURES = 40, ROUNDED = 14;
/** Pixels written at once, to avoid a second copy of a long map on a fine screen. */
const STRIP = 1 << 20;

const SHUT = "⊘";
const takesNothing = (state) => state === CORDONED || state === CLOSED;

export class HeatMap {
  constructor(store, { open, announce }) {
    this.store = store;
    this.open = open;
    this.announce = announce;
    this.metric = METRICS[0];
    this.filter = () => true;
    this.order = [];
    this.placeOf = new Int32Array(0);
    this.focus = 0;
    this.canvas = h("canvas", {
      role: "application", tabindex: 0, "aria-roledescription": "heat map", "aria-describedby": "map-hint", "aria-label": "Heat map of all GPUs",
      onkeydown: (event) => this.key(event), onpointermove: (event) => this.hover(event), onpointerleave: () => this.leave(),
      onclick: (event) => this.click(event), onfocus: () => this.showFocus(true), onblur: () => this.ring.hidden = true,
    });
    this.ring = h("div", { class: "ring", hidden: true });
    this.tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.nothing = h("p", { class: "quiet nothing", hidden: true }, "No node matches.");
    this.element = h("div", { class: "map" }, this.canvas, this.ring, this.tip, this.nothing,
      h("p", { class: "sr", id: "map-hint" }, "Arrow keys move between GPUs, Enter opens one. The Nodes view shows the same as a table."));
    this.context = this.canvas.getContext("2d", { alpha: true });
    this.dirty = new Set();
    this.frame = 0;
    this.full = true;
    this.resizer = new ResizeObserver(() => this.resized());
    this.loaded = () => this.again(true);
    this.waited = () => {
      const reserved = JSON.stringify(store.waiting.kept ?? []);
      if (reserved !== this.reserved) this.again(true);
      this.reserved = reserved;
    };
    this.changed = ({ detail }) => {
      if (detail.shape) this.again(true);
      else if (detail.slots.size) {
        for (const slot of detail.slots) this.dirty.add(slot);
        this.again(false);
      }
    };
    this.recoloured = () => { this.readColours(); this.again(true); };
  }

  mount() {
    this.resizer.observe(this.element);
    this.store.addEventListener("loaded", this.loaded);
    this.store.addEventListener("changed", this.changed);
    this.store.addEventListener("waiting", this.waited);
    document.addEventListener("recoloured", this.recoloured);
    this.readColours();
  }

  unmount() {
    this.resizer.disconnect();
    this.store.removeEventListener("loaded", this.loaded);
    this.store.removeEventListener("changed", this.changed);
    this.store.removeEventListener("waiting", this.waited);
    document.removeEventListener("recoloured", this.recoloured);
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  }

  show(metric, filter = this.filter) {
    this.metric = metric;
    this.filter = filter;
    this.again(true);
  }

  readColours() {
    const style = getComputedStyle(document.documentElement), read = (name) => style.getPropertyValue(name).trim();
    this.colours = [
      read("--no-figure"), read("--broken"), ...Array.from({ length: STEPS }, (_, step) => read(`--ramp-${step}`)), read("--above"),
      ...MODES.map((mode) => read(`--mode-${mode}`)), ...STATES.map((state) => read(`--state-${state.replace(" ", "-")}`)),
    ];
    this.inks = new Uint32Array(this.colours.length);
    const bytes = new Uint8Array(this.inks.buffer);
    this.colours.forEach((colour, at) => colour.startsWith("#") && bytes.set([...[1, 3, 5].map((part) => parseInt(colour.slice(part, part + 2), 16)), 255], 4 * at));
  }

  resized() {
    const width = this.element.clientWidth;
    if (width && width !== this.width) this.again(true);
  }

  again(full) {
    this.full ||= full;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      const began = performance.now(), first = !this.drawn;
      if (this.full) this.drawAll();
      else this.drawSome();
      this.drawn = true;
      performance.clearMeasures("gpushare:draw");
      performance.measure("gpushare:draw", { start: began, end: performance.now() });
      if (first) {
        // After the frame that shows it.
        const painted = new MessageChannel();
        painted.port1.onmessage = () => performance.mark("gpushare:painted");
        painted.port2.postMessage(null);
      }
    });
  }

  // --- where cells are --------------------------------------------------------------------------

  layOut() {
    const { store } = this;
    this.order = store.sorted().filter((slot) => this.filter(slot, store.nodes[slot]));
    this.placeOf = new Int32Array(store.nodes.length).fill(-1);
    this.order.forEach((slot, place) => (this.placeOf[slot] = place));
    const most = this.order.reduce((found, slot) => Math.max(found, store.nodes[slot].gpus), 1);
    this.columns = most <= 4 ? most : Math.min(Math.ceil(most / 2), 8);
    this.rows = Math.ceil(most / this.columns);
    this.width = this.element.clientWidth || 800;
    // The window's height without what surrounds the map.
    const room = Math.max(220, innerHeight - this.element.getBoundingClientRect().top - scrollY - 40);
    this.labelled = this.order.length <= LABELLED;
    for (this.size of SIZES) {
      this.gap = this.size >= FIGURES ? 4 : this.size >= 12 ? 2 : 1;
      this.apart = this.size >= FIGURES ? 24 : this.labelled ? 14 : this.size >= 8 ? 5 : 3;
      this.blockWidth = this.columns * (this.size + this.gap) - this.gap;
      if (this.labelled) this.blockWidth = Math.max(this.blockWidth, LEAST_LABELLED);
      this.blockHeight = this.rows * (this.size + this.gap) - this.gap + (this.labelled ? LABEL : 0);
      this.across = Math.max(1, Math.floor((this.width + this.apart) / (this.blockWidth + this.apart)));
      this.down = Math.ceil(this.order.length / this.across);
      this.height = Math.max(this.down * (this.blockHeight + this.apart) - this.apart, 40);
      if (this.height <= room && (this.size < FIGURES || this.down <= 3)) break;
    }
    this.focus = Math.min(this.focus, Math.max(this.order.length * this.columns * this.rows - 1, 0));
  }

  cellAt(place, gpu) {
    const step = this.size + this.gap;
    return [
      (place % this.across) * (this.blockWidth + this.apart) + (gpu % this.columns) * step,
      Math.floor(place / this.across) * (this.blockHeight + this.apart) + (this.labelled ? LABEL : 0) + Math.floor(gpu / this.columns) * step,
    ];
  }

  /** [slot, GPU] under a point, or null. */
  under(x, y) {
    const column = Math.floor(x / (this.blockWidth + this.apart)), row = Math.floor(y / (this.blockHeight + this.apart));
    const place = row * this.across + column, slot = this.order[place];
    if (column >= this.across || slot === undefined) return null;
    const step = this.size + this.gap;
    const inX = Math.floor((x - column * (this.blockWidth + this.apart)) / step);
    const inY = Math.floor((y - row * (this.blockHeight + this.apart) - (this.labelled ? LABEL : 0)) / step);
    const gpu = inY * this.columns + inX;
    return inX >= 0 && inX < this.columns && inY >= 0 && gpu < this.store.nodes[slot].gpus ? [slot, gpu] : null;
  }

  // --- drawing ----------------------------------------------------------------------------------

  drawAll() {
    this.full = false;
    this.dirty.clear();
    this.layOut();
    const ratio = (this.ratio = devicePixelRatio || 1), { canvas, context } = this;
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(this.height * ratio);
    canvas.style.width = `${this.width}px`;
    canvas.style.height = `${this.height}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.cells(this.order);
    this.nothing.hidden = this.order.length > 0;
    if (this.labelled) for (const slot of this.order) this.label(slot);
    canvas.setAttribute("aria-label", `Heat map: ${this.metric.name}, ${counted(this.order.reduce((sum, slot) => sum + this.store.nodes[slot].gpus, 0), "GPU")} of ${counted(this.order.length, "node")}`);
    this.showFocus(false);
  }

  drawSome() {
    if (this.dirty.size * 3 > this.order.length) {
      // Faster than one by one; none has moved.
      this.dirty.clear();
      this.context.clearRect(0, 0, this.width, this.height);
      this.cells(this.order);
      if (this.labelled) for (const slot of this.order) this.label(slot);
      return;
    }
    const slots = [];
    for (const slot of this.dirty) {
      const place = this.placeOf[slot];
      if (place === undefined || place < 0 || !this.store.nodes[slot]) continue;
      const [x, y] = this.cellAt(place, 0);
      this.context.clearRect(x - 0.5, y - 0.5, this.columns * (this.size + this.gap), this.rows * (this.size + this.gap));
      slots.push(slot);
    }
    this.dirty.clear();
    this.cells(slots);
    if (document.activeElement === this.canvas) this.showFocus(false);
  }

  cells(slots) {
    this.fill(slots);
    if (this.store.reserved.size) framed(this, slots);
  }

  fill(slots) {
    if (this.size >= ROUNDED) return this.shapes(slots);
    if (slots !== this.order) for (const slot of slots) this.block(slot);
    else for (let row = 0, high = this.blockHeight + this.apart, rows = Math.max(1, Math.floor(STRIP / (this.canvas.width * high * this.ratio))); row < this.down; row += rows) {
      // One pixel more: with fractional pixels a cell may be wider by one.
      const top = this.pixel(row * high);
      this.pixels(slots.slice(row * this.across, (row + rows) * this.across), 0, top, this.canvas.width + 1, this.pixel((row + rows) * high) + 1 - top);
    }
  }

  block(slot) {
    const { columns, rows, size, gap } = this, [left, top] = this.cellAt(this.placeOf[slot], 0), wide = Math.max(1, this.pixel(size));
    const x = this.pixel(left), y = this.pixel(top);
    this.pixels([slot], x, y, this.pixel(left + (columns - 1) * (size + gap)) + wide - x, this.pixel(top + (rows - 1) * (size + gap)) + wide - y);
  }

  pixel(length) {
    return Math.round(length * this.ratio);
  }

  /** Small cells are written as pixels: drawing 40,000 as shapes takes several times as long. Coordinates are in the canvas's own pixels. */
  pixels(slots, x, y, width, height) {
    const { store, columns, size, gap, ratio, inks } = this, image = this.context.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
    const step = size + gap, side = Math.max(1, this.pixel(size));
    for (const slot of slots) {
      const [left, top] = this.cellAt(this.placeOf[slot], 0), gpus = store.nodes[slot].gpus;
      for (let gpu = 0; gpu < gpus; gpu++) {
        const ink = inks[this.colour(slot, gpu)];
        let at = (Math.round((top + Math.floor(gpu / columns) * step) * ratio) - y) * width + Math.round((left + (gpu % columns) * step) * ratio) - x;
        for (let line = 0; line < side; line++, at += width) for (let one = at; one < at + side; one++) pixels[one] = ink;
      }
    }
    this.context.putImageData(image, x, y);
  }

  shapes(slots) {
    const { store, columns, size, gap } = this, most = slots.length * store.stride;
    const xs = new Float32Array(most), ys = new Float32Array(most), shut = new Uint8Array(most), colours = new Uint8Array(most), sums = new Uint32Array(COLOURS + 1);
    let cells = 0;
    for (const slot of slots) {
      const [left, top] = this.cellAt(this.placeOf[slot], 0), gpus = store.nodes[slot].gpus;
      for (let gpu = 0; gpu < gpus; gpu++) {
        xs[cells] = left + (gpu % columns) * (size + gap);
        ys[cells] = top + Math.floor(gpu / columns) * (size + gap);
        colours[cells] = this.colour(slot, gpu);
        shut[cells] = takesNothing(store.figure("state", slot, gpu));
        sums[colours[cells] + 1]++;
        cells++;
      }
    }
    for (let colour = 1; colour <= COLOURS; colour++) sums[colour] += sums[colour - 1];
    const sorted = new Uint32Array(cells), next = sums.slice();
    for (let cell = 0; cell < cells; cell++) sorted[next[colours[cell]]++] = cell;
    const { context } = this;
    for (let colour = 0; colour < COLOURS; colour++) {
      if (sums[colour] === sums[colour + 1]) continue;
      context.fillStyle = this.colours[colour];
      context.beginPath();
      for (let at = sums[colour]; at < sums[colour + 1]; at++) {
        const cell = sorted[at];
        context.roundRect(xs[cell], ys[cell], size, size, size >= FIGURES ? 8 : 3);
      }
      context.fill();
    }
    if (size >= FIGURES) this.figures(slots);
    else this.marks(sorted, sums, xs, ys, shut);
  }

  /** The values, in large cells. */
  figures(slots) {
    const { context, size, store, metric } = this;
    context.font = `600 ${Math.round(size / 4.6)}px ${getComputedStyle(this.element).fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const slot of slots) {
      for (let gpu = 0; gpu < store.nodes[slot].gpus; gpu++) {
        const [x, y] = this.cellAt(this.placeOf[slot], gpu), state = store.figure("state", slot, gpu), colour = this.colour(slot, gpu);
        let text = "";
        if (state === UNHEALTHY) text = "✕";
        else if (metric.column) {
          const figure = store.figure(metric.column, slot, gpu);
          text = percent(metric.of ? share(figure, store.figure(metric.of, slot, gpu)) : figure);
        }
        if (takesNothing(state)) text = `${SHUT} ${text}`.trim();
        context.fillStyle = contrasting(this.colours[colour]);
        context.fillText(text, x + size / 2, y + size / 2 + 1);
      }
    }
    context.textAlign = "start";
  }

  /** A cross on unhealthy GPUs and a bar across closed ones, so that colour is not the only signal. */
  marks(sorted, sums, xs, ys, shut) {
    const { context, size } = this, from = size * 0.32, until = size * 0.68;
    context.strokeStyle = "#fff";
    context.lineWidth = 2;
    context.beginPath();
    for (const colour of [BROKEN, STATE + UNHEALTHY]) {
      for (let at = sums[colour]; at < sums[colour + 1]; at++) {
        const x = xs[sorted[at]], y = ys[sorted[at]];
        context.moveTo(x + from, y + from);
        context.lineTo(x + until, y + until);
        context.moveTo(x + until, y + from);
        context.lineTo(x + from, y + until);
      }
    }
    context.stroke();
    for (let colour = 0; colour < COLOURS; colour++) {
      context.strokeStyle = contrasting(this.colours[colour]);
      context.beginPath();
      for (let at = sums[colour]; at < sums[colour + 1]; at++) {
        if (!shut[sorted[at]]) continue;
        context.moveTo(xs[sorted[at]] + from, ys[sorted[at]] + until);
        context.lineTo(xs[sorted[at]] + until, ys[sorted[at]] + from);
      }
      context.stroke();
    }
  }

  label(slot) {
    const [x, y] = this.cellAt(this.placeOf[slot], 0), { context } = this;
    const style = getComputedStyle(this.element);
    context.font = `500 12px ${style.fontFamily}`;
    context.fillStyle = style.color;
    context.textBaseline = "alphabetic";
    context.fillText(shortened(context, this.store.nodes[slot].name, this.blockWidth), x, y - 6);
  }

  colour(slot, gpu) {
    const { store, metric } = this, state = store.figure("state", slot, gpu);
    if (metric.id === "mode") return MODE + Math.max(MODES.indexOf(store.nodes[slot].mode), 0);
    if (metric.id === "health") return STATE + state;
    if (state === UNHEALTHY) return BROKEN;
    const figure = store.figure(metric.column, slot, gpu);
    if (figure === UNKNOWN) return NO_FIGURE;
    const part = metric.of ? figure / (store.figure(metric.of, slot, gpu) || 1) : figure / 100;
    if (part > 1.005) return ABOVE;
    return RAMP + (part <= 0 ? 0 : Math.min(1 + Math.floor(part * (STEPS - 1.001)), STEPS - 1));
  }

  legend() {
    const swatch = (colour, name) => h("span", { class: "swatch" }, h("i", { style: { background: this.colours[colour] } }), name);
    if (this.metric.id === "mode") {
      const seen = new Set(this.store.nodes.filter(Boolean).map((node) => node.mode));
      return MODES.filter((mode) => seen.has(mode)).map((mode) => swatch(MODE + MODES.indexOf(mode), mode));
    }
    if (this.metric.id === "health") return [IN_SERVICE, UNHEALTHY, CORDONED, CLOSED].map((state) => swatch(STATE + state, STATES[state]));
    return [
      h("span", { class: "swatch ramp" }, "0", Array.from({ length: STEPS }, (_, step) => h("i", { style: { background: this.colours[RAMP + step] } })), "100%"),
      this.metric.id !== "core" && !this.metric.real && swatch(ABOVE, "above"),
      this.metric.real && swatch(NO_FIGURE, "not reported"),
      this.metric.id === "core" && swatch(NO_FIGURE, "not shared"),
      swatch(BROKEN, "unhealthy"),
      h("span", { class: "swatch" }, SHUT, " accepts no new pods"),
      h("span", { class: "swatch" }, "┄ framed: reserved"),
    ];
  }

  describe(slot, gpu) {
    const { store } = this, figure = (name) => store.figure(name, slot, gpu), total = figure("total_mib");
    return {
      name: `${store.nodes[slot].name} · GPU ${store.label(slot, gpu)}`,
      lines: [
        ["Memory allocated", `${gib(figure("allocated_mib"))} of ${gib(total)} (${percent(share(figure("allocated_mib"), total))})`],
        ["Memory used", gib(figure("used_mib"))],
        ...(figure("foreign_mib") > 0 ? [["Used without an allocation", gib(figure("foreign_mib"))]] : []),
        ["Compute allocated", figure("allocated_core") === UNKNOWN ? "not shared" : percent(figure("allocated_core"))],
        ["Compute used", percent(figure("busy_percent"))],
        ["Pods", count(figure("pods"))],
        ["Mode", store.nodes[slot].mode],
        ["State", STATES[figure("state")]],
        ...store.reservedOn(store.nodes[slot].name, store.index(slot, gpu)).map((one) => ["Reserved", reservedText(one)]),
      ],
    };
  }

  // --- pointer and keys -------------------------------------------------------------------------

  hover(event) {
    const hit = this.under(event.offsetX, event.offsetY);
    if (!hit) return this.leave();
    this.canvas.style.cursor = "pointer";
    this.showTip(...hit);
  }

  leave() {
    this.canvas.style.cursor = "";
    this.tip.hidden = true;
  }

  showTip(slot, gpu) {
    const [x, y] = this.cellAt(this.placeOf[slot], gpu), described = this.describe(slot, gpu);
    this.tip.replaceChildren(h("strong", null, described.name), h("dl", null, described.lines.map(([name, value]) => [h("dt", null, name), h("dd", null, value)])));
    this.tip.hidden = false;
    const wide = this.tip.offsetWidth, right = x + this.size + 8;
    const left = right + wide <= this.width ? right : x - wide - 8;
    this.tip.style.transform = `translate(${Math.max(0, left)}px, ${Math.max(0, Math.min(y, this.height - this.tip.offsetHeight + 30))}px)`;
  }

  click(event) {
    const hit = this.under(event.offsetX, event.offsetY);
    if (hit) this.open(...hit);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.order.length) return;
    const wide = this.across * this.columns, per = this.columns * this.rows;
    const place = Math.floor(this.focus / per), gpu = this.focus % per;
    let x = (place % this.across) * this.columns + (gpu % this.columns);
    let y = Math.floor(place / this.across) * this.rows + Math.floor(gpu / this.columns);
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [0, -5 * this.rows], PageDown: [0, 5 * this.rows] };
    if (event.key === "Enter" || event.key === " ") {
      const [slot, at] = this.focused();
      this.open(slot, at);
    } else if (event.key === "Home") this.move(0);
    else if (event.key === "End") this.move((this.order.length - 1) * per + this.store.nodes[this.order.at(-1)].gpus - 1);
    else if (event.key in steps) {
      const [dx, dy] = steps[event.key];
      // Cells that a smaller node lacks are skipped.
      for (let tries = 0; tries < per; tries++) {
        x = Math.min(Math.max(x + dx, 0), wide - 1);
        y = Math.min(Math.max(y + dy, 0), this.down * this.rows - 1);
        const to = Math.floor(y / this.rows) * this.across + Math.floor(x / this.columns);
        const at = (y % this.rows) * this.columns + (x % this.columns), slot = this.order[to];
        if (slot !== undefined && at < this.store.nodes[slot].gpus) { this.move(to * per + at); break; }
      }
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  focused() {
    const per = this.columns * this.rows, slot = this.order[Math.floor(this.focus / per)];
    return [slot, Math.min(this.focus % per, this.store.nodes[slot].gpus - 1)];
  }

  move(focus) {
    this.focus = focus;
    this.showFocus(true);
    const { name, lines } = this.describe(...this.focused());
    this.announce(`${name}: ${lines.map(([what, value]) => `${what} ${value}`).join(", ")}`);
  }

  showFocus(scroll) {
    if (document.activeElement !== this.canvas || !this.order.length) {
      this.ring.hidden = true;
      return;
    }
    const [slot, gpu] = this.focused(), [x, y] = this.cellAt(this.placeOf[slot], gpu);
    this.ring.hidden = false;
    this.ring.style.width = this.ring.style.height = `${this.size + 4}px`;
    this.ring.style.transform = `translate(${x - 2}px, ${y - 2}px)`;
    if (scroll) {
      this.showTip(slot, gpu);
      this.ring.scrollIntoView({ block: "nearest" });
    }
  }
}

/** Black or white, whichever can be read on a colour written #rrggbb. */
function contrasting(colour) {
  const part = (at) => { const value = parseInt(colour.slice(at, at + 2), 16) / 255; return value <= 0.04 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; };
  return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5) > 0.2 ? "#10151f" : "#ffffff";
}

function shortened(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let least = 0, most = text.length;
  while (least < most) {
    const middle = (least + most + 1) >> 1;
    if (context.measureText(`…${text.slice(-middle)}`).width <= width) least = middle;
    else most = middle - 1;
  }
  return `…${text.slice(-least)}`;
}
