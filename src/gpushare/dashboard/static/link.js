// The connection to the server: requests, and the stream of updates, with resume, back-off and a timeout.

const FIRST_MS = 500, MOST_MS = 30000, SILENCE_MS = 25000;
/** Time slice for applying messages. */
const TURN_MS = 8;

export class LoggedOut extends Error {}

/** Asks the server; every path is relative, so that the page works behind the API server's proxy too. */
export async function ask(path, options = {}) {
  const response = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options, signal: options.signal ?? AbortSignal.timeout(20000) });
  if (response.status === 401) throw new LoggedOut("log in first");
  if (!response.ok) {
    const error = new Error((await response.text()).trim() || `status ${response.status}`);
    error.status = response.status;
    throw error;
  }
  return response;
}
export const askJson = async (path, options) => (await ask(path, options)).json();

export async function logIn(token) {
  await ask("login", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ token }) });
}
export async function logOut() {
  await ask("logout", { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
}

/** Decompressed bytes of base64 text. */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

/** Keeps a store up to date. Emits "state" (live, lost, out) with a text. */
export class Link extends EventTarget {
  constructor(store) {
    super();
    this.store = store;
    this.tries = 0;
    this.source = null;
    this.timer = 0;
    this.forget();
    this.turns = new MessageChannel();
    this.turns.port1.onmessage = () => this.take();
    /** When the server's last message came; 0: never. */
    this.lastMessageAt = 0;
    addEventListener("online", () => this.state === "lost" && this.again(0));
    document.addEventListener("visibilitychange", () => !document.hidden && this.state === "lost" && this.again(0));
  }

  /** Reads everything, then listens. */
  async start() {
    clearTimeout(this.timer);
    try {
      const response = await ask("api/snapshot");
      const buffer = await response.arrayBuffer();
      performance.mark("gpushare:snapshot");
      this.store.load(buffer);
      this.lastMessageAt = Date.now();
      this.listen();
    } catch (error) {
      if (error instanceof LoggedOut) this.report("out");
      else this.lost(error.status === 503 ? "the server is still reading the cluster" : "the server does not answer", true);
    }
  }

  listen() {
    this.source?.close();
    this.forget();
    const source = (this.source = new EventSource(`api/events?last=${encodeURIComponent(this.store.id)}`));
    const received = (handle) => (event) => {
      if (source !== this.source) return;
      this.lastMessageAt = Date.now();
      this.alive();
      if (!handle) return;
      this.behind.push(() => {
        if (event.lastEventId) this.store.id = event.lastEventId;
        handle(JSON.parse(event.data));
      });
      if (this.behind.length === 1) this.turn();
    };
    source.addEventListener("open", received(null));
    source.addEventListener("alive", received(null));
    source.addEventListener("delta", received((delta) => {
      const began = performance.now();
      this.store.apply(delta);
      performance.clearMeasures("gpushare:apply");
      performance.measure("gpushare:apply", { start: began, end: performance.now() });
    }));
    source.addEventListener("sample", received((row) => this.store.addSample(row)));
    source.addEventListener("waiting", received((waiting) => this.store.setWaiting(waiting)));
    // Another process answers, or missed messages are no longer stored: it sends everything.
    source.addEventListener("snapshot", async (event) => {
      if (source !== this.source) return;
      this.lastMessageAt = Date.now();
      this.alive();
      this.unpacking = true;
      try {
        const buffer = await unpacked(event.data);
        if (source !== this.source) return;
        this.store.load(buffer);
        this.unpacking = false;
        this.turn();
      } catch {
        if (source === this.source) this.lost("the server sent invalid data", true);
      }
    });
    source.addEventListener("error", () => source === this.source && this.lost("the connection was lost", false));
    this.alive();
  }

  /** Drops messages that are not applied yet: the server sends them again after a reconnect. */
  forget() {
    this.behind = [];
    this.unpacking = false;
  }

  turn() {
    if (this.behind.length && !this.unpacking) this.turns.port2.postMessage(null);
  }

  /** Applies received messages, the rest of many in another task: in between the page stays responsive. */
  take() {
    const until = performance.now() + TURN_MS;
    try {
      while (this.behind.length && !this.unpacking && performance.now() < until) this.behind.shift()();
    } finally {
      this.turn();
    }
  }

  alive() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.lost("no data came from the server", false), SILENCE_MS);
    if (this.source?.readyState === EventSource.OPEN) {
      this.tries = 0;
      this.report("live");
    }
  }

  /** Reconnects with back-off; missed messages then come by their number, or everything is read again. */
  lost(why, reread) {
    this.source?.close();
    this.source = null;
    this.forget();
    clearTimeout(this.silence);
    const wait = Math.min(FIRST_MS * 2 ** this.tries++, MOST_MS) * (0.5 + Math.random() / 2);
    this.again(wait, reread || !this.store.id);
    this.report("lost", { why, at: Date.now() + wait });
  }

  again(wait, reread = !this.store.id) {
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      if (reread) return this.start();
      // An EventSource does not report why it was rejected: an expired login looks like a lost server.
      try {
        await ask("api/search?q=");
        this.listen();
      } catch (error) {
        if (error instanceof LoggedOut) this.report("out");
        else this.lost("the server does not answer", false);
      }
    }, wait);
  }

  stop() {
    this.source?.close();
    this.source = null;
    this.forget();
    clearTimeout(this.silence);
    clearTimeout(this.timer);
  }

  report(state, detail = {}) {
    if (state === this.state && state === "live") return;
    this.state = state;
    if (state === "out") this.stop();
    this.dispatchEvent(new CustomEvent("state", { detail: { state, ...detail } }));
  }
}
