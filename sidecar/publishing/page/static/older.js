// Add older evaluations to the table when the reader asks for them. The daemon renders their rows.

import { showTimes } from "./times.js";

const AGAIN = 500; // milliseconds until a journal that is being read is asked for again

/** Return the rows of a page whose columns are those of the table, and otherwise nothing. */
function rowsThatFit(newer, table) {
  const names = (from) => [...from.querySelectorAll("thead th")].map((head) => head.textContent).join("\n");
  const found = newer.getElementById("evaluations-rows");
  return found && names(found.closest("table")) === names(table.closest("table")) ? [...found.rows] : null;
}

/** Load the evaluations before a plan into the table, or open their page if it has other columns. */
async function add(link) {
  const response = await fetch(link.href, { cache: "no-store" });
  const newer = new DOMParser().parseFromString(await response.text(), "text/html");
  const table = document.getElementById("evaluations-rows");
  const rows = rowsThatFit(newer, table);
  if (rows === null) {
    if (newer.querySelector("main [role=status]")) setTimeout(() => add(link), AGAIN);
    else location.assign(link.href);
    return;
  }
  for (const row of rows) {
    if (document.getElementById(row.id)) continue;
    const added = document.importNode(row, true);
    added.dataset.older = "";
    table.append(added);
  }
  const next = newer.querySelector("#older a");
  const older = document.getElementById("older");
  older.dataset.own = ""; // from now on it leads behind these rows
  older.replaceChildren(...(next ? [document.importNode(next, true)] : []));
  showTimes(table);
}

/** Load older evaluations into the table when their link is followed. */
export function addOlderOnRequest() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-before]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    add(link).catch(() => location.assign(link.href));
  });
}
