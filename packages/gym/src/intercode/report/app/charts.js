// Charts of the first screen: success against turns and against cost, for each environment.
import { el, svg, count } from "./dom.js";

const COLOURS = 8; // the number of the style sheet's colours: c0 … c7
const [FULL_WIDTH, FULL_HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [300, 196, 43, 292, 8, 156];
const NAMED = 5; // the maximum number of points that have their names beside them
const BANDS = 4; // the maximum number of curves that have bands

// Returns the agents of a report, in the order of their colours: each has all its runs.
export function agentsOf(report) {
  const agents = new Map();
  for (const run of report.runs) {
    if (!agents.has(run.label)) agents.set(run.label, { label: run.label, colour: `c${agents.size % COLOURS}`, runs: [] });
    agents.get(run.label).runs.push(run);
  }
  const same = (name) => [...agents.values()].filter(({ runs }) => runs[0].agent === name).length;
  for (const agent of agents.values()) agent.name = same(agent.runs[0].agent) === 1 ? agent.runs[0].agent : shortLabel(agent.runs[0]);
  return [...agents.values()];
}

// A label may contain the path of a folder, of which a reader needs the name only.
export const shortLabel = (run) => run.label.replace(`[${run.folder}]`, `[${run.name}]`);

export const environments = (report) => [...new Set(report.runs.map((run) => run.where))];

// A line from 0 to 100 % with an interval and its estimate.
export function estimate([rate, low, high]) {
  const at = (share) => `${(100 * share).toFixed(2)}%`;
  return svg("svg", { class: "estimate", width: "100%", height: 12, "aria-hidden": "true" },
    svg("line", { class: "axis", x1: "0%", x2: "100%", y1: 6, y2: 6 }),
    svg("line", { class: "span", x1: at(low), x2: at(high), y1: 6, y2: 6 }),
    svg("circle", { class: "dot", cx: at(rate), cy: 6, r: 4.5 }));
}

// A line from -100 to +100 points with a difference and, if it is known, its interval.
export function gap([value, low, high]) {
  const at = (points) => `${(50 + 50 * Math.max(-1, Math.min(1, points))).toFixed(2)}%`;
  return svg("svg", { class: "estimate", width: "100%", height: 12, "aria-hidden": "true" },
    svg("line", { class: "axis", x1: "0%", x2: "100%", y1: 6, y2: 6 }),
    svg("line", { class: "zero", x1: "50%", x2: "50%", y1: 1, y2: 11 }),
    low === undefined ? null : svg("line", { class: "span", x1: at(low), x2: at(high), y1: 6, y2: 6 }),
    svg("circle", { class: "dot", cx: at(value), cy: 6, r: 4.5 }));
}

export function legend(agents) {
  const sample = () => svg("svg", { width: 26, height: 10, "aria-hidden": "true" }, svg("line", { class: "curve", x1: 1, x2: 25, y1: 5, y2: 5 }));
  return el("ul", { class: "legend" }, agents.map(({ name, label, colour }) => el("li", { class: colour, title: label }, sample(), name)));
}

// Returns the figures of all environments: first success against turns, then against the spending.
export function figures(report, agents) {
  const spending = ["cost", "tokens"].find((name) => report.runs.some((run) => run[name] > 0 && run.low !== null));
  const dots = spending ? environments(report).map((where) => spendingFigure(where, spending, agents)) : [];
  return [...report.curves.map((one) => turnFigure(one, agents)), ...dots.filter(Boolean)];
}

function turnFigure({ where, series }, agents) {
  const turns = Math.max(...series.map((one) => one.points.length));
  const x = (turn) => LEFT + (RIGHT - LEFT) * (turns > 1 ? turn / (turns - 1) : 0.5);
  const line = (points) => points.map((point) => point.map((part) => part.toFixed(1)).join(",")).join(" ");
  // A curve with fewer turns than others keeps its last rate.
  const curves = series.map(({ name, points }) => ({ name, points: Array.from({ length: turns }, (_, turn) => points[Math.min(turn, points.length - 1)]) }));
  const group = (name, ...children) => svg("g", { class: agents.find((agent) => agent.label === name).colour }, ...children);
  // Bands are drawn before the curves, so no band hides a curve.
  const bands = (series.length <= BANDS ? curves : []).map(({ name, points }) => {
    const edge = [...points.map((point, turn) => [x(turn), height(point[2])]), ...points.map((point, turn) => [x(turn), height(point[1])]).reverse()];
    return group(name, svg("polygon", { class: "band", points: line(edge) }));
  });
  const lines = curves.map(({ name, points }) => {
    const dots = points.map((point, turn) => [x(turn), height(point[0])]);
    return group(name, svg("title", {}, name), svg("polyline", { class: "curve", points: line(dots) }), turns <= 12 ? dots.map(([cx, cy]) => svg("circle", { class: "dot", r: 2.5, cx: cx.toFixed(1), cy: cy.toFixed(1) })) : null);
  });
  const every = Math.max(1, Math.ceil(turns / 10));
  const ticks = Array.from({ length: Math.ceil(turns / every) }, (_, number) => [x(number * every), number * every + 1]);
  return figure(where, "success by turns", "turns", ticks, [bands, lines]);
}

function spendingFigure(where, spending, agents) {
  const points = agents.flatMap(({ name, colour, runs }) =>
    runs.filter((run) => run.where === where && run[spending] > 0 && run.low !== null).map((run) => ({ name, colour, run, spent: run[spending] / run.done })));
  if (!points.length) return null;
  const largest = Math.max(...points.map(({ spent }) => spent));
  const step = roundStep(largest / 4);
  const most = step * Math.ceil((1.08 * largest) / step);
  const x = (spent) => LEFT + ((RIGHT - LEFT) * spent) / most;
  const text = (spent) => (spending === "cost" ? `$${Number(spent.toPrecision(6))}` : count(Math.round(spent)));
  const ticks = Array.from({ length: Math.round(most / step) + 1 }, (_, number) => [x(number * step), text(number * step)]);
  const spots = points.map((one) => ({ ...one, cx: x(one.spent), cy: height(one.run.rate), text: one.name.length > 22 ? `${one.name.slice(0, 21)}…` : one.name }));
  const labels = points.length <= NAMED ? places(spots) : [];
  const drawn = spots.map(({ name, colour, run, spent, cx, cy, text: shown }, number) =>
    svg("g", { class: colour },
      svg("title", {}, `${name}: ${text(spent)} per episode`),
      svg("line", { class: "span", x1: cx.toFixed(1), x2: cx.toFixed(1), y1: height(run.low).toFixed(1), y2: height(run.high).toFixed(1) }),
      svg("circle", { class: "dot", r: 5, cx: cx.toFixed(1), cy: cy.toFixed(1) }),
      labels[number] ? svg("text", { x: labels[number].left.toFixed(1), y: (labels[number].y + 4).toFixed(1) }, shown) : null));
  const unit = spending === "cost" ? "dollars" : "tokens";
  return figure(where, `success by ${spending}`, `${unit} per episode`, ticks, drawn);
}

// Returns a free place beside each point for its name: on its right or left, if possible.
function places(spots) {
  const taken = [];
  for (const { cx, cy, text } of spots) {
    const width = 6 * text.length;
    const free = ({ left, y }) =>
      left >= LEFT && left + width <= FULL_WIDTH && y >= TOP && y <= BOTTOM - 6 &&
      spots.every((spot) => spot.cx === cx || spot.cx < left - 6 || spot.cx > left + width + 6 || Math.abs(spot.cy - y) > 11) &&
      taken.every((other) => other.left > left + width || other.left + other.width < left || Math.abs(other.y - y) > 12);
    const tries = [0, -13, 13].flatMap((dy) => [{ left: cx + 9, y: cy + dy }, { left: cx - 9 - width, y: cy + dy }]);
    taken.push({ ...(tries.find(free) || tries[0]), width });
  }
  return taken;
}

const height = (rate) => TOP + (BOTTOM - TOP) * (1 - rate);

// Returns 1, 2 or 5 times a power of ten, at least as large as the step.
function roundStep(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= step * 0.999);
}

function figure(where, title, unit, ticks, parts) {
  const levels = [0, 25, 50, 75, 100].map((level) => [
    svg("line", { class: "axis", x1: LEFT, x2: RIGHT, y1: height(level / 100), y2: height(level / 100) }),
    level % 50 ? null : svg("text", { x: LEFT - 7, y: height(level / 100) + 4, "text-anchor": "end" }, level === 100 ? "100 %" : String(level)),
  ]);
  const steps = ticks.map(([x, text], number) => svg("text", { x: x.toFixed(1), y: BOTTOM + 16, "text-anchor": x > RIGHT - 12 ? "end" : "middle" }, text));
  const drawn = svg("svg", { class: "chart", viewBox: `0 0 ${FULL_WIDTH} ${FULL_HEIGHT}`, role: "img", "aria-label": `${where}: ${title}` },
    levels, parts, steps, svg("text", { x: (LEFT + RIGHT) / 2, y: BOTTOM + 34, "text-anchor": "middle" }, unit));
  return el("figure", {}, el("figcaption", {}, el("b", {}, where), ` ${title}`), drawn);
}
