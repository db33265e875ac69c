// Sort the rows of a table by a column when its head is clicked, or entered on the keyboard.

/** Return the number that a cell shows, or its text. */
function valueOf(cell) {
  const data = cell.querySelector("data");
  const text = data ? data.title.split(" = ")[0] : cell.textContent.trim();
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

/** Compare two values: numbers by size, texts by the alphabet, and what is missing last in both directions. */
function compare(one, other, direction) {
  if (one === "" || other === "") return (one === "") - (other === "");
  if (typeof one === "number" && typeof other === "number") return direction * (one - other);
  return direction * String(one).localeCompare(String(other), undefined, { numeric: true });
}

/** Sort a table by the column of a head; again, in the other direction. */
function sort(head) {
  const ascending = head.getAttribute("aria-sort") !== "ascending";
  for (const each of head.parentElement.children) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const [body] = head.closest("table").tBodies, column = head.cellIndex;
  const keyed = [...body.rows].map((row) => [valueOf(row.cells[column]), row]);
  body.append(...keyed.sort(([one], [other]) => compare(one, other, ascending ? 1 : -1)).map(([, row]) => row));
}

/** Turn the heads of sortable tables below an element into buttons. */
export function makeSortable(root) {
  for (const head of root.querySelectorAll("table.sortable thead th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(head));
    head.replaceChildren(button);
  }
}
