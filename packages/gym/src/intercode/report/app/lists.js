// The lists of runs, tasks and episodes. The address has all filters, the order and the search.
import { el, fill, button, plural, count, percent, dollars, score, seconds, timestamp } from "./dom.js";
import { address, change, episodeAddress, place } from "./address.js";
import { Grid, known, sorted } from "./grid.js";
import { date, interval } from "./overview.js";

export const badge = (state) => el("span", { class: `state ${state}` }, state);
const number = (value) => (value === null || value === undefined ? "" : count(value));
const UNSCORED = ["lost", "refused", "unknown"];
const STATES = ["solved", "failed", "not-solved", "turn-limit", "time-limit", "token-limit", "ended-by-agent", "error", ...UNSCORED];
const group = (row) => (row.success ? [] : [UNSCORED.includes(row.state) ? "error" : "failed"]);

const text = (name, get, kind = "") => ({ name, kind, get, show: get });
const measure = (name, get, show = number, more = {}) => ({ name, kind: "number", first: "-", get, show: (row) => show(get(row)), ...more });
const or = (show) => (value) => (value === null ? "–" : show(value));

const CONDITION = /(?:^|\s)([a-z]+)(<=|>=|<|>|=)([\d.]+)(?=\s|$)/g;
const COMPARE = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b, "=": (a, b) => a === b };

// Parses a search such as "turns>5 rm -rf": conditions on numeric columns, and words to find.
function understood(asked, columns) {
  const conditions = [];
  const words = asked.replace(CONDITION, (whole, name, sign, value) => {
    const column = columns.find((one) => one.kind.startsWith("number") && (one.name === name || one.title === name));
    if (!column) return whole;
    conditions.push((row) => known(column.get(row)) && COMPARE[sign](column.get(row), Number(value)));
    return " ";
  });
  return { conditions, words: words.trim() };
}

// A list has columns, filters and a search. Columns without any value are hidden. A filter has its
// name from the address; `of` returns a row's values, one of which must equal the chosen value.
class List {
  constructor(source) {
    this.source = source;
  }

  open() {
    this.grid = new Grid({ label: this.title.toLowerCase(), onSort: (sort) => change({ sort }) });
    this.words = el("input", { id: "words", type: "search", placeholder: this.hint, "aria-label": this.searches });
    let timer;
    this.words.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.words.isConnected && change({ q: this.words.value }), 250);
    });
    this.bar = el("div", { class: "filters" });
    this.told = el("span", { role: "status", class: "note" });
    this.selects = new Map();
    const form = el("form", { role: "search", on: { submit: (event) => event.preventDefault() } }, this.bar, this.words, this.told);
    return [el("h1", {}, this.title), form, this.grid.root];
  }

  update() {
    const { asked } = place();
    const [order, q] = [asked.get("sort") || "", asked.get("q") || ""];
    if (document.activeElement !== this.words) this.words.value = q;
    const all = this.all();
    this.choices(all, asked);
    const chosen = Object.entries(this.filters).filter(([name]) => asked.get(name));
    const { conditions, words } = understood(q, this.columns);
    const found = all.filter((row) => chosen.every(([name, { of }]) => of(row).includes(asked.get(name))) && conditions.every((holds) => holds(row)));
    const rows = sorted(this.having(found, words), this.columns, order);
    this.grid.show(rows, order, this.columns.filter((column) => all.some((row) => known(column.get(row)))));
    fill(this.told, `${count(rows.length)} of ${plural(all.length, this.title.toLowerCase().slice(0, -1))}${this.busy || ""}`);
    if (!rows.length) fill(this.grid.empty, all.length ? this.unmatched([...chosen.map(([name]) => name), "q"]) : `No ${this.title.toLowerCase().slice(0, -1)} is recorded yet.`);
    return { rows, words };
  }

  // What a list shows if no row matches.
  unmatched(names) {
    const text = this.busy ? "No match so far; the search goes on." : `None of these ${this.title.toLowerCase()} matches the search and the filters.`;
    return [el("p", {}, text), button("show all", () => change(Object.fromEntries(names.map((name) => [name, ""]))))];
  }

  having(rows, words) {
    return words ? rows.filter((row) => this.texts(row).toLowerCase().includes(words.toLowerCase())) : rows;
  }

  // Shows a filter if it has at least two values, or a chosen value.
  choices(all, asked) {
    for (const [name, { label, of, order, hidden, names = {} }] of Object.entries(this.filters)) {
      const values = new Set();
      if (!hidden) for (const row of all) for (const value of of(row)) if (value) values.add(value);
      const given = asked.get(name) || "";
      const offered = [...values].sort((a, b) => (order ? order.indexOf(a) - order.indexOf(b) : a.localeCompare(b, "en", { numeric: true }))).slice(0, 500);
      if (given && !offered.includes(given)) offered.push(given);
      let select = this.selects.get(name);
      if (offered.length < 2 && !given) continue;
      if (!select) {
        select = el("select", { name, on: { change: () => change({ [name]: select.value }) } });
        this.selects.set(name, select);
        this.bar.append(el("label", {}, el("span", {}, label), select));
      }
      const look = offered.join("\n");
      if (select.dataset.look !== look) {
        select.dataset.look = look;
        fill(select, el("option", { value: "" }, "any"), offered.map((value) => {
          const option = el("option", {}, names[value] || value);
          option.value = value; // the original value, because the text may show escapes
          return option;
        }));
      }
      select.value = given;
      select.classList.toggle("chosen", Boolean(given));
    }
  }
}

export class EpisodeList extends List {
  title = "Episodes";
  hint = "any text; turns>5; cost<0.1";
  searches = "search all texts";

  constructor(source, shown) {
    super(source);
    this.shown = shown; // the rows of the list, for "next" and "previous" in an episode
    this.hits = { words: "", rows: new Set(), upto: 0, busy: 0 };
    const run = (row) => source.runs[row.run];
    this.columns = [
      { name: "outcome", kind: "outcome", get: (row) => row.state, show: (row) => badge(row.state) },
      { name: "task", kind: "task", get: (row) => row.task, show: (row) => el("a", { href: episodeAddress(run(row), row), title: row.query }, row.id.endsWith("#0") ? row.task : row.id) },
      text("agent", (row) => run(row).label, "run"),
      text("environment", (row) => run(row).where, "env wide-only"),
      measure("reward", (row) => row.reward, or(score), { first: "" }),
      measure("turns", (row) => row.turns),
      measure("tokens", (row) => row.tokens, number, { kind: "number wide-only" }),
      measure("cost", (row) => row.cost, dollars, { kind: "number wide-only" }),
      measure("seconds", (row) => row.seconds, seconds, { title: "time" }),
      text("what happened", (row) => row.kinds.join(", "), "kinds wide-only"),
      { ...text("level", (row) => row.level || "", "wide-only"), title: "difficulty" },
      text("tags", (row) => row.tags.filter((tag) => tag !== row.level).join(", "), "query wide-only"),
      text("query", (row) => row.query, "query wide-only"),
      measure("started", (row) => row.started || null, (time) => timestamp(time).slice(-8), { kind: "number wide-only" }),
    ];
    this.filters = {
      run: { label: "run", of: (row) => [run(row).name] },
      agent: { label: "agent", of: (row) => [run(row).agent] },
      model: { label: "model", of: (row) => [run(row).model] },
      env: { label: "environment", of: (row) => [run(row).where] },
      state: { label: "outcome", of: (row) => [row.state, ...group(row)], order: STATES, names: { failed: "any but solved" } },
      level: { label: "difficulty", of: (row) => [row.level || ""] },
      tag: { label: "tag", of: (row) => row.tags },
      kind: { label: "what happened", of: (row) => row.kinds },
      place: { label: "image or database", of: (row) => [row.place] },
      task: { label: "task", of: (row) => [row.task], hidden: true },
    };
  }

  all() {
    return this.source.rows;
  }

  update() {
    Object.assign(this.shown, super.update());
  }

  // The search of all texts may take a while, so the list shows the matches so far.
  having(rows, words) {
    this.busy = "";
    if (!words) {
      this.hits.words = "";
      return rows;
    }
    this.search(words);
    if (this.hits.busy) this.busy = `, ${count(this.hits.upto)} searched`;
    return rows.filter((row) => this.hits.rows.has(row.at));
  }

  async search(words) {
    const { generation, rows } = this.source;
    if (this.hits.words !== words || this.hits.generation !== generation) this.hits = { words, generation, rows: new Set(), upto: 0, busy: 0 };
    const mine = this.hits;
    if (mine.busy || mine.upto > rows.reduce((last, row) => Math.max(last, row.at), -1)) return;
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

export class RunList extends List {
  title = "Runs";
  hint = "agent, model, folder; success>0.5";
  searches = "search runs";
  columns = [
    { name: "agent", kind: "task", get: (run) => run.label, show: (run) => el("a", { href: address("episodes", { run: run.name }) }, run.label) },
    text("model", (run) => run.model, "wide-only"),
    text("environment", (run) => run.where),
    measure("success", (run) => run.rate, percent),
    { name: "interval", title: "95 % interval", kind: "wide-only", get: (run) => run.low, show: (run) => (run.low === null ? "" : [interval([run.rate, run.low, run.high]), ` ${percent(run.low)} – ${percent(run.high)}`]) },
    { name: "episodes", kind: "number", first: "-", get: (run) => run.done, show: (run) => (run.done < run.planned ? `${count(run.done)} of ${count(run.planned)}` : count(run.done)) },
    measure("errors", (run) => run.errors),
    measure("reward", (run) => run.reward, or(score)),
    measure("turns", (run) => run.turns, or((turns) => turns.toFixed(1))),
    measure("tokens", (run) => run.tokens),
    measure("cost", (run) => run.cost, dollars),
    measure("seconds", (run) => run.seconds, or(seconds), { title: "time" }),
    { name: "started", kind: "number wide-only", first: "-", get: (run) => run.started, show: (run) => date(run.started) },
    text("folder", (run) => run.folder, "wide-only"),
  ];
  filters = {
    agent: { label: "agent", of: (run) => [run.agent] },
    model: { label: "model", of: (run) => [run.model] },
    env: { label: "environment", of: (run) => [run.where] },
  };

  all() {
    return this.source.report ? this.source.report.runs : [];
  }

  texts(run) {
    return `${run.label} ${run.where} ${run.folder}`;
  }
}

export class TaskList extends List {
  title = "Tasks";
  hint = "name or query; turns>5";
  searches = "search tasks";
  columns = [
    { name: "task", kind: "task", get: (one) => one.task, show: (one) => el("a", { href: address("task", { id: one.task, env: one.where }) }, one.task) },
    text("query", (one) => one.query, "query wide-only"),
    text("environment", (one) => one.where, "wide-only"),
    { ...text("level", (one) => one.level || "", "wide-only"), title: "difficulty" },
    text("tags", (one) => one.tags.filter((tag) => tag !== one.level).join(", "), "query wide-only"),
    { name: "solved", kind: "number", get: (one) => one.solved / one.rows.length, show: (one) => `${one.solved} of ${one.rows.length}` },
    { name: "runs", title: "by run", kind: "marks", sort: false, get: (one) => one.rows.length, show: (one) => this.marks(one) },
    measure("turns", (one) => one.turns, (turns) => turns.toFixed(1), { title: "mean turns" }),
  ];
  filters = {
    env: { label: "environment", of: (one) => [one.where] },
    level: { label: "difficulty", of: (one) => [one.level || ""] },
    tag: { label: "tag", of: (one) => one.tags },
    solved: { label: "solved", of: (one) => [one.solved === 0 ? "never" : one.solved === one.rows.length ? "always" : "sometimes"] },
  };

  all() {
    return tasks(this.source);
  }

  texts(one) {
    return `${one.task} ${one.query}`;
  }

  marks(one) {
    return one.rows.slice(0, 40).map((row) => {
      const run = this.source.runs[row.run];
      const sign = row.success ? "✓" : UNSCORED.includes(row.state) ? "!" : "✗";
      return el("a", { href: episodeAddress(run, row), class: `mark ${row.state}`, "aria-label": `${run.label}: ${row.state}`, title: `${run.label}: ${row.state}` }, sign);
    });
  }
}

// Returns the tasks of all environments, each with its episodes in the order of the runs.
export function tasks(source) {
  const found = new Map();
  for (const row of source.rows) {
    const where = source.runs[row.run].where;
    const key = `${where}\n${row.task}`;
    if (!found.has(key)) found.set(key, { task: row.task, where, query: row.query, level: row.level, tags: row.tags, rows: [], solved: 0, turns: 0 });
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
