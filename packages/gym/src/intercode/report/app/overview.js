// The first screen: results and charts, what is decided, why episodes were not solved, all tables.
import { el, svg, folded, plural, percent, count, seconds } from "./dom.js";
import { address } from "./address.js";
import { known } from "./grid.js";
import { agentsOf, environments, estimate, figures, gap, legend, shortLabel } from "./charts.js";

const FREQUENT = 12; // the maximum number of observations that are listed

export function overview(source) {
  const { report } = source;
  if (!report) return [el("h1", {}, "Runs"), el("p", { class: "note" }, "The runs are being read …")];
  if (!report.runs.length) return [el("h1", {}, "Runs"), report.warnings.map(warning), nothing("No run yet", "A run appears here when it starts, for instance:", "intercode run bash --agent oracle")];
  const agents = agentsOf(report);
  const [charts, pairs, failures] = [charted(report, agents), decided(report, agents), unsolved(source, agents)];
  return [
    el("h1", {}, report.title),
    subtitle(report),
    report.warnings.map(warning),
    results(report, agents),
    pairs || !charts || !failures ? [charts, pairs, failures] : el("div", { class: "halves" }, charts, failures),
    numbers(report),
  ];
}

// A part of a page without content: what is missing, and how to get it.
export function nothing(title, text, command) {
  return el("div", { class: "nothing" }, el("h2", {}, title), el("p", {}, text), command ? el("pre", {}, command) : null);
}

export const money = (cost) => (known(cost) ? `$${cost.toFixed(cost >= 10 ? 2 : 4)}` : "–");

// Returns a date such as "30 Nov 2026, 12:33" for a time such as "2026-11-30T12:33:10Z".
export function date(time, { hours = true } = {}) {
  const read = new Date(time);
  if (!time || Number.isNaN(read.getTime())) return "";
  const day = read.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" });
  return hours ? `${day}, ${read.toISOString().slice(11, 16)}` : day;
}

function subtitle(report) {
  const { runs, facts } = report;
  const [starts, ends] = [runs.map((run) => run.started).filter(Boolean).sort(), runs.map((run) => run.finished).filter(Boolean).sort()];
  const [start, end] = [date(starts[0]), date(ends[ends.length - 1])];
  const costs = runs.map((run) => run.cost).filter(known);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const texts = [
    `${plural(runs.length, "run")}, ${plural(sum(runs.map((run) => run.done)), "episode")}`,
    start && `${start}${end && end !== start ? ` to ${end.startsWith(start.slice(0, -5)) ? end.slice(-5) : end}` : ""} UTC`,
    facts.model,
    costs.length ? money(sum(costs)) : "",
    facts.version,
  ];
  return el("ul", { class: "subtitle" }, texts.filter(Boolean).map((text) => el("li", {}, text)));
}

function warning(text) {
  const [first, ...rest] = text.split("\n");
  return el("div", { class: "warning" }, rest.length ? folded(first, el("pre", { tabindex: "0" }, rest.join("\n"))) : first);
}

// A wide part of a card, which scrolls by itself.
const scrolling = (label, ...children) => el("div", { class: "scrolling", tabindex: "0", role: "group", "aria-label": label }, ...children);
export const swatch = () => svg("svg", { class: "swatch", width: 12, height: 12, "aria-hidden": "true" }, svg("circle", { class: "dot", cx: 6, cy: 6, r: 5 }));

// Returns what a run's agent has besides its name: its model, skills, judge, or folder.
export function configuration(run) {
  const extra = shortLabel(run).replace(run.agent, "").replace(`(${run.model})`, "").trim();
  return [run.model, extra, run.gold ? "was shown gold" : ""].filter(Boolean).join(", ");
}

function results(report, agents) {
  const places = environments(report);
  const tasks = (where) => Math.max(...report.runs.filter((run) => run.where === where).map((run) => run.tasks));
  const sums = [
    ["turns", (runs) => mean(runs, "turns", (turns) => turns.toFixed(1))],
    ["cost", (runs) => (runs.some((run) => known(run.cost)) ? money(runs.reduce((sum, run) => sum + (run.cost || 0), 0)) : "–")],
    ["time", (runs) => mean(runs, "seconds", seconds)],
  ].filter(([name]) => name !== "cost" || report.runs.some((run) => known(run.cost)));
  const rows = [...agents].sort((a, b) => a.runs[0].gold - b.runs[0].gold).map(({ name, colour, runs }) =>
    el("tr", { class: colour },
      el("th", { scope: "row" }, swatch(), el("span", {}, el("strong", {}, name), el("small", {}, configuration(runs[0])))),
      places.map((where) => el("td", { class: "result", "data-label": where }, result(runs.find((run) => run.where === where)))),
      sums.map(([title, show]) => el("td", { class: "sum", "data-label": title }, show(runs)))));
  const head = places.map((where) => el("th", { scope: "col" }, where, " ", el("small", {}, plural(tasks(where), "task"))));
  return el("section", { class: "card", "aria-label": "results" },
    scrolling("success by agent and environment",
      el("table", { class: "results" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Agent"), head, sums.map(([title]) => el("th", { scope: "col", class: "sum" }, title)))),
        el("tbody", {}, rows))),
    el("p", { class: "meta" }, `Dot: share of episodes solved. Bar: 95 % interval. Turns and time are means${sums.length > 2 ? ", cost is a sum" : ""}. A result leads to its episodes.`));
}

function result(run) {
  if (!run) return el("span", { class: "meta" }, "not run");
  const [waits, link] = [run.planned - run.done, (more) => address("episodes", { run: run.name, ...more })];
  const notes = [
    run.errors ? el("a", { class: "bad", href: link({ state: "error" }) }, plural(run.errors, "error")) : null,
    waits > 0 ? `${count(waits)} missing` : null,
  ].filter(Boolean);
  if (!known(run.rate)) return [el("a", { href: link() }, "no score yet"), el("small", {}, notes.flatMap((note) => [" ", note]))];
  return [
    el("a", { href: link(), title: known(run.low) ? `95 % interval ${percent(run.low)} to ${percent(run.high)}` : null },
      el("strong", {}, percent(run.rate)), " ", el("small", {}, `${count(run.successes)} of ${count(run.scored)}`)),
    known(run.low) ? estimate([run.rate, run.low, run.high]) : null,
    notes.length ? el("small", {}, notes.flatMap((note) => [note, " "])) : null,
  ];
}

function mean(runs, name, show) {
  const scored = runs.filter((run) => known(run[name]) && run.scored);
  const episodes = scored.reduce((sum, run) => sum + run.scored, 0);
  return episodes ? show(scored.reduce((sum, run) => sum + run[name] * run.scored, 0) / episodes) : "–";
}

function charted(report, agents) {
  const drawn = figures(report, agents);
  if (!drawn.length) return null;
  return el("section", { class: "card", "aria-labelledby": "charts" },
    el("h2", { id: "charts" }, "Success against turns and cost"),
    agents.length > 1 ? legend(agents) : null,
    el("div", { class: "figures" }, drawn),
    el("p", { class: "meta" }, "Curves: share of the scored episodes that are solved within a number of turns. Bands and vertical lines: 95 % intervals."));
}

// A line for each pair of agents, with a result for each environment.
function decided(report, agents) {
  const lines = pairLines(report, agents);
  if (!lines.length) return null;
  const places = environments(report).filter((where) => lines.some((line) => line.cells.has(where)));
  const rows = lines.map((line) =>
    el("tr", { class: line.state },
      el("th", { scope: "row" }, el("span", { class: "decision", "aria-hidden": "true" }), el("span", {}, sentence(line, places))),
      places.map((where) => el("td", { class: "result", "data-label": where }, difference(line.cells.get(where), line)))));
  return el("section", { class: "card", "aria-labelledby": "decided" },
    el("h2", { id: "decided" }, "What is decided"),
    scrolling("differences",
      el("table", { class: "results" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Agents"), places.map((where) => el("th", { scope: "col" }, where)))),
        el("tbody", {}, rows))),
    el("p", { class: "meta" }, "Points: difference of the success rates on the same tasks. Full dot: significant (McNemar's test, or the interval; level 0.05, corrected for several comparisons). A difference leads to its tasks. ", el("a", { href: "#compare" }, "All pairs")));
}

// Groups the comparisons by their agents. The better agent comes first, and decided pairs come first.
function pairLines(report, agents) {
  const run = new Map(report.runs.map((one) => [one.name, one]));
  const agent = new Map(agents.map((one) => [one.label, one]));
  const lines = new Map();
  for (const verdict of report.verdicts.filter((one) => one.pair)) {
    const [first, second] = verdict.pair.map((name) => run.get(name));
    const key = `${first.label}\n${second.label}`;
    if (!lines.has(key)) lines.set(key, { first: agent.get(first.label), second: agent.get(second.label), gold: first.gold || second.gold, cells: new Map() });
    lines.get(key).cells.set(second.where, verdict);
  }
  for (const line of lines.values()) {
    const kinds = [...line.cells.values()].map((verdict) => verdict.kind);
    line.sign = kinds.includes("worse") && !kinds.includes("better") ? -1 : 1;
    if (line.sign < 0) [line.first, line.second] = [line.second, line.first];
    line.state = kinds.every((kind) => kind === "open") ? "open" : "decided";
  }
  return [...lines.values()].sort((a, b) => a.gold - b.gold || (a.state === "open") - (b.state === "open"));
}

function sentence({ first, second, cells, sign }, places) {
  const having = (kind) => places.filter((where) => cells.has(where) && cells.get(where).kind === kind);
  const [wins, losses, open] = [having(sign > 0 ? "better" : "worse"), having(sign > 0 ? "worse" : "better"), having("open")];
  const list = (some) => [some.slice(0, -1).join(", "), some[some.length - 1]].filter(Boolean).join(" and ");
  const inside = (some) => (places.length === 1 ? "" : places.length > 2 && some.length === places.length ? ` in all ${places.length} environments` : ` in ${list(some)}`);
  const [one, other] = [second, first].map(({ name }) => el("strong", {}, name));
  if (!wins.length && !losses.length) return [one, " and ", other, `: no difference is shown${inside(open)}`];
  const parts = [[wins, " is better than "], [losses, " is worse than "]].filter(([some]) => some.length);
  const clauses = parts.map(([some, text], number) => [number ? "," : one, text, number ? "it" : other, inside(some)]);
  return [clauses, open.length ? `; no difference is shown${inside(open)}` : ""];
}

function difference(verdict, { sign }) {
  if (!verdict) return el("span", { class: "meta" }, "not compared");
  const [value, low, high] = verdict.difference.map((points) => sign * points);
  const shown = [value, ...(low === undefined ? [] : [Math.min(low, high), Math.max(low, high)])];
  const [first, second] = verdict.pair;
  return [
    el("a", { class: verdict.kind, href: address("compare", { first, second }), title: verdict.detail },
      el("strong", {}, points(value)), " ", el("small", {}, known(verdict.p_value) ? chance(verdict.p_value) : "")),
    el("span", { class: verdict.kind }, gap(shown)),
  ];
}

export const points = (value) => `${value > 0.0005 ? "+" : value < -0.0005 ? "−" : ""}${Math.abs(100 * value).toFixed(1)}`;
const chance = (p) => (p < 0.001 ? "p < 0.001" : `p = ${p.toFixed(3)}`);

// Counts the episodes that were not solved by outcome and agent, and the frequent observations.
function unsolved(source, agents) {
  const { report, rows, runs } = source;
  const [outcomes, kinds] = [new Map(), new Map()];
  const agent = runs.map(({ name }) => agents.findIndex((one) => one.runs.some((run) => run.name === name)));
  for (const row of rows) {
    for (const kind of row.kinds) kinds.set(kind, (kinds.get(kind) || 0) + 1);
    if (row.success) continue;
    if (!outcomes.has(row.state)) outcomes.set(row.state, agents.map(() => 0));
    if (agent[row.run] >= 0) outcomes.get(row.state)[agent[row.run]] += 1;
  }
  const total = (counts) => counts.reduce((sum, number) => sum + number, 0);
  const order = [...outcomes].sort((a, b) => total(b[1]) - total(a[1]));
  if (!order.length) return null;
  const [most, all] = [total(order[0][1]), total(order.map(([, counts]) => total(counts)))];
  const bar = (counts) => {
    const parts = [...counts.entries()].filter(([, number]) => number).map(([index, number]) => {
      const part = el("span", { class: agents[index].colour, title: `${agents[index].name}: ${count(number)}` });
      part.style.width = `${(100 * number) / most}%`;
      return part;
    });
    return el("span", { class: "stack", "aria-hidden": "true" }, parts);
  };
  const items = order.map(([state, counts]) =>
    el("li", {},
      el("a", { href: address("episodes", { state }) }, state), bar(counts), el("b", {}, count(total(counts))),
      el("small", {}, (report.outcomes || {})[state] || "the record of the episode stops before its end")));
  const chips = [...kinds].sort((a, b) => b[1] - a[1]).slice(0, FREQUENT).map(([kind, number]) => el("a", { href: address("episodes", { kind }), class: "chip" }, `${kind} ${count(number)}`));
  return el("section", { class: "card", "aria-labelledby": "unsolved" },
    el("h2", { id: "unsolved" }, `Why ${plural(all, "episode")} ${all === 1 ? "was" : "were"} not solved`),
    el("ul", { class: "reasons-list" }, items),
    chips.length ? el("p", { class: "links" }, el("span", { class: "meta" }, "What happened in episodes:"), chips) : null);
}

function numbers({ sections, details }) {
  if (!sections.length) return null;
  const fold = (one) => folded(one.heading, one.tables.map(table));
  return el("section", { class: "card numbers", "aria-labelledby": "numbers" },
    el("h2", { id: "numbers" }, "All numbers"), sections.map(fold), details.length ? folded("Each run", details.map(fold)) : null);
}

export function table(one) {
  const cell = ([text, to, at], number) => {
    const shown = to ? el("a", { href: "#" + to }, text) : text;
    const kind = one.left[number] ? "left" : "";
    if (number === 0 && one.left[0]) return el("th", { scope: "row", class: "left" }, shown);
    return el("td", { class: kind }, shown, at ? interval(at) : null);
  };
  const head = one.head.map((name, number) => el(name ? "th" : "td", { scope: name ? "col" : null, class: one.left[number] ? "left" : "" }, name));
  return [
    el("h3", {}, one.title),
    el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": one.title },
      el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, one.rows.map((row) => el("tr", {}, row.map(cell)))))),
    one.note.split("\n").filter(Boolean).map((line) => el("p", { class: "note" }, line)),
  ];
}

export function interval([rate, low, high]) {
  return svg("svg", { class: "interval", viewBox: "-3 0 106 12", width: 80, height: 10, "aria-hidden": "true" },
    svg("line", { class: "axis", x1: 0, x2: 100, y1: 6, y2: 6 }),
    svg("line", { class: "span", x1: 100 * low, x2: 100 * high, y1: 6, y2: 6 }),
    svg("rect", { class: "at", x: 100 * rate - 1.5, y: 1, width: 3, height: 10 }));
}

// Returns the progress of unfinished runs, or the number of episodes if all runs are finished.
export function progress(source) {
  const open = (source.report ? source.report.runs : []).filter((run) => run.done < run.planned);
  if (!open.length) return plural(source.rows.length, "episode");
  const [done, planned] = [open.reduce((sum, run) => sum + run.done, 0), open.reduce((sum, run) => sum + run.planned, 0)];
  return `${count(done)} of ${count(planned)} (${percent(done / planned)})`;
}
