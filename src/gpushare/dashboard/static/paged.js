// A table of many rows, a page of them at a time, of which only changed ones are redrawn.

import { count, h, row, table } from "./dom.js";

const PER_PAGE = 100;

/** `show(all)` draws `cellsOf(itemOf(one))` of those on the page. An item that is the same object as before keeps its row; another one with
 * the same `keyOf` keeps the cells that look the same. `names` says what they are, `turned` is called to show another page: it
 * must call `show`. */
export function paged(heads, { label, names, cellsOf, keyOf, itemOf = (one) => one, turned }) {
  const place = table(heads, [], { label }), body = place.querySelector("tbody"), position = h("span", { class: "quiet" });
  const turn = (text, by) => h("button", { type: "button", class: "plain", onclick: () => { page += by; turned(); } }, text);
  const back = turn("Back", -1), next = turn("Next", 1), pages = h("div", { class: "pages" }, back, position, next);
  let page = 0, rows = new Map(); // key → [item, its row]
  function show(all) {
    const began = performance.now(), last = Math.max(0, Math.ceil(all.length / PER_PAGE) - 1);
    page = Math.max(0, Math.min(page, last));
    const items = all.slice(page * PER_PAGE, (page + 1) * PER_PAGE).map(itemOf), kept = new Map(items.map((one) => [keyOf(one), null]));
    const link = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    for (const [key, [, element]] of rows) if (!kept.has(key)) element.remove();
    let at = body.firstElementChild;
    for (const one of items) {
      const [before, had] = rows.get(keyOf(one)) ?? [null, null], element = had ?? row(heads, cellsOf(one));
      if (had && before !== one) patch(had, cellsOf(one));
      kept.set(keyOf(one), [one, element]);
      if (element === at) at = at.nextElementSibling;
      else body.insertBefore(element, at);
    }
    rows = kept;
    if (link && !body.contains(document.activeElement)) body.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus();
    const text = last ? `${count(all.length)} ${names}, page ${page + 1} of ${last + 1}` : `${count(all.length)} ${names}`;
    if (position.textContent !== text) position.textContent = text;
    back.hidden = next.hidden = !last;
    back.disabled = page === 0;
    next.disabled = page === last;
    performance.clearMeasures("gpushare:draw");
    performance.measure("gpushare:draw", { start: began, end: performance.now() });
  }
  function patch(element, cells) {
    row(heads, cells).querySelectorAll("td").forEach((made, at) => element.cells[at].isEqualNode(made) || element.cells[at].replaceWith(made));
  }
  return { place, pages, show, first: () => (page = 0) };
}
