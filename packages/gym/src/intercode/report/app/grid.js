// A table in which only the visible rows are elements, so ten thousand rows cost little.
import { el, fill } from "./dom.js";

const AROUND = 10; // the number of rows that are drawn above and below the visible rows

// Columns: { name, kind, get(row), show(row) → node or text }. Optional: title (the heading),
// sort: false (not sortable), first: "-" (descending at the first click).
export class Grid {
  constructor({ label, onSort }) {
    this.columns = [];
    this.rows = [];
    this.head = el("tr", { "aria-rowindex": 1 });
    this.body = el("tbody");
    this.table = el("table", { class: "grid", "aria-label": label }, el("thead", {}, this.head), this.body);
    this.empty = el("div", { class: "nothing", hidden: true });
    this.root = el("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": label }, this.table, this.empty);
    this.onSort = onSort;
    this.root.addEventListener("scroll", () => this.draw());
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.all = false;
    new ResizeObserver(() => this.draw()).observe(this.root);
  }

  show(rows, order, columns) {
    this.rows = rows;
    this.columns = columns;
    const [name, down] = [order.replace(/^-/, ""), order.startsWith("-")];
    fill(this.head, this.columns.map((column) => {
      const sorted = column.name === name ? (down ? "descending" : "ascending") : undefined;
      const next = column.name === name ? (down ? "" : "-" + name) : (column.first || "") + column.name;
      const turn = column.name === name && column.first ? (down ? column.name : "") : next;
      const arrow = sorted ? (down ? " ↓" : " ↑") : "";
      const button = el("button", { type: "button", on: { click: () => this.onSort(turn) } }, column.title || column.name, arrow);
      return el("th", { scope: "col", class: column.kind, "aria-sort": sorted }, column.sort === false ? column.title || column.name : button);
    }));
    this.table.setAttribute("aria-rowcount", rows.length + 1);
    this.table.hidden = !rows.length;
    this.empty.hidden = rows.length > 0;
    this.drawn = "";
    this.draw();
  }

  draw() {
    const height = this.height || 34;
    const seen = Math.ceil(this.root.clientHeight / height) + 2 * AROUND;
    const top = Math.min(Math.floor(this.root.scrollTop / height) - AROUND, this.rows.length - seen);
    const first = this.all ? 0 : Math.max(0, top);
    const last = this.all ? this.rows.length : Math.min(this.rows.length, first + seen);
    const drawn = `${first} ${last}`;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const focused = this.focused();
    const rows = [];
    for (let at = first; at < last; at++) {
      const cells = this.columns.map((column) => el("td", { class: column.kind }, column.show(this.rows[at])));
      rows.push(el("tr", { "aria-rowindex": at + 2, "data-at": at }, cells));
    }
    fill(this.body, this.space(first * height), rows, this.space((this.rows.length - last) * height));
    const measured = rows.length && rows[0].offsetHeight;
    if (measured && measured !== this.height) {
      this.height = measured;
      if (height !== measured) {
        this.drawn = "";
        this.draw();
      }
    }
    if (focused !== undefined) this.focus(focused, false);
  }

  space(height) {
    const row = el("tr", { class: "space", "aria-hidden": "true" }, el("td", { colspan: this.columns.length }));
    row.style.height = `${height}px`;
    return height ? row : null;
  }

  focused() {
    const row = this.body.contains(document.activeElement) && document.activeElement.closest("tr");
    return row && row.dataset.at !== undefined ? Number(row.dataset.at) : undefined;
  }

  focus(at, scrolls = true) {
    at = Math.max(0, Math.min(this.rows.length - 1, at));
    const height = this.height || 34;
    if (scrolls) {
      const [top, head] = [at * height, this.head.offsetHeight];
      const view = this.root;
      if (top < view.scrollTop) view.scrollTop = top;
      if (top + height + head > view.scrollTop + view.clientHeight) view.scrollTop = top + height + head - view.clientHeight;
      this.draw();
    }
    const link = this.body.querySelector(`tr[data-at="${at}"] a`);
    if (link) link.focus({ preventScroll: true });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.floor(this.root.clientHeight / (this.height || 34)) - 1;
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || event.target.matches("button")) return;
    const at = this.focused();
    this.focus(at === undefined ? (step > 0 && step !== Infinity ? 0 : this.rows.length - 1) : at + step);
    event.preventDefault();
  }
}

export const known = (value) => value !== null && value !== undefined && value !== "";

// Returns the rows in an order from the address: "-turns" is descending. Unknown values come last.
export function sorted(rows, columns, order) {
  const column = columns.find((one) => one.name === order.replace(/^-/, ""));
  if (!column || !order) return rows;
  const sign = order.startsWith("-") ? -1 : 1;
  const values = new Map(rows.map((row) => [row, column.get(row)]));
  return [...rows].sort((a, b) => {
    const [one, other] = [values.get(a), values.get(b)];
    if (!known(one) || !known(other)) return known(other) - known(one);
    if (typeof one === "string") return sign * one.localeCompare(other, "en", { numeric: true });
    return sign * (one - other);
  });
}
