// Pages that are opened as files may start no workers. There the search's worker runs in a frame of the page
// instead, behind as much of Worker's interface as the theme uses. Pages from a server keep the real one.
(() => {
  "use strict";
  if (location.protocol !== "file:") return;

  window.Worker = class FrameWorker {
    onmessage = null;
    onerror = null;
    onmessageerror = null;
    #frame = document.createElement("iframe");
    #waiting = [];
    #running = false;

    constructor(url) {
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const inside = this.#frame.contentWindow;
      inside.postMessage = (data) => this.#later(() => this.onmessage?.({ data: structuredClone(data) }));
      const script = this.#frame.contentDocument.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        this.#running = true;
        this.#waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      script.onerror = (event) => this.onerror?.(event);
      this.#frame.contentDocument.head.append(script);
    }

    postMessage(data) {
      if (!this.#running) {
        this.#waiting.push(data);
        return;
      }
      const given = structuredClone(data);
      this.#later(() => this.#frame.contentWindow?.onmessage?.({ data: given }));
    }

    terminate() {
      this.#frame.remove();
    }

    // Messages come when whoever sent them is done, as a worker's do.
    #later(act) {
      setTimeout(act, 0);
    }
  };
})();
