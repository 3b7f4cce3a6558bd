// The page of an episode: the task, the reasons for its score with answer and gold compared, then
// each turn with the model's thoughts, the action and the observation.
import { el, fill, folded, button, plural, count, dollars, score, seconds, timestamp, tree } from "./dom.js";
import { address, change, episodeAddress, place } from "./address.js";
import { copied, mark, markdown } from "./text.js";
import { badge } from "./lists.js";
import { histories } from "./changes.js";
import { readable, reasons, scoreParts, taskPanel } from "./reasons.js";
import { dialogue, ending, oneTurn, outline, searchTree } from "./turns.js";
import { save } from "./save.js";

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
      const said = this.source.live === "connecting" ? "Looking for it …" : "There is no such episode on this page.";
      fill(this.root, el("h1", {}, id || "episode"), el("p", {}, said, " ", el("a", { href: "#episodes" }, "all episodes")));
      return;
    }
    this.look = look;
    const body = await this.source.body(row);
    if (this.look !== look) return;
    const run = this.source.runs[row.run];
    const raw = asked.get("raw") === "1";
    const { turns = [] } = body;
    fill(
      this.root,
      this.steps(row, raw),
      head(run, row, body),
      reasons(row, body),
      family(this.source, run, row),
      el("div", { class: "columns" }, el("div", { class: "turns" }, el("h2", {}, plural(turns.length, "turn")), outline(turns, run, row), content(run, row, body, raw)), el("div", { class: "beside-turns" }, scoreParts(body), taskPanel(run, row, body))),
    );
    mark(this.root, this.shown.words);
    window.scrollTo(0, 0);
    this.root.querySelector("h1").focus({ preventScroll: true });
    this.pointed = undefined;
    this.point(asked.get("turn"));
  }

  // Marks the turn that the address names, and scrolls to that turn.
  point(number) {
    const turns = this.turns();
    turns.forEach((turn, at) => turn.classList.toggle("meant", String(at + 1) === number));
    if (number !== this.pointed && turns[number - 1]) turns[number - 1].scrollIntoView();
    this.pointed = number;
  }

  turns() {
    return [...this.root.querySelectorAll(".turn")];
  }

  // Acts on a key: to another episode, or to another turn of this one.
  key(name) {
    const step = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1 }[name];
    if (step && this.beside(step)) location.hash = this.beside(step);
    const now = Number(place().asked.get("turn") || 0);
    const bad = this.turns().findIndex((turn, at) => at >= now && turn.classList.contains("failed")) + 1;
    const turn = { n: now + 1, p: now - 1, e: bad }[name];
    if (turn >= 1 && turn <= this.turns().length) change({ turn });
  }

  position() {
    const { asked } = place();
    return this.shown.rows.indexOf(this.source.row(asked.get("run"), asked.get("id")));
  }

  beside(step) {
    const at = this.position();
    const next = at < 0 ? undefined : this.shown.rows[at + step];
    return next && episodeAddress(this.source.runs[next.run], next);
  }

  steps(row, raw) {
    const run = this.source.runs[row.run];
    const link = (step, text, key) => this.beside(step) && el("a", { href: this.beside(step), title: `key ${key}` }, text);
    const at = this.position();
    return el(
      "nav",
      { "aria-label": "this episode", class: "tools steps" },
      el("a", { href: this.shown.address || "#episodes" }, "← episodes"),
      link(-1, "previous", "k"),
      at < 0 ? null : el("span", { class: "meta" }, `${count(at + 1)} of ${count(this.shown.rows.length)}`),
      link(1, "next", "j"),
      el("a", { href: address("task", { id: row.task, env: run.where }) }, "same task, all runs"),
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
  const started = timestamp(row.started);
  if (started) facts.push(`${started.slice(0, -3)} UTC`);
  return [
    el("h1", { tabindex: "-1" }, row.id.endsWith("#0") ? row.task : row.id, " ", badge(row.state)),
    el("p", { class: "note" }, facts.join(" · ")),
    row.tags.length || row.kinds.length ? el("p", { class: "links" }, [...row.kinds, ...row.tags].map((tag) => el("span", { class: "chip" }, tag))) : null,
    el("section", { class: "query", "aria-label": "query" }, body.query.trim() ? markdown(body.query) : el("p", { class: "note" }, "The task has no query.")),
  ];
}

// Returns the tree of an attempt's forks, each fork below its parent; null without forks.
function family(source, run, row) {
  const all = source.family(row);
  if (all.length < 2) return null;
  const ids = new Set(all.map((one) => one.id));
  const forks = tree(all, null, {
    key: (one) => one.id,
    parent: (one) => (ids.has(one.parent) ? one.parent : null),
    item: (one) => el("li", {}, one === row ? el("strong", {}, one.id) : el("a", { href: episodeAddress(run, one) }, one.id), " ", badge(one.state), ` ${plural(one.turns, "turn")}`),
  });
  return el("section", { class: "tree", "aria-label": "forks" }, el("h2", {}, "Forks"), forks);
}

function content(run, row, body, raw) {
  const { turns = [], talk } = body;
  const known = histories(turns);
  const { traceback: trace, ...metadata } = body.metadata;
  const withheld = body.hidden && body.turns && !turns.length && !talk;
  const empty = turns.length ? null : el("p", { class: "note" }, withheld ? "No turns are shown: they may quote gold." : "The agent took no action.");
  return [
    empty,
    turns.map((turn, number) => oneTurn(turn, number, turns.length, body, known[number], run, row, raw)),
    withheld ? null : ending(body, row, raw),
    body.search ? searchTree(body.search) : null,
    talk && talk.messages ? dialogue(talk, raw) : null,
    body.judge && body.judge.length ? folded("dialogue with the judge", readable(body.judge, "judge")) : null,
    body.earlier ? folded("earlier attempts, ended by sandbox failures", readable(body.earlier, "earlier attempts")) : null,
    Object.keys(metadata).length ? folded("record", readable(metadata, "record")) : null,
  ];
}
