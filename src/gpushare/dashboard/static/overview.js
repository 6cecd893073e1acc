// The cluster at a glance: sums, and the heat map of all GPUs.

import { UNKNOWN, count, counted, gib, h, percent, share, to } from "./dom.js";
import { HeatMap, METRICS } from "./heatmap.js";
import { UNHEALTHY } from "./store.js";

const choice = { metric: METRICS[0], mode: "", state: "" };

function tile(name, value, note, part) {
  return h("div", { class: "tile" }, h("dt", null, name), h("dd", null, h("b", null, value), h("span", { class: "quiet" }, note)),
    part !== undefined && h("div", { class: "meter", "aria-hidden": "true" }, h("i", { style: { width: `${Math.max(0, Math.min(part, 100))}%` } })));
}

function tiles(store) {
  const sum = store.totals, allocated = share(sum.allocated_mib, sum.total_mib), used = share(sum.used_mib, sum.reporting_mib), core = sum.core_gpus ? sum.allocated_core / sum.core_gpus : UNKNOWN;
  const states = store.planes.state;
  let bad = 0;
  for (let at = 0; at < states.length; at++) bad += states[at] === UNHEALTHY;
  return [
    tile("GPUs", count(sum.gpus), `${counted(store.slots.size, "node")}${bad ? `, ${count(bad)} unhealthy` : ""}`),
    tile("Memory allocated", percent(allocated), `${gib(sum.allocated_mib)} of ${gib(sum.total_mib)}`, allocated),
    tile("Memory used", percent(used), used === UNKNOWN ? "no node agent reports" : `${gib(sum.used_mib)}${sum.reporting_gpus < sum.gpus ? `, reported by ${counted(sum.reporting_gpus, "GPU")}` : ""}`, used === UNKNOWN ? 0 : used),
    tile("Compute allocated", percent(core), core === UNKNOWN ? "no node shares it" : sum.core_gpus < sum.gpus ? `of ${counted(sum.core_gpus, "GPU")}` : "of all GPUs", core),
    tile("Pods", count(sum.pods), "with a GPU share"),
    tile("Pending", count(sum.waiting), sum.waiting ? h("a", { href: "#/waiting" }, "see why") : "none"),
  ];
}

export function overview(store, { announce }) {
  const map = new HeatMap(store, { open: (slot, gpu) => (location.hash = to.gpu(store.nodes[slot].name, store.index(slot, gpu))), announce });
  const sums = h("dl", { class: "tiles", "aria-label": "Cluster totals" });
  const legend = h("div", { class: "legend", "aria-label": "Legend", role: "group" });
  const buttons = METRICS.map((metric, at) =>
    h("button", { type: "button", "aria-pressed": String(metric === choice.metric), title: `Key ${at + 1}`, onclick: () => choose(metric) }, metric.name));
  const modes = h("select", { "aria-label": "Mode", onchange: (event) => { choice.mode = event.target.value; narrow(); } });
  const states = h("select", { "aria-label": "State", onchange: (event) => { choice.state = event.target.value; narrow(); } },
    [["", "All states"], ["bad", "With problems"], ["free", "With free memory"], ["full", "Full"]].map(([value, name]) => h("option", { value, selected: value === choice.state }, name)));

  function filter(slot, node) {
    if (choice.mode && node.mode !== choice.mode) return false;
    if (!choice.state) return true;
    for (let gpu = 0; gpu < node.gpus; gpu++) {
      const figure = (name) => store.figure(name, slot, gpu), state = figure("state");
      const free = figure("total_mib") - figure("allocated_mib") - figure("foreign_mib");
      if (choice.state === "bad" && state > 1) return true;
      if (choice.state === "free" && state === 1 && free > 0) return true;
      if (choice.state === "full" && state === 1 && free <= 0) return true;
    }
    return false;
  }
  function narrow() {
    map.show(choice.metric, filter);
    drawLegend();
  }
  function choose(metric) {
    choice.metric = metric;
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(METRICS[at] === metric)));
    narrow();
    announce(`The heat map shows: ${metric.name}`);
  }
  function drawLegend() {
    legend.replaceChildren(...map.legend().flat().filter(Boolean));
  }
  function drawSums() {
    sums.replaceChildren(...tiles(store));
  }
  function drawModes() {
    const seen = [...new Set(store.nodes.filter(Boolean).map((node) => node.mode))].sort();
    modes.replaceChildren(h("option", { value: "" }, "All modes"), ...seen.map((mode) => h("option", { value: mode, selected: mode === choice.mode }, mode)));
  }
  const changed = ({ detail }) => {
    if (detail.totals || detail.shape) drawSums();
    if (detail.shape) { drawModes(); drawLegend(); }
  };
  const loaded = () => { drawSums(); drawModes(); drawLegend(); };
  const key = (event) => {
    const metric = METRICS[Number(event.key) - 1];
    if (metric) choose(metric);
    return Boolean(metric);
  };
  return {
    title: "Overview",
    element: h("div", { class: "view" }, h("h1", { class: "sr" }, "Overview"), sums,
      h("section", { class: "card", "aria-label": "All GPUs" },
        h("div", { class: "toolbar" }, h("div", { class: "segments", role: "group", "aria-label": "Metric of the heat map" }, buttons), h("div", { class: "selects" }, modes, states)),
        legend, map.element)),
    mount() {
      map.mount();
      store.addEventListener("changed", changed);
      store.addEventListener("loaded", loaded);
      document.addEventListener("recoloured", drawLegend);
      loaded();
      map.show(choice.metric, filter);
    },
    unmount() {
      map.unmount();
      store.removeEventListener("changed", changed);
      store.removeEventListener("loaded", loaded);
      document.removeEventListener("recoloured", drawLegend);
    },
    key,
  };
}
