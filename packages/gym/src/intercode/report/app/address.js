// The page's address: its fragment, #VIEW?NAME=VALUE&…, determines the view and all choices.

export function place() {
  const [view, query] = location.hash.replace(/^#/, "").split(/\?(.*)/s);
  return { view: view || "report", asked: new URLSearchParams(query || "") };
}

export function address(view, asked = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(asked)) if (value !== "" && value !== null && value !== undefined) query.append(name, value);
  const text = query.toString();
  return `#${view}${text ? "?" + text : ""}`;
}

// Changes a part of the address, without an entry in the browser's history.
export function change(parts) {
  const { view, asked } = place();
  location.replace(address(view, { ...Object.fromEntries(asked), ...parts }));
}

export const episodeAddress = (run, row, more = {}) => address("episode", { run: run.name, id: row.id, ...more });
