// Pending pods with reasons and suggestions.

import { asked, since } from "./asked.js";
import { DASH, badge, count, h, to, typed } from "./dom.js";
import { paged } from "./paged.js";

const HEADS = [{ text: "Pod" }, { text: "Pending" }, { text: "Requests" }, { text: "Reason" }, { text: "Suggestion" }];

/** A pod's request, broken only between resources. */
const asksOf = (text) => h("span", { class: "asks" }, text.split(", ").map((one, at, all) => [h("span", { class: "short" }, at < all.length - 1 ? `${one},` : one), " "]));

const cellsOf = (pod) => [
  h("a", { href: to.pod(pod.key) }, pod.key), since(pod.since), asksOf(pod.asks),
  h("span", { class: "text" }, typed(pod.reason || DASH)), h("span", { class: "text suggestion" }, typed(pod.suggestion || DASH)),
];

const chip = ([name, pods]) => h("li", null, badge(name.replaceAll("_", " ")), h("b", null, count(pods)));

export function waitingView(store) {
  const head = h("div", { class: "head" }), problem = h("p", { class: "note warn", role: "alert" }), chips = h("ul", { class: "chips" });
  const none = h("p", { class: "quiet" }, "No pod is pending for a GPU."), more = h("p", { class: "quiet" });
  const list = paged(HEADS, { label: "Pending pods", names: "pods", cellsOf, keyOf: (pod) => pod.key, turned: () => list.show(pods) });
  const card = h("section", { class: "card" }, list.place, list.pages, none, more);
  let pods = [], shown = -1;

  /** The same object as long as a pod reads the same. */
  function taken(line) {
    const known = new Map(pods.map((pod) => [pod.key, pod]));
    return line.pods.map((pod) => {
      const before = known.get(pod.key);
      return before && Object.keys(pod).every((key) => pod[key] === before[key]) ? before : pod;
    });
  }

  return asked("Pending", "api/waiting", (line) => {
    shown = line.count;
    pods = taken(line);
    head.replaceChildren(...[h("h1", null, "Pending pods"), badge(count(line.count), line.count ? "warn" : "good"), line.answered_by && h("span", { class: "quiet" }, `reported by ${line.answered_by}`)].filter(Boolean));
    if (problem.textContent !== line.problem) problem.textContent = line.problem;
    chips.replaceChildren(...Object.entries(line.by_category).sort((a, b) => b[1] - a[1]).map(chip));
    list.show(pods);
    list.place.hidden = list.pages.hidden = !pods.length;
    none.hidden = pods.length > 0 || Boolean(line.problem);
    more.hidden = line.count <= pods.length;
    more.textContent = `And ${count(line.count - pods.length)} more.`;
    return [head, line.problem && problem, chips.childElementCount > 0 && chips, card];
  }, { store, touched: (event) => event.type === "waiting" || (event.detail?.totals && store.totals.waiting !== shown), crumbs: [] });
}
