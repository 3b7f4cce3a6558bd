// The page of one episode: every turn with what the model thought, said and took.

function page(row, episode) {
  const wanted = words();
  const { model, earlier, tags, ...rest } = episode.metadata;
  const parts = [neighbours(row), heading(row), element("p", facts(row).join(" · "), "facts")];
  if (tags && tags.length) parts.push(element("p", "tags: " + tags.join(", "), "facts"));
  parts.push(marked("pre", episode.query, "query", wanted));
  if (episode.error) parts.push(marked("pre", episode.error, "warning", wanted));
  episode.turns.forEach((turn, number) => parts.push(oneTurn(turn, number, episode.turns.length, model, wanted)));
  parts.push(ending(row, episode, model, wanted));
  if (model && model.messages) parts.push(dialogue(model, wanted));
  if (earlier) parts.push(folded("earlier attempts, which a failing sandbox ended", json(earlier)));
  parts.push(folded("record", json(rest)));
  return parts;
}

const json = (value) => JSON.stringify(value, null, 2);

function neighbours(row) {
  const back = element("nav");
  const [before, after] = [beside(row, -1), beside(row, 1)];
  const links = [["#episodes", "← all episodes"]];
  if (before) links.push(["#episode-" + before.number, "previous"]);
  if (after) links.push(["#episode-" + after.number, "next"]);
  for (const [href, text] of links) {
    const link = element("a", text);
    link.href = href;
    back.append(link);
  }
  const wrap = element("button", "wrap lines or not");
  wrap.type = "button";
  wrap.addEventListener("click", () => document.body.classList.toggle("unwrapped"));
  back.append(wrap);
  return back;
}

function heading(row) {
  const made = element("h2", `${row.task}: `);
  made.append(element("span", said(row), row.success ? "good" : row.status === "error" ? "bad" : ""));
  made.tabIndex = -1;
  return made;
}

function facts(row) {
  const made = [runName(row)];
  if (row.epoch) made.push(`attempt ${row.epoch + 1}`);
  made.push(row.reward === null ? "no reward" : `reward ${row.reward.toFixed(3)}`);
  made.push(plural(row.turns, "turn"), `${row.seconds.toFixed(3)} s`);
  return made;
}

function calls(model, number) {
  return ((model && model.calls) || []).filter((call) => call.turn === number);
}

function taken(call) {
  if (call.error) return `reply: ${call.error}`;
  const made = [`reply ${(call.seconds || 0).toFixed(3)} s`];
  if (call.input_tokens !== undefined) made.push(`${call.input_tokens} + ${call.output_tokens} tokens`);
  if (typeof call.cost === "number") made.push(`$${call.cost.toFixed(5)}`);
  if (call.cached) made.push("from the cache");
  if (call.retries) made.push(plural(call.retries, "call") + " failed before");
  if (call.finish && !["stop", "tool_calls"].includes(call.finish)) made.push(`ended by ${call.finish}`);
  return made.join(", ");
}

function oneTurn(turn, number, count, model, wanted) {
  const box = element("div", undefined, "turn");
  const meta = [`turn ${number + 1} of ${count}`, `action ${turn.seconds.toFixed(3)} s`];
  if (turn.exit_code !== null) meta.push(`exit ${turn.exit_code}`);
  else if (!turn.ok) meta.push("failed");
  if (turn.reward) meta.push(`reward ${turn.reward.toFixed(3)}`);
  const { cwd, ...more } = turn.info;
  if (cwd) meta.push(`then in ${cwd}`);
  const made = calls(model, number);
  box.append(element("div", [...meta, ...made.map(taken)].join(" · "), "meta"));
  const { before, after } = saidBy(made, model, turn);
  for (const text of before) box.append(marked("p", text, "thought", wanted));
  if (turn.action) box.append(marked("pre", turn.action, turn.ok ? "action" : "action failed", wanted));
  else box.append(element("p", "no action", "bad"));
  if (turn.observation) box.append(marked("pre", turn.observation, "observation", wanted));
  else box.append(element("p", "nothing was printed", "meta"));
  for (const text of after) box.append(folded("the model's reply, whole", text));
  if (Object.keys(more).length) box.append(folded("more", json(more)));
  if (turn.changes) box.append(changed(turn.changes));
  return box;
}

function changed({ files, cut }) {
  const signs = { added: "+", modified: "~", deleted: "-" };
  const lines = files.map((file) => {
    const text = (file.text || "").replace(/\n$/, "").split("\n").map((line) => "    " + line).join("\n");
    return `${signs[file.kind]} ${file.path}` + (file.text ? `\n${text}` : "") + (file.cut ? "\n    …" : "");
  });
  if (cut) lines.push(`… and ${plural(cut, "path")} more`);
  return folded(plural(files.length + cut, "path") + " changed", lines.join("\n"));
}

// Thoughts, or what was said beside a tool's call, stand before the action; whole replies after it.
function saidBy(made, model, turn) {
  const [before, after] = [[], []];
  for (const call of made) {
    const reply = (model.messages || [])[call.reply];
    if (call.thought) before.push(call.thought);
    if (!reply || !reply.content || reply.content === turn.action) continue;
    (reply.tool_calls && reply.tool_calls.length ? before : after).push(reply.content);
  }
  return { before, after };
}

function ending(row, episode, model, wanted) {
  const box = element("div", undefined, "turn");
  const last = calls(model, episode.turns.length);
  box.append(element("div", ["end", row.status, ...last.map(taken)].join(" · "), "meta"));
  for (const call of last) if (call.thought) box.append(marked("p", call.thought, "thought", wanted));
  if (episode.answer !== null) box.append(element("p", "answer", "meta"), marked("pre", episode.answer, "action", wanted));
  if (episode.score) {
    const parts = Object.entries(episode.score.parts).map(([name, value]) => `${name} ${number(value)}`);
    const text = `reward ${number(episode.score.value)}` + (parts.length ? ` (${parts.join(", ")})` : "");
    box.append(element("p", text), folded("how it was scored", json(episode.score.detail)));
  }
  return box;
}

const number = (value) => (typeof value === "number" ? value.toFixed(3) : String(value));

function dialogue(model, wanted) {
  const made = element("details");
  const sums = [plural(model.messages.length, "message")];
  if (model.input_tokens !== undefined) sums.push(`${model.input_tokens} tokens in, ${model.output_tokens} out`);
  if (typeof model.cost === "number") sums.push(`$${model.cost.toFixed(5)}`);
  made.append(element("summary", `what was said to the model and by it (${sums.join("; ")})`));
  for (const message of model.messages) {
    made.append(element("div", message.role, "meta"));
    if (message.content) made.append(marked("pre", message.content, message.role, wanted));
    if (message.tool_calls) made.append(element("pre", json(message.tool_calls)));
  }
  made.append(folded("calls", json(model.calls || [])));
  return made;
}
