// The app: it shows the view that the address names, handles keys, and updates during runs.
import { byId, el, fill, visible, button } from "./dom.js";
import { address, episodeAddress, place } from "./address.js";
import { FileSource, LiveSource } from "./source.js";
import { overview, progress } from "./overview.js";
import { EpisodeList, RunList, TaskList } from "./lists.js";
import { EpisodePage } from "./episode.js";
import { ComparePage, TaskPage } from "./compare.js";
import { shareDialog, themeButton } from "./share.js";

const VIEWS = { report: "Results", runs: "Runs", tasks: "Tasks", episodes: "Episodes", compare: "Compare" };
const OFTEN = 1000; // the minimum number of milliseconds between two updates of the view
const KEYS = [
  ["/", "search"],
  ["j, k or arrows", "the next and the previous row, or episode"],
  ["Enter", "opens a row's episode"],
  ["n, p, e", "an episode's next, previous, and next failed turn"],
  ["Esc", "leaves the search box, or the episode"],
  ["1 to 5", "the views"],
  ["?", "these keys"],
];

class Report {
  constructor(source) {
    this.source = source;
  }

  open() {
    this.root = el("div");
    return [this.root];
  }

  update() {
    if (this.drawn === this.source.report && (this.drawn || this.root.childElementCount)) return;
    const folds = [...this.root.querySelectorAll("details")].map((one) => one.open);
    this.drawn = this.source.report;
    fill(this.root, overview(this.source));
    this.root.querySelectorAll("details").forEach((one, number) => (one.open = folds[number] || false));
  }
}

class App {
  constructor(source) {
    this.source = source;
    const shown = { rows: source.rows, words: "", address: "" }; // the list of episodes in its last state
    this.shown = shown;
    this.views = {
      report: new Report(source),
      runs: new RunList(source),
      tasks: new TaskList(source),
      episodes: new EpisodeList(source, shown),
      compare: new ComparePage(source),
      episode: new EpisodePage(source, shown),
      task: new TaskPage(source),
    };
    source.onChange = () => this.changed();
    window.addEventListener("hashchange", () => this.show());
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("beforeprint", () => this.print(true));
    window.addEventListener("afterprint", () => this.print(false));
    const share = shareDialog();
    byId("main").previousElementSibling.before(this.help(), share.dialog);
    fill(byId("tools"), button("share", share.open), themeButton(), button("? keys", () => byId("keys").showModal(), { class: "keys" }));
    // The app would interpret the link's #main as an address of a view.
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault();
      byId("main").focus();
    });
  }

  show() {
    const { report, rows, runs } = this.source;
    // A saved episode is the first view of its page.
    if (!location.hash && report && report.single) location.replace(episodeAddress(runs[0], rows[0]));
    const { view } = place();
    if (view === "episodes") this.shown.address = location.hash;
    const open = Object.hasOwn(this.views, view) ? view : "report";
    if (open !== this.open) {
      this.left = this.open;
      this.open = open;
      fill(byId("main"), this.views[open].open());
      window.scrollTo(0, 0);
      const links = Object.entries(VIEWS).map(([name, title]) => el("a", { href: address(name), "aria-current": name === open ? "page" : null }, title));
      fill(byId("views"), links);
      this.views[open].look = this.views[open].drawn = undefined;
    }
    document.title = visible([place().asked.get("id"), this.source.report && this.source.report.title].filter(Boolean).join(" · ") || "runs");
    this.update();
  }

  async update() {
    try {
      await this.views[this.open].update();
      fill(byId("live"), this.source.live ? `${this.source.live} · ${progress(this.source)}` : "");
    } catch (error) {
      fill(byId("live"), `the view cannot be shown: ${error.message}`);
      throw error;
    }
  }

  // Changes of the data come in quick succession: several of them share an update of the view.
  changed() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      this.show();
    }, this.open ? OFTEN : 0);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const search = byId("words");
    if (event.target.matches("input[type=search]")) {
      if (event.key === "Escape") event.target.blur();
      else if (event.key === "ArrowDown") this.views[this.open].grid.focus(0);
      return;
    }
    if (event.target.matches("select, input, textarea")) return;
    const episode = this.views.episode;
    if (event.key === "/") {
      event.preventDefault();
      if (!search) {
        location.hash = this.shown.address || "#episodes";
        setTimeout(() => byId("words").focus(), 50);
      } else search.focus();
    } else if (event.key === "?") byId("keys").showModal();
    else if (/^[1-5]$/.test(event.key)) location.hash = address(Object.keys(VIEWS)[Number(event.key) - 1]);
    else if (event.key === "Escape" && ["episode", "task"].includes(this.open)) location.hash = this.open === "task" ? "#tasks" : this.shown.address || "#episodes";
    else if (this.open === "episode") {
      episode.key(event.key);
    } else if (["j", "k"].includes(event.key) && this.views[this.open].grid && !this.views[this.open].grid.root.contains(event.target)) {
      this.views[this.open].grid.focus(0);
    }
  }

  help() {
    const rows = KEYS.map(([key, does]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, does)));
    const close = button("close", () => byId("keys").close());
    return el("dialog", { id: "keys", "aria-label": "keys" }, el("h2", {}, "Keys"), el("dl", {}, rows), close);
  }

  print(begins) {
    const grid = this.views[this.open].grid;
    if (grid) {
      grid.all = begins && grid.rows.length <= 2000;
      grid.drawn = "";
      grid.draw();
    }
    if (!begins) return;
    for (const folds of document.querySelectorAll("main details")) folds.dispatchEvent(new Event("unfold"));
    for (const folds of document.querySelectorAll("main details")) folds.open = true;
  }
}

const isLive = byId("report").textContent === "null";
const source = isLive ? new LiveSource() : new FileSource();
const app = new App(source);
source.start().catch((error) => fill(byId("main"), el("p", { class: "warning" }, `The page cannot be shown: ${error.message}; a newer browser may be needed.`)));
if (isLive) app.show();
