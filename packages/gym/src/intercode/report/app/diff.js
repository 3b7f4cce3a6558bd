// Comparison of two texts line by line, side by side: the agent's answer and the reference solution
// (gold). On a narrow screen, the style sheet puts the gold's lines below those of the answer.
import { el, plural } from "./dom.js";
import { block, code, copier } from "./text.js";

const MAX_CELLS = 4e6; // the maximum size of the table that finds equal lines: a fraction of a second
const AROUND_DIFFERENCE = 3; // equal lines that are shown beside a difference

// Returns pairs [line of the answer, line of gold], in which undefined means that a side lacks it.
// The result is { lines, isAligned }: too many lines stay in their order.
export function alignLines(answer, gold) {
  let [head, tail] = [0, 0];
  const least = Math.min(answer.length, gold.length);
  while (head < least && answer[head] === gold[head]) head++;
  while (tail < least - head && answer[answer.length - 1 - tail] === gold[gold.length - 1 - tail]) tail++;
  const equal = (lines) => lines.map((line) => [line, line]);
  const middle = [answer.slice(head, answer.length - tail), gold.slice(head, gold.length - tail)];
  const lines = [...equal(answer.slice(0, head)), ...aligned(...middle), ...equal(answer.slice(answer.length - tail))];
  return { lines, isAligned: !isTooLong(...middle) };
}

const isTooLong = (answer, gold) => answer.length * gold.length > MAX_CELLS;

// Puts equal lines beside each other; between them, lines with an equal beginning, such as rows with
// the same first cell; and between these, all other lines in their order.
function aligned(answer, gold, keys = [(line) => line, beginning]) {
  const [key, ...others] = keys;
  if (!key) return Array.from({ length: Math.max(answer.length, gold.length) }, (_, at) => [answer[at], gold[at]]);
  const common = isTooLong(answer, gold) ? [] : commonLines(answer.map(key), gold.map(key));
  const made = [];
  let [a, g] = [0, 0];
  for (const [nextA, nextG] of [...common, [answer.length, gold.length]]) {
    made.push(...aligned(answer.slice(a, nextA), gold.slice(g, nextG), others));
    if (nextA < answer.length) made.push([answer[nextA], gold[nextG]]);
    [a, g] = [nextA + 1, nextG + 1];
  }
  return made;
}

const beginning = (line) => (line.includes(" │ ") ? line.slice(0, line.indexOf(" │ ")) : line.trim().split(/\W/, 1)[0]);

// Returns the places of the longest common subsequence, as pairs of indices.
function commonLines(answer, gold) {
  if (!answer.length || !gold.length) return [];
  const width = gold.length + 1;
  const lengths = new Uint32Array((answer.length + 1) * width);
  for (let a = answer.length - 1; a >= 0; a--)
    for (let g = gold.length - 1; g >= 0; g--)
      lengths[a * width + g] = answer[a] === gold[g] ? lengths[(a + 1) * width + g + 1] + 1 : Math.max(lengths[(a + 1) * width + g], lengths[a * width + g + 1]);
  const found = [];
  for (let [a, g] = [0, 0]; a < answer.length && g < gold.length; ) {
    if (answer[a] === gold[g]) found.push([a++, g++]);
    else if (lengths[(a + 1) * width + g] >= lengths[a * width + g + 1]) a++;
    else g++;
  }
  return found;
}

const linesOf = (text) => (text ? text.replace(/\n$/, "").split("\n") : []);
const differing = (lines) => lines.filter(([one, other]) => one !== other).length;

// Returns the number of different lines of a pair in words. A record may hold only the beginning of
// a result, so results that look equal are not called equal if the task was not solved.
export function differences({ title, answer, gold, is_result: isResult }, isSolved) {
  if (answer === null) return `${title}: only the reference solution (gold)`;
  const { lines, isAligned } = alignLines(linesOf(answer), linesOf(gold));
  const number = differing(lines);
  if (!number) return `${title}: ${isResult && !isSolved ? "no difference in what the record has" : "equal"}`;
  return `${title}: ${plural(number, "line")} differ${number === 1 ? "s" : ""}${isAligned ? "" : " (not aligned: too long)"}`;
}

// Returns a pair { title, answer, gold, language, note } as a table of two columns.
export function sideBySide({ title, answer, gold, language, note }) {
  const remark = note ? el("p", { class: "meta" }, note) : null;
  if (answer === null) return el("div", { class: "pair" }, remark, block(gold, { language, label: `gold's ${title}` }));
  const rows = shortened(alignLines(linesOf(answer), linesOf(gold)).lines, (line) => row(line, language));
  if (!answer || !gold) rows.unshift(el("tr", {}, el("td", { class: "empty" }, answer ? "" : "(empty)"), el("td", { class: "empty" }, gold ? "" : "(empty)")));
  const heading = (text, copied, label) => el("th", { scope: "col" }, text, copied ? copier(copied, label) : null);
  const head = el("tr", {}, heading("− the answer", answer, `the answer's ${title}`), heading("+ the reference solution (gold)", gold, `gold's ${title}`));
  const table = el("table", {}, el("thead", {}, head), el("tbody", {}, rows));
  return el("div", { class: "pair", role: "group", "aria-label": `${title}: answer and gold` }, el("div", { class: "sides", tabindex: "0", role: "group", "aria-label": `lines of the ${title}` }, table), remark);
}

// Replaces long runs of equal lines by a row with their number.
function shortened(lines, make) {
  const near = new Set();
  lines.forEach(([one, other], at) => {
    if (one === other) return;
    for (let n = at - AROUND_DIFFERENCE; n <= at + AROUND_DIFFERENCE; n++) near.add(n);
  });
  if (!near.size) for (let n = 0; n < 2 * AROUND_DIFFERENCE; n++) near.add(n);
  const made = [];
  let omitted = [];
  const end = () => {
    if (omitted.length > 2) made.push(el("tr", { class: "omitted" }, el("td", { colspan: 2 }, `… ${plural(omitted.length, "equal line")}`)));
    else made.push(...omitted.map(make));
    omitted = [];
  };
  lines.forEach((line, at) => {
    if (!near.has(at)) omitted.push(line);
    else {
      end();
      made.push(make(line));
    }
  });
  end();
  return made;
}

function row([one, other], language) {
  if (one === other) return el("tr", { class: "equal" }, cell("", " ", one, language), cell("", " ", other, language));
  if (one === undefined || other === undefined) return el("tr", {}, cell("removed", "−", one, language), cell("added", "+", other, language));
  const parts = changedPart(one, other);
  if (!parts) return el("tr", {}, cell("removed", "−", one, language), cell("added", "+", other, language));
  const [before, changedA, changedG, after] = parts;
  const line = (changed) => [before, changed ? el("span", { class: "differs" }, changed) : "", after];
  return el("tr", {}, cell("removed", "−", line(changedA)), cell("added", "+", line(changedG)));
}

// A line's sign is a text, so the difference can be seen without colours.
function cell(kind, sign, content, language) {
  if (content === undefined) return el("td", { class: "absent" });
  return el("td", { class: kind }, el("span", { class: "sign" }, sign), typeof content === "string" ? code(content, language) : content);
}

// Splits two lines into their common beginning, what differs in each, and their common end. The
// result is null if the lines have little in common.
function changedPart(one, other) {
  const [a, b] = [[...one], [...other]];
  let [head, tail] = [0, 0];
  const least = Math.min(a.length, b.length);
  while (head < least && a[head] === b[head]) head++;
  while (tail < least - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  if (head + tail < least / 3) return null;
  const part = (chars, from, to) => chars.slice(from, to).join("");
  return [part(a, 0, head), part(a, head, a.length - tail), part(b, head, b.length - tail), part(a, a.length - tail)];
}
