// The page that compares two runs, with statistics from Python, and the page of a task in all runs.
import { el, fill, button, plural, count } from "./dom.js";
import { address, change, episodeAddress, place } from "./address.js";
import { badge, tasks } from "./lists.js";
import { table, verdict } from "./overview.js";
import { histories } from "./changes.js";
import { oneTurn, reasons } from "./episode.js";
import { markdown } from "./text.js";

const MOST = 4; // the maximum number of episodes side by side

export class ComparePage {
  constructor(source) {
    this.source = source;
  }

  open() {
    this.root = el("div");
    return [el("h1", {}, "Compare runs"), this.root];
  }

  update() {
    const { report, runs } = this.source;
    const { asked } = place();
    const all = report ? report.pairs : [];
    const pair = all.find((one) => one.first === asked.get("first") && one.second === asked.get("second")) || all[0];
    const look = `${report && JSON.stringify(pair)} ${all.length} ${asked}`;
    if (look === this.look) return;
    this.look = look;
    if (!pair) {
      fill(this.root, el("p", {}, "No two runs have tasks in common."));
      return;
    }
    const label = (name) => (runs.find((run) => run.name === name) || { label: name }).label;
    const select = el("select", { on: { change: () => {
      const chosen = all[Number(select.value)];
      change({ first: chosen.first, second: chosen.second, only: "" });
    } } }, all.map((one, number) => el("option", { value: number, selected: one === pair }, `${label(one.second)} against ${label(one.first)}`)));
    const only = asked.get("only") || "";
    const flips = (side) => button(`${plural(pair.better[side].length, "task")} better by ${label(pair[side])}`, () => change({ first: pair.first, second: pair.second, only: only === side ? "" : side }), { "aria-pressed": String(only === side) });
    const wanted = only ? pair.better[only] : [...pair.better.first, ...pair.better.second];
    fill(
      this.root,
      all.length > 1 ? el("label", { class: "inline" }, "pair ", select) : null,
      verdict({ ...pair.verdict, links: [] }),
      el("h2", {}, "Tasks that flipped"),
      el("p", { class: "links" }, flips("first"), flips("second")),
      this.flipped(pair, wanted),
      el("h2", {}, "Paired statistics"),
      pair.tables.map(table),
    );
  }

  flipped(pair, wanted) {
    const number = (name) => this.source.runs.findIndex((run) => run.name === name);
    const sides = [number(pair.first), number(pair.second)];
    const found = new Map(wanted.slice(0, 1000).map((task) => [task, [[], []]]));
    for (const row of this.source.rows) if (found.has(row.task) && sides.includes(row.run)) found.get(row.task)[sides.indexOf(row.run)].push(row);
    const links = (rows) => rows.map((row) => [el("a", { href: episodeAddress(this.source.runs[row.run], row), "aria-label": `${row.id} of ${this.source.runs[row.run].label}: ${row.state}` }, badge(row.state)), " "]);
    const where = this.source.runs[sides[1]] ? this.source.runs[sides[1]].where : "";
    return el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "tasks that flipped" },
      el("table", {},
        el("thead", {}, el("tr", {}, ["task", ...sides.map((side) => (this.source.runs[side] || {}).label)].map((name) => el("th", { scope: "col", class: "left" }, name)))),
        el("tbody", {}, [...found].map(([task, rows]) =>
          el("tr", {}, el("th", { scope: "row", class: "left" }, el("a", { href: address("task", { id: task, env: where, rows: rows.flat().slice(0, MOST).map((row) => row.at).join(" ") }) }, task)), rows.map((some) => el("td", { class: "left" }, links(some))))))),
      wanted.length > found.size ? el("p", { class: "note" }, `… and ${count(wanted.length - found.size)} more`) : null);
  }
}

export class TaskPage {
  constructor(source) {
    this.source = source;
  }

  open() {
    this.root = el("div");
    return [this.root];
  }

  async update() {
    const { asked } = place();
    const id = asked.get("id");
    const one = tasks(this.source).find((task) => task.task === id && (!asked.get("env") || task.where === asked.get("env")));
    const all = one ? one.rows : [];
    const chosen = (asked.get("rows") || "").split(" ").filter(Boolean).map(Number);
    let rows = chosen.length ? all.filter((row) => chosen.includes(row.at)) : all.filter((row) => row.parent === null);
    rows = rows.slice(0, MOST);
    const look = `${id} ${all.map((row) => row.at)} ${rows.map((row) => row.at)}`;
    if (look === this.look) return;
    this.look = look;
    if (!one) {
      fill(this.root, el("h1", {}, id || "task"), el("p", {}, "There is no episode of this task yet."));
      return;
    }
    const bodies = await Promise.all(rows.map((row) => this.source.body(row)));
    if (this.look === look) fill(this.root, this.page(one, rows, bodies));
  }

  page(one, rows, bodies) {
    const run = (row) => this.source.runs[row.run];
    const pick = (row) => {
      const box = el("input", { type: "checkbox", checked: rows.includes(row), on: { change: () => {
        const now = rows.map((other) => other.at);
        change({ rows: (box.checked ? [...now, row.at].slice(-MOST) : now.filter((at) => at !== row.at)).join(" ") });
      } } });
      return el("label", { class: "inline" }, box, ` ${run(row).label}${row.id === `${row.task}#0` ? "" : ` ${row.id}`} `, badge(row.state));
    };
    const known = bodies.map((body) => histories(body.turns || []));
    const most = Math.max(0, ...bodies.map((body) => (body.turns || []).length));
    const columns = el("div", { class: "beside", role: "group", "aria-label": "episodes side by side", tabindex: "0" });
    columns.style.gridTemplateColumns = `repeat(${Math.max(1, rows.length)}, minmax(20rem, 1fr))`;
    columns.append(...rows.map((row) => el("h2", {}, el("a", { href: episodeAddress(run(row), row) }, run(row).label), " ", badge(row.state))));
    columns.append(...rows.map((row, number) => reasons(row, bodies[number])));
    for (let at = 0; at < most; at++)
      columns.append(...rows.map((row, number) => {
        const body = bodies[number];
        const turns = body.turns || [];
        return at < turns.length ? oneTurn(turns[at], at, turns.length, body, known[number][at], run(row), row, false) : el("div", { class: "turn meta" }, at === turns.length ? "the episode had ended" : "");
      }));
    return [
      el("nav", { class: "tools", "aria-label": "this task" }, el("a", { href: "#tasks" }, "← tasks")),
      el("h1", {}, one.task),
      el("p", { class: "note" }, `${one.where} · solved in ${one.solved} of ${plural(one.rows.length, "episode")}`),
      el("section", { "aria-label": "task" }, markdown(bodies[0] ? bodies[0].query : one.query)),
      one.rows.length > 1 ? el("fieldset", { class: "picks" }, el("legend", {}, `side by side (at most ${MOST})`), one.rows.slice(0, 40).map(pick)) : null,
      columns,
    ];
  }
}
