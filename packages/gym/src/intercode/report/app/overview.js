// The first screen: facts about the runs, verdicts, frequent problems, curves, then tables.
import { el, svg, folded, plural, percent, count } from "./dom.js";
import { address } from "./address.js";

const CURVES = 8; // the number of the style sheet's classes for curves: c0 … c7
const MARKS = { better: "a difference", worse: "a difference", open: "not decided", rate: "one run" };

export function overview(source) {
  const report = source.report;
  if (!report) return [el("h1", {}, "Runs"), el("p", { class: "note" }, "The runs are being read …")];
  const facts = Object.entries(report.facts).map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text)));
  return [
    el("h1", {}, report.title),
    el("dl", { class: "facts" }, facts),
    report.warnings.map(warning),
    report.verdicts.length ? el("section", { class: "verdicts", "aria-label": "verdicts" }, report.verdicts.map(verdict)) : null,
    wrong(source),
    report.curves.length ? [el("h2", { id: "turns" }, "Success against turns"), el("div", { class: "figures" }, report.curves.map(figure))] : null,
    report.curves.length ? el("p", { class: "note" }, "Share of the scored episodes that are solved within this number of turns. Bands, drawn where they can be distinguished, are 95 % intervals.") : null,
    report.sections.map((one) => [el("h2", {}, one.heading), one.tables.map(table)]),
    report.details.length ? [el("h2", {}, "Each run"), report.details.map((one) => folded(one.heading, one.tables.map(table)))] : null,
  ];
}

function warning(text) {
  const [first, ...rest] = text.split("\n");
  return el("div", { class: "warning" }, rest.length ? folded(first, el("pre", { tabindex: "0" }, rest.join("\n"))) : first);
}

export function verdict(one) {
  const links = one.links.map(([text, to]) => el("a", { href: "#" + to }, text));
  return el(
    "div",
    { class: `verdict ${one.kind}` },
    el("p", {}, el("span", { class: "badge" }, MARKS[one.kind]), " ", el("strong", {}, one.headline)),
    el("p", { class: "note" }, one.detail),
    links.length ? el("p", { class: "links" }, links) : null,
  );
}

// Returns the twelve most frequent problems, each with a link to its episodes.
function wrong(source) {
  const counts = new Map();
  for (const row of source.rows) for (const kind of row.kinds) counts.set(kind, (counts.get(kind) || 0) + 1);
  const kinds = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 12);
  if (!kinds.length) return null;
  const links = kinds.map(([kind, number]) => el("a", { href: address("episodes", { kind }), class: "chip" }, `${kind} ${count(number)}`));
  return el("section", { "aria-label": "what went wrong" }, el("h2", {}, "What went wrong"), el("p", { class: "links" }, links));
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

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [720, 340, 62, 704, 12, 296];

function figure({ where, series }) {
  const turns = Math.max(...series.map((one) => one.points.length));
  const at = (turn, rate) => [LEFT + (RIGHT - LEFT) * (turns > 1 ? turn / (turns - 1) : 0.5), TOP + (BOTTOM - TOP) * (1 - rate)];
  const line = (points) => points.map((point) => point.map((x) => x.toFixed(1)).join(",")).join(" ");
  // A curve with fewer turns than others keeps its last rate.
  const known = series.map(({ points }) => Array.from({ length: turns }, (_, turn) => points[Math.min(turn, points.length - 1)]));
  const columns = Math.max(...series.map((one) => one.name.length)) <= 52 ? 2 : 1;
  const lines = Math.ceil(series.length / columns);
  const every = Math.max(1, Math.ceil(turns / 15));
  const parts = [0, 20, 40, 60, 80, 100].map((level) => [
    svg("line", { class: "axis", x1: LEFT, x2: RIGHT, y1: at(0, level / 100)[1], y2: at(0, level / 100)[1] }),
    svg("text", { x: LEFT - 8, y: at(0, level / 100)[1] + 4, "text-anchor": "end" }, `${level} %`),
  ]);
  for (let turn = 0; turn < turns; turn += every) parts.push(svg("text", { x: at(turn, 0)[0], y: BOTTOM + 18, "text-anchor": "middle" }, turn + 1));
  parts.push(svg("text", { x: (LEFT + RIGHT) / 2, y: BOTTOM + 36, "text-anchor": "middle" }, "turns"));
  const group = (number, ...children) => svg("g", { class: `c${series[number].colour % CURVES}` }, ...children);
  if (series.length <= 4)
    // Bands are drawn before the curves, so no band hides a curve.
    known.forEach((points, number) => {
      const edge = [...points.map((p, turn) => at(turn, p[2])), ...points.map((p, turn) => at(turn, p[1])).reverse()];
      parts.push(group(number, svg("polygon", { class: "band", points: line(edge) })));
    });
  known.forEach((points, number) => {
    const dots = points.map((p, turn) => at(turn, p[0]));
    const [x, y] = [LEFT + (Math.floor(number / lines) * (WIDTH - LEFT)) / 2, HEIGHT + 20 * (number % lines) + 8];
    parts.push(
      group(number,
        svg("polyline", { class: "curve", points: line(dots) }),
        dots.map(([cx, cy]) => svg("circle", { class: "dot", r: 3, cx: cx.toFixed(1), cy: cy.toFixed(1) })),
        svg("line", { class: "curve", x1: x, x2: x + 28, y1: y - 4, y2: y - 4 }),
        svg("text", { x: x + 36, y }, series[number].name)));
  });
  const drawn = svg("svg", { class: "curves", viewBox: `0 0 ${WIDTH} ${HEIGHT + 20 * lines}`, role: "img", "aria-label": `${where}: success within a number of turns` }, parts);
  return el("figure", {}, el("figcaption", {}, where), drawn);
}

// Returns the progress of unfinished runs, or the number of episodes if all runs are finished.
export function progress(source) {
  const open = (source.report ? source.report.runs : []).filter((run) => run.done < run.planned);
  if (!open.length) return plural(source.rows.length, "episode");
  const [done, planned] = [open.reduce((sum, run) => sum + run.done, 0), open.reduce((sum, run) => sum + run.planned, 0)];
  return `${count(done)} of ${count(planned)} (${percent(done / planned)})`;
}
