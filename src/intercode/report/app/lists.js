// The lists: runs, tasks, episodes. All that a reader has chosen is in the address.
import { el, fill, plural, count, percent, dollars, score, seconds } from "./dom.js";
import { address, change, episodeAddress, place } from "./address.js";
import { Grid, sorted } from "./grid.js";
import { interval } from "./overview.js";

export const badge = (state) => el("span", { class: `state ${state.replace(/ /g, "-")}` }, state);
const number = (value) => (value === null || value === undefined ? "" : count(value));
const STATES = ["solved", "failed", "not solved", "truncated", "skipped", "ended", "error"];

function episodeColumns(source) {
  const run = (row) => source.runs[row.run];
  const text = (name, get, kind = "") => ({ name, kind, get, show: get });
  return [
    { name: "outcome", kind: "outcome", get: (row) => row.state, show: (row) => badge(row.state) },
    {
      name: "task",
      kind: "task",
      get: (row) => row.task,
      show: (row) => el("a", { href: episodeAddress(run(row), row), title: row.query }, row.id.endsWith("#0") ? row.task : row.id),
    },
    text("agent", (row) => run(row).label, "run"),
    text("environment", (row) => run(row).where, "env wide-only"),
    { name: "reward", kind: "number", get: (row) => row.reward, show: (row) => (row.reward === null ? "–" : score(row.reward)) },
    { name: "turns", kind: "number", first: "-", get: (row) => row.turns, show: (row) => count(row.turns) },
    { name: "tokens", kind: "number wide-only", first: "-", get: (row) => row.tokens, show: (row) => number(row.tokens) },
    { name: "cost", kind: "number wide-only", first: "-", get: (row) => row.cost, show: (row) => dollars(row.cost) },
    { name: "seconds", title: "time", kind: "number", first: "-", get: (row) => row.seconds, show: (row) => seconds(row.seconds) },
    text("level", (row) => row.level || "", "level wide-only"),
    text("what happened", (row) => row.kinds.join(", "), "kinds wide-only"),
    text("query", (row) => row.query, "query wide-only"),
    { name: "started", kind: "number wide-only", first: "-", get: (row) => row.started, show: (row) => (row.started ? new Date(1000 * row.started).toISOString().slice(11, 19) : "") },
  ];
}

// Filters: name in the address → the values of a row; several of a row's tags or kinds may match.
function filters(source) {
  const run = (row) => source.runs[row.run];
  return {
    run: { label: "run", of: (row) => [run(row).name], said: (name) => name },
    agent: { label: "agent", of: (row) => [run(row).agent] },
    model: { label: "model", of: (row) => [run(row).model] },
    env: { label: "environment", of: (row) => [run(row).where] },
    state: { label: "outcome", of: (row) => (row.success || row.status === "error" ? [row.state] : [row.state, "failed"]) },
    level: { label: "level", of: (row) => [row.level || ""] },
    tag: { label: "tag", of: (row) => row.tags },
    kind: { label: "what happened", of: (row) => row.kinds },
    place: { label: "place", of: (row) => [row.place] },
    task: { label: "task", of: (row) => [row.task], hidden: true },
  };
}

const CONDITION = /(?:^|\s)(reward|turns|tokens|cost|seconds)(<=|>=|<|>|=)([\d.]+)(?=\s|$)/g;
const COMPARE = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b, "=": (a, b) => a === b };

// "turns>5 rm -rf": conditions, and the words that are searched for in all texts.
export function understood(text) {
  const conditions = [...text.matchAll(CONDITION)].map(([, name, sign, value]) => (row) => row[name] !== null && COMPARE[sign](row[name], Number(value)));
  return { conditions, words: text.replace(CONDITION, " ").trim() };
}

export class EpisodeList {
  constructor(source, shown) {
    this.source = source;
    this.shown = shown; // the rows of the list, for "next" and "previous" in an episode
    this.hits = { words: "", rows: new Set(), upto: 0, busy: 0 };
  }

  open() {
    this.columns = episodeColumns(this.source);
    this.grid = new Grid({ label: "episodes", columns: this.columns, onSort: (sort) => change({ sort }) });
    this.words = el("input", { id: "words", type: "search", placeholder: "any text; turns>5; cost<0.1", "aria-label": "search all texts" });
    let timer;
    this.words.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => change({ q: this.words.value }), 250);
    });
    this.bar = el("div", { class: "filters" });
    this.told = el("span", { role: "status", class: "note" });
    this.selects = new Map();
    const form = el("form", { role: "search", on: { submit: (event) => event.preventDefault() } }, this.bar, this.words, this.told);
    return [el("h1", {}, "Episodes"), form, this.grid.root];
  }

  update() {
    const { asked } = place();
    if (document.activeElement !== this.words) this.words.value = asked.get("q") || "";
    const all = filters(this.source);
    const chosen = Object.entries(all).filter(([name]) => asked.get(name));
    const { conditions, words } = understood(asked.get("q") || "");
    this.choices(all, asked);
    let rows = this.source.rows.filter(
      (row) => chosen.every(([name, { of }]) => of(row).includes(asked.get(name))) && conditions.every((holds) => holds(row)),
    );
    if (words) {
      this.search(words);
      rows = rows.filter((row) => this.hits.rows.has(row.at));
    } else this.hits.words = "";
    rows = sorted(rows, this.columns, asked.get("sort") || "");
    this.shown.rows = rows;
    this.shown.words = words;
    this.grid.show(rows, asked.get("sort") || "");
    const busy = words && this.hits.busy ? `, ${count(this.hits.upto)} searched` : "";
    fill(this.told, `${count(rows.length)} of ${plural(this.source.rows.length, "episode")}${busy}`);
  }

  // A choice is offered where there is one.
  choices(all, asked) {
    for (const [name, { label, of, hidden }] of Object.entries(all)) {
      const values = new Set();
      if (!hidden) for (const row of this.source.rows) for (const value of of(row)) if (value) values.add(value);
      const given = asked.get(name) || "";
      const offered = [...values].sort((a, b) => (name === "state" ? STATES.indexOf(a) - STATES.indexOf(b) : a.localeCompare(b, "en", { numeric: true }))).slice(0, 500);
      if (given && !values.has(given)) offered.push(given);
      let select = this.selects.get(name);
      if (offered.length < 2 && !given) continue;
      if (!select) {
        select = el("select", { name, on: { change: () => change({ [name]: select.value }) } });
        this.selects.set(name, select);
        this.bar.append(el("label", {}, el("span", {}, label), select));
      }
      const known = offered.join("\n");
      if (select.dataset.known !== known) {
        select.dataset.known = known;
        fill(select, el("option", { value: "" }, "any"), offered.map((value) => {
          const option = el("option", {}, value);
          option.value = value; // as it is, also where its text shows escapes
          return option;
        }));
      }
      select.value = given;
      select.classList.toggle("chosen", Boolean(given));
    }
  }

  async search(words) {
    const hits = this.hits;
    const most = this.source.rows.reduce((last, row) => Math.max(last, row.at), -1);
    if (hits.words !== words || hits.generation !== this.source.generation) this.hits = { words, generation: this.source.generation, rows: new Set(), upto: 0, busy: 0 };
    const mine = this.hits;
    if (mine.busy || mine.upto > most) return;
    mine.busy = 1;
    let drawn = performance.now();
    for await (const [at, found] of this.source.search(words, mine.upto)) {
      if (this.hits !== mine || this.hits.words !== words) return;
      mine.upto = at + 1;
      if (found) mine.rows.add(at);
      if (performance.now() - drawn > 300) {
        this.source.onChange();
        drawn = performance.now();
      }
    }
    mine.busy = 0;
    this.source.onChange();
  }
}

export class RunList {
  constructor(source) {
    this.source = source;
  }

  open() {
    const link = (run) => el("a", { href: address("episodes", { run: run.name }) }, run.label);
    const text = (name, get, kind = "") => ({ name, kind, get, show: get });
    const value = (name, get, show = number) => ({ name, kind: "number", first: "-", get, show: (run) => show(get(run)) });
    this.columns = [
      { name: "agent", kind: "task", get: (run) => run.label, show: link },
      text("model", (run) => run.model, "wide-only"),
      text("environment", (run) => run.where),
      value("success", (run) => run.rate, percent),
      { name: "interval", title: "95 % interval", kind: "wide-only", get: (run) => run.low, show: (run) => (run.low === null ? "" : [`${percent(run.low)} – ${percent(run.high)}`, interval([run.rate, run.low, run.high])]) },
      { name: "episodes", kind: "number", first: "-", get: (run) => run.done, show: (run) => (run.done < run.planned ? `${count(run.done)} of ${count(run.planned)}` : count(run.done)) },
      value("errors", (run) => run.errors),
      value("reward", (run) => run.reward, (x) => (x === null ? "–" : score(x))),
      value("turns", (run) => run.turns, (x) => (x === null ? "–" : x.toFixed(1))),
      value("tokens", (run) => run.tokens),
      value("cost", (run) => run.cost, dollars),
      value("seconds", (run) => run.seconds, (x) => (x === null ? "–" : seconds(x))),
      text("folder", (run) => run.folder, "wide-only"),
    ];
    this.grid = new Grid({ label: "runs", columns: this.columns, onSort: (sort) => change({ sort }) });
    this.told = el("span", { role: "status", class: "note" });
    return [el("h1", {}, "Runs"), el("p", {}, this.told), this.grid.root];
  }

  update() {
    const sort = place().asked.get("sort") || "";
    const runs = this.source.report ? this.source.report.runs : [];
    fill(this.told, plural(runs.length, "run"));
    this.grid.show(sorted(runs, this.columns, sort), sort);
  }
}

export class TaskList {
  constructor(source) {
    this.source = source;
  }

  open() {
    this.columns = [
      { name: "task", kind: "task", get: (one) => one.task, show: (one) => el("a", { href: address("task", { id: one.task, env: one.where }) }, one.task) },
      { name: "query", kind: "query wide-only", get: (one) => one.query, show: (one) => one.query },
      { name: "environment", kind: "wide-only", get: (one) => one.where, show: (one) => one.where },
      { name: "level", kind: "wide-only", get: (one) => one.level, show: (one) => one.level },
      { name: "solved", kind: "number", get: (one) => one.solved / one.rows.length, show: (one) => `${one.solved} of ${one.rows.length}` },
      { name: "runs", title: "by run", kind: "marks", sort: false, show: (one) => this.marks(one) },
      { name: "turns", title: "mean turns", kind: "number", first: "-", get: (one) => one.turns, show: (one) => one.turns.toFixed(1) },
    ];
    this.grid = new Grid({ label: "tasks", columns: this.columns, onSort: (sort) => change({ sort }) });
    this.words = el("input", { id: "words", type: "search", placeholder: "name or query", "aria-label": "search tasks", on: { input: () => change({ q: this.words.value }) } });
    this.split = el("input", { type: "checkbox", on: { change: () => change({ split: this.split.checked ? "1" : "" }) } });
    this.told = el("span", { role: "status", class: "note" });
    const form = el("form", { role: "search", on: { submit: (event) => event.preventDefault() } }, this.words, el("label", { class: "inline" }, this.split, " only where episodes differ"), this.told);
    return [el("h1", {}, "Tasks"), form, this.grid.root];
  }

  marks(one) {
    const made = one.rows.slice(0, 40).map((row) => {
      const run = this.source.runs[row.run];
      const sign = { solved: "✓", error: "!" }[row.state] || "✗";
      return el("a", { href: episodeAddress(run, row), class: `mark ${row.state.replace(/ /g, "-")}`, "aria-label": `${run.label}: ${row.state}`, title: `${run.label}: ${row.state}` }, sign);
    });
    return made;
  }

  update() {
    const { asked } = place();
    const words = (asked.get("q") || "").toLowerCase();
    if (document.activeElement !== this.words) this.words.value = asked.get("q") || "";
    this.split.checked = asked.get("split") === "1";
    const all = tasks(this.source);
    let found = all.filter((one) => !words || `${one.task} ${one.query}`.toLowerCase().includes(words));
    if (this.split.checked) found = found.filter((one) => one.solved > 0 && one.solved < one.rows.length);
    const sort = asked.get("sort") || "";
    fill(this.told, `${count(found.length)} of ${plural(all.length, "task")}`);
    this.grid.show(sorted(found, this.columns, sort), sort);
  }
}

// Tasks of one environment, with their episodes in the order of the runs.
export function tasks(source) {
  const found = new Map();
  for (const row of source.rows) {
    const where = source.runs[row.run].where;
    const key = `${where}\n${row.task}`;
    if (!found.has(key)) found.set(key, { task: row.task, where, query: row.query, level: row.level, rows: [], solved: 0, turns: 0 });
    const one = found.get(key);
    one.rows.push(row);
    one.solved += row.success;
  }
  for (const one of found.values()) {
    one.rows.sort((a, b) => a.run - b.run || a.epoch - b.epoch);
    one.turns = one.rows.reduce((sum, row) => sum + row.turns, 0) / one.rows.length;
  }
  return [...found.values()];
}
