// A browser starts no worker from a file. Where the site is opened as files, its search therefore
// runs in a hidden frame, which has the interface of a worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      this.scope.document.open();
      this.scope.document.write("<!doctype html>");
      this.scope.document.close();
      this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.scope.document.createElement("script");
      script.src = url;
      script.onload = () => {
        for (const data of this.waiting) this.send(data);
        this.waiting = null;
      };
      this.scope.document.head.append(script);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.send(data);
    }

    send(data) {
      this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data }));
    }

    terminate() {}
  };
}
