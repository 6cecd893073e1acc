// The search in the bar: a combobox over the server's results.

import { h, to } from "./dom.js";
import { askJson } from "./link.js";

const WAIT_MS = 120;

export function search(input, list) {
  let timer = 0, controller = null, hits = [], at = -1;
  const href = (hit) => (hit.kind === "pod" ? to.pod(hit.name) : hit.kind === "gpu" ? to.gpu(hit.node, hit.gpu) : to.node(hit.name));
  function close() {
    controller?.abort();
    clearTimeout(timer);
    hits = [];
    at = -1;
    draw();
  }
  function draw(empty = "") {
    list.replaceChildren(...hits.map((hit, place) =>
      h("li", { role: "option", id: `hit-${place}`, "aria-selected": String(place === at), onmousedown: (event) => { event.preventDefault(); go(place); } },
        h("span", { class: "badge" }, hit.kind), h("span", { class: "name" }, hit.name), hit.note && h("span", { class: "quiet" }, hit.note))),
      ...(empty && !hits.length ? [h("li", { role: "option", "aria-disabled": "true", "aria-selected": "false", class: "quiet" }, empty)] : []));
    list.hidden = !list.childElementCount;
    input.setAttribute("aria-expanded", String(!list.hidden));
    if (at >= 0) input.setAttribute("aria-activedescendant", `hit-${at}`);
    else input.removeAttribute("aria-activedescendant");
    list.children[at]?.scrollIntoView({ block: "nearest" });
  }
  function go(place) {
    const hit = hits[place];
    if (!hit) return;
    location.hash = href(hit);
    input.value = "";
    input.blur();
    close();
  }
  async function ask() {
    const text = input.value.trim();
    if (!text) return close();
    controller?.abort();
    controller = new AbortController();
    try {
      hits = await askJson(`api/search?q=${encodeURIComponent(text)}`, { signal: controller.signal });
      at = hits.length ? 0 : -1;
      draw(`No match for ${text}`);
    } catch (error) {
      if (error.name !== "AbortError") { hits = []; draw("The server does not answer"); }
    }
  }
  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, WAIT_MS); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      at = hits.length ? (at + (event.key === "ArrowDown" ? 1 : hits.length - 1)) % hits.length : -1;
      draw();
      event.preventDefault();
    } else if (event.key === "Enter") go(at);
    else if (event.key === "Escape") {
      input.value = "";
      input.blur();
      close();
      event.stopPropagation();
    }
  });
  input.addEventListener("blur", close);
}
