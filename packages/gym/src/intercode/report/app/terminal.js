// The text that a terminal shows of an output: colours, lines that a program has written again, and
// moves of the cursor. The result consists of texts and of elements with classes.
//
// What a program overwrites or erases is gone from a terminal. An agent could hide its deeds in this
// way, so a note tells the number of hidden characters, and the page's "raw texts" show all of them.
import { el, count } from "./dom.js";

const ANSI_COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
// Control sequences (CSI), operating system commands (OSC: titles, links), other short sequences,
// and the control characters that move the cursor.
const CONTROL = /\u001b\[([0-9;:?<=>]*)([ -/]*[@-~])|\u001b[\]PX^_]([^\u0007\u001b]*)(?:\u0007|\u001b\\|$)|\u001b(?![[\]PX^_])[ -/]*[0-~]|[\r\b\n]/g;
const MAX_COLUMN = 1000; // far enough for every terminal; a move beyond it would only cost memory
const MAX_ROWS = 200; // rows that a move to an absolute place may add
const MAX_CHANGED_CELLS = 100_000; // cells and rows that a text may write, add and erase: five times the longest text
// Short sequences without an effect here that programs often print: the cursor's place, the usual
// set of characters, the keypad. Others could hide a text, a letter each.
const HARMLESS = /^\u001b(?:[78=>]|\(B)$/;
const MAX_SEQUENCE = 12; // the length of the sequences that programs print; a longer one could hide a text

const BLANK = [" ", ""];

// The lines of a terminal without a lower end. A cell is a pair of a character and its classes.
class Screen {
  constructor() {
    this.lines = [[]];
    [this.row, this.column, this.hidden, this.used, this.classes] = [0, 0, 0, 0, ""];
  }

  write(text) {
    for (const char of text) {
      const line = this.lines[this.row];
      this.used += 1 + Math.max(0, this.column - line.length);
      while (line.length < this.column) line.push(BLANK);
      if (line[this.column] && line[this.column][0] !== char) this.hide([line[this.column]]);
      line[this.column++] = [char, this.classes];
    }
  }

  hide(cells) {
    this.used += cells.length;
    this.hidden += cells.filter(([char]) => char.trim()).length;
  }

  addRows(number) {
    this.used += Math.max(0, number - this.lines.length);
    while (this.lines.length < number) this.lines.push([]);
  }

  go(row, column) {
    const last = Math.max(this.lines.length - 1, Math.min(row, MAX_ROWS));
    this.addRows(Math.min(row, last) + 1);
    this.row = Math.max(0, Math.min(row, last));
    this.column = Math.max(0, Math.min(column, MAX_COLUMN));
  }

  newline() {
    this.row++;
    this.column = 0;
    this.addRows(this.row + 1);
  }

  eraseLine(mode) {
    const line = this.lines[this.row];
    if (mode === 0) this.hide(line.splice(this.column));
    else if (mode === 2) this.hide(line.splice(0));
    else {
      const erased = line.splice(0, this.column + 1);
      this.lines[this.row] = [...erased.map(() => BLANK), ...line];
      this.used += line.length;
      this.hide(erased);
    }
  }

  erase(mode) {
    if (mode === 1) return;
    const from = mode === 0 ? this.row + 1 : 0;
    if (mode === 0) this.eraseLine(0);
    for (const line of this.lines.splice(from)) this.hide(line);
    this.addRows(this.row + 1);
  }

  // Carries out a control sequence.
  control(parameters, letter) {
    const numbers = parameters.split(/[;:]/).map((text) => Number.parseInt(text, 10));
    const [first, second] = [numbers[0] || 1, numbers[1] || 1];
    const mode = numbers[0] || 0;
    const { row, column } = this;
    if (letter === "A") this.go(row - first, column);
    else if (letter === "B") this.go(Math.min(row + first, this.lines.length - 1), column);
    else if (letter === "C") this.go(row, column + first);
    else if (letter === "D") this.go(row, column - first);
    else if (letter === "E") this.go(Math.min(row + first, this.lines.length - 1), 0);
    else if (letter === "F") this.go(row - first, 0);
    else if (letter === "G") this.go(row, first - 1);
    else if (letter === "H" || letter === "f") this.go(first - 1, second - 1);
    else if (letter === "J") this.erase(mode);
    else if (letter === "K") this.eraseLine(mode);
  }
}

// The state of colours and styles. Backgrounds, "concealed" and free colours are ignored: they could
// hide a text from its reader.
class Style {
  constructor() {
    [this.colour, this.styles] = ["", new Set()];
  }

  apply(parameters) {
    const codes = parameters.split(/[;:]/).map(Number);
    for (let at = 0; at < codes.length; at++) {
      const code = codes[at];
      if (code === 0) [this.colour, this.styles] = ["", new Set()];
      else if (code === 38 || code === 48) at += codes[at + 1] === 5 ? 2 : 4;
      else if (code >= 30 && code <= 37) this.colour = "ansi-" + ANSI_COLOURS[code - 30];
      else if (code >= 90 && code <= 97) this.colour = "ansi-" + ANSI_COLOURS[code - 90];
      else if (code === 39) this.colour = "";
      else if (code === 22) this.styles.delete("bold");
      else if (code === 23) this.styles.delete("italic");
      else if (code === 24) this.styles.delete("underlined");
      else if (code === 1) this.styles.add("bold");
      else if (code === 3) this.styles.add("italic");
      else if (code === 4) this.styles.add("underlined");
    }
    return [this.colour, ...this.styles].filter(Boolean).join(" ");
  }
}

// Returns the content of a terminal that has printed a text, as { nodes, note }. The note tells how
// many characters of the text the terminal does not show, or that the nodes are the raw text.
export function terminal(text) {
  if (!/[\u001b\r\b]/.test(text)) return { nodes: [text], note: null };
  const [screen, style] = [new Screen(), new Style()];
  let from = 0;
  for (const match of text.matchAll(CONTROL)) {
    const [sequence, parameters, letter, payload] = match;
    screen.write(text.slice(from, match.index));
    from = match.index + sequence.length;
    if (sequence === "\n") screen.newline();
    else if (sequence === "\r") screen.column = 0;
    else if (sequence === "\b") screen.column = Math.max(0, screen.column - 1);
    else if (letter === "m") screen.classes = style.apply(parameters);
    else if (payload !== undefined) screen.hidden += payload.length;
    else if (!letter) screen.hidden += HARMLESS.test(sequence) ? 0 : sequence.length - 1;
    else {
      screen.control(parameters, letter);
      if (sequence.length > MAX_SEQUENCE) screen.hidden += sequence.length;
    }
    if (screen.used > MAX_CHANGED_CELLS) return { nodes: [text], note: remark("This is the raw text: its control sequences change too much for a terminal's view.") };
  }
  screen.write(text.slice(from));
  return { nodes: runs(screen.lines), note: screen.hidden ? hiddenNote(screen.hidden) : null };
}

// Joins neighbouring cells of equal classes.
function runs(lines) {
  const made = [];
  let [text, classes] = ["", ""];
  const end = () => {
    if (text) made.push(classes ? el("span", { class: classes }, text) : text);
    text = "";
  };
  lines.forEach((line, number) => {
    for (const [char, kind] of number ? [["\n", ""], ...line] : line) {
      if (kind !== classes && char !== "\n") {
        end();
        classes = kind;
      }
      text += char;
    }
  });
  end();
  return made;
}

const remark = (text) => el("p", { class: "meta hidden-note" }, text);
const hiddenNote = (hidden) =>
  remark(`${count(hidden)} overwritten or erased ${hidden === 1 ? "character is" : "characters are"} not shown, as on a terminal: see "raw texts".`);
