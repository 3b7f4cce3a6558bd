// The panels beside an episode's turns: the reasons for its score, the comparison of answer and gold,
// the parts of the score, and the task.
import { el, svg, folded, plural, score } from "./dom.js";
import { block, markdown } from "./text.js";
import { differences, sideBySide } from "./diff.js";

// Returns a value of a record in a form for readers: texts of several lines as text, all else as JSON.
export function readable(value, label) {
  const texts = [];
  const plain = JSON.stringify(
    value,
    (name, member) => {
      if (typeof member !== "string" || !member.includes("\n")) return member;
      texts.push([name, member]);
      return "(below)";
    },
    2,
  );
  const shown = texts.map(([name, text]) => [el("p", { class: "meta" }, name || label), block(text, { ansi: true, label: name || label })]);
  return [plain === '"(below)"' ? null : block(plain, { label }), ...shown];
}

const FRAME = /^\s+File ".*", line \d+/;

// Returns the traceback of an exception: the frames dimmed, and its last line, the error, marked.
export function traceback(text) {
  const lines = text.trimEnd().split("\n");
  const kind = (line, at) => (at === lines.length - 1 ? "bad bold" : FRAME.test(line) || at === 0 ? "code-comment" : "");
  const made = block(text, { label: "traceback", kind: "traceback" });
  made.querySelector("pre").replaceChildren(...lines.map((line, at) => el("span", { class: kind(line, at) }, at === lines.length - 1 ? line : `${line}\n`)));
  return made;
}

// Returns the reward, and in words the reasons for a reward below 1, with answer and gold compared.
export function reasons(row, body) {
  const { pairs = [], why = [], detail } = body;
  const parts = body.score ? Object.entries(body.score.parts).map(([name, value]) => `${name} ${score(value)}`) : [];
  const reward = body.score ? `The reward is ${score(body.score.value)}${parts.length ? ` (${parts.join(", ")})` : ""}.` : "There is no score: an error has no reward.";
  const trace = body.metadata && body.metadata.traceback;
  const [long, short] = [why.filter(([, text]) => text.trim()), why.filter(([, text]) => !text.trim())];
  const quoted = ([sentence, text]) => el("div", {}, el("p", { class: "sentence" }, sentence), block(text, { ansi: true, label: sentence, kind: "reason" }));
  const [results, ways] = [pairs.filter((pair) => pair.is_result), pairs.filter((pair) => !pair.is_result)];
  const title = row.success ? "Why it was solved" : body.score ? "Why it was not solved" : "Why there is no score";
  return el(
    "div",
    { class: "card why", role: "group", "aria-label": "why this score" },
    el("h2", {}, title),
    el("p", {}, reward),
    row.success ? el("p", {}, "The reward accepts everything that it checks.") : null,
    body.hidden ? el("p", { class: "note" }, "Texts that may quote gold are hidden.") : null,
    body.error ? el("div", { class: "warning" }, block(body.error, { label: "error" })) : null,
    typeof trace === "string" ? traceback(trace) : null,
    short.map(([sentence]) => el("p", { class: "sentence" }, sentence)),
    long.length ? el("div", { class: "reasons" }, long.map(quoted)) : null,
    results.map((pair) => [el("p", { class: "sentence" }, differences(pair, row.success)), sideBySide(pair)]),
    ways.map((pair) => el("details", { open: Boolean(!results.length && body.score && !row.success) }, el("summary", {}, differences(pair, row.success)), sideBySide(pair), el("p", { class: "note" }, "Different ways may lead to the same result: only the result counts."))),
    detail && Object.keys(detail).length ? folded("details of the score", readable(detail, "detail of the score")) : null,
  );
}

const BAR_WIDTH = 120;

// Returns the parts of a score as bars; null without parts.
export function scoreParts(body) {
  const parts = body.score ? Object.entries(body.score.parts) : [];
  if (!parts.length) return null;
  const bar = (value) => svg("svg", { class: "bar", width: BAR_WIDTH, height: 8, "aria-hidden": "true" }, svg("rect", { class: "rest", width: BAR_WIDTH, height: 8, rx: 4 }), svg("rect", { class: "part", width: BAR_WIDTH * Math.max(0, Math.min(1, Number(value) || 0)), height: 8, rx: 4 }));
  const line = ([name, value]) => el("tr", {}, el("th", { scope: "row" }, name.replaceAll("_", " ")), el("td", {}, score(value)), el("td", {}, bar(value)));
  return el("section", { class: "card", "aria-label": "score" }, el("h2", {}, `Score ${score(body.score.value)}`), el("table", { class: "parts" }, el("tbody", {}, parts.map(line))));
}

// Returns the messages of the model's first call, which hold the task as the model had it.
function prompt(talk) {
  if (!talk || !talk.messages || !talk.messages.length) return [];
  const [first] = talk.calls || [];
  const before = first && Array.isArray(first.sent) ? first.sent.map((at) => talk.messages[at]) : talk.messages.slice(0, Math.max(0, talk.messages.findIndex(({ role }) => role === "assistant")));
  return before.filter(Boolean);
}

const HIDDEN_FIELDS = { gold: "gold (the reference solution)", setup: "setup", verification: "verification", tests: "tests", may_change: "paths that a solution may change", metadata: "further fields" };
const GOLD_LANGUAGES = { bash: "bash", ctf: "bash", swe: "diff", sql: "sql", python: "python" };

// Returns the task: what the agent had, what was in its sandbox, and, folded, what was kept from it.
export function taskPanel(run, row, body) {
  const messages = prompt(body.talk);
  const tools = body.talk && body.talk.tools;
  const { fields = {}, reason = "", command = "" } = body.task || {};
  const { files = {}, gold = [], ...rest } = fields;
  const paths = Object.entries(files);
  const long = (value, language) => (typeof value === "string" ? block(value, { language }) : readable(value, "field"));
  const hidden = Object.keys(HIDDEN_FIELDS).filter((name) => (name === "gold" ? gold.length : rest[name] !== undefined));
  const secret = (name) => folded(HIDDEN_FIELDS[name], name === "gold" ? gold.map((text) => block(text, { language: GOLD_LANGUAGES[row.env || run.env] || "", label: "gold" })) : long(rest[name], name === "tests" ? "python" : "bash"));
  const settings = Object.fromEntries(Object.entries(rest).filter(([name]) => !(name in HIDDEN_FIELDS) && !["image", "db"].includes(name)));
  const missing = body.hidden ? "Files, setup and gold are hidden (--hide-gold)." : reason || "This page has no files, setup and gold of the task.";
  return el(
    "section",
    { class: "card", role: "group", "aria-label": "task" },
    el("h2", {}, "The task"),
    el("h3", {}, "The agent had"),
    el("p", {}, messages.length ? "the query, within this prompt:" : "the query (above)."),
    messages.length
      ? folded(`prompt (${plural(messages.length, "message")})`, messages.map(({ role, content }) => [el("p", { class: "meta" }, role), el("div", { class: "message" }, markdown(content || ""))]))
      : null,
    tools && tools.length ? folded(`tools (${tools.map((tool) => tool.name).join(", ")})`, readable(tools, "tools")) : null,
    el("h3", {}, "In its sandbox"),
    el("p", { class: "facts-line" }, `${run.env === "sql" ? "database" : "image"} ${row.place || "(the environment's default)"}`),
    paths.map(([path, text]) => folded(`file ${path}`, block(text, { label: path }))),
    Object.keys(settings).length ? folded("settings", readable(settings, "settings")) : null,
    el("h3", {}, body.shown_gold ? "Not shown to other agents (this one had gold)" : "Not shown to the agent"),
    hidden.length ? hidden.map(secret) : el("p", { class: "note" }, body.task && !reason && !body.hidden ? "The task has no gold, setup or tests." : missing),
    command && !hidden.length ? block(command, { language: "bash", label: "command" }) : null,
  );
}
