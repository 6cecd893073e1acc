// Node, GPU, pod, all nodes, who waits, fragmentation, history: what is asked of the server when it is looked at.

import { DASH, UNKNOWN, age, count, gib, h, number, percent, share, table, to } from "./dom.js";
import { askJson, LoggedOut } from "./link.js";
import { lines } from "./charts.js";
import { CORDONED, IN_SERVICE, STATES, UNHEALTHY, natural, totals } from "./store.js";

const AGAIN_MS = 3000;

/** How long ago that was; it grows while it is looked at. */
const since = (seconds) => h("span", { class: "short", "data-since": seconds }, age(Date.now() / 1000 - seconds));

/** A view that is asked for, drawn, and asked for again: when the cluster changes (`touched`), and every few seconds. */
function asked(title, path, draw, { store, touched, crumbs = [] }) {
  const body = h("div", { class: "body" }, h("p", { class: "quiet" }, "Reading …"));
  const element = h("div", { class: "view" }, crumbs.length > 0 && trail(crumbs), body);
  let timer = 0, mounted = false, last = "", busy = false, again = false;
  async function load() {
    if (busy) { again = true; return; }
    busy = true;
    clearTimeout(timer);
    try {
      const found = await askJson(path), text = JSON.stringify(found);
      // Anew only where something is new: a reader's place in it stays.
      if (mounted && text !== last) {
        last = text;
        const open = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
        body.replaceChildren(...[draw(found)].flat(Infinity).filter(Boolean));
        if (open) body.querySelector(`a[href="${CSS.escape(open)}"]`)?.focus();
      }
      for (const one of body.querySelectorAll("[data-since]")) one.textContent = age(Date.now() / 1000 - Number(one.dataset.since));
    } catch (error) {
      if (error instanceof LoggedOut) document.dispatchEvent(new CustomEvent("loggedout"));
      else if (mounted && (error.status || !last)) {
        last = "";
        body.replaceChildren(h("div", { class: "note bad", role: "alert" }, error.message));
      }
    }
    busy = false;
    if (mounted) timer = setTimeout(load, again ? 250 : AGAIN_MS);
    again = false;
  }
  const changed = (event) => touched?.(event) && load();
  return {
    title, element,
    mount() {
      mounted = true;
      store.addEventListener("changed", changed);
      store.addEventListener("waiting", changed);
      load();
    },
    unmount() {
      mounted = false;
      clearTimeout(timer);
      store.removeEventListener("changed", changed);
      store.removeEventListener("waiting", changed);
    },
  };
}

const trail = (crumbs) =>
  h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("ol", null, crumbs.map(([name, href], at) => h("li", null, at < crumbs.length - 1 ? h("a", { href }, name) : h("span", { "aria-current": "page" }, name)))));
const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);
const fact = (name, value) => [h("dt", null, name), h("dd", null, value)];
const stateOf = (gpu, node) => (!gpu.healthy ? ["unhealthy", "bad"] : gpu.cordoned ? ["cordoned", "warn"] : node.refusal ? ["closed", "warn"] : ["in service", "good"]);
const sum = (values) => (values.some((value) => value !== UNKNOWN) ? values.filter((value) => value !== UNKNOWN).reduce((a, b) => a + b, 0) : UNKNOWN);

function bar(gpu) {
  const all = Math.max(gpu.total_mib, gpu.given_mib + gpu.foreign_mib, 1), width = (mib) => `${(100 * mib) / all}%`;
  return h("div", { class: "bar", role: "img", "aria-label": `${gib(gpu.given_mib)} of ${gib(gpu.total_mib)} given` },
    gpu.pods.map((pod, at) => h("span", { class: `part part-${at % 6}`, title: `${pod.pod}: ${gib(pod.mib)}`, style: { width: width(pod.mib) } })),
    gpu.foreign_mib > 0 && h("span", { class: "part foreign", title: `processes from outside: ${gib(gpu.foreign_mib)}`, style: { width: width(gpu.foreign_mib) } }),
    gpu.used_mib !== UNKNOWN && h("span", { class: "really", title: `really used: ${gib(gpu.used_mib)}`, style: { left: width(Math.min(gpu.used_mib, all)) } }));
}

function gpuCard(node, gpu, alone) {
  const [state, kind] = stateOf(gpu, node);
  return h("article", { class: "card gpu", "aria-label": `GPU ${gpu.index}` },
    h("header", null,
      h(alone ? "h1" : "h2", null, alone ? `GPU ${gpu.index}` : h("a", { href: to.gpu(node.name, gpu.index) }, `GPU ${gpu.index}`)), badge(state, kind),
      h("span", { class: "quiet model" }, gpu.model || "GPU")),
    gpu.reason && h("p", { class: "note bad" }, gpu.reason),
    bar(gpu),
    h("dl", { class: alone ? "facts wide" : "facts" },
      fact("Memory given", `${gib(gpu.given_mib)} of ${gib(gpu.total_mib)}`), fact("Memory used", gib(gpu.used_mib)),
      fact("Compute given", node.gives_core ? percent(gpu.given_core) : "not shared"), fact("Compute used", percent(gpu.busy_percent)),
      gpu.foreign_mib > 0 && fact("From outside", gib(gpu.foreign_mib)),
      alone && [fact("Units", `${gpu.used_units} of ${gpu.total_units} (${node.unit})`), fact("UUID", h("code", null, gpu.uuid)), gpu.pci && fact("PCI", h("code", null, gpu.pci)), gpu.numa >= 0 && fact("NUMA node", gpu.numa)]),
    shares(gpu.pods, alone));
}

function shares(pods, wide) {
  if (!pods.length) return h("p", { class: "quiet" }, "No pod holds a share of it.");
  if (!wide) {
    return h("ul", { class: "holders" }, pods.map((pod, at) => h("li", null, h("i", { class: `part part-${at % 6}`, "aria-hidden": "true" }), h("a", { href: to.pod(pod.pod) }, pod.pod),
      h("span", { class: "quiet" }, gib(pod.mib), pod.core_percent ? `, ${pod.core_percent}%` : ""))));
  }
  return table([{ text: "Pod" }, number("Memory given"), number("Memory used"), number("Compute given"), number("Compute used")],
    pods.map((pod) => [h("a", { href: to.pod(pod.pod) }, pod.pod), gib(pod.mib), gib(sum(pod.containers.map((one) => one.used_mib))),
      pod.core_percent ? percent(pod.core_percent) : "no limit", percent(sum(pod.containers.map((one) => one.busy_percent)))]), { label: "Pods on this GPU" });
}

const notes = (node) => [
  node.problem && h("p", { class: "note bad" }, node.problem), node.refusal && h("p", { class: "note warn" }, `Takes nothing new: ${node.refusal}`),
  node.untold && h("p", { class: "note" }, `What is really used is not known: ${node.untold}.`),
  node.troubles.length > 0 && h("p", { class: "note bad" }, `The node agent tells of trouble: ${node.troubles.join(", ")}`),
];
const about = (store, name) => (event) => event.type === "changed" && event.detail.slots.has(store.slots.get(name));

export function nodeView(store, name) {
  return asked(name, `api/node?name=${encodeURIComponent(name)}`, (node) => [
    h("div", { class: "head" }, h("h1", null, node.name), badge(node.mode, "mode"), h("span", { class: "quiet" }, `memory unit ${node.unit}, GPUs filled by ${node.placement}`)),
    notes(node),
    h("div", { class: "gpus" }, node.gpus.map((gpu) => gpuCard(node, gpu, false))),
    node.pending.length > 0 && h("section", { class: "card" }, h("h2", null, "Shares of GPUs that are not there"),
      table([{ text: "Pod" }, { text: "GPU" }, number("Memory")], node.pending.map((one) => [h("a", { href: to.pod(one.pod) }, one.pod), h("code", null, one.uuid), gib(one.mib)]))),
  ], { store, touched: about(store, name), crumbs: [["Cluster", "#/"], [name]] });
}

export function gpuView(store, name, index) {
  return asked(`GPU ${index} of ${name}`, `api/node?name=${encodeURIComponent(name)}`, (node) => {
    const gpu = node.gpus.find((one) => one.index === Number(index));
    return gpu ? [notes(node), gpuCard(node, gpu, true)] : h("div", { class: "note bad" }, `${name} has no GPU ${index} at present.`);
  }, { store, touched: about(store, name), crumbs: [["Cluster", "#/"], [name, to.node(name)], [`GPU ${index}`]] });
}

export function podView(store, key) {
  const view = asked(key, `api/pod?key=${encodeURIComponent(key)}`, (pod) => [
    trail([["Cluster", "#/"], ...(pod.node ? [[pod.node, to.node(pod.node)]] : [["Waiting", "#/waiting"]]), ...(pod.shares.length === 1 ? [[`GPU ${pod.shares[0].index}`, to.gpu(pod.node, pod.shares[0].index)]] : []), [pod.pod]]),
    h("div", { class: "head" }, h("h1", null, pod.pod), pod.node ? badge(pod.leaving ? "ending" : "placed", pod.leaving ? "warn" : "good") : badge("waiting", "warn")),
    pod.problem && h("p", { class: "note bad" }, pod.problem),
    pod.untold && h("p", { class: "note" }, `What is really used is not known: ${pod.untold}.`),
    h("section", { class: "card" }, h("dl", { class: "facts" },
      pod.node && fact("Node", h("a", { href: to.node(pod.node) }, pod.node)), pod.asks && fact("Asks for", pod.asks),
      pod.created && fact("Made", [since(Date.parse(pod.created) / 1000), " ago"]), fact("Priority", pod.priority), pod.gang && fact("Gang", pod.gang), fact("UID", h("code", null, pod.uid)))),
    pod.shares.length > 0 && h("section", { class: "card" }, h("h2", null, "What it holds"),
      table([{ text: "GPU" }, number("Memory given"), number("Memory used"), number("Compute given"), number("Compute used")],
        pod.shares.map((one) => [h("a", { href: to.gpu(pod.node, one.index) }, `GPU ${one.index}`), gib(one.mib), gib(sum(one.containers.map((use) => use.used_mib))), one.core_percent ? percent(one.core_percent) : "no limit", percent(sum(one.containers.map((use) => use.busy_percent)))]), { label: "Shares" }),
      pod.shares.some((one) => one.containers.length > 1) && [h("h3", null, "By container"),
        table([{ text: "Container" }, { text: "GPU" }, number("Memory used"), number("Compute used")], pod.shares.flatMap((one) => one.containers.map((use) => [use.container, one.index, gib(use.used_mib), percent(use.busy_percent)])), { label: "Containers" })]),
    !pod.node && why(key),
  ], { store, touched: (event) => event.type === "waiting" || event.detail?.totals, crumbs: [] });
  return view;
}

/** Why it waits: the line's entry, and the scheduler's record of its last look, node by node. */
function why(key) {
  const place = h("div", { class: "body" });
  askJson("api/waiting").then((line) => {
    const one = line.pods.find((pod) => pod.key === key);
    place.prepend(h("section", { class: "card" }, h("h2", null, "Why it waits"),
      line.problem ? h("p", { class: "note warn" }, line.problem) : one ? [h("p", null, one.reason || "The scheduler has not looked at it yet."), one.remedy && h("p", { class: "remedy" }, h("b", null, "What would let it fit: "), one.remedy)] : h("p", { class: "quiet" }, "The scheduler has no word on it yet.")));
  }).catch(() => undefined);
  // Asked for only when it is opened: of a large cluster it is long.
  const inside = h("div", { class: "body" });
  place.append(h("details", { class: "card", ontoggle: async (event) => {
    if (!event.target.open || inside.childElementCount) return;
    try {
      inside.replaceChildren(...recordOf(await askJson(`api/decision?pod=${encodeURIComponent(key)}`)));
    } catch (error) {
      inside.replaceChildren(h("p", { class: "note" }, error.message));
    }
  } }, h("summary", null, "What the scheduler answered, node by node"), inside));
  return place;
}

const MOST_ROWS = 500;
/** The scheduler's record of a pod: who said it, and each node's answer. */
function recordOf(record) {
  const found = [h("p", { class: "quiet" }, record.said || `Scheduler ${record.scheduler?.name ?? ""} was asked ${record.asked ? `${age(Date.now() / 1000 - record.asked)} ago` : "about it"}.`)];
  const nodes = record.nodes ?? [];
  if (nodes.length) {
    const heads = Object.keys(nodes[0]);
    found.push(table(heads.map((text) => ({ text: text[0].toUpperCase() + text.slice(1) })), nodes.slice(0, MOST_ROWS).map((one) => heads.map((head) => (head === "node" ? h("a", { href: to.node(one.node) }, one.node) : h("span", { class: "text" }, one[head] || (head === "reason" ? "takes it" : DASH))))), { label: "Answers node by node" }));
    if (nodes.length > MOST_ROWS) found.push(h("p", { class: "quiet" }, `And ${count(nodes.length - MOST_ROWS)} more.`));
  } else found.push(h("p", { class: "quiet" }, "What was said of each node is not kept any more."));
  return found;
}

/** What a pod asks for, broken between resources alone. */
const asksOf = (text) => h("span", { class: "asks" }, text.split(", ").map((one, at, all) => [h("span", { class: "short" }, at < all.length - 1 ? `${one},` : one), " "]));

export function waitingView(store) {
  return asked("Waiting", "api/waiting", (line) => [
    h("div", { class: "head" }, h("h1", null, "Pods that wait"), badge(count(line.count), line.count ? "warn" : "good"), line.told_by && h("span", { class: "quiet" }, `told by ${line.told_by}`)),
    line.problem && h("p", { class: "note warn", role: "alert" }, line.problem),
    Object.keys(line.by_category).length > 0 && h("ul", { class: "chips" }, Object.entries(line.by_category).sort((a, b) => b[1] - a[1]).map(([name, pods]) => h("li", null, badge(name.replaceAll("_", " ")), h("b", null, count(pods))))),
    h("section", { class: "card" },
      table([{ text: "Pod" }, { text: "Waits" }, { text: "Asks for" }, { text: "Why" }, { text: "What would let it fit" }],
        line.pods.map((pod) => [h("a", { href: to.pod(pod.key) }, pod.key), since(pod.since), asksOf(pod.asks), h("span", { class: "text" }, pod.reason || DASH), h("span", { class: "text remedy" }, pod.remedy || DASH)]),
        { empty: line.problem ? null : "No pod waits for a GPU.", label: "Pods that wait" }),
      line.count > line.pods.length && h("p", { class: "quiet" }, `And ${count(line.count - line.pods.length)} more.`)),
  ], { store, touched: (event) => event.type === "waiting" || event.detail?.totals, crumbs: [] });
}

export function fragmentationView(store) {
  return asked("Fragmentation", "api/fragmentation", (report) => {
    const most = Math.max(...report.pieces.map((piece) => piece.gpus), 1), lost = share(report.fragments_mib, report.free_mib);
    return [
      h("div", { class: "head" }, h("h1", null, "Fragmentation")),
      h("dl", { class: "tiles" }, [["Free", gib(report.free_mib), `on ${count(report.free_gpus)} GPUs`], ["Largest piece", gib(report.largest_mib), "on one GPU"],
        ["Of no use", percent(lost), `${gib(report.fragments_mib)} in pieces that the pods that come cannot use`]].map(([name, value, note]) => h("div", { class: "tile" }, h("dt", null, name), h("dd", null, h("b", null, value), h("span", { class: "quiet" }, note))))),
      h("section", { class: "card" }, h("h2", null, "What is free, in one piece"),
        table([{ text: "At least" }, { text: "GPUs" }, number("GPUs"), number("Pods of that size that fit")].map((head, at) => (at === 1 ? { text: "Share" } : head)),
          report.pieces.map((piece) => [gib(piece.mib), h("div", { class: "meter wide", role: "img", "aria-label": `${piece.gpus} GPUs` }, h("i", { style: { width: `${(100 * piece.gpus) / most}%` } })), count(piece.gpus), count(piece.pods)]), { label: "Free pieces" })),
      h("section", { class: "card" }, h("h2", null, "Who would fit if others moved"),
        table([{ text: "Pod" }, { text: "Asks for" }, { text: "Goes to" }, { text: "Once these have moved" }],
          report.ways.map((way) => [h("a", { href: to.pod(way.pod) }, way.pod), way.asks, way.goes_to || DASH, h("span", { class: "text" }, way.moves.length ? way.moves.join("; ") : way.note)]), { empty: "No pod that asks for GPU memory waits.", label: "Ways" }),
        report.not_looked_at > 0 && h("p", { class: "quiet" }, `${count(report.not_looked_at)} more wait and were not looked at.`)),
    ];
  }, { store, touched: (event) => event.detail?.totals, crumbs: [] });
}

export function historyView(store) {
  const body = h("div", { class: "charts" }, h("p", { class: "quiet" }, "Reading …"));
  const element = h("div", { class: "view" }, h("div", { class: "head" }, h("h1", null, "History"), h("span", { class: "quiet" }, "since this dashboard started")), body);
  let read = false;
  function draw() {
    const rows = store.samples.map(totals), times = rows.map((row) => row.at_s), part = (name, all) => rows.map((row) => (row[name] === UNKNOWN || !row[all] ? null : (100 * row[name]) / row[all]));
    const open = [...body.querySelectorAll("details")].map((one) => one.open);
    body.replaceChildren(
      lines("Memory", times, [{ name: "given", colour: "--line-1", values: part("given_mib", "total_mib"), area: true }, { name: "really used", colour: "--line-2", values: part("used_mib", "told_mib") }], { format: percent, most: 100 }),
      lines("Compute given", times, [{ name: "given", colour: "--line-1", values: rows.map((row) => (row.gpus ? row.given_core / row.gpus : null)), area: true }], { format: percent, most: 100 }),
      lines("Pods that wait", times, [{ name: "waiting", colour: "--line-3", values: rows.map((row) => row.waiting), area: true }], { format: (value) => count(Math.round(value * 10) / 10) }),
      lines("Fragmentation", times, [{ name: "of what is free, of no use", colour: "--line-4", values: part("fragments_mib", "free_mib"), area: true }], { format: percent, most: 100 }));
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

const PER_PAGE = 100;
/** The heat map as a table: a row a node. */
export function nodesView(store) {
  const place = h("div"), pages = h("div", { class: "pages" });
  const filter = h("input", { type: "search", placeholder: "Names with …", "aria-label": "Names that hold", oninput: () => { page = 0; draw(); } });
  const heads = [["Node", "name"], ["Mode", "mode"], ["GPUs", "gpus", 1], ["Memory given", "given", 1], ["Memory used", "used", 1], ["Compute given", "core", 1], ["Pods", "pods", 1], ["State", "bad"]];
  let page = 0, by = "name", down = false, frame = 0;
  function rowOf(slot) {
    const node = store.nodes[slot], row = { name: node.name, mode: node.mode, gpus: node.gpus, total: 0, given: 0, used: UNKNOWN, core: 0, pods: 0, bad: 0, cordoned: 0 };
    for (let gpu = 0; gpu < node.gpus; gpu++) {
      const figure = (name) => store.figure(name, slot, gpu), used = figure("used_mib"), state = figure("state");
      row.total += figure("total_mib");
      row.given += figure("given_mib");
      row.core += figure("given_core");
      row.pods += figure("pods");
      row.bad += state === UNHEALTHY;
      row.cordoned += state === CORDONED;
      if (used !== UNKNOWN) row.used = Math.max(row.used, 0) + used;
    }
    row.state = row.bad ? `${row.bad} unhealthy` : node.refusal ? "closed" : row.cordoned ? `${row.cordoned} cordoned` : STATES[IN_SERVICE];
    return row;
  }
  function draw() {
    const wanted = filter.value.trim().toLowerCase();
    const rows = [...store.slots].filter(([name]) => name.toLowerCase().includes(wanted)).map(([, slot]) => rowOf(slot));
    const key = (row) => (by === "given" ? row.given / (row.total || 1) : row[by]);
    rows.sort((a, b) => (down ? -1 : 1) * (typeof key(a) === "number" ? key(a) - key(b) : natural(key(a), key(b))) || natural(a.name, b.name));
    const last = Math.max(0, Math.ceil(rows.length / PER_PAGE) - 1);
    page = Math.min(page, last);
    const focused = place.contains(document.activeElement) ? (document.activeElement.getAttribute("href") ?? document.activeElement.textContent) : null;
    const found = table(heads.map(([text, , isNumber]) => ({ text, number: isNumber })), rows.slice(page * PER_PAGE, (page + 1) * PER_PAGE).map((row) => [
      h("a", { href: to.node(row.name) }, row.name), badge(row.mode, "mode"), count(row.gpus), h("span", { class: "with-meter" }, h("span", { class: "meter", "aria-hidden": "true" }, h("i", { style: { width: `${Math.min(share(row.given, row.total), 100)}%` } })), `${gib(row.given)} of ${gib(row.total)}`),
      gib(row.used), percent(row.core / (row.gpus || 1)), count(row.pods), badge(row.state, row.bad ? "bad" : row.state === "in service" ? "good" : "warn")]), { empty: "No node with GPUs.", label: "Nodes" });
    found.querySelectorAll("thead th").forEach((head, at) => {
      const [text, id] = heads[at];
      head.setAttribute("aria-sort", by === id ? (down ? "descending" : "ascending") : "none");
      head.replaceChildren(h("button", { type: "button", class: "sort", onclick: () => { down = by === id ? !down : false; by = id; draw(); } }, text, by === id && (down ? " ↓" : " ↑")));
    });
    place.replaceChildren(found);
    if (focused) [...place.querySelectorAll("a, button")].find((one) => (one.getAttribute("href") ?? one.textContent) === focused || one.textContent.startsWith(focused.replace(/ [↑↓]$/, "")))?.focus();
    const turn = (text, next) => h("button", { type: "button", class: "plain", disabled: next < 0 || next > last, onclick: () => { page = next; draw(); } }, text);
    pages.replaceChildren(turn("Back", page - 1), h("span", { class: "quiet" }, `${count(rows.length)} nodes, page ${page + 1} of ${last + 1}`), turn("Next", page + 1));
  }
  const changed = () => (frame ||= setTimeout(() => { frame = 0; draw(); }, 1000));
  return {
    title: "Nodes",
    element: h("div", { class: "view" }, h("div", { class: "head" }, h("h1", null, "Nodes"), filter), h("section", { class: "card" }, place, pages)),
    mount() { store.addEventListener("changed", changed); store.addEventListener("loaded", draw); draw(); },
    unmount() { clearTimeout(frame); store.removeEventListener("changed", changed); store.removeEventListener("loaded", draw); },
  };
}
