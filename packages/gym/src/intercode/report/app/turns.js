// The turns of an episode: the model's thoughts, the action and what the terminal showed; and the
// dialogue with the model.
import { el, folded, plural, count, dollars, score, seconds, tree } from "./dom.js";
import { episodeAddress } from "./address.js";
import { block, copier, markdown } from "./text.js";
import { changed } from "./changes.js";
import { readable } from "./reasons.js";

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

const failed = (turn) => !turn.ok || Boolean(turn.info.timed_out);

// Returns links to the turns, in which failed turns are marked; null if there are few turns.
export function outline(turns, run, row) {
  if (turns.length < 4) return null;
  const link = (turn, at) => el("a", { href: episodeAddress(run, row, { turn: at + 1 }), class: failed(turn) ? "failed" : "", title: turn.action.slice(0, 200) }, `${at + 1}${failed(turn) ? " ✗" : ""}`);
  const bad = turns.filter(failed).length;
  return el("nav", { class: "outline", "aria-label": "turns" }, turns.map(link), bad ? el("span", { class: "meta" }, `✗ ${plural(bad, "action")} failed`) : null);
}

export function oneTurn(turn, number, of, body, files, run, row, raw) {
  const facts = [`action ${seconds(turn.seconds)}`];
  if (turn.exit !== null) facts.push(`exit ${turn.exit}`);
  else if (!turn.ok) facts.push("failed");
  if (turn.reward) facts.push(`reward ${score(turn.reward)}`);
  const { cwd, timed_out: late, ...more } = turn.info;
  if (late) facts.push("timeout");
  if (cwd) facts.push(`then in ${cwd}`);
  for (const [name, value] of Object.entries(more)) {
    if (!["number", "boolean"].includes(typeof value)) continue;
    facts.push(value === true ? name : `${name} ${value}`);
    delete more[name];
  }
  const calls = callsOf(body.talk, number);
  const { before, after } = saidBy(calls, body.talk, turn);
  const kind = failed(turn) ? "action failed" : "action";
  return el(
    "div",
    { class: failed(turn) ? "turn failed" : "turn", role: "group", "aria-label": `turn ${number + 1}` },
    el("p", { class: "meta" }, el("a", { class: "number", href: episodeAddress(run, row, { turn: number + 1 }), "aria-label": `turn ${number + 1}` }, String(number + 1)), [...calls.map(taken), ...facts].join(" · ")),
    before.map((text) => thought(text, raw)),
    el(
      "div",
      { class: "exchange" },
      turn.action ? block(turn.action, { language: raw ? "" : run.env, kind, label: `action ${number + 1}` }) : el("p", { class: "bad" }, "no action"),
      turn.observation ? block(turn.observation, { ansi: !raw, kind: "observation", label: `observation ${number + 1}` }) : turn.action ? el("p", { class: "silent" }, "no output") : null,
    ),
    files ? changed(files, turn.changes.cut) : null,
    after.map((text) => folded("full reply of the model", raw ? block(text, { label: "reply" }) : markdown(text))),
    Object.keys(more).length ? folded("more", readable(more, "facts of the turn")) : null,
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

export function ending(body, row, raw) {
  const last = callsOf(body.talk, (body.turns || []).length);
  const end = body.answer === null || body.answer === undefined ? null : [el("p", { class: "meta" }, "answer"), block(body.answer, { kind: "action", label: "answer" })];
  return el(
    "div",
    { class: "turn last", role: "group", "aria-label": "the end" },
    el("p", { class: "meta" }, el("span", { class: "number" }, "■"), ["end", row.state, ...last.map(taken)].join(" · ")),
    last.filter((call) => call.thought).map((call) => thought(call.thought, raw)),
    end,
  );
}

// Returns the tree of a search's states, each state below its parent.
export function searchTree(nodes) {
  const states = tree(nodes.map((node, at) => [node, at]).slice(1), 0, {
    key: ([, at]) => at,
    parent: ([node, at]) => (at > node.parent ? node.parent : undefined),
    item: ([node]) => el("li", { class: node.led ? "led" : "" }, node.led ? "✓ " : "", el("code", {}, String(node.action || "(no action)").slice(0, 200)),
      typeof node.judgement === "number" ? ` judged ${node.judgement.toFixed(2)}` : "", node.lost ? ` (${node.lost})` : ""),
  });
  return el("section", { class: "tree", "aria-label": "search" }, el("h2", {}, "Search"), el("p", { class: "note" }, `${plural(nodes.length - 1, "action")} tried; the path to this episode is marked.`), states);
}

export function dialogue(talk, raw) {
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
      if (message.tool_calls && message.tool_calls.length) made.append(...readable(message.tool_calls, "tool calls").flat().filter(Boolean));
    }
    made.append(folded("calls", readable(talk.calls || [], "calls")));
  };
  for (const event of ["toggle", "unfold"]) made.addEventListener(event, make);
  return made;
}
