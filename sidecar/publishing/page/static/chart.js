// Draw one curve with uPlot: value, smoothed value, 95 % interval as a band, best point as a ring.

import { ago } from "./times.js";

const HEIGHT = 206;
const LEAST_AXIS = 56; // pixels, so that curves are equally wide as long as their labels are short
const RING = 5; // radius of the mark of the best point, in CSS pixels

/** Return a colour of the style sheet. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
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

/** A chart of one curve. `choose(plan)` is called when a point is clicked or entered. */
export class Chart {
  constructor(plot, readout, choose) {
    this.plot = plot;
    this.readout = readout;
    this.choose = choose;
    this.curve = null;
    this.uplot = null;
    this.log = false;
    this.at = null; // the place of the point under the cursor
    plot.addEventListener("keydown", (event) => this.pressed(event));
    plot.addEventListener("blur", () => this.point(null));
    new ResizeObserver(() => this.resize()).observe(plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Show a curve as /api/curve gives it. */
  show(curve, log) {
    const same = this.uplot && this.log === log && (this.curve.smoothed === null) === (curve.smoothed === null);
    this.curve = curve;
    this.log = log;
    if (same) {
      this.uplot.setData(this.data());
      this.point(null);
    } else {
      this.draw();
    }
  }

  /** Return the columns that uPlot draws. On a log scale only positive numbers have a place. */
  data() {
    const { x, values, lower, upper, smoothed } = this.curve;
    if (!this.log) return [x, upper, lower, values, ...(smoothed ? [smoothed] : [])];
    const least = Math.min(...[...values, ...upper].filter((value) => value > 0));
    const positive = (column) => column.map((value) => (value > 0 ? value : null));
    const floor = lower.map((value) => (value === null ? null : Math.max(value, least)));
    return [x, positive(upper), floor, positive(values), ...(smoothed ? [positive(smoothed)] : [])];
  }

  /** Draw the chart anew, for example in other colours. */
  draw() {
    if (!this.curve) return;
    this.uplot?.destroy();
    const text = colour("--soft"), grid = colour("--grid"), line = colour("--curve"), band = colour("--band");
    const smooth = this.curve.smoothed !== null;
    const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 4 }, font: "12px system-ui, sans-serif" };
    const few = this.curve.x.length <= 60;
    const ordered = this.curve.labels.some((label) => label.startsWith("#")); // not all steps are known
    // The line has a gap before the first point that cannot be compared with the one before it.
    const gaps = (uplot, _series, _from, _to, found) => {
      const at = (place) => uplot.valToPos(this.curve.x[place], "x", true);
      const broken = this.curve.breaks.flatMap((isBroken, place) => (isBroken ? [[at(place - 1), at(place)]] : []));
      return [...found, ...broken].sort((one, other) => one[0] - other[0]);
    };
    const series = [
      {},
      { stroke: "transparent", points: { show: false }, gaps },
      { stroke: "transparent", points: { show: false }, gaps },
      { stroke: smooth ? colour("--faint") : line, width: smooth ? 1 : 2, points: { show: few && !smooth, size: 5, fill: line }, gaps },
      ...(smooth ? [{ stroke: line, width: 2, points: { show: false }, gaps }] : []),
    ];
    const options = {
      width: this.width(),
      height: HEIGHT,
      series,
      bands: [{ series: [1, 2], fill: band }],
      legend: { show: false },
      padding: [10, 14, 0, 0],
      scales: { x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) },
                y: { distr: this.log ? 3 : 1 } },
      axes: [
        { ...axis, label: ordered ? "order" : "step", labelFont: axis.font,
          labelSize: 16, labelGap: -2, size: 26, space: 56, values: (_, splits) => splits.map((step) => (Number.isInteger(step) ? shortStep(step) : "")) },
        { ...axis, size: (_, labels) => axisSize(labels), values: (_, splits) => axisLabels(splits) },
      ],
      cursor: { drag: { x: false, y: false }, y: false, points: { size: 8 },
                dataIdx: (uplot, place, nearest) => (place < 3 ? null : nearest) },
      hooks: { draw: [() => this.mark()], setCursor: [(uplot) => this.hover(uplot)] },
    };
    this.plot.replaceChildren();
    this.uplot = new uPlot(options, this.data(), this.plot);
    this.uplot.over.addEventListener("click", () => { if (this.at !== null) this.choose(this.curve.plans[this.at]); });
    this.uplot.over.addEventListener("mouseleave", () => this.point(null));
    this.point(null);
  }

  /** Return the width in CSS pixels that the card offers. */
  width() {
    return Math.max(200, Math.floor(this.plot.clientWidth));
  }

  /** Fit the chart into its card. */
  resize() {
    if (this.uplot && this.uplot.width !== this.width()) this.uplot.setSize({ width: this.width(), height: HEIGHT });
  }

  /** Draw what uPlot does not: the interval of a single point, and a ring around the best point. */
  mark() {
    if (this.curve.x.length === 1) this.markInterval();
    this.markBest();
  }

  /** Draw the interval of a single point as a bar, since a band needs two. */
  markInterval() {
    const [x, upper, lower] = this.uplot.data;
    if (upper[0] === null || lower[0] === null) return;
    const { ctx } = this.uplot, left = this.uplot.valToPos(x[0], "x", true), width = 8 * devicePixelRatio;
    const [top, bottom] = [upper[0], lower[0]].map((value) => this.uplot.valToPos(value, "y", true));
    ctx.save();
    ctx.fillStyle = colour("--band");
    ctx.fillRect(left - width / 2, top, width, bottom - top);
    ctx.restore();
  }

  /** Draw a ring around the best point. */
  markBest() {
    const place = this.curve.plans.indexOf(this.curve.best);
    const value = place < 0 ? null : this.curve.values[place];
    if (value === null || (this.log && value <= 0)) return;
    const { ctx } = this.uplot, ratio = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.arc(this.uplot.valToPos(this.curve.x[place], "x", true), this.uplot.valToPos(value, "y", true), RING * ratio, 0, 2 * Math.PI);
    ctx.lineWidth = 2.5 * ratio;
    ctx.strokeStyle = colour("--best");
    ctx.stroke();
    ctx.restore();
  }

  /** Note the point under the mouse. */
  hover(uplot) {
    const place = uplot.cursor.idx;
    if (uplot.cursor.left >= 0 && place !== null && place !== undefined) this.tell(place);
  }

  /** Choose a point by the keyboard: arrows, Home, End; Enter shows its evaluation. */
  pressed(event) {
    const last = (this.curve?.plans.length ?? 0) - 1;
    if (last < 0) return;
    const at = this.at ?? last + 1; // the first arrow to the left chooses the newest point
    const moves = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, Home: 0, End: last };
    if (event.key in moves) this.point(Math.min(last, Math.max(0, moves[event.key])));
    else if (event.key === "Enter" && this.at !== null) this.choose(this.curve.plans[this.at]);
    else return;
    event.preventDefault();
  }

  /** Put the cursor on a point; null shows the newest one without a cursor. */
  point(place) {
    if (!this.curve?.plans.length) return;
    if (place === null) {
      this.at = null;
      this.uplot?.setCursor({ left: -10, top: -10 }, false);
      this.write(this.curve.plans.indexOf(this.curve.newest), "newest: ");
      return;
    }
    const left = this.uplot.valToPos(this.curve.x[place], "x");
    this.uplot.setCursor({ left, top: 10 }, false);
    this.tell(place);
  }

  /** Tell about a point. */
  tell(place) {
    this.at = place;
    this.write(place, "");
  }

  /** Write a point below the title: value, interval, examples, step, checkpoint, time. */
  write(place, lead) {
    const { hex, values, lower, upper, labels, examples, checkpoints, completed_at: times } = this.curve;
    const value = values[place] === null ? hex[place] : shortened(values[place]);
    const bounds = lower[place] === null || upper[place] === null ? "" : `${shortened(lower[place])} to ${shortened(upper[place])}`;
    const strong = document.createElement("data");
    strong.value = hex[place];
    strong.textContent = value;
    const step = labels[place] ? `step ${labels[place]}` : "no step";
    const where = `${step} · ${printable(checkpoints[place])} · `;
    const time = document.createElement("time");
    time.dateTime = times[place];
    time.textContent = ago(times[place]);
    time.title = new Date(times[place]).toLocaleString();
    const counted = examples[place] === null ? "" : `${examples[place]} examples`;
    const about = [bounds, counted].filter(Boolean).join(" · ");
    const words = `${about} · ${where}${time.textContent}`;
    const lines = [document.createElement("span"), document.createElement("span")];
    lines[0].append(strong, ` · ${about}`);
    lines[1].append(lead, where, time);
    this.readout.replaceChildren(...lines);
    this.readout.title = `${values[place] ?? hex[place]} = ${hex[place]}`;
    this.plot.setAttribute("aria-valuenow", String(place + 1));
    this.plot.setAttribute("aria-valuemax", String(values.length));
    this.plot.setAttribute("aria-valuetext", `${value}, ${words}`);
  }
}

/** Return a text in which characters that control its direction or its lines are visible. */
export function printable(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (character) => `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`);
}
