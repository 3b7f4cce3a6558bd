// The page of an episode: the reasons for its score, then each turn with the model's thoughts, the
// action and the observation.
import { el, fill, folded, button, plural, count, dollars, score, seconds } from "./dom.js";
import { address, change, episodeAddress, place } from "./address.js";
import { block, copied, copier, mark, markdown } from "./text.js";
import { badge } from "./lists.js";
import { changed, histories } from "./changes.js";
import { save } from "./save.js";

const json = (value) => JSON.stringify(value, null, 2);

export class EpisodePage {
  constructor(source, shown) {
    this.source = source;
    this.shown = shown;
  }

  open() {
    this.root = el("article", { class: "episode" });
    return [this.root];
  }

  async update() {
    const { asked } = place();
    const [name, id] = [asked.get("run"), asked.get("id")];
    const row = this.source.row(name, id);
    const look = `${name} ${id} ${row && row.at} ${asked.get("raw")}`;
    if (look === this.look) {
      this.point(asked.get("turn"));
      return;
    }
    if (!row) {
      const said = this.source.live === "connecting" ? "Looking for it …" : "There is no such episode.";
      fill(this.root, el("h1", {}, id || "episode"), el("p", {}, said));
      return;
    }
    this.look = look;
    const body = await this.source.body(row);
    if (this.look !== look) return;
    const run = this.source.runs[row.run];
    fill(this.root, this.steps(row), head(run, row, body), reasons(row, body), family(this.source, run, row), content(run, row, body, asked.get("raw") === "1"));
    mark(this.root, this.shown.words);
    window.scrollTo(0, 0);
    this.root.querySelector("h1").focus({ preventScroll: true });
    this.pointed = undefined;
    this.point(asked.get("turn"));
  }

  // Marks the turn that the address names, and scrolls to that turn.
  point(number) {
    const turns = [...this.root.querySelectorAll(".turn")];
    turns.forEach((turn, at) => turn.classList.toggle("meant", String(at + 1) === number));
    if (number !== this.pointed && turns[number - 1]) turns[number - 1].scrollIntoView();
    this.pointed = number;
  }

  beside(step) {
    const { asked } = place();
    const at = this.shown.rows.indexOf(this.source.row(asked.get("run"), asked.get("id")));
    const next = at < 0 ? undefined : this.shown.rows[at + step];
    return next && episodeAddress(this.source.runs[next.run], next);
  }

  steps(row) {
    const run = this.source.runs[row.run];
    const raw = place().asked.get("raw") === "1";
    const link = (step, text) => this.beside(step) && el("a", { href: this.beside(step) }, text);
    return el(
      "nav",
      { "aria-label": "this episode", class: "tools" },
      el("a", { href: this.shown.address || "#episodes" }, "← episodes"),
      link(-1, "previous"),
      link(1, "next"),
      el("a", { href: address("task", { id: row.task, env: run.where }) }, "compare runs"),
      button(raw ? "formatted" : "raw texts", () => change({ raw: raw ? "" : "1" })),
      button("copy link", () => copied(location.href)),
      button("save to send", () => save(this.source, row)),
    );
  }
}

function head(run, row, body) {
  const facts = [run.label, run.where];
  if (row.epoch) facts.push(`attempt ${row.epoch + 1}`);
  facts.push(row.reward === null ? "no reward" : `reward ${score(row.reward)}`, plural(row.turns, "turn"), seconds(row.seconds));
  if (row.tokens !== null) facts.push(`${count(row.tokens)} tokens`);
  if (row.cost !== null) facts.push(dollars(row.cost));
  if (row.started) facts.push(new Date(1000 * row.started).toISOString().slice(0, 19).replace("T", " ") + " UTC");
  return [
    el("h1", { tabindex: "-1" }, badge(row.state), " ", row.id.endsWith("#0") ? row.task : row.id),
    el("p", { class: "note" }, facts.join(" · ")),
    row.tags.length || row.kinds.length ? el("p", { class: "links" }, [...row.kinds, ...row.tags].map((tag) => el("span", { class: "chip" }, tag))) : null,
    el("section", { "aria-label": "task" }, markdown(body.query)),
    body.error ? el("div", { class: "warning" }, block(body.error, { label: "error" })) : null,
  ];
}

// Returns the reward, and the reasons for a reward below 1 in words.
export function reasons(row, body) {
  const parts = body.score ? Object.entries(body.score.parts).map(([name, value]) => `${name} ${score(value)}`) : [];
  const said = body.score ? `The reward is ${score(body.score.value)}${parts.length ? ` (${parts.join(", ")})` : ""}.` : "There is no score: an error has no reward.";
  const found = [el("h2", {}, "Why this score"), el("p", {}, said)];
  if (body.hidden) found.push(el("p", { class: "note" }, "Texts that may quote gold are hidden."));
  const told = ([sentence, text]) => el("div", {}, el("p", { class: "reason" }, sentence), text && text.trim() ? block(text, { ansi: true, label: sentence, kind: "reason" }) : null);
  found.push(el("div", { class: "reasons" }, (body.why || []).map(told)));
  if (row.success) found.push(el("p", {}, "The reward accepts everything that it checks."));
  if (body.detail && Object.keys(body.detail).length) found.push(folded("details of the score", block(json(body.detail), { label: "detail of the score" })));
  return el("div", { class: "why", role: "group", "aria-label": "why this score" }, found);
}

// Returns the tree of an attempt's forks, each fork below its parent; null without forks.
function family(source, run, row) {
  const all = source.family(row);
  if (all.length < 2) return null;
  const below = (parent) => {
    const children = all.filter((one) => (parent === null ? one.parent === null || !all.some((other) => other.id === one.parent) : one.parent === parent));
    if (!children.length) return null;
    return el("ul", {}, children.map((one) =>
      el("li", {}, one === row ? el("strong", {}, one.id) : el("a", { href: episodeAddress(run, one) }, one.id), " ", badge(one.state), ` ${plural(one.turns, "turn")}`, below(one.id))));
  };
  return el("section", { class: "tree", "aria-label": "forks" }, el("h2", {}, "Forks"), below(null));
}

function content(run, row, body, raw) {
  const { turns = [], talk } = body;
  const known = histories(turns);
  const withheld = body.hidden && body.turns && !body.turns.length && !body.talk ? el("p", { class: "note" }, "No turns are shown.") : null;
  return [
    el("h2", {}, "Turns"),
    withheld,
    turns.map((turn, number) => oneTurn(turn, number, turns.length, body, known[number], run, row, raw)),
    ending(body, raw),
    body.search ? tried(body.search) : null,
    talk && talk.messages ? dialogue(talk, raw) : null,
    body.judge && body.judge.length ? folded("dialogue with the judge", block(json(body.judge), { label: "judge" })) : null,
    body.earlier ? folded("earlier attempts, ended by sandbox failures", block(json(body.earlier), { label: "earlier attempts" })) : null,
    Object.keys(body.metadata).length ? folded("record", block(json(body.metadata), { label: "record" })) : null,
  ];
}

const callsOf = (talk, number) => ((talk && talk.calls) || []).filter((call) => call.turn === number);

function taken(call) {
  if (call.error) return `reply: ${call.error}`;
  const made = [`reply ${seconds(call.seconds || 0)}`];
  if (call.input_tokens !== undefined) made.push(`${count(call.input_tokens)} + ${count(call.output_tokens || 0)} tokens`);
  if (typeof call.cost === "number") made.push(dollars(call.cost));
  if (call.cached) made.push("from the cache");
  if (call.retries) made.push(`${plural(call.retries, "call")} failed before`);
  if (call.finish && !["stop", "tool_calls"].includes(call.finish)) made.push(`ended by ${call.finish}`);
  return made.join(", ");
}

export function oneTurn(turn, number, of, body, files, run, row, raw) {
  const facts = [` of ${of}`, `action ${seconds(turn.seconds)}`];
  if (turn.exit !== null) facts.push(`exit ${turn.exit}`);
  else if (!turn.ok) facts.push("failed");
  if (turn.reward) facts.push(`reward ${score(turn.reward)}`);
  const { cwd, timed_out: late, ...more } = turn.info;
  if (late) facts.push("timeout");
  if (cwd) facts.push(`then in ${cwd}`);
  const calls = callsOf(body.talk, number);
  const { before, after } = saidBy(calls, body.talk, turn);
  return el(
    "div",
    { class: "turn", role: "group", "aria-label": `turn ${number + 1}` },
    el("p", { class: "meta" }, el("a", { href: episodeAddress(run, row, { turn: number + 1 }) }, `turn ${number + 1}`), [...facts, ...calls.map(taken)].join(" · ")),
    before.map((text) => thought(text, raw)),
    turn.action ? block(turn.action, { language: raw ? "" : run.env, kind: turn.ok ? "action" : "action failed", label: `action ${number + 1}` }) : el("p", { class: "bad" }, "no action"),
    turn.observation ? block(turn.observation, { ansi: !raw, kind: "observation", label: `observation ${number + 1}` }) : el("p", { class: "meta" }, "no output"),
    files ? changed(files, turn.changes.cut) : null,
    after.map((text) => folded("full reply of the model", raw ? block(text, { label: "reply" }) : markdown(text))),
    Object.keys(more).length ? folded("more", block(json(more), { label: "facts of the turn" })) : null,
  );
}

const thought = (text, raw) => el("div", { class: "thought" }, raw ? block(text, { label: "thought" }) : markdown(text));

// Returns the model's texts for a turn: thoughts and texts beside a tool call come before the
// action, whole replies after it.
function saidBy(calls, talk, turn) {
  const [before, after] = [[], []];
  for (const call of calls) {
    const reply = ((talk && talk.messages) || [])[call.reply];
    if (call.thought) before.push(call.thought);
    if (!reply || !reply.content || reply.content === turn.action) continue;
    (reply.tool_calls && reply.tool_calls.length ? before : after).push(reply.content);
  }
  return { before, after };
}

function ending(body, raw) {
  const last = callsOf(body.talk, (body.turns || []).length);
  if (!last.length && body.answer === null) return null;
  return el(
    "div",
    { class: "turn", role: "group", "aria-label": "the end" },
    el("p", { class: "meta" }, ["end", ...last.map(taken)].join(" · ")),
    last.filter((call) => call.thought).map((call) => thought(call.thought, raw)),
    body.answer === null || body.answer === undefined ? null : [el("p", { class: "meta" }, "answer"), block(body.answer, { kind: "action", label: "answer" })],
  );
}

// Returns the tree of a search's states, each state below its parent.
function tried(nodes) {
  const below = (parent) => {
    const children = nodes.map((node, at) => [node, at]).filter(([node, at]) => node.parent === parent && at > parent);
    if (!children.length) return null;
    return el("ul", {}, children.map(([node, at]) =>
      el("li", { class: node.led ? "led" : "" }, node.led ? "✓ " : "", el("code", {}, String(node.action || "(no action)").slice(0, 200)),
        typeof node.judgement === "number" ? ` judged ${node.judgement.toFixed(2)}` : "", node.lost ? ` (${node.lost})` : "", below(at))));
  };
  return el("section", { class: "tree", "aria-label": "search" }, el("h2", {}, "Search"), el("p", { class: "note" }, `${plural(nodes.length - 1, "action")} tried; the path to this episode is marked.`), below(0));
}

function dialogue(talk, raw) {
  const facts = [plural(talk.messages.length, "message")];
  if (talk.input_tokens !== undefined) facts.push(`${count(talk.input_tokens)} tokens in, ${count(talk.output_tokens || 0)} out`);
  if (typeof talk.cost === "number") facts.push(dollars(talk.cost));
  const made = folded(`messages to and from the model (${facts.join("; ")})`);
  // A dialogue may be long, so its elements are made only when the fold is opened or printed.
  const make = () => {
    if (made.childElementCount > 1) return;
    for (const message of talk.messages) {
      made.append(el("p", { class: "meta" }, message.role));
      if (message.content) made.append(raw ? block(message.content, { label: message.role }) : el("div", { class: "message" }, markdown(message.content), copier(message.content, "message")));
      if (message.tool_calls && message.tool_calls.length) made.append(block(json(message.tool_calls), { label: "tool calls" }));
    }
    made.append(folded("calls", block(json(talk.calls || []), { label: "calls" })));
  };
  for (const event of ["toggle", "unfold"]) made.addEventListener(event, make);
  return made;
}
