// Node, GPU, pod, fragmentation, history: what is asked of the server when it is looked at.

import { asked, since, trail } from "./asked.js";
import { lines } from "./charts.js";
import { DASH, UNKNOWN, age, badge, count, counted, gib, h, reservedText, number, percent, share, table, to, typed } from "./dom.js";
import { askJson } from "./link.js";
import { totals } from "./store.js";

const fact = (name, value) => [h("dt", null, name), h("dd", null, value)];
const stateOf = (gpu, node) => (!gpu.healthy ? ["unhealthy", "bad"] : gpu.cordoned ? ["cordoned", "warn"] : node.refusal || gpu.reason ? ["closed", "warn"] : ["in service", "good"]);
const sum = (values) => (values.some((value) => value !== UNKNOWN) ? values.filter((value) => value !== UNKNOWN).reduce((a, b) => a + b, 0) : UNKNOWN);

function bar(gpu) {
  const all = Math.max(gpu.total_mib, gpu.allocated_mib + gpu.foreign_mib, 1), width = (mib) => `${(100 * mib) / all}%`;
  return h("div", { class: "bar", role: "img", "aria-label": `${gib(gpu.allocated_mib)} of ${gib(gpu.total_mib)} allocated` },
    gpu.pods.map((pod, at) => h("span", { class: `part part-${at % 6}`, title: `${pod.pod || `claim ${pod.claim}`}: ${gib(pod.mib)}`, style: { width: width(pod.mib) } })),
    gpu.foreign_mib > 0 && h("span", { class: "part foreign", title: `used without an allocation: ${gib(gpu.foreign_mib)}`, style: { width: width(gpu.foreign_mib) } }),
    gpu.used_mib !== UNKNOWN && h("span", { class: "really", title: `used: ${gib(gpu.used_mib)}`, style: { left: width(Math.min(gpu.used_mib, all)) } }));
}

function gpuCard(store, node, gpu, alone) {
  const [state, kind] = stateOf(gpu, node);
  return h("article", { class: "card gpu", "aria-label": `GPU ${gpu.label}` },
    h("header", null,
      h(alone ? "h1" : "h2", null, alone ? `GPU ${gpu.label}` : h("a", { href: to.gpu(node.name, gpu.index) }, `GPU ${gpu.label}`)), badge(state, kind),
      h("span", { class: "quiet model" }, gpu.model || "GPU")),
    gpu.reason && h("p", { class: gpu.healthy ? "note warn" : "note bad" }, gpu.reason),
    gpu.foreign_mib > 0 && h("p", { class: "note warn" }, `${gib(gpu.foreign_mib)} are used without an allocation${gpu.foreign_by && ` by ${gpu.foreign_by}`}, and are not free`),
    bar(gpu),
    h("dl", { class: alone ? "facts wide" : "facts" },
      fact("Memory allocated", `${gib(gpu.allocated_mib)} of ${gib(gpu.total_mib)}`), fact("Memory used", gib(gpu.used_mib)),
      fact("Compute allocated", node.gives_core ? percent(gpu.allocated_core) : "not shared"), fact("Compute used", percent(gpu.busy_percent)),
      store.reservedOn(node.name, gpu.index).map((one) => fact("Reserved", reservedText(one))),
      alone && [fact("Units", `${gpu.used_units} of ${gpu.total_units} (${node.unit})`), fact("UUID", h("code", null, gpu.uuid)), gpu.pci && fact("PCI", h("code", null, gpu.pci)), gpu.numa >= 0 && fact("NUMA node", gpu.numa)]),
    shares(gpu.pods, alone));
}

/** The holder of a share: a pod, or a ResourceClaim with the pods that may use it. */
const holder = (one) => (one.claim ? h("span", null, `claim ${one.claim}`, one.users.map((pod, at) => [at ? ", " : ": ", h("a", { href: to.pod(pod) }, pod)])) : h("a", { href: to.pod(one.pod) }, one.pod));

/** Memory that containers use, and how much they may use where that is more than is allocated to each. */
function used(containers) {
  const limits = containers.map((one) => one.limit_mib), now = gib(sum(containers.map((one) => one.used_mib)));
  return limits.length > 0 && limits.every(Boolean) ? `${now} of at most ${gib(sum(limits))}` : now;
}

function shares(pods, wide) {
  if (!pods.length) return h("p", { class: "quiet" }, "No pod has a share of it.");
  if (!wide) {
    return h("ul", { class: "holders" }, pods.map((pod, at) => h("li", null, h("i", { class: `part part-${at % 6}`, "aria-hidden": "true" }), holder(pod),
      h("span", { class: "quiet" }, gib(pod.mib), pod.core_percent ? `, ${pod.core_percent}%` : ""))));
  }
  return table([{ text: "Pod" }, number("Memory allocated"), number("Memory used"), number("Compute allocated"), number("Compute used")],
    pods.map((pod) => [holder(pod), gib(pod.mib), used(pod.containers),
      pod.core_percent ? percent(pod.core_percent) : "no limit", percent(sum(pod.containers.map((one) => one.busy_percent)))]), { label: "Pods on this GPU" });
}

const notes = (node) => [
  node.problem && h("p", { class: "note bad" }, node.problem), node.refusal && h("p", { class: "note warn" }, `Accepts no new pods: ${node.refusal}`),
  node.usage_unknown && h("p", { class: "note" }, `Actual usage is unknown: ${node.usage_unknown}.`),
  node.troubles.length > 0 && h("p", { class: "note bad" }, `The node agent reports problems: ${node.troubles.join(", ")}`),
];
const about = (store, name) => (event) => event.type === "changed" && event.detail.slots.has(store.slots.get(name));
const reservations = (store, name) => () => JSON.stringify([...(store.reserved.get(name) ?? [])]);

export function nodeView(store, name) {
  return asked(name, `api/node?name=${encodeURIComponent(name)}`, (node) => [
    h("div", { class: "head" }, h("h1", null, node.name), badge(node.mode, "mode"), h("span", { class: "quiet" }, `memory unit ${node.unit}, placement ${node.placement}`)),
    notes(node),
    h("div", { class: "gpus" }, node.gpus.map((gpu) => gpuCard(store, node, gpu, false))),
    node.pending.length > 0 && h("section", { class: "card" }, h("h2", null, "Shares of missing GPUs"),
      table([{ text: "Pod" }, { text: "GPU" }, number("Memory")], node.pending.map((one) => [holder(one), h("code", null, one.uuid), gib(one.mib)]))),
  ], { store, touched: about(store, name), beside: reservations(store, name), crumbs: [["Cluster", "#/"], [name]] });
}

export function gpuView(store, name, index) {
  return asked(`GPU ${store.labelOn(name, index)} of ${name}`, `api/node?name=${encodeURIComponent(name)}`, (node) => {
    const gpu = node.gpus.find((one) => one.index === Number(index));
    return gpu ? [notes(node), gpuCard(store, node, gpu, true)] : h("div", { class: "note bad" }, `${name} has no GPU ${store.labelOn(name, index)} at present.`);
  }, { store, touched: about(store, name), beside: reservations(store, name), crumbs: [["Cluster", "#/"], [name, to.node(name)], [`GPU ${store.labelOn(name, index)}`]] });
}

export function podView(store, key) {
  // Stays open when the rest is redrawn.
  const answers = decided(key);
  return asked(key, `api/pod?key=${encodeURIComponent(key)}`, (pod) => [
    trail([["Cluster", "#/"], ...(pod.node ? [[pod.node, to.node(pod.node)]] : [["Pending", "#/waiting"]]), ...(pod.shares.length === 1 ? [[`GPU ${pod.shares[0].label}`, to.gpu(pod.node, pod.shares[0].index)]] : []), [pod.pod]]),
    h("div", { class: "head" }, h("h1", null, pod.pod), pod.node ? badge(pod.leaving ? "terminating" : "placed", pod.leaving ? "warn" : "good") : badge("pending", "warn")),
    pod.problem && h("p", { class: "note bad" }, pod.problem),
    pod.shares.filter((one) => !one.healthy).map((one) => h("p", { class: "note bad" }, `GPU ${one.label} of its allocation is out of service: ${one.reason || "no reason given"}. The pod keeps it; if its program has failed, delete the pod.`)),
    pod.not_held && h("p", { class: "note" }, `Node ${pod.node} does not enforce the shares of new containers: ${pod.not_held}. Containers that started earlier keep their isolation.`),
    pod.usage_unknown && h("p", { class: "note" }, `Actual usage is unknown: ${pod.usage_unknown}.`),
    h("section", { class: "card" }, h("dl", { class: "facts" },
      pod.node && fact("Node", h("a", { href: to.node(pod.node) }, pod.node)), pod.asks && fact("Requests", pod.asks),
      pod.created && fact("Created", [since(Date.parse(pod.created) / 1000), " ago"]), fact("Priority", pod.priority), pod.gang && fact("Gang", pod.gang), fact("UID", h("code", null, pod.uid)))),
    pod.shares.length > 0 && h("section", { class: "card" }, h("h2", null, "Allocation"),
      table([{ text: "GPU" }, number("Memory allocated"), number("Memory used"), number("Compute allocated"), number("Compute used")],
        pod.shares.map((one) => [h("a", { href: to.gpu(pod.node, one.index) }, `GPU ${one.label}`), gib(one.mib), used(one.containers), one.core_percent ? percent(one.core_percent) : "no limit", percent(sum(one.containers.map((use) => use.busy_percent)))]), { label: "Shares" }),
      pod.shares.some((one) => one.containers.length > 1) && [h("h3", null, "By container"),
        table([{ text: "Container" }, { text: "GPU" }, number("Memory used"), number("Compute used")], pod.shares.flatMap((one) => one.containers.map((use) => [use.container, one.label, used([use]), percent(use.busy_percent)])), { label: "Containers" })]),
    !pod.node && [why(pod), answers],
  ], { store, touched: (event) => event.type === "waiting" || event.detail?.totals, crumbs: [] });
}

const why = (pod) => h("section", { class: "card" }, h("h2", null, "Why it is pending"),
  pod.reason_unknown ? h("p", { class: "note warn" }, pod.reason_unknown) : pod.reason ? h("p", null, typed(pod.reason)) : h("p", { class: "quiet" }, "The scheduler has not handled it yet."),
  pod.suggestion && h("p", { class: "suggestion" }, h("b", null, "Suggestion: "), typed(pod.suggestion)));

/** The scheduler's record of its last decision about a pod, node by node. Requested when opened, because it is long in a large cluster. */
function decided(key) {
  const inside = h("div", { class: "body" });
  return h("details", { class: "card", ontoggle: async (event) => {
    if (!event.target.open) return;
    try {
      inside.replaceChildren(...recordOf(await askJson(`api/decision?pod=${encodeURIComponent(key)}`)));
    } catch (error) {
      inside.replaceChildren(h("p", { class: "note" }, error.message));
    }
  } }, h("summary", null, "The scheduler's result for each node"), inside);
}

const MOST_ROWS = 500;
/** The scheduler's record of a pod, and the result for each node. */
function recordOf(record) {
  const found = [h("p", { class: "quiet" }, record.said || `Scheduler ${record.scheduler?.name ?? ""} was called ${record.asked ? `${age(Date.now() / 1000 - record.asked)} ago` : "for it"}.`)];
  const nodes = record.nodes ?? [];
  if (nodes.length) {
    const heads = Object.keys(nodes[0]);
    found.push(table(heads.map((text) => ({ text: text[0].toUpperCase() + text.slice(1) })), nodes.slice(0, MOST_ROWS).map((one) => heads.map((head) => (head === "node" ? h("a", { href: to.node(one.node) }, one.node) : h("span", { class: "text" }, one[head] || (head === "reason" ? "fits" : DASH))))), { label: "Results by node" }));
    if (nodes.length > MOST_ROWS) found.push(h("p", { class: "quiet" }, `And ${count(nodes.length - MOST_ROWS)} more.`));
  } else found.push(h("p", { class: "quiet" }, "The results for each node are no longer stored."));
  return found;
}

export function fragmentationView(store) {
  return asked("Fragmentation", "api/fragmentation", (report) => {
    const most = Math.max(...report.pieces.map((piece) => piece.gpus), 1), lost = share(report.fragments_mib, report.free_mib);
    return [
      h("div", { class: "head" }, h("h1", null, "Fragmentation")),
      h("dl", { class: "tiles" }, [["Free", gib(report.free_mib), `on ${counted(report.free_gpus, "GPU")}`], ["Largest piece", gib(report.largest_mib), "on one GPU"],
        ["Unusable", percent(lost), `${gib(report.fragments_mib)} in pieces too small for arriving pods`]].map(([name, value, note]) => h("div", { class: "tile" }, h("dt", null, name), h("dd", null, h("b", null, value), h("span", { class: "quiet" }, note))))),
      h("section", { class: "card" }, h("h2", null, "Free memory by size of the piece"),
        table([{ text: "At least" }, { text: "GPUs" }, number("GPUs"), number("Pods of that size that fit")].map((head, at) => (at === 1 ? { text: "Share" } : head)),
          report.pieces.map((piece) => [gib(piece.mib), h("div", { class: "meter wide", role: "img", "aria-label": counted(piece.gpus, "GPU") }, h("i", { style: { width: `${(100 * piece.gpus) / most}%` } })), count(piece.gpus), count(piece.pods)]), { label: "Free pieces" })),
      h("section", { class: "card" }, h("h2", null, "Pending pods that would fit after moves"),
        table([{ text: "Pod" }, { text: "Requests" }, { text: "Target" }, { text: "After these moves" }],
          report.ways.map((way) => [h("a", { href: to.pod(way.pod) }, way.pod), way.asks, way.goes_to || DASH, h("span", { class: "text" }, [...way.moves, way.note].filter(Boolean).join("; "))]), { empty: "No pod that requests GPU memory is pending.", label: "Ways" }),
        report.not_looked_at > 0 && h("p", { class: "quiet" }, `Also pending, not examined: ${count(report.not_looked_at)}.`)),
    ];
  }, { store, touched: (event) => event.detail?.totals, crumbs: [] });
}

const reporting = (row) => (row?.reporting_gpus ? `Used: of ${counted(row.reporting_gpus, "GPU")} that report usage.` : "No node agent reports usage at present.");

export function historyView(store) {
  const body = h("div", { class: "charts" }, h("p", { class: "quiet" }, "Reading …"));
  const element = h("div", { class: "view" }, h("div", { class: "head" }, h("h1", null, "History"), h("span", { class: "quiet" }, "since this dashboard started")), body);
  let read = false;
  function draw() {
    const rows = store.samples.map(totals), times = rows.map((row) => row.at_s), part = (name, all) => rows.map((row) => (row[name] === UNKNOWN || !row[all] ? null : (100 * row[name]) / row[all]));
    const open = [...body.querySelectorAll("details")].map((one) => one.open);
    body.replaceChildren(
      lines("Memory", times, [{ name: "allocated", colour: "--line-1", values: part("allocated_mib", "total_mib"), area: true }, { name: "used", colour: "--line-2", values: part("used_mib", "reporting_mib") }], { format: percent, most: 100, note: reporting(rows.at(-1)) }),
      lines("Compute allocated", times, [{ name: "allocated", colour: "--line-1", values: rows.map((row) => (row.core_gpus ? row.allocated_core / row.core_gpus : null)), area: true }], { format: percent, most: 100 }),
      lines("Pending pods", times, [{ name: "pending", colour: "--line-3", values: rows.map((row) => row.waiting), area: true }], { format: (value) => count(Math.round(value * 10) / 10) }),
      lines("Fragmentation", times, [{ name: "unusable part of free memory", colour: "--line-4", values: part("fragments_mib", "free_mib"), area: true }], { format: percent, most: 100 }));
    body.querySelectorAll("details").forEach((one, at) => (one.open = open[at] ?? false));
  }
  const sampled = () => read && !body.matches(":hover") && !body.contains(document.activeElement) && draw();
  return {
    title: "History", element,
    async mount() {
      store.addEventListener("sample", sampled);
      try {
        const found = await askJson("api/history");
        store.samples = found.samples;
        read = true;
        draw();
      } catch (error) {
        body.replaceChildren(h("div", { class: "note bad", role: "alert" }, error.message));
      }
    },
    unmount() { store.removeEventListener("sample", sampled); },
  };
}
