// The episodes of a report: a list to filter and search, and a page for each.
// Everything that is shown comes from programs and models: it is only ever set as text.
"use strict";

const PAGE = 100;
const byId = (name) => document.getElementById(name);
const chunks = new Map();
let index = [];
let shown = [];
let generation = 0;

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
  shown = [];
  if (wanted === "") shown = rows;
  byId("list").replaceChildren();
  let seen = 0;
  for (const row of wanted === "" ? [] : rows) {
    // Not yet unpacked episodes take a while: what is found is shown at once.
    const texts = (await chunk(row.chunk))[row.offset];
    if (mine !== generation) return;
    if ([row.task, row.query].some((text) => text.toLowerCase().includes(wanted)) || found(texts, wanted)) {
      shown.push(row);
      if (shown.length <= PAGE) byId("list").append(line(row));
    }
    if (++seen % 500 === 0) tell(`searching: ${seen} of ${rows.length}, ${shown.length} found`);
  }
  if (wanted === "") more();
  tell(`${shown.length} of ${index.length} episodes`);
  byId("more").hidden = byId("list").children.length >= shown.length;
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

function line(row) {
  const link = element("a");
  link.href = "#episode-" + row.number;
  const kind = row.success ? "good" : row.status === "error" ? "bad" : "";
  link.append(element("span", said(row), kind), element("span", row.task), element("span", row.query));
  const reward = row.reward === null ? "no reward" : row.reward.toFixed(3);
  link.append(element("span", `${reward} · ${row.turns} turns`));
  const item = element("li");
  item.append(link);
  return item;
}

async function route() {
  const match = /^#episode-(\d+)$/.exec(location.hash);
  const row = match && index[Number(match[1])];
  byId("episodes").hidden = Boolean(row);
  byId("report").hidden = Boolean(row);
  byId("episode").hidden = !row;
  if (!row) return;
  const episode = (await chunk(row.chunk))[row.offset];
  byId("episode").replaceChildren(...page(row, episode));
  window.scrollTo(0, 0);
}

function page(row, episode) {
  const wanted = words();
  const back = element("nav");
  const links = [["#episodes", "← all episodes"]];
  const place = shown.indexOf(row);
  if (place > 0) links.push(["#episode-" + shown[place - 1].number, "previous"]);
  if (place >= 0 && place + 1 < shown.length) links.push(["#episode-" + shown[place + 1].number, "next"]);
  for (const [href, text] of links) {
    const link = element("a", text);
    link.href = href;
    back.append(link, "  ");
  }
  const facts = [said(row), `reward ${row.reward === null ? "none" : row.reward}`, `${row.turns} turns`];
  facts.push(`${row.seconds.toFixed(3)} s`, byId("run").options[row.run + 1].textContent);
  if (row.epoch) facts.push(`attempt ${row.epoch + 1}`);
  const parts = [back, element("h2", row.task), element("p", facts.join(" · "), "facts")];
  parts.push(marked("pre", episode.query, "query", wanted));
  if (episode.error) parts.push(element("p", episode.error, "warning"));
  episode.turns.forEach((turn, number) => {
    const box = element("div", undefined, "turn");
    const meta = [`turn ${number + 1}`, `${turn.seconds.toFixed(3)} s`];
    if (turn.exit_code !== null) meta.push(`exit ${turn.exit_code}`);
    if (turn.reward) meta.push(`reward ${turn.reward}`);
    box.append(element("div", meta.join(" · "), "meta"));
    if (turn.action) box.append(marked("pre", turn.action, turn.ok ? "action" : "action failed", wanted));
    else box.append(element("div", "no action", "bad"));
    if (turn.observation) box.append(marked("pre", turn.observation, "observation", wanted));
    if (Object.keys(turn.info).length) box.append(folded("more", JSON.stringify(turn.info, null, 2)));
    parts.push(box);
  });
  if (episode.answer !== null) parts.push(element("div", "answer", "meta"), marked("pre", episode.answer, "action", wanted));
  if (episode.score) parts.push(folded("score", JSON.stringify(episode.score, null, 2)));
  const { model, ...rest } = episode.metadata;
  if (model) parts.push(dialogue(model, wanted));
  parts.push(folded("record", JSON.stringify(rest, null, 2)));
  return parts;
}

function dialogue(model, wanted) {
  const made = element("details");
  made.append(element("summary", `what was said to the model (${(model.messages || []).length} messages)`));
  for (const message of model.messages || []) {
    made.append(element("div", message.role, "meta"), marked("pre", message.content, message.role, wanted));
    if (message.tool_calls) made.append(element("pre", JSON.stringify(message.tool_calls, null, 2)));
  }
  made.append(folded("calls", JSON.stringify(model.calls || [], null, 2)));
  return made;
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
  for (const name of ["run", "state"]) byId(name).addEventListener("change", filter);
  byId("filter").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", more);
  window.addEventListener("hashchange", route);
  await filter();
  await route();
}

start();
