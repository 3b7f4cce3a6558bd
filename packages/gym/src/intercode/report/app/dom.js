// Creation of elements. Texts come from untrusted programs and models: they are inserted only as
// text, never as HTML.

export const byId = (id) => document.getElementById(id);

// Invisible characters, and characters that reverse the direction of text. `visible` escapes them.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]|\p{Cs}/gu;

export function visible(text) {
  return String(text).replace(HIDDEN, (char) => {
    const code = char.charCodeAt(0);
    if (code >= 0xdc80 && code <= 0xdcff) return "\\x" + (code - 0xdc00).toString(16);
    return code < 256 ? "\\x" + code.toString(16).padStart(2, "0") : "\\u" + code.toString(16).padStart(4, "0");
  });
}

// el("a", { class: "x", href: "#y", on: { click } }, "text", node, …): false and null are omitted.
export function el(tag, facts = {}, ...children) {
  const made = document.createElement(tag);
  set(made, facts);
  made.append(...texts(children));
  return made;
}

export function svg(tag, facts = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  set(made, facts);
  made.append(...texts(children));
  return made;
}

function set(made, facts) {
  for (const [name, value] of Object.entries(facts)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (name === "href" && !value.startsWith("#")) throw new Error("a link leads out of the page");
    else made.setAttribute(name, value === true ? "" : visible(value));
  }
}

const texts = (children) =>
  children.flat(Infinity).filter((child) => child || child === 0).map((child) => (child instanceof Node ? child : visible(child)));

export function fill(parent, ...children) {
  parent.replaceChildren(...texts(children));
  return parent;
}

export function folded(title, ...children) {
  return el("details", {}, el("summary", {}, title), ...children);
}

export function button(text, act, facts = {}) {
  return el("button", { type: "button", on: { click: act }, ...facts }, text);
}

const MAX_NODES = 2000; // nodes of a tree that are drawn
const MAX_DEPTH = 100; // and their levels

// Returns the descendants of a tree's root as nested lists, upper levels first. `key` and `parent`
// return a node's key and the key of its parent, and `item` its element of a list.
export function tree(nodes, root, { key, parent, item }) {
  const children = new Map();
  for (const node of nodes) {
    if (!children.has(parent(node))) children.set(parent(node), []);
    children.get(parent(node)).push(node);
  }
  const made = el("div");
  const waiting = [[root, made, 0]];
  let drawn = 0;
  for (const [above, place, depth] of waiting) {
    const below = (children.get(above) || []).slice(0, depth < MAX_DEPTH ? MAX_NODES - drawn : 0);
    if (!below.length) continue;
    const items = below.map(item);
    below.forEach((node, at) => waiting.push([key(node), items[at], depth + 1]));
    place.append(el("ul", {}, items));
    drawn += below.length;
  }
  if (drawn < nodes.length) made.prepend(el("p", { class: "note" }, `Only ${count(drawn)} of ${count(nodes.length)} are shown.`));
  return made;
}

// Returns a time in seconds as a text such as "2026-11-30 12:33:10"; "" for a time without a date.
export function timestamp(time) {
  const read = new Date(1000 * time);
  return time && !Number.isNaN(read.getTime()) ? read.toISOString().slice(0, -5).replace("T", " ") : "";
}

export const count = (number) => number.toLocaleString("en");
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
export const percent = (rate) => (rate === null || rate === undefined ? "–" : `${(100 * rate).toFixed(1)} %`);
export const dollars = (cost) => (cost === null || cost === undefined ? "" : `$${cost.toFixed(4)}`);
export const score = (value) => (typeof value === "number" ? value.toFixed(3) : value === null ? "–" : String(value));

export function seconds(value) {
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}
