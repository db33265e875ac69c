// Draw the curves of one metric with uPlot, one for each eval set: value, smoothed value, 95 % interval as a band, best
// point as a ring. Dragging selects a range of the axis, which `view` gives to all charts, as the cursor.

import { ago } from "./times.js";

const HEIGHT = 206;
const LEAST_AXIS = 56; // pixels, so that curves are equally wide as long as their labels are short
const RING = 5; // radius of the mark of the best point, in CSS pixels
export const COLOURS = 6; // of the style sheet, for eval sets
export const FAINT = 0.75; // share of its colour in a curve under its smoothed one: a contrast of at least 3:1 is left
const DASHES = [[], [8, 4], [2, 3]]; // of the eval sets of several runs
const BAND = "38"; // opacity of an interval, in hexadecimal digits
const LEAST_DRAG = 6; // CSS pixels; less is a click
const DOUBLE_CLICK = 300; // milliseconds
const LEAST_ROBUST = 10; // values; fewer are always shown all
const LEAST_SPAN = 1e-9; // of an axis of values, as a share of them; less is rounding
const NARROW = 1e-6; // span of an axis, of which uPlot itself would leave nothing: it rounds the ends to nine decimals
const DAY = 86400;

/** Return a colour of the style sheet. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Return the colour of an eval set, by its place among all. */
function colourOf(place) {
  return colour(`--set-${place % COLOURS}`);
}

/** Return a mixture of two colours like `#0072b2`: `share` of the first one. */
export function mixed(one, other, share) {
  const part = (from, at) => parseInt(from.slice(at, at + 2), 16);
  const parts = [1, 3, 5].map((at) => Math.round(share * part(one, at) + (1 - share) * part(other, at)));
  return `#${parts.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/** Return a number with five significant digits, as all other parts of the program write it. */
export function shortened(value, most = 5) {
  const [digits, exponent] = value.toExponential(most - 1).split("e");
  if (Number(exponent) >= -4 && Number(exponent) < most) return Number(value.toPrecision(most)).toString();
  const size = String(Math.abs(Number(exponent))).padStart(2, "0");
  return `${digits.replace(/\.?0+$/, "")}e${exponent[0]}${size}`;
}

/** Return the labels of an axis with as many digits as tell them apart; null has none. */
export function axisLabels(splits) {
  const known = splits.filter((value) => value !== null);
  let digits = 5;
  while (digits < 17 && new Set(known.map((value) => shortened(value, digits))).size < known.length) digits += 1;
  return splits.map((value) => (value === null ? null : shortened(value, digits)));
}

/** Return the pixels that labels need next to the axis of values. */
function axisSize(labels) {
  return Math.max(LEAST_AXIS, 18 + 7 * Math.max(0, ...(labels ?? []).map((label) => label?.length ?? 0)));
}

/** Return a step for an axis: 12k, 3.5M. */
function shortStep(step) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(step) >= size && step % (size / 10) === 0) return `${step / size}${unit}`;
  }
  return String(step);
}

/** Return the place of each point of a curve on the axis: its step or epoch, its time in seconds, or its number in order. */
function positions(curve, { axis, epoch }) {
  if (axis === "time") return curve.completed_at.map((time) => Date.parse(time) / 1000);
  if (axis === "epoch") return curve.x.map((step) => step / epoch);
  return axis === "order" ? curve.plans : curve.x;
}

/** Return the columns of several curves below each other: `x`, and for each curve the place of its point there, if any.
 *  Points of one curve at the same x keep a column each. */
export function aligned(curves, view) {
  const columns = new Map();
  curves.forEach((curve, number) => {
    const counts = new Map();
    positions(curve, view).forEach((x, place) => {
      const count = counts.get(x) ?? 0;
      counts.set(x, count + 1);
      const key = `${x} ${count}`;
      if (!columns.has(key)) columns.set(key, { x, count, places: new Array(curves.length) });
      columns.get(key).places[number] = place;
    });
  });
  return [...columns.values()].sort((one, other) => one.x - other.x || one.count - other.count);
}

/** Return the range of an axis of values that shows most of them well: 90 % of the values take at least a third of it.
 *  `bounds`: ends of intervals, which are shown as far as this leaves room. */
export function robustRange(values, bounds) {
  const sorted = [...values].sort((one, other) => one - other);
  const all = [...sorted, ...bounds];
  const least = all.reduce((one, other) => Math.min(one, other), Infinity);
  const most = all.reduce((one, other) => Math.max(one, other), -Infinity);
  if (sorted.length < LEAST_ROBUST) return [least, most];
  const quantile = (share) => sorted[Math.round(share * (sorted.length - 1))];
  const [low, high] = [quantile(0.05), quantile(0.95)];
  if (high - low <= LEAST_SPAN * Math.max(Math.abs(low), Math.abs(high))) return [least, most];
  return [Math.max(least, low - (high - low)), Math.min(most, high + (high - low))];
}

/** Return the range of an axis for values that differ little. */
function narrowRange(from, to) {
  const size = Math.max(Math.abs(from), Math.abs(to)), middle = (from + to) / 2;
  const half = 0.6 * (from === to ? size : Math.max(to - from, LEAST_SPAN * size));
  return [from < 0 ? middle - half : Math.max(0, middle - half), middle + half];
}

/** A chart of the curves of one metric. `choose({ base, plan })` is called when a point is clicked or entered, `drew()` after each
 *  drawing; `view` says how to draw: `log`, `all` (values), `axis`, `range` (of the axis, or null), and `zoom(range)` shows another range. */
export class Chart {
  constructor(plot, readout, view, choose, drew) {
    this.plot = plot;
    this.readout = readout;
    this.view = view;
    this.choose = choose;
    this.drew = drew;
    this.lines = []; // { name, place, dash, base, curve }: `place` gives the colour, `dash` the pattern
    this.columns = [];
    this.uplot = null;
    this.drawn = ""; // how it was drawn
    this.at = null; // the column under the cursor
    this.outside = 0; // values that are not in the range of the axis
    plot.addEventListener("keydown", (event) => this.pressed(event));
    plot.addEventListener("blur", () => this.point(null));
    new ResizeObserver(() => this.resize()).observe(plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Show curves as /api/curve gives them. */
  show(lines) {
    this.lines = lines;
    this.columns = aligned(lines.map((line) => line.curve), this.view);
    const how = JSON.stringify([this.view.log, this.view.axis, lines.map((line) => [line.name, line.curve.smoothed === null])]);
    if (this.uplot && this.drawn === how) this.fit();
    else this.draw();
    this.drawn = how;
  }

  /** Draw the same curves in the range that the view has now. */
  fit() {
    this.uplot?.setData(this.data());
    this.point(null);
  }

  /** Return the columns that uPlot draws. On a log scale only positive numbers have a place. */
  data() {
    const drawn = this.lines.flatMap(({ curve }, number) => {
      const { values, lower, upper, smoothed } = curve;
      const columns = [upper, this.view.log ? this.floored(curve) : lower, values, ...(smoothed ? [smoothed] : [])];
      const isDrawn = (value) => value === undefined || !this.view.log || value > 0;
      return columns.map((column) => this.columns.map(({ places }) => {
        const value = places[number] === undefined ? undefined : column[places[number]];
        return isDrawn(value) ? value : null;
      }));
    });
    return [this.columns.map(({ x }) => x), ...drawn];
  }

  /** Return the lower ends of intervals, which end at the least positive number on a log scale. */
  floored({ values, lower, upper }) {
    const least = [...values, ...upper].filter((value) => value > 0).reduce((one, other) => Math.min(one, other), Infinity);
    return lower.map((value) => (value === null ? null : Math.max(value, least)));
  }

  /** Return the least and the greatest value of the axis of values, for the points in a range of the other axis. */
  range(uplot, low, high) {
    const { log } = this.view, [min, max] = this.view.range ?? [-Infinity, Infinity];
    const scaled = (value) => (log ? Math.log10(value) : value);
    const seen = (column) => column.filter((value, place) => Number.isFinite(value) && uplot.data[0][place] >= min && uplot.data[0][place] <= max);
    const parts = uplot.series.map((series, place) => ({ part: series.part, column: uplot.data[place] })).slice(1);
    const values = parts.filter(({ part }) => part === "value").flatMap(({ column }) => seen(column)).map(scaled);
    const bounds = parts.filter(({ part }) => part === "bound").flatMap(({ column }) => seen(column)).map(scaled);
    this.outside = 0;
    let [from, to] = [low, high];
    if (!this.view.all && values.length) {
      [from, to] = robustRange(values, bounds);
      this.outside = values.filter((value) => value < from || value > to).length;
      if (log) [from, to] = [10 ** from, 10 ** to];
    }
    if (from === null || to === null) return [from, to];
    if (log) return uPlot.rangeLog(from, to, 10, true);
    return to - from < NARROW && (from || to) ? narrowRange(from, to) : uPlot.rangeNum(from, to, 0.1, true);
  }

  /** Return where a line has a gap: before a point that cannot be compared with the one before it. */
  gaps(number, uplot, found) {
    const { stretches } = this.lines[number].curve;
    const broken = [];
    let before = null;
    this.columns.forEach(({ x, places }) => {
      const place = places[number];
      if (place === undefined) return;
      if (before && stretches[before.place] !== stretches[place]) {
        broken.push([uplot.valToPos(before.x, "x", true), uplot.valToPos(x, "x", true)]);
      }
      before = { x, place };
    });
    return [...found, ...broken].sort((one, other) => one[0] - other[0]);
  }

  /** Return the colour and the pattern of a line. */
  strokes({ place, dash }) {
    return { stroke: colourOf(place), dash: DASHES[dash % DASHES.length] };
  }

  /** Return the series of one line, in the order of `data`. */
  series({ place, dash: pattern, curve }, number) {
    const { stroke: line, dash } = this.strokes({ place, dash: pattern });
    const gaps = (uplot, _series, _from, _to, found) => this.gaps(number, uplot, found);
    const smooth = curve.smoothed !== null, few = this.columns.length <= 60;
    const stroke = smooth ? mixed(line, colour("--card"), FAINT) : line;
    const bound = { part: "bound", stroke: "transparent", points: { show: false }, gaps };
    return [
      bound,
      bound,
      { part: "value", stroke, width: smooth ? 1 : 2, dash, points: { show: few && !smooth, size: 5, fill: line }, gaps },
      ...(smooth ? [{ part: "smoothed", stroke: line, width: 2, dash, points: { show: false }, gaps }] : []),
    ].map((each) => ({ ...each }));
  }

  /** Return how the axis of the points is labelled. */
  axisOfPoints(axis) {
    const ordered = this.lines.some(({ curve }) => curve.labels.some((label) => label.startsWith("#"))); // not all steps are known
    const label = { time: "time", order: "evaluation", epoch: "epoch" }[this.view.axis] ?? (ordered ? "order" : "step");
    const words = (time, gap) => new Date(1000 * time).toLocaleString([], gap >= DAY ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit" });
    const values = this.view.axis === "time"
      ? (_uplot, splits, _axis, _space, gap) => splits.map((time) => words(time, gap))
      : (_uplot, splits) => splits.map((step) => (Number.isInteger(step) ? shortStep(step) : this.view.axis === "epoch" ? shortened(step) : ""));
    return { ...axis, label, labelFont: axis.font, labelSize: 16, labelGap: -2, size: 26, space: 56, values };
  }

  /** Draw the chart anew, for example in other colours. */
  draw() {
    if (!this.lines.length) return;
    this.uplot?.destroy();
    const text = colour("--soft"), grid = colour("--grid");
    const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 4 }, font: "12px system-ui, sans-serif" };
    const series = this.lines.flatMap((line, number) => this.series(line, number));
    const per = series.length / this.lines.length;
    const options = {
      width: this.width(),
      height: HEIGHT,
      series: [{}, ...series],
      bands: this.lines.map((line, number) => {
        const at = 1 + number * per;
        return { series: [at, at + 1], fill: `${colourOf(line.place)}${BAND}` };
      }),
      legend: { show: false },
      padding: [10, 14, 0, 0],
      scales: {
        x: { time: this.view.axis === "time", range: (_, low, high) => this.view.range ?? (low === high ? [low - 1, high + 1] : [low, high]) },
        y: { distr: this.view.log ? 3 : 1, range: (uplot, low, high) => this.range(uplot, low, high) },
      },
      axes: [this.axisOfPoints(axis), { ...axis, size: (_, labels) => axisSize(labels), values: (_, splits) => axisLabels(splits) }],
      cursor: {
        drag: { x: true, y: false, setScale: false, dist: LEAST_DRAG },
        bind: { dblclick: () => null },
        sync: { key: "sidecar", scales: ["x", null], filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        y: false,
        points: { size: 8 },
        dataIdx: (uplot, place, nearest) => (place && uplot.series[place].part === "bound" ? null : nearest),
      },
      hooks: {
        draw: [() => { this.mark(); this.drew(); }],
        setCursor: [(uplot) => this.hover(uplot)],
        setSelect: [(uplot) => this.selected(uplot)],
      },
    };
    this.plot.replaceChildren();
    this.uplot = new uPlot(options, this.data(), this.plot);
    this.listen(this.uplot.over);
    this.point(null);
  }

  /** Take clicks on points. The end of a drag is none, and where a range is shown, a second click shows all points. */
  listen(over) {
    let from = 0, timer = null;
    over.addEventListener("mousedown", (event) => { from = event.clientX; });
    over.addEventListener("click", (event) => {
      clearTimeout(timer);
      if (Math.abs(event.clientX - from) >= LEAST_DRAG || this.at === null || event.detail > 1) return;
      const point = this.pointAt(this.at);
      if (this.view.range === null) this.choose(point);
      else timer = setTimeout(() => this.choose(point), DOUBLE_CLICK);
    });
    over.addEventListener("dblclick", () => this.view.zoom(null));
    over.addEventListener("mouseleave", () => this.point(null));
  }

  /** Show the range that was selected by dragging. */
  selected(uplot) {
    const { left, width } = uplot.select;
    if (width < LEAST_DRAG) return;
    const range = [left, left + width].map((at) => uplot.posToVal(at, "x"));
    uplot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.view.zoom(range);
  }

  /** Return the plan of a column, and the address of its run. */
  pointAt(column) {
    const { places } = this.columns[column];
    const number = places.findIndex((place) => place !== undefined), { base, curve } = this.lines[number];
    return { base, plan: curve.plans[places[number]] };
  }

  /** Return the width in CSS pixels that the card offers. */
  width() {
    return Math.max(200, Math.floor(this.plot.clientWidth));
  }

  /** Fit the chart into its card. */
  resize() {
    if (this.uplot && this.uplot.width !== this.width()) this.uplot.setSize({ width: this.width(), height: HEIGHT });
  }

  /** Draw what uPlot does not: the interval of a single point, and a ring around the best point of each curve. */
  mark() {
    this.lines.forEach((line, number) => {
      if (line.curve.x.length === 1) this.markInterval(line, number);
      this.markBest(line, number);
    });
  }

  /** Return the x of a point of a curve. */
  xOf(number, place) {
    return this.columns.find(({ places }) => places[number] === place)?.x;
  }

  /** Draw the interval of a single point as a bar, since a band needs two. */
  markInterval({ place, curve }, number) {
    if (curve.upper[0] === null || curve.lower[0] === null) return;
    const { ctx } = this.uplot, left = this.uplot.valToPos(this.xOf(number, 0), "x", true), width = 8 * devicePixelRatio;
    const [top, bottom] = [curve.upper[0], curve.lower[0]].map((value) => this.uplot.valToPos(value, "y", true));
    ctx.save();
    ctx.fillStyle = `${colourOf(place)}${BAND}`;
    ctx.fillRect(left - width / 2, top, width, bottom - top);
    ctx.restore();
  }

  /** Draw a ring around the best point of a curve, unless it is out of sight. */
  markBest({ curve }, number) {
    const place = curve.plans.indexOf(curve.best);
    const value = place < 0 ? null : curve.values[place];
    if (value === null || (this.view.log && value <= 0)) return;
    const { ctx, scales } = this.uplot, ratio = devicePixelRatio, x = this.xOf(number, place);
    if (x < scales.x.min || x > scales.x.max || value < scales.y.min || value > scales.y.max) return;
    ctx.save();
    ctx.beginPath();
    ctx.arc(this.uplot.valToPos(x, "x", true), this.uplot.valToPos(value, "y", true), RING * ratio, 0, 2 * Math.PI);
    ctx.lineWidth = 2.5 * ratio;
    ctx.strokeStyle = colour("--best");
    ctx.stroke();
    ctx.restore();
  }

  /** Note the point under the mouse, on this chart or on another one. */
  hover(uplot) {
    const place = uplot.cursor.idx;
    if (uplot.cursor.left < 0) this.rest();
    else if (place !== null && place !== undefined) this.tell(place);
  }

  /** Choose a point by the keyboard: arrows, Home, End; Enter shows its evaluation; plus, minus and zero zoom. */
  pressed(event) {
    const last = this.columns.length - 1;
    if (last < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.at ?? last + 1; // the first arrow to the left chooses the newest point
    const moves = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, Home: 0, End: last };
    const zooms = { "+": 0.5, "=": 0.5, "-": 2 };
    if (event.key in moves) this.point(Math.min(last, Math.max(0, moves[event.key])));
    else if (event.key === "Enter" && this.at !== null) this.choose(this.pointAt(this.at));
    else if (event.key in zooms) this.zoomed(zooms[event.key]);
    else if (event.key === "0") this.view.zoom(null);
    else return;
    event.preventDefault();
  }

  /** Show a part of the range, or more than it, around the chosen point. */
  zoomed(share) {
    const { min, max } = this.uplot.scales.x, [first, last] = [this.columns[0].x, this.columns.at(-1).x];
    const chosen = this.at, middle = chosen === null ? (min + max) / 2 : this.columns[chosen].x;
    const range = [middle - share * (middle - min), middle + share * (max - middle)];
    this.view.zoom(range[0] <= first && range[1] >= last ? null : range);
    if (chosen !== null) this.point(chosen);
  }

  /** Put the cursor on a point of this chart and of all others; null shows the newest one without a cursor. */
  point(place) {
    if (!this.columns.length) return;
    if (place === null) {
      this.uplot?.setCursor({ left: -10, top: -10 }, false);
      this.rest();
      return;
    }
    const { x } = this.columns[place], { range } = this.view;
    if (range && (x < range[0] || x > range[1])) { // the range moves with the point
      const shift = x < range[0] ? x - range[0] : x - range[1];
      this.view.zoom(range.map((end) => end + shift));
    }
    this.uplot.setCursor({ left: this.uplot.valToPos(x, "x"), top: 10 }, false, true);
    this.tell(place);
  }

  /** Tell about the newest point. */
  rest() {
    if (!this.columns.length) return;
    this.at = null;
    const newest = Math.max(...this.lines.map(({ curve }) => curve.newest));
    const place = this.columns.findIndex(({ places }) => this.lines.some(({ curve }, number) => curve.plans[places[number]] === newest));
    this.write(Math.max(place, 0), "newest: ");
  }

  /** Tell about a point. */
  tell(place) {
    if (place >= this.columns.length) return;
    this.at = place;
    this.write(place, "");
  }

  /** Write a point below the title: for each eval set value, interval and examples; then step, checkpoint, time. */
  write(place, lead) {
    const { places } = this.columns[place];
    const known = this.lines.map((line, number) => ({ ...line, at: places[number] })).filter(({ at }) => at !== undefined);
    if (!known.length) return;
    const numbers = known.map((line) => this.reading(line, known.length > 1 || this.lines.length > 1));
    const { curve: { labels, checkpoints, completed_at: times }, at } = known[0];
    const step = labels[at] ? `step ${labels[at]}` : "no step";
    const where = `${step} · ${printable(checkpoints[at])} · `;
    const time = document.createElement("time");
    time.dateTime = times[at];
    time.textContent = ago(times[at]);
    time.title = new Date(times[at]).toLocaleString();
    const about = document.createElement("span");
    about.append(lead, where, time);
    this.readout.replaceChildren(...numbers, about);
    this.readout.title = known.map(({ curve, at: point }) => `${curve.values[point] ?? curve.hex[point]} = ${curve.hex[point]}`).join("\n");
    this.plot.setAttribute("aria-valuenow", String(place + 1));
    this.plot.setAttribute("aria-valuemax", String(this.columns.length));
    this.plot.setAttribute("aria-valuetext", [...numbers.map((line) => line.textContent), `${where}${time.textContent}`].join(", "));
  }

  /** Return the line about one point of one curve. */
  reading({ name, place, curve, at }, several) {
    const { hex, values, lower, upper, examples } = curve;
    const strong = document.createElement("data");
    strong.value = hex[at];
    strong.textContent = values[at] === null ? hex[at] : shortened(values[at]);
    const bounds = lower[at] === null || upper[at] === null ? "" : `${shortened(lower[at])} to ${shortened(upper[at])}`;
    const counted = examples[at] === null ? "" : `${examples[at]} examples`;
    const about = [bounds, counted].filter(Boolean).join(" · ");
    const told = document.createElement("span");
    if (several) {
      const key = document.createElement("i");
      key.className = `key set-${place % COLOURS}`;
      told.append(key, `${printable(name)} `);
    }
    told.append(strong, about ? ` · ${about}` : "");
    return told;
  }
}

/** Return a text in which characters that control its direction or its lines are visible. */
export function printable(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (character) => `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`);
}
