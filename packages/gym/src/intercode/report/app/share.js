// Tools for the whole page: sharing it with others, and the choice between light and dark colours.
import { byId, el, fill, button } from "./dom.js";

const MACHINE = document.querySelector('meta[name="machine"]').content; // empty in a saved page

// Returns the dialog that tells how another person can see this view.
export function shareDialog() {
  const [text, told] = [el("div"), el("span", { role: "status", class: "note" })];
  const dialog = el("dialog", { id: "share", "aria-labelledby": "share-title" }, el("h2", { id: "share-title" }, "Share this view"), text,
    el("p", { class: "links" }, button("close", () => dialog.close()), told));
  dialog.addEventListener("toggle", () => fill(told, ""));
  const copyable = (words) => el("p", { class: "copyable" }, el("code", {}, words), button("copy", async () => {
    await navigator.clipboard.writeText(words);
    fill(told, "copied");
  }));
  const fileName = () => decodeURIComponent(location.pathname.split("/").pop());
  const live = () => [
    el("p", {}, "To send it: a file with all episodes, which opens without a server. Add the end of the address to it, from #, to open this view."),
    el("p", {}, button("save the page", () => savePage((words) => fill(told, words)))),
    el("p", {}, "The address opens only on ", el("strong", {}, MACHINE), ", while intercode view runs there:"),
    copyable(location.href),
    el("p", {}, "From another machine, it opens through a tunnel:"),
    copyable(`ssh -N -L ${location.port}:127.0.0.1:${location.port} ${MACHINE}`),
  ];
  const saved = () => [
    el("p", {}, "This page is a file, which opens without a server. Send the file:"),
    copyable(fileName()),
    el("p", {}, "and the end of the address, which opens this view in it:"),
    copyable(location.hash || "#report"),
  ];
  return { dialog, open: () => (fill(text, MACHINE ? live() : saved()), dialog.showModal()) };
}

async function savePage(tell) {
  try {
    tell("the page is being written …");
    const answer = await fetch("saved");
    if (!answer.ok) throw new Error(await answer.text());
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = `intercode-${MACHINE}.html`.replace(/[^\w.-]+/g, "_");
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    tell("saved");
  } catch (error) {
    tell(`the page cannot be saved: ${error.message}`);
  }
}

const THEMES = ["system", "light", "dark"];

// Returns a button that goes from the system's colours to light and to dark ones.
export function themeButton() {
  const rules = [...document.styleSheets[0].cssRules].filter((rule) => rule instanceof CSSMediaRule && rule.conditionText.includes("prefers-color-scheme"));
  const made = button("", () => choose(THEMES[(THEMES.indexOf(made.dataset.theme) + 1) % THEMES.length]), { title: "colours of the page" });
  function choose(theme) {
    made.dataset.theme = theme;
    for (const rule of rules) rule.media.mediaText = { system: "(prefers-color-scheme: dark)", light: "not all", dark: "all" }[theme];
    document.documentElement.style.colorScheme = theme === "system" ? "" : theme;
    fill(made, `◐ ${theme}`);
    try {
      localStorage.setItem("theme", theme);
    } catch {
      // A file's page may have no storage: the choice then lasts as long as the page.
    }
  }
  let stored = "system";
  try {
    stored = localStorage.getItem("theme") || stored;
  } catch {
    // As above.
  }
  choose(THEMES.includes(stored) ? stored : "system");
  return made;
}
