// Around every view: the bar, themes, keys, login, and the banner of a lost connection.

import { age, h } from "./dom.js";
import { LoggedOut, logIn, logOut } from "./link.js";

const byId = (id) => document.getElementById(id);
const THEME = "gpushare-theme";

export function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem(THEME); } catch { return null; } };
  function set(value) {
    document.documentElement.dataset.theme = value ?? (dark.matches ? "dark" : "light");
    document.dispatchEvent(new CustomEvent("recoloured"));
  }
  function turn() {
    const value = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem(THEME, value); } catch { /* not stored in private windows */ }
    set(value);
  }
  dark.addEventListener("change", () => set(stored()));
  byId("theme").addEventListener("click", turn);
  set(stored());
  return turn;
}

export function keys({ turnTheme, view, up }) {
  const views = { o: "#/", n: "#/nodes", w: "#/waiting", f: "#/fragmentation", h: "#/history" };
  let going = 0;
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("main").focus(); });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest?.("input, select, textarea")) return;
    const { key } = event, afterG = performance.now() - going < 1500;
    going = 0;
    if (afterG && key in views) location.hash = views[key];
    else if (key === "g") going = performance.now();
    else if (key === "/") byId("search").focus();
    else if (key === "?") byId("help").showModal();
    else if (key === "t") turnTheme();
    else if (key === "Escape") up();
    else if (!view()?.key?.(event)) return;
    event.preventDefault();
  });
}

export function login(then) {
  const dialog = byId("login"), field = byId("token"), wrong = byId("login-wrong"), send = byId("login-send");
  const close = () => { field.value = wrong.textContent = ""; dialog.close(); };
  const say = (error) => (wrong.textContent = error instanceof LoggedOut ? "Wrong token." : error.status ? error.message : "The server does not answer.");
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  byId("login-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    wrong.textContent = "";
    try {
      await logIn(field.value.trim());
      close();
      then();
    } catch (error) {
      say(error);
      field.select();
    }
    send.disabled = false;
  });
  byId("logout").addEventListener("click", async () => { await logOut().catch(() => undefined); location.reload(); });
  const ask = () => { if (!dialog.open) { dialog.showModal(); field.focus(); } };
  return Object.assign(ask, { close, why: say });
}

/** Shows the state of the connection. */
export function connection(link, askForToken) {
  const place = byId("link"), banner = byId("lost"), words = { live: "Live", lost: "Connection lost", out: "Logged out" };
  let timer = 0;
  link.addEventListener("state", ({ detail }) => {
    place.dataset.state = detail.state;
    place.lastElementChild.textContent = words[detail.state];
    clearInterval(timer);
    banner.hidden = detail.state !== "lost";
    if (detail.state === "out") askForToken();
    if (detail.state !== "lost") return;
    const left = h("span"), old = h("span");
    const count = () => {
      old.textContent = link.lastMessageAt ? ` Data may be ${age((Date.now() - link.lastMessageAt) / 1000)} old.` : "";
      left.textContent = ` Retrying in ${Math.max(0, Math.ceil((detail.at - Date.now()) / 1000))} s.`;
    };
    count();
    timer = setInterval(count, 1000);
    banner.replaceChildren(h("b", null, "Not live: "), `${detail.why}.`, old, left,
      h("button", { type: "button", class: "plain", onclick: () => link.again(0) }, "Try now"));
  });
}

export function waitingCount(store) {
  const place = byId("waiting-count");
  const draw = () => {
    const count = store.totals?.waiting ?? 0;
    place.textContent = count;
    place.hidden = !count;
  };
  store.addEventListener("loaded", draw);
  store.addEventListener("changed", draw);
}
