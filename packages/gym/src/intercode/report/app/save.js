// Saving of an episode as a separate file: a copy of this page with the data of that episode only.
import { visible } from "./dom.js";

// The page before the app changes it.
const PRISTINE = document.documentElement.cloneNode(true);

async function packedAs(id, data) {
  const stream = new Blob([JSON.stringify(data)]).stream().pipeThrough(new CompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return script("text/plain", id, btoa(text));
}

function script(type, id, text) {
  const made = document.createElement("script");
  Object.assign(made, { type, id, textContent: text });
  return made;
}

export async function save(source, row) {
  const run = source.runs[row.run];
  const body = await source.body(row);
  const page = PRISTINE.cloneNode(true);
  for (const old of page.querySelectorAll('script[type="text/plain"], script[type="application/json"]')) old.remove();
  const policy = page.querySelector('meta[http-equiv="Content-Security-Policy"]');
  policy.content = policy.content.replace(/connect-src [^;]*; /, "");
  page.querySelector('meta[name="machine"]').content = "";
  page.querySelector("title").textContent = visible(`${row.task} · ${run.label}`);
  const { at, state, ...columns } = { ...row, run: 0 };
  for (const name of Object.keys(columns)) columns[name] = [columns[name]];
  const report = source.report ? { facts: source.report.facts, runs: source.report.runs.filter((one) => one.name === run.name) } : { facts: {}, runs: [run] };
  const data = { title: `${row.task}: ${run.label}`, warnings: [], verdicts: [], sections: [], details: [], curves: [], pairs: [], single: true, ...report };
  const json = JSON.stringify(data).replace(/[<>&]/g, (char) => "\\u" + char.charCodeAt(0).toString(16).padStart(4, "0"));
  const app = page.querySelector('script[type="module"]');
  app.before(script("application/json", "report", json), await packedAs("index", { at: [0], chunk: 1, columns }), await packedAs("chunk-0", [body]));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(["<!DOCTYPE html>\n" + page.outerHTML], { type: "text/html" }));
  link.download = `${row.task}-${run.name}`.replace(/[^\w.-]+/g, "_") + ".html";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
