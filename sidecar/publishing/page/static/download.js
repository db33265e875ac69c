// Save what a card shows: its points as CSV and JSON, and its picture as SVG and PNG; and tables as CSV.
// Nothing leaves the browser.

import { printable, shortened } from "./chart.js";

const SPACE = "http://www.w3.org/2000/svg";
const FORMULA = /^[=+\-@\t\r]/; // a spreadsheet would take such a text for one
const LINE = 18; // pixels of a line of text above the plot
const SCALE = 2; // of a PNG, so that it is sharp in print
const KINDS = { csv: "text/csv", json: "application/json", svg: "image/svg+xml", png: "image/png" };

/** Return the points of all curves as CSV: one line for each, with all digits and with the exact bits. */
export function csvOf(lines, metric) {
  const heads = ["run", "eval_set", "metric", "step", "plan", "checkpoint", "completed_at", "value", "hex", "lower", "upper", "examples"];
  const rows = lines.flatMap(({ run, set, curve }) => curve.plans.map((plan, place) => [
    named(run), named(set), named(metric), curve.steps[place], plan, named(curve.checkpoints[place]), curve.completed_at[place],
    curve.values[place], curve.hex[place], curve.lower[place], curve.upper[place], curve.examples[place],
  ]));
  return csvLines([heads, ...rows]);
}

/** Return a text that a spreadsheet does not take for a formula. */
function named(name) {
  return FORMULA.test(name ?? "") ? `'${name}` : name;
}

/** Return rows of values as lines of CSV. */
function csvLines(rows) {
  const cell = (value) => (/[",\r\n]/.test(value ?? "") ? `"${value.replaceAll('"', '""')}"` : value ?? "");
  return rows.map((row) => row.map(cell).join(",") + "\n").join("");
}

/** Return a table as CSV, with all digits. A column with intervals becomes several. */
export function csvOfTable(table) {
  const numbersOf = (cell) => [...cell.querySelectorAll("data")].map((data) => (data.title || data.value).split(" = ")[0]);
  const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => {
    const numbers = numbersOf(cell);
    return numbers.length ? numbers : [named(cell.textContent.trim())];
  }));
  const heads = [...table.tHead.rows[0].cells].map((head, place) => {
    const name = named(head.textContent.trim()), count = Math.max(1, ...rows.map((row) => row[place].length));
    return [[name], [name], [`${name} lower`, `${name} upper`], [name, `${name} lower`, `${name} upper`]][count];
  });
  return csvLines([heads.flat(), ...rows.map((row) => row.flatMap((cell, place) => heads[place].map((_, part) => cell[part])))]);
}

/** Add a button below each table of an evaluation or comparison that saves it. */
export function offerTables(root) {
  for (const table of root.querySelectorAll("#details table")) {
    const scroll = table.parentElement, above = scroll.previousElementSibling, button = document.createElement("button");
    const title = above?.matches("h3") ? above.textContent : table.caption.textContent;
    button.type = "button";
    button.textContent = "CSV";
    button.setAttribute("aria-label", `CSV: ${title}`);
    button.addEventListener("click", () => saveFile(`${document.querySelector("#details :is(h1, h2)").textContent} ${title}`, "csv", csvOfTable(table)));
    const menu = document.createElement("p");
    menu.className = "downloads";
    menu.append("Save as ", button);
    scroll.append(menu);
  }
}

/** Return an element of a picture. */
function drawn(name, attributes, text = "") {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

/** Return the runs of neighbouring points with numbers; a point of another stretch begins a new one. */
function pieces(points) {
  const found = [];
  let before = null;
  for (const point of points) {
    if (point.ys.some((y) => !Number.isFinite(y))) {
      before = null;
      continue;
    }
    if (before === null || before.stretch !== point.stretch) found.push([]);
    found.at(-1).push(point);
    before = point;
  }
  return found;
}

/** Return the path through the points of a piece; `which`: of the numbers of a point. */
function path(piece, which = 0) {
  return piece.map(({ x, ys }, place) => `${place ? "L" : "M"}${x.toFixed(2)} ${ys[which].toFixed(2)}`).join("");
}

/** Return the picture of a chart with its title and the names of its curves, as it is drawn now. */
export function svgOf(chart, title) {
  const { uplot, lines, columns } = chart, ratio = devicePixelRatio;
  const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  const top = LINE * (1 + lines.length) + 8, { width } = uplot, height = uplot.height + top;
  const [left, up, wide, high] = ["left", "top", "width", "height"].map((end) => uplot.bbox[end] / ratio);
  const root = drawn("svg", { xmlns: SPACE, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "system-ui, sans-serif", "font-size": 12 });
  root.append(drawn("title", {}, title), drawn("rect", { width, height, fill: colour("--card") }));
  root.append(drawn("text", { x: 12, y: LINE, fill: colour("--text"), "font-size": 15, "font-weight": 650 }, title));
  const clip = drawn("clipPath", { id: "plot" }), all = drawn("g", { transform: `translate(0 ${top})` });
  clip.append(drawn("rect", { x: left, y: up - 6, width: wide + 6, height: high + 12 }));
  const plot = drawn("g", { "clip-path": "url(#plot)" });
  root.append(all);
  all.append(clip);
  uplot.axes.forEach((axis, number) => {
    const across = number === 0;
    (axis._splits ?? []).forEach((split, place) => {
      const at = split === null ? NaN : uplot.valToPos(split, across ? "x" : "y") + (across ? left : up);
      if (!Number.isFinite(at)) return;
      const ends = across ? { x1: at, x2: at, y1: up, y2: up + high } : { x1: left, x2: left + wide, y1: at, y2: at };
      const label = across ? { x: at, y: up + high + 16, "text-anchor": "middle" } : { x: left - 8, y: at + 4, "text-anchor": "end" };
      all.append(drawn("line", { ...ends, stroke: colour("--grid") }), drawn("text", { ...label, fill: colour("--soft") }, axis._values[place] ?? ""));
    });
  });
  all.append(drawn("text", { x: left + wide / 2, y: uplot.height - 2, "text-anchor": "middle", fill: colour("--soft") }, uplot.axes[0].label), plot);
  lines.forEach((line, number) => {
    const { curve } = line, { stroke, dash } = chart.strokes(line);
    const pointsOf = (...of) => columns.filter(({ places }) => places[number] !== undefined).map(({ x, places }) => {
      const ys = of.map((column) => column[places[number]]).map((value) => (value === null || (chart.view.log && value <= 0) ? NaN : uplot.valToPos(value, "y") + up));
      return { x: uplot.valToPos(x, "x") + left, ys, stretch: curve.stretches[places[number]] };
    });
    for (const piece of pieces(pointsOf(curve.upper, curve.lower))) {
      const back = [...piece].reverse();
      plot.append(drawn("path", { d: `${path(piece)}${path(back, 1).replace("M", "L")}Z`, fill: stroke, "fill-opacity": 0.22 }));
    }
    for (const [column, thick] of curve.smoothed === null ? [[curve.values, 2]] : [[curve.values, 1], [curve.smoothed, 2]]) {
      for (const piece of pieces(pointsOf(column))) {
        plot.append(drawn("path", { d: path(piece), fill: "none", stroke, "stroke-width": thick, "stroke-dasharray": dash.join(" ") }));
        if (piece.length === 1) plot.append(drawn("circle", { cx: piece[0].x, cy: piece[0].ys[0], r: 2.5, fill: stroke }));
      }
    }
    const best = curve.plans.indexOf(curve.best), y = best < 0 || curve.values[best] === null ? NaN : uplot.valToPos(curve.values[best], "y") + up;
    if (Number.isFinite(y)) plot.append(drawn("circle", { cx: uplot.valToPos(chart.xOf(number, best), "x") + left, cy: y, r: 5, fill: "none", stroke: colour("--best"), "stroke-width": 2.5 }));
    const at = LINE * (2 + number), newest = curve.values[curve.plans.indexOf(curve.newest)];
    root.append(drawn("line", { x1: 12, x2: 36, y1: at - 4, y2: at - 4, stroke, "stroke-width": 3, "stroke-dasharray": dash.join(" ") }));
    root.append(drawn("text", { x: 42, y: at, fill: colour("--text") }, `${printable(line.name)}${Number.isFinite(newest) ? ` ${shortened(newest)}` : ""}`));
  });
  return new XMLSerializer().serializeToString(root);
}

/** Return a picture in pixels. */
async function pngOf(svg) {
  const image = new Image();
  image.src = `data:${KINDS.svg};charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [SCALE * image.width, SCALE * image.height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => { canvas.toBlob(resolve, KINDS.png); });
}

/** Return a menu that saves a card. `card()` returns its `title`, `metric`, `chart`, and `lines` as /api/curve gives them. */
export function downloads(card) {
  const menu = document.createElement("p");
  menu.className = "downloads";
  menu.append("Save as ");
  Object.keys(KINDS).forEach((kind, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = kind.toUpperCase();
    button.addEventListener("click", () => save(kind, card()));
    menu.append(place ? " · " : "", button);
  });
  return menu;
}

/** Save a card as a file. */
async function save(kind, { title, metric, chart, lines }) {
  if (!lines) return;
  const make = {
    csv: () => csvOf(lines, metric),
    json: () => `${JSON.stringify(lines.map(({ run, set, curve }) => ({ run, set, metric, ...curve })), null, 1)}\n`,
    svg: () => svgOf(chart, title),
    png: () => pngOf(svgOf(chart, title)),
  };
  saveFile(title, kind, await make[kind]());
}

/** Save a file of a kind under a title. */
function saveFile(title, kind, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: KINDS[kind] }));
  link.download = `${title.replace(/[^\p{L}\p{N}._-]+/gu, "-")}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
