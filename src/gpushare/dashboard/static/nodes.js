// The heat map as a table: a row per node, sortable and filterable.

import { UNKNOWN, badge, count, gib, h, percent, share, to } from "./dom.js";
import { paged } from "./paged.js";
import { CORDONED, IN_SERVICE, STATES, UNHEALTHY } from "./store.js";

const AGAIN_MS = 1000;
const HEADS = [
  { text: "Node", by: "name" }, { text: "Mode", by: "mode" }, { text: "GPUs", by: "gpus", number: true }, { text: "Memory allocated", by: "part", number: true },
  { text: "Memory used", by: "used", number: true }, { text: "Compute allocated", by: "core", number: true }, { text: "Pods", by: "pods", number: true }, { text: "State", by: "bad" },
];

/** Sums over a node's GPUs; `core` is the mean per GPU. */
function summed(store, slot) {
  const node = store.nodes[slot], { total_mib, allocated_mib, used_mib, allocated_core, pods, state } = store.planes;
  const sum = { name: node.name, mode: node.mode, gpus: node.gpus, total: 0, allocated: 0, part: 0, used: UNKNOWN, core: UNKNOWN, pods: 0, bad: 0, state: "" };
  let cordoned = 0;
  for (let at = slot * store.stride, end = at + node.gpus; at < end; at++) {
    sum.total += total_mib[at];
    sum.allocated += allocated_mib[at];
    sum.pods += pods[at];
    sum.bad += state[at] === UNHEALTHY;
    cordoned += state[at] === CORDONED;
    if (used_mib[at] !== UNKNOWN) sum.used = Math.max(sum.used, 0) + used_mib[at];
    if (allocated_core[at] !== UNKNOWN) sum.core = Math.max(sum.core, 0) + allocated_core[at] / node.gpus;
  }
  sum.part = sum.allocated / (sum.total || 1);
  sum.state = [sum.bad && `${sum.bad} unhealthy`, cordoned && `${cordoned} cordoned`, node.refusal && "closed"].filter(Boolean).join(", ") || STATES[IN_SERVICE];
  return sum;
}

const cellsOf = (sum) => [
  h("a", { href: to.node(sum.name) }, sum.name), badge(sum.mode, "mode"), count(sum.gpus),
  h("span", { class: "with-meter" }, h("span", { class: "meter", "aria-hidden": "true" }, h("i", { style: { width: `${Math.min(share(sum.allocated, sum.total), 100)}%` } })), `${gib(sum.allocated)} of ${gib(sum.total)}`),
  gib(sum.used), sum.core === UNKNOWN ? "not shared" : percent(sum.core), count(sum.pods), badge(sum.state, sum.bad ? "bad" : sum.state === STATES[IN_SERVICE] ? "good" : "warn"),
];

export function nodesView(store) {
  const known = new Map(), stale = new Set();
  const filter = h("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name", oninput: () => { list.first(); draw(); } });
  const list = paged(HEADS, { label: "Nodes", names: "nodes", cellsOf, keyOf: (sum) => sum.name, itemOf: sumOf, turned: draw });
  const nothing = h("p", { class: "quiet", hidden: true }, "No node with GPUs.");
  let by = "name", down = false, frame = 0;
  const heads = [...list.place.querySelectorAll("thead th")], sorts = HEADS.map((head, at) => {
    const button = h("button", { type: "button", class: "sort", onclick: () => { down = by === head.by ? !down : false; by = head.by; mark(); draw(); } });
    heads[at].replaceChildren(button);
    return button;
  });

  function mark() {
    HEADS.forEach((head, at) => {
      heads[at].setAttribute("aria-sort", by === head.by ? (down ? "descending" : "ascending") : "none");
      sorts[at].textContent = by === head.by ? `${head.text} ${down ? "↓" : "↑"}` : head.text;
    });
  }

  /** The same object as long as a node reads the same. */
  function sumOf(slot) {
    const before = known.get(slot);
    if (before && !stale.has(slot)) return before;
    stale.delete(slot);
    const now = summed(store, slot);
    if (before && Object.keys(now).every((key) => now[key] === before[key])) return before;
    known.set(slot, now);
    return now;
  }

  /** Slots in display order; ties by name. */
  function ordered() {
    const wanted = filter.value.trim().toLowerCase();
    let slots = store.sorted();
    if (wanted) slots = slots.filter((slot) => store.nodes[slot].name.toLowerCase().includes(wanted));
    if (by === "name") return down ? [...slots].reverse() : slots;
    const keys = new Map(slots.map((slot) => [slot, sumOf(slot)[by]])), sign = down ? -1 : 1;
    return [...slots].sort((a, b) => {
      const one = keys.get(a), other = keys.get(b);
      return one < other ? -sign : one > other ? sign : 0;
    });
  }

  function draw() {
    list.show(ordered());
    nothing.hidden = store.slots.size > 0;
  }
  const changed = ({ detail }) => {
    for (const slot of detail.slots) stale.add(slot);
    frame ||= setTimeout(() => { frame = 0; draw(); }, AGAIN_MS);
  };
  const loaded = () => { known.clear(); stale.clear(); draw(); };
  mark();
  return {
    title: "Nodes",
    element: h("div", { class: "view" }, h("div", { class: "head" }, h("h1", null, "Nodes"), filter), h("section", { class: "card" }, list.place, nothing, list.pages)),
    mount() { store.addEventListener("changed", changed); store.addEventListener("loaded", loaded); loaded(); },
    unmount() { clearTimeout(frame); store.removeEventListener("changed", changed); store.removeEventListener("loaded", loaded); },
  };
}
