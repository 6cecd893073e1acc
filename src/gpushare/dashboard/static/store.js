// The cluster as typed arrays, as the server sends it: a slot for each node, `stride` GPUs in each.

import { UNKNOWN } from "./dom.js";

const KINDS = { "<i4": Int32Array, "<i2": Int16Array, "|u1": Uint8Array };
const MAGIC = 0x31425047; // GPB1
const REAL = ["used_mib", "busy_percent"];

export const STATES = ["absent", "in service", "unhealthy", "cordoned", "closed"];
export const ABSENT = 0, IN_SERVICE = 1, UNHEALTHY = 2, CORDONED = 3, CLOSED = 4;

export class Store extends EventTarget {
  constructor() {
    super();
    this.stride = 1;
    this.nodes = [];
    this.planes = {};
    this.slots = new Map();
    this.keys = new Map();
    this.totals = null;
    this.waiting = { count: 0, problem: "", by_category: {} };
    this.reserved = new Map();
    this.samples = [];
    this.id = "";
    this.pendingChanges = nothing();
  }

  /** Takes a snapshot: "GPB1", length of the header, header, columns, each padded to 8 bytes. */
  load(buffer) {
    const view = new DataView(buffer);
    if (view.getUint32(0, true) !== MAGIC) throw new Error("the server's data is of another version: reload the page");
    const length = view.getUint32(4, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
    let at = padded(8 + length);
    this.stride = header.stride;
    this.nodes = header.nodes;
    this.columns = header.columns.map(([name]) => name);
    for (const [name, kind] of header.columns) {
      const Kind = KINDS[kind], cells = this.nodes.length * this.stride;
      this.planes[name] = new Kind(buffer, at, cells);
      at = padded(at + cells * Kind.BYTES_PER_ELEMENT);
    }
    this.renamed = true;
    this.pendingChanges = nothing();
    this.slots = new Map();
    this.nodes.forEach((node, slot) => node && this.slots.set(node.name, slot));
    this.totals = totals(header.totals);
    this.waiting = header.waiting;
    this.updateReserved();
    this.id = header.id;
    this.dispatchEvent(new CustomEvent("loaded"));
  }

  /** Applies a delta; returns which slots changed, and whether nodes came, went, or changed their shape. A large one comes in parts, and is
   * reported with its last. */
  apply(delta) {
    const { pendingChanges: changes } = this;
    this.renamed ||= Boolean(delta.gone) || (delta.nodes ?? []).some(([slot, node]) => this.nodes[slot]?.name !== node.name);
    for (const slot of delta.gone ?? []) {
      const node = this.nodes[slot];
      if (!node) continue;
      this.slots.delete(node.name);
      this.nodes[slot] = null;
      this.put(slot, []);
      changes.slots.add(slot);
      changes.shape = true;
    }
    for (const [slot, node, ...figures] of delta.nodes ?? []) {
      this.reserve(slot + 1, node.gpus);
      const before = this.nodes[slot];
      changes.shape ||= !before || before.name !== node.name || before.gpus !== node.gpus || before.mode !== node.mode;
      if (before && before.name !== node.name) this.slots.delete(before.name);
      this.nodes[slot] = node;
      this.slots.set(node.name, slot);
      this.put(slot, figures);
      changes.slots.add(slot);
    }
    for (const [slot, ...figures] of delta.real ?? []) {
      REAL.forEach((name, column) => this.planes[name].set(figures[column], slot * this.stride));
      changes.slots.add(slot);
    }
    if (delta.totals) this.totals = totals(delta.totals);
    changes.totals ||= Boolean(delta.totals);
    if (delta.more) return;
    this.pendingChanges = nothing();
    this.dispatchEvent(new CustomEvent("changed", { detail: changes }));
  }

  /** Slots in the order of their names; sorted again only when nodes were added or removed. */
  sorted() {
    if (this.order?.length !== this.slots.size || this.renamed) {
      this.renamed = false;
      // Numbers as numbers, without a collator: it takes a tenth of a second for some thousand names.
      const keys = new Map([...this.slots.keys()].map((name) => [name, this.keys.get(name) ?? name.replace(/\d+/g, (digits) => digits.padStart(10, "0"))]));
      this.keys = keys;
      this.order = [...this.slots].map(([name, slot]) => [keys.get(name), slot]).sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)).map(([, slot]) => slot);
    }
    return this.order;
  }

  addSample(row) {
    this.samples.push(row);
    if (this.samples.length > 2880) this.samples = this.samples.slice(-1440);
    this.dispatchEvent(new CustomEvent("sample", { detail: row }));
  }

  setWaiting(waiting) {
    this.waiting = waiting;
    this.updateReserved();
    this.dispatchEvent(new CustomEvent("waiting"));
  }

  /** Reserved capacity by node and GPU index, as the scheduler last reported it. */
  updateReserved() {
    this.reserved = new Map();
    for (const [node, index, mib, core, whom] of this.waiting.kept ?? []) {
      const its = this.reserved.get(node) ?? this.reserved.set(node, new Map()).get(node);
      its.set(index, [...(its.get(index) ?? []), { mib, core, whom }]);
    }
  }

  reservedOn(node, index) {
    return this.reserved.get(node)?.get(index) ?? [];
  }

  figure(name, slot, gpu) {
    return this.planes[name][slot * this.stride + gpu];
  }

  /** What a GPU is called: its index, or 0/4 for a MIG instance. */
  label(slot, gpu) {
    return this.nodes[slot].labels?.[gpu] ?? this.index(slot, gpu);
  }

  labelOn(name, index) {
    const node = this.nodes[this.slots.get(name)];
    return node?.labels?.[node.indices.indexOf(Number(index))] ?? index;
  }

  /** The driver's index of the GPU at that position. */
  index(slot, gpu) {
    return this.nodes[slot].indices?.[gpu] ?? gpu;
  }

  /** A slot's figures, column by column; figures of missing GPUs are unknown. */
  put(slot, figures) {
    this.columns.forEach((name, column) => {
      const plane = this.planes[name], from = slot * this.stride, row = figures[column] ?? [];
      for (let gpu = 0; gpu < row.length; gpu++) plane[from + gpu] = row[gpu];
      if (row.length < this.stride) plane.fill(REAL.includes(name) ? UNKNOWN : 0, from + row.length, from + this.stride);
    });
  }

  reserve(slots, gpus) {
    const had = this.planes.state.length / this.stride;
    if (slots <= had && gpus <= this.stride) {
      while (this.nodes.length < slots) this.nodes.push(null);
      return;
    }
    const stride = Math.max(gpus, this.stride), capacity = slots <= had ? had : Math.max(slots, 2 * had);
    for (const [name, old] of Object.entries(this.planes)) {
      const plane = new old.constructor(capacity * stride).fill(REAL.includes(name) ? UNKNOWN : 0);
      for (let slot = 0; slot < had; slot++) plane.set(old.subarray(slot * this.stride, (slot + 1) * this.stride), slot * stride);
      this.planes[name] = plane;
    }
    this.stride = stride;
    while (this.nodes.length < slots) this.nodes.push(null);
  }
}

const nothing = () => ({ slots: new Set(), shape: false, totals: false });
const padded = (at) => (at + 7) & ~7;

const FIELDS = ["at_s", "gpus", "total_mib", "allocated_mib", "used_mib", "allocated_core", "pods", "waiting", "free_mib", "fragments_mib", "reporting_gpus", "reporting_mib", "core_gpus"];
export const totals = (row) => Object.fromEntries(FIELDS.map((name, at) => [name, row[at]]));
