// The page that compares two runs, with statistics from Python, and the page of a task in all runs.
import { el, fill, button, plural, count, percent, seconds } from "./dom.js";
import { address, change, episodeAddress, place } from "./address.js";
import { known } from "./grid.js";
import { agentsOf, estimate, gap } from "./charts.js";
import { configuration, date, money, nothing, points, swatch, table } from "./overview.js";
import { badge, tasks } from "./lists.js";
import { histories } from "./changes.js";
import { reasons } from "./reasons.js";
import { oneTurn } from "./turns.js";
import { markdown } from "./text.js";

const MOST = 4; // the maximum number of episodes side by side

// Two runs: what each is, the difference of their success rates, and the tasks that make it.
export class ComparePage {
  constructor(source) {
    this.source = source;
  }

  open() {
    this.root = el("div");
    return [el("h1", {}, "Compare runs"), this.root];
  }

  update() {
    const { report } = this.source;
    const { asked } = place();
    const all = report ? report.pairs : [];
    const pair = all.find((one) => one.first === asked.get("first") && one.second === asked.get("second")) || all[0];
    const look = `${report && JSON.stringify([pair, report.runs])} ${all.length} ${asked}`;
    if (look === this.look) return;
    this.look = look;
    if (!pair) {
      fill(this.root, nothing("Nothing to compare", "Two runs are compared if they have tasks of one environment in common, for instance those of another agent:", "intercode run bash --agent random"));
      return;
    }
    const scrolled = this.root.querySelector(".pairs");
    const top = scrolled ? scrolled.scrollTop : 0;
    const agents = agentsOf(report);
    const side = (name) => {
      const run = report.runs.find((one) => one.name === name);
      return { run, agent: agents.find(({ label }) => label === run.label) };
    };
    const [first, second] = [side(pair.first), side(pair.second)];
    const page = [this.header(first, second, pair), this.flips(first, second, pair, asked.get("only") || ""), el("section", { class: "card", "aria-labelledby": "statistics" }, el("h2", { id: "statistics" }, "Paired statistics"), pair.tables.map(table))];
    fill(this.root, all.length > 1 ? el("div", { class: "comparison" }, this.list(all, pair, side), el("div", {}, page)) : page);
    if (scrolled) this.root.querySelector(".pairs").scrollTop = top;
    else if (all.length > 1) this.root.querySelector(".pairs [aria-current]").scrollIntoView({ block: "nearest" });
  }

  // All pairs, below the names of their environments.
  list(all, pair, side) {
    const groups = new Map();
    for (const one of all) {
      const { where } = side(one.second).run;
      groups.set(where, [...(groups.get(where) || []), one]);
    }
    const entry = (one) => {
      const [first, second] = [side(one.first), side(one.second)];
      const distinct = (values) => [...new Set(values.filter(Boolean))].join(" and ");
      const facts = [distinct([second.run.model, first.run.model]), distinct([second, first].map(({ run }) => date(run.started, { hours: false })))];
      return el("li", {},
        el("a", { href: address("compare", { first: one.first, second: one.second }), "aria-current": one === pair ? "true" : null },
          el("span", {}, el("b", {}, second.agent.name), " against ", el("b", {}, first.agent.name)),
          el("span", { class: `value ${one.verdict.kind}` }, points(one.verdict.difference[0])),
          el("small", {}, facts.filter(Boolean).join(" · "))));
    };
    return el("nav", { class: "pairs card", "aria-label": "comparisons", tabindex: "0" }, [...groups].map(([where, some]) => [el("h2", {}, where), el("ul", {}, some.map(entry))]));
  }

  header(first, second, pair) {
    const card = ({ run, agent }) => {
      const facts = {
        environment: run.where,
        started: date(run.started) && `${date(run.started)} UTC`,
        turns: known(run.turns) ? run.turns.toFixed(1) : "",
        "time per episode": known(run.seconds) ? seconds(run.seconds) : "",
        cost: known(run.cost) ? money(run.cost) : "",
        folder: run.name,
      };
      return el("div", { class: `contender ${agent.colour}` },
        el("h2", {}, swatch(), " ", agent.name),
        el("p", { class: "meta" }, configuration(run) || "no language model"),
        el("p", { class: "rate" }, el("a", { href: address("episodes", { run: run.name }) }, el("strong", {}, percent(run.rate))), " ", el("small", {}, `${count(run.successes)} of ${count(run.scored)}`)),
        known(run.low) ? estimate([run.rate, run.low, run.high]) : null,
        el("dl", {}, Object.entries(facts).filter(([, text]) => text).map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text)))));
    };
    const { verdict } = pair;
    return el("section", { class: "card", "aria-label": "the two runs" },
      el("div", { class: "versus" },
        card(second),
        el("div", { class: `middle ${verdict.kind}` }, el("p", {}, el("strong", {}, points(verdict.difference[0])), " ", el("small", {}, "points")), gap(verdict.difference)),
        card(first)),
      el("p", {}, el("strong", {}, verdict.headline)),
      el("p", { class: "note" }, verdict.detail));
  }

  flips(first, second, pair, only) {
    const choice = (name, { agent }) => button(`${plural(pair.better[name].length, "task")} better by ${agent.name}`, () => change({ first: pair.first, second: pair.second, only: only === name ? "" : name }), { "aria-pressed": String(only === name) });
    const wanted = only ? pair.better[only] : [...pair.better.second, ...pair.better.first];
    return el("section", { class: "card", "aria-labelledby": "flips" },
      el("h2", { id: "flips" }, "Tasks that flipped"),
      el("p", { class: "links" }, choice("second", second), choice("first", first)),
      wanted.length ? this.flipped([second, first], wanted) : el("p", { class: "note" }, "Both runs solve the same tasks equally often."));
  }

  flipped(sides, wanted) {
    const numbers = sides.map(({ run }) => this.source.runs.findIndex((one) => one.name === run.name));
    const found = new Map(wanted.slice(0, 1000).map((task) => [task, [[], []]]));
    for (const row of this.source.rows) if (found.has(row.task) && numbers.includes(row.run)) found.get(row.task)[numbers.indexOf(row.run)].push(row);
    const links = (rows) => rows.map((row) => [el("a", { href: episodeAddress(this.source.runs[row.run], row), "aria-label": `${row.id} of ${this.source.runs[row.run].label}: ${row.state}` }, badge(row.state)), " "]);
    const { where } = sides[0].run;
    const taskLink = (task, rows) => el("a", { href: address("task", { id: task, env: where, rows: rows.flat().slice(0, MOST).map((row) => row.at).join(" ") }) }, task);
    return el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "tasks that flipped" },
      el("table", { class: "flips" },
        el("thead", {}, el("tr", {}, ["task", ...sides.map(({ agent }) => agent.name), "query"].map((name) => el("th", { scope: "col", class: `left ${name === "query" ? "wide-only" : ""}` }, name)))),
        el("tbody", {}, [...found].map(([task, rows]) =>
          el("tr", {},
            el("th", { scope: "row", class: "left" }, taskLink(task, rows)),
            rows.map((some) => el("td", { class: "left" }, links(some))),
            el("td", { class: "left about wide-only" }, el("div", {}, (rows.flat()[0] || { query: "" }).query)))))),
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
