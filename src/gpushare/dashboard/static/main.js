// Starts the page: the store, the link to the server, and the view that the address names.

import { h } from "./dom.js";
import { Link, logIn } from "./link.js";
import { nodesView } from "./nodes.js";
import { overview } from "./overview.js";
import { fragmentationView, gpuView, historyView, nodeView, podView } from "./pages.js";
import { search } from "./search.js";
import { connection, keys, login, theme, waitingCount } from "./shell.js";
import { Store } from "./store.js";
import { waitingView } from "./waiting.js";

const main = document.getElementById("main"), sayer = document.getElementById("said");
const store = new Store(), link = new Link(store);
let view = null;

const announce = (text) => (sayer.textContent = text);

function viewOf(hash) {
  const parts = hash.replace(/^#\/?/, "").split("/").map(decoded);
  const [kind, a, b, c] = parts;
  if (kind === "") return ["overview", () => overview(store, { announce })];
  if (kind === "nodes") return ["nodes", () => nodesView(store)];
  if (kind === "waiting") return ["waiting", () => waitingView(store)];
  if (kind === "fragmentation") return ["fragmentation", () => fragmentationView(store)];
  if (kind === "history") return ["history", () => historyView(store)];
  if (kind === "node" && a && b === "gpu" && c) return ["overview", () => gpuView(store, a, c)];
  if (kind === "node" && a) return ["overview", () => nodeView(store, a)];
  if (kind === "pod" && a && b) return ["overview", () => podView(store, `${a}/${b}`)];
  return ["overview", () => ({ title: "Not found", element: h("div", { class: "view" }, h("p", { class: "note bad" }, "There is no such view. ", h("a", { href: "#/" }, "To the overview"))), mount() {}, unmount() {} })];
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

function show(focus) {
  if (!store.totals) return;
  const [name, make] = viewOf(location.hash);
  view?.unmount();
  view = make();
  document.title = `${view.title} – gpushare`;
  main.replaceChildren(view.element);
  main.dataset.view = name;
  for (const one of document.querySelectorAll("#nav a")) {
    if (one.dataset.view === name) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  view.mount();
  if (focus) { scrollTo(0, 0); main.focus({ preventScroll: true }); announce(view.title); }
}

function up() {
  // As in the breadcrumbs.
  const above = [...main.querySelectorAll(".crumbs a")].at(-1)?.getAttribute("href");
  if (location.hash.replace(/^#\/?/, "")) location.hash = above ?? "#/";
}

async function begin() {
  const token = location.hash.match(/^#token=(.+)$/);
  if (token) {
    // A link that contains the token, as the playground prints: browsers do not send it to servers, and it is removed from the history.
    history.replaceState(null, "", "#/");
    await logIn(decoded(token[1])).then(askForToken.close, askForToken.why);
  }
  await link.start();
}

const turnTheme = theme();
keys({ turnTheme, view: () => view, up });
const askForToken = login(() => link.start());
connection(link, askForToken);
waitingCount(store);
search(document.getElementById("search"), document.getElementById("found"));
document.addEventListener("loggedout", () => link.report("out"));
addEventListener("hashchange", () => (location.hash.startsWith("#token=") ? begin() : show(true)));
let shown = false;
store.addEventListener("loaded", () => {
  if (!shown) show(false);
  shown = true;
});
begin();
