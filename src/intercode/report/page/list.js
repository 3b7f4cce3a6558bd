// The episodes of a report: a list to filter, sort and search. Their pages are in episode.js.
// Everything that is shown comes from programs and models: it is only ever set as text.
"use strict";

const PAGE = 100;
const TITLE = document.title;
const byId = (name) => document.getElementById(name);
const chunks = new Map();
let index = [];
let shown = [];
let generation = 0;
let left = 0; // where the list was scrolled to

async function unpacked(name) {
  const packed = Uint8Array.from(atob(byId(name).textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function chunk(number) {
  // A few are kept: the whole run may be larger than the browser likes.
  if (!chunks.has(number)) {
    if (chunks.size > 20) chunks.delete(chunks.keys().next().value);
    chunks.set(number, unpacked("chunk-" + number));
  }
  return chunks.get(number);
}

// Characters that a reader would not see, or that turn others around, as escapes.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]|\p{Cs}/gu;

function visible(text) {
  return String(text).replace(HIDDEN, (char) => {
    const code = char.charCodeAt(0);
    if (code >= 0xdc80 && code <= 0xdcff) return "\\x" + (code - 0xdc00).toString(16);
    return code < 256 ? "\\x" + code.toString(16).padStart(2, "0") : "\\u" + code.toString(16).padStart(4, "0");
  });
}

function element(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = visible(text);
  if (kind) made.className = kind;
  return made;
}

function marked(tag, text, kind, words) {
  const made = element(tag, undefined, kind);
  const whole = visible(text);
  const lower = whole.toLowerCase();
  let from = 0;
  for (let at; words && lower.length === whole.length && (at = lower.indexOf(words, from)) >= 0; ) {
    made.append(whole.slice(from, at), element("mark", whole.slice(at, at + words.length)));
    from = at + words.length;
  }
  made.append(whole.slice(from));
  return made;
}

function folded(title, text) {
  const made = element("details");
  made.append(element("summary", title), element("pre", text));
  return made;
}

const said = (row) => (row.success ? "solved" : row.status === "submitted" ? "not solved" : row.status);
const words = () => byId("words").value.trim().toLowerCase();

async function filter() {
  const mine = ++generation;
  const [run, state, wanted] = [byId("run").value, byId("state").value, words()];
  const rows = index.filter(
    (row) => (run === "" || row.run === Number(run)) && (state === "" || said(row) === state)
  );
  const order = byId("order").value;
  shown = [];
  byId("list").replaceChildren();
  let seen = 0;
  // In the order in which they are packed: each pack is unpacked once.
  for (const row of wanted === "" ? [] : rows) {
    const texts = (await chunk(row.chunk))[row.offset];
    if (mine !== generation) return;
    if ([row.task, row.query].some((text) => text.toLowerCase().includes(wanted)) || found(texts, wanted)) {
      shown.push(row);
      // Unpacking takes a while: what is found is shown at once.
      if (order === "" && shown.length <= PAGE) byId("list").append(line(row));
    }
    if (++seen % 500 === 0) tell(`searching: ${seen} of ${rows.length}, ${shown.length} found`);
  }
  if (wanted === "") shown = rows;
  sort(shown, order);
  if (byId("list").children.length === 0) more();
  tell(`${shown.length.toLocaleString("en")} of ${plural(index.length.toLocaleString("en"), "episode")}`);
  byId("more").hidden = byId("list").children.length >= shown.length;
}

function sort(rows, order) {
  if (order === "") return;
  const [name, sign] = order.startsWith("-") ? [order.slice(1), -1] : [order, 1];
  // Errors have no reward: they stand behind all that have one.
  const value = (row) => (row[name] === null ? Infinity : row[name]);
  rows.sort((a, b) => sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) || a.number - b.number);
}

function found(value, wanted) {
  if (typeof value === "string") return value.toLowerCase().includes(wanted);
  if (value === null || typeof value !== "object") return false;
  return Object.values(value).some((inner) => found(inner, wanted));
}

function tell(text) {
  byId("told").textContent = text;
}

function more() {
  const list = byId("list");
  const from = list.children.length;
  list.append(...shown.slice(from, from + PAGE).map(line));
  byId("more").hidden = list.children.length >= shown.length;
}

const plural = (count, word) => `${count} ${word}${String(count) === "1" ? "" : "s"}`;
const runName = (row) => byId("run").options[row.run + 1].textContent;

function line(row) {
  const link = element("a");
  link.href = "#episode-" + row.number;
  const kind = row.success ? "good" : row.status === "error" ? "bad" : "";
  const task = row.epoch ? `${row.task} (attempt ${row.epoch + 1})` : row.task;
  link.append(element("span", said(row), kind), element("span", task, "task"));
  link.append(element("span", runName(row), "run"), element("span", row.query, "query"));
  for (const cut of link.children) cut.title = cut.textContent;
  const reward = row.reward === null ? "" : `${row.reward.toFixed(3)} · `;
  link.append(element("span", reward + plural(row.turns, "turn"), "numbers"));
  const item = element("li");
  item.append(link);
  return item;
}

async function route() {
  const match = /^#episode-(\d+)$/.exec(location.hash);
  const row = match && index[Number(match[1])];
  const wasOpen = !byId("episode").hidden;
  if (row && !wasOpen) left = window.scrollY;
  for (const part of ["episodes", "report", "contents", "title"]) byId(part).hidden = Boolean(row);
  byId("episode").hidden = !row;
  document.title = row ? `${row.task} · ${TITLE}` : TITLE;
  if (!row) {
    if (match) tell(`there is no episode ${match[1]}`);
    if (wasOpen && location.hash === "#episodes") window.scrollTo(0, left);
    return;
  }
  const episode = (await chunk(row.chunk))[row.offset];
  byId("episode").replaceChildren(...page(row, episode));
  window.scrollTo(0, 0);
  byId("episode").querySelector("h2").focus({ preventScroll: true });
}

function beside(row, step) {
  const place = shown.indexOf(row);
  return place < 0 ? undefined : shown[place + step];
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select")) return;
  const match = /^#episode-(\d+)$/.exec(location.hash);
  if (event.key === "/") {
    if (match) location.hash = "#episodes";
    byId("episodes").hidden = false;
    byId("words").focus();
    event.preventDefault();
  } else if (match && event.key === "Escape") {
    location.hash = "#episodes";
  } else if (match) {
    const step = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1 }[event.key];
    const next = step && beside(index[Number(match[1])], step);
    if (next) location.hash = "#episode-" + next.number;
  }
}

async function start() {
  const columns = await unpacked("index");
  const names = Object.keys(columns);
  index = columns.task.map((_, number) => {
    const row = { number };
    for (const name of names) row[name] = columns[name][number];
    return row;
  });
  let timer;
  byId("words").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(filter, 250);
  });
  byId("list").className = byId("run").options.length === 2 ? "one" : "";
  byId("run").hidden = byId("run").options.length === 2;
  for (const name of ["run", "state", "order"]) byId(name).addEventListener("change", filter);
  byId("filter").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", more);
  window.addEventListener("hashchange", route);
  document.addEventListener("keydown", key);
  window.addEventListener("beforeprint", () => {
    for (const folds of document.querySelectorAll("details")) folds.open = true;
  });
  await filter();
  await route();
}

start().catch((error) => tell(`the episodes cannot be shown: ${error.message}; a newer browser may be needed`));
