// Formatting of texts: Markdown, and code in colours. The result consists of elements with text. No
// part of a text is parsed as HTML, and no link leaves the page.
import { el, visible, button } from "./dom.js";
import { terminal } from "./terminal.js";

const STRINGS = `"(?:[^"\\\\\\n]|\\\\.)*"|'(?:[^'\\\\\\n]|\\\\.)*'`;
const NUMBERS = "\\b\\d[\\d._]*\\b";
const LANGUAGES = {
  bash: [
    `(?<![\\w$\\{])#[^\\n]*`,
    "if then else elif fi for while do done case esac in function return export local cd echo set source sudo",
  ],
  sql: [
    "--[^\\n]*",
    "select from where join inner left right outer on group by order having limit offset union all distinct as and or not in is null like between case when then else end insert into values update set delete create table drop alter with exists count sum avg min max asc desc",
  ],
  python: [
    "#[^\\n]*",
    "def class return if elif else for while in not and or is None True False import from as with try except finally raise lambda yield pass break continue global assert del async await",
  ],
};
LANGUAGES.ctf = LANGUAGES.swe = LANGUAGES.sh = LANGUAGES.shell = LANGUAGES.bash;
LANGUAGES.py = LANGUAGES.python;

const tokens = new Map();

function tokensOf(language) {
  if (!tokens.has(language)) {
    const [comment, words] = LANGUAGES[language];
    const flags = language === "sql" ? "gi" : "g";
    tokens.set(language, new RegExp(`(${comment})|(${STRINGS})|(${NUMBERS})|\\b(${words.split(" ").join("|")})\\b`, flags));
  }
  return tokens.get(language);
}

const TOKENS = ["comment", "string", "number", "keyword"];
const SIGNED = { "+": "added", "-": "removed", "@": "code-number" };
const LONG = 30000; // characters above which a text is shown without colours and Markdown

export function code(text, language) {
  if (language === "diff") return text.split("\n").map((line, number) => [number ? "\n" : "", el("span", { class: SIGNED[line[0]] }, line)]);
  if (!Object.hasOwn(LANGUAGES, language) || text.length > LONG) return [text];
  const made = [];
  let from = 0;
  for (const found of text.matchAll(tokensOf(language))) {
    const kind = TOKENS[found.slice(1).findIndex((part) => part !== undefined)];
    made.push(text.slice(from, found.index), el("span", { class: "code-" + kind }, found[0]));
    from = found.index + found[0].length;
  }
  return [...made, text.slice(from)];
}

const INLINE = /(`+)([^`]|[^`].*?[^`])\1(?!`)|\*\*([^*\n]+)\*\*|(?<![\w*])\*([^*\s][^*\n]*)\*(?![\w*])/;

function inline(text) {
  const made = [];
  for (let rest = text; rest; ) {
    const found = INLINE.exec(rest);
    if (!found) return [...made, rest];
    const [whole, , quoted, bold, slanted] = found;
    made.push(rest.slice(0, found.index));
    made.push(quoted !== undefined ? el("code", {}, quoted) : bold !== undefined ? el("strong", {}, bold) : el("em", {}, slanted));
    rest = rest.slice(found.index + whole.length);
  }
  return made;
}

// The Markdown that models write: fences, headings, lists, quotes, emphasis. Links stay text.
export function markdown(text) {
  const made = el("div", { class: "markdown" });
  if (text.length > LONG) return fillPlain(made, text);
  const lines = text.trimEnd().split("\n");
  let paragraph = [];
  const end = () => {
    if (paragraph.length) made.append(el("p", {}, inline(paragraph.join("\n"))));
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at];
    const fence = /^\s*(```+|~~~+)\s*([\w+-]*)/.exec(line);
    const heading = /^#{1,6}\s+(.*)/.exec(line);
    const item = /^(\s*)(?:[-*+]|\d+[.)])\s+(.*)/.exec(line);
    if (fence) {
      end();
      const body = [];
      while (++at < lines.length && !lines[at].trim().startsWith(fence[1])) body.push(lines[at]);
      made.append(block(body.join("\n"), { language: fence[2].toLowerCase() }));
    } else if (heading) {
      end();
      made.append(el("p", { class: "heading" }, inline(heading[1])));
    } else if (item) {
      end();
      const list = made.lastElementChild && made.lastElementChild.matches("ul") ? made.lastElementChild : el("ul");
      list.append(el("li", { class: item[1].length > 1 ? "deeper" : "" }, inline(item[2])));
      made.append(list);
    } else if (!line.trim()) {
      end();
      if (made.lastElementChild && made.lastElementChild.matches("ul")) made.append(el("div"));
    } else paragraph.push(line);
  }
  end();
  return made;
}

function fillPlain(made, text) {
  made.append(el("pre", { tabindex: "0" }, text));
  return made;
}

// Returns a text in a box, with a button that copies the original text. With `ansi`, the text is
// shown as a terminal shows it.
export function block(text, { language = "", kind = "", ansi = false, label = "" } = {}) {
  const { nodes, note } = ansi ? terminal(text) : { nodes: code(text, language), note: null };
  const pre = el("pre", { class: kind, tabindex: "0", role: "group", "aria-label": label || "text" }, nodes);
  return el("div", { class: "block" }, pre, copier(text, label), note);
}

export function copier(text, label = "") {
  const copy = button("copy", async () => {
    await copied(text);
    copy.textContent = "copied";
    setTimeout(() => (copy.textContent = "copy"), 1500);
  }, { class: "copy", "aria-label": `copy ${label || "this text"}` });
  return copy;
}

export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The browser refuses the clipboard: the text is copied from a selection instead.
    const area = el("textarea", { "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

// Marks each occurrence of the searched words within an element.
export function mark(root, words) {
  if (!words) return;
  const wanted = visible(words).toLowerCase();
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  for (const node of nodes) {
    const lower = node.data.toLowerCase();
    if (lower.length !== node.data.length || !lower.includes(wanted) || node.parentElement.closest("button")) continue;
    const parts = [];
    let from = 0;
    for (let at; (at = lower.indexOf(wanted, from)) >= 0; from = at + wanted.length)
      parts.push(node.data.slice(from, at), el("mark", {}, node.data.slice(at, at + wanted.length)));
    node.replaceWith(...parts, node.data.slice(from));
  }
}
