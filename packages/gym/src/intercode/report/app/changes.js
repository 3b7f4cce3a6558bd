// The changes of a turn on disk: paths, and the changed lines of files whose text is recorded.
import { el, folded, plural } from "./dom.js";

const SIGNS = { added: "+", modified: "~", deleted: "-" };
const AROUND_A_CHANGE = 3;

// Returns each turn's changed files. `before` is a file's earlier text; undefined: not recorded.
export function histories(turns) {
  const known = new Map();
  return turns.map(({ changes }) =>
    changes &&
    changes.files.map((file) => {
      const before = known.get(file.path);
      if (file.text !== null && !file.cut) known.set(file.path, file.text);
      else known.delete(file.path);
      return { ...file, before: file.kind === "added" ? "" : before };
    }),
  );
}

export function changed(files, cut) {
  if (!files.length && !cut) return null;
  const made = files.map((file) => {
    const name = `${SIGNS[file.kind]} ${file.path}${file.type === "dir" ? "/" : ""}`;
    if (file.text === null || file.text === "") return el("p", { class: "path" }, name);
    return folded(name, el("pre", { tabindex: "0", class: "diff", role: "group", "aria-label": `changes of ${file.path}` }, lines(file)));
  });
  if (cut) made.push(el("p", { class: "path" }, `… and ${plural(cut, "path")} more`));
  return folded(`${plural(files.length + cut, "path")} changed on disk`, made);
}

function lines({ before, text, cut }) {
  const now = text.replace(/\n$/, "").split("\n");
  const more = cut ? ["\n…"] : [];
  if (before === undefined) return [now.join("\n"), ...more]; // the earlier text is not recorded
  const old = before === "" ? [] : before.replace(/\n$/, "").split("\n");
  let [head, tail] = [0, 0];
  while (head < old.length && head < now.length && old[head] === now[head]) head++;
  while (tail < old.length - head && tail < now.length - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail++;
  const line = (sign, kind) => (one) => el("span", { class: kind }, `${sign} ${one}\n`);
  return [
    ...now.slice(Math.max(0, head - AROUND_A_CHANGE), head).map(line(" ", "")),
    ...old.slice(head, old.length - tail).map(line("-", "removed")),
    ...now.slice(head, now.length - tail).map(line("+", "added")),
    ...now.slice(now.length - tail, now.length - tail + AROUND_A_CHANGE).map(line(" ", "")),
    ...more,
  ];
}
