// Common to views that poll the server.

import { age, h } from "./dom.js";
import { LoggedOut, ask } from "./link.js";

const AGAIN_MS = 3000;

/** How long ago that was; updated while the view is open. */
export const since = (seconds) => h("span", { class: "short", "data-since": seconds }, age(Date.now() / 1000 - seconds));

/** A view that is requested and drawn again when the cluster changes (`touched`), and every few seconds. Elements that `draw` returns
 * again stay in place. `beside` returns as text what it shows that is not in the answer. */
export function asked(title, path, draw, { store, touched, beside = () => "", crumbs = [] }) {
  const body = h("div", { class: "body" }, h("p", { class: "quiet" }, "Reading …"));
  const element = h("div", { class: "view" }, crumbs.length > 0 && trail(crumbs), body);
  let timer = 0, mounted = false, last = "", busy = false, again = false;
  function place(parts) {
    if (parts.length === body.childElementCount && parts.every((one, at) => one === body.children[at])) return;
    const focused = body.contains(document.activeElement) ? document.activeElement : null, link = focused?.getAttribute("href");
    body.replaceChildren(...parts);
    if (focused && body.contains(focused)) focused.focus();
    else if (link) body.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus();
  }
  async function load() {
    if (busy) { again = true; return; }
    busy = true;
    clearTimeout(timer);
    try {
      const text = await (await ask(path)).text();
      // Replaced only if something changed: the scroll position stays.
      const seen = text + beside();
      if (mounted && seen !== last) {
        last = seen;
        place([draw(JSON.parse(text))].flat(Infinity).filter(Boolean));
      }
      for (const one of body.querySelectorAll("[data-since]")) {
        const now = age(Date.now() / 1000 - Number(one.dataset.since));
        // The same words written again are laid out again.
        if (one.textContent !== now) one.textContent = now;
      }
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

/** The breadcrumbs of a view. */
export const trail = (crumbs) =>
  h("nav", { class: "crumbs", "aria-label": "Breadcrumbs" }, h("ol", null, crumbs.map(([name, href], at) => h("li", null, at < crumbs.length - 1 ? h("a", { href }, name) : h("span", { "aria-current": "page" }, name)))));
