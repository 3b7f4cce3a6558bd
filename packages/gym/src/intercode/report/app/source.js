// Sources of the data: the page itself, or the server of the page. Both have the runs, the rows, the
// report, the bodies of episodes, and a search of all texts of the episodes.
import { byId } from "./dom.js";

async function unpacked(name) {
  const packed = Uint8Array.from(atob(byId(name).textContent.trim()), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// An address cannot contain a lone surrogate, which names may contain. `address` in overview.py
// replaces it in the same way.
function sendable(value) {
  if (Array.isArray(value)) return value.map(sendable);
  return typeof value === "string" ? value.replace(/\p{Cs}/gu, "\ufffd") : value;
}

const named = (runs) => runs.map((run) => ({ ...run, name: sendable(run.name) }));

// Caches the last `most` results of a slow function: all results of a run may need too much memory.
// A failed call is not cached, so a later request repeats it (the server may be back then).
function kept(most, make) {
  const known = new Map();
  return (key) => {
    if (!known.has(key)) {
      if (known.size >= most) known.delete(known.keys().next().value);
      const made = make(key);
      known.set(key, made);
      made.catch(() => known.delete(key));
    }
    return known.get(key);
  };
}

class Source {
  constructor() {
    this.runs = [];
    this.rows = [];
    this.report = null;
    this.byKey = new Map();
    this.families = new Map();
    this.onChange = () => {};
  }

  // A later row of the same episode replaces the earlier one.
  add(columns, at) {
    const names = Object.keys(columns);
    let replaced = false;
    columns.id.forEach((_, number) => {
      const row = { at: at(number) };
      for (const name of names) row[name] = sendable(columns[name][number]);
      row.state = row.outcome;
      const key = `${row.run} ${row.id}`;
      replaced ||= this.byKey.has(key);
      this.byKey.set(key, row);
      this.rows.push(row);
      const family = `${row.run} ${row.epoch} ${row.task}`;
      if (row.parent !== null) this.families.set(family, true);
    });
    if (replaced) this.rows = this.rows.filter((row) => this.byKey.get(`${row.run} ${row.id}`) === row);
  }

  row(run, id) {
    const number = this.runs.findIndex((one) => one.name === run);
    return this.byKey.get(`${number} ${id}`);
  }

  // All forks of an attempt at a task, and the attempt itself.
  family(row) {
    if (!this.families.has(`${row.run} ${row.epoch} ${row.task}`)) return [row];
    return this.rows.filter((one) => one.run === row.run && one.epoch === row.epoch && one.task === row.task);
  }
}

export class FileSource extends Source {
  async start() {
    this.report = JSON.parse(byId("report").textContent);
    this.runs = named(this.report.runs);
    const index = await unpacked("index");
    this.chunk = kept(20, (number) => unpacked("chunk-" + number));
    this.size = index.chunk;
    this.add(index.columns, (number) => index.at[number]);
    this.onChange();
  }

  async body(row) {
    return (await this.chunk(Math.floor(row.at / this.size)))[row.at % this.size];
  }

  // The rows are searched in the order of their chunks, so each chunk is unpacked once. As by the
  // server, the task is not searched.
  async *search(words, from) {
    const wanted = words.toLowerCase();
    for (const row of [...this.rows].sort((a, b) => a.at - b.at)) {
      if (row.at < from) continue;
      yield [row.at, row.task.toLowerCase().includes(wanted) || holds({ ...(await this.body(row)), task: null, pairs: null }, wanted)];
    }
  }
}

function holds(value, wanted) {
  if (typeof value === "string") return value.toLowerCase().includes(wanted);
  if (value === null || typeof value !== "object") return false;
  return Object.values(value).some((inner) => holds(inner, wanted));
}

export class LiveSource extends Source {
  async start() {
    this.live = "connecting";
    this.generation = 0;
    this.received = 0;
    this.body = kept(20, (row) => this.fetched(row));
    this.connect();
  }

  connect() {
    const events = new EventSource(`events?generation=${this.generation}&from=${this.received}`);
    const on = (name, act) =>
      events.addEventListener(name, (event) => {
        act(JSON.parse(event.data));
        this.live = "live";
        this.onChange();
      });
    on("reset", (generation) => {
      Object.assign(this, { rows: [], received: 0, generation });
      this.byKey.clear();
      this.families.clear();
    });
    on("runs", (runs) => (this.runs = named(runs)));
    on("rows", (data) => {
      this.add(data.columns, (number) => data.from + number);
      this.received = data.from + data.columns.id.length;
    });
    on("report", (report) => (this.report = report));
    // The browser would reconnect to the same address, and receive all rows again. A new connection
    // requests only the rows that are missing.
    events.addEventListener("error", () => {
      events.close();
      this.live = "the server is not there";
      this.onChange();
      setTimeout(() => this.connect(), 2000);
    });
  }

  async fetched(row) {
    const answer = await fetch(`episode?at=${row.at}`);
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }

  async *search(words, from) {
    const cancelled = new AbortController();
    const answer = await fetch(`search?${new URLSearchParams({ words, from })}`, { signal: cancelled.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    try {
      let rest = "";
      for (let part; !(part = await reader.read()).done; ) {
        const lines = (rest + part.value).split("\n");
        rest = lines.pop();
        for (const line of lines) yield JSON.parse(line);
      }
    } finally {
      cancelled.abort();
    }
  }
}
