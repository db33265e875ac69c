// The section of curves: one card for each eval set and metric, drawn when it becomes visible.

import { Chart, printable } from "./chart.js";

const READING = 500; // milliseconds between two questions while the journal is being read
const MANY = 8; // from this number of curves on there is a filter
const MOST_POINTS = 1000;
const AGAIN = 3000; // milliseconds until a curve that could not be loaded is asked for again
const SMOOTHING_PAUSE = 80; // milliseconds after the last change of the slider

/** Return an element with a class and children; texts are never markup. */
function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** One card: title, reading of a point, chart. */
class Card {
  constructor(series, several) {
    this.series = series;
    this.stale = true;
    this.visible = false;
    this.asked = 0;
    const name = printable(several ? `${series.set}/${series.metric}` : series.metric);
    const title = element("h3", "", name);
    const goal = { max: ["↑", "more is better"], min: ["↓", "less is better"] }[series.goal];
    if (goal) {
      const arrow = element("span", "goal", ` ${goal[0]}`);
      arrow.setAttribute("aria-hidden", "true");
      title.append(arrow, element("span", "unseen", ` (${goal[1]})`));
    }
    this.name = `${series.set}/${series.metric}`.toLowerCase();
    this.readout = element("p", "readout", "…");
    this.note = element("p", "note points");
    this.plot = element("div", "plot");
    this.plot.tabIndex = 0;
    for (const [attribute, value] of Object.entries({
      role: "slider", "aria-label": `${name} by step; arrows choose a point, Enter shows its evaluation`,
      "aria-valuemin": "1", "aria-valuemax": "1", "aria-valuenow": "1",
    })) this.plot.setAttribute(attribute, value);
    this.root = element("article", "card", title, this.readout, this.plot, this.note);
    this.chart = new Chart(this.plot, this.readout, (plan) => { location.hash = `#evaluation-${plan}`; });
  }

  /** Load and show the curve if it is visible and something changed. */
  async refresh(smoothing, log) {
    if (!this.visible || !this.stale) return;
    this.stale = false;
    const asked = ++this.asked;
    const points = Math.min(MOST_POINTS, 2 * this.chart.width());
    try {
      const response = await fetch(`${this.series.url}&points=${points}&smoothing=${smoothing}`, { cache: "no-store" });
      if (response.status !== 200) throw new Error(`status ${response.status}`);
      const curve = await response.json();
      if (asked !== this.asked) return; // a later request is under way
      this.chart.show(curve, log);
      const left = log && curve.values.some((value) => value !== null && value <= 0) ? "Values of 0 and less have no place on a log scale. " : "";
      const lost = curve.values.filter((value) => value === null).length;
      const gaps = lost ? `${lost} ${lost === 1 ? "value is" : "values are"} NaN or infinite, and not drawn. ` : "";
      const breaks = curve.breaks.includes(true) ? "The curve is broken where the data or the task changed: numbers on both sides cannot be compared. " : "";
      this.note.textContent = breaks + gaps + left + (curve.downsampled
        ? `${curve.plans.length} of ${curve.evaluations} evaluations are drawn: the lowest and highest of each interval.` : "");
      this.root.dataset.drawn = String(curve.evaluations);
    } catch {
      this.stale = true;
      setTimeout(() => this.refresh(smoothing, log), AGAIN);
    }
  }
}

/** All curves, with their controls. */
export class Curves {
  constructor(page) {
    this.charts = page.getElementById("charts");
    this.note = page.getElementById("curves-note");
    this.controls = page.getElementById("curve-controls");
    this.legend = page.getElementById("legend");
    this.smoothing = page.getElementById("smoothing");
    this.log = page.getElementById("log-scale");
    this.filter = page.getElementById("filter");
    this.cards = new Map();
    this.timer = null;
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const card = this.cards.get(entry.target.dataset.url);
        if (!card) continue;
        card.visible = entry.isIntersecting;
        this.draw(card);
      }
    }, { rootMargin: "200px" });
    this.smoothing.addEventListener("input", () => {
      page.getElementById("smoothing-value").textContent = this.smoothing.value;
      this.legend.classList.toggle("smooth", this.smoothing.value > 0);
      this.later(() => this.redraw(), SMOOTHING_PAUSE);
    });
    this.log.addEventListener("change", () => this.redraw());
    this.filter.addEventListener("input", () => this.applyFilter());
    this.controls.addEventListener("submit", (event) => event.preventDefault());
    this.refresh();
  }

  /** Do something after a pause, unless something else is to be done by then. */
  later(task, milliseconds) {
    clearTimeout(this.timer);
    this.timer = setTimeout(task, milliseconds);
  }

  /** Draw one card as the controls say. */
  draw(card) {
    card.refresh(Number(this.smoothing.value), this.log.checked);
  }

  /** Draw all cards anew. */
  redraw() {
    for (const card of this.cards.values()) {
      card.stale = true;
      this.draw(card);
    }
  }

  /** Hide cards whose name does not contain what the reader typed. */
  applyFilter() {
    const wanted = this.filter.value.trim().toLowerCase();
    for (const card of this.cards.values()) card.root.hidden = !card.name.includes(wanted);
  }

  /** Ask which curves there are, and draw those that have new points. */
  async refresh() {
    let answer;
    try {
      const response = await fetch("api/curves", { cache: "no-store" });
      if (!response.ok) throw new Error(`status ${response.status}`);
      answer = await response.json();
    } catch {
      this.later(() => this.refresh(), 4 * READING);
      return;
    }
    const { progress, series } = answer;
    const empty = series.length ? "" : "There is no result yet: curves appear with the first one.";
    this.note.textContent = {
      read: empty,
      reading: `The journal is being read: ${Math.round(100 * progress.share)} %.`,
      failing: `The journal cannot be read now: ${progress.reason}`,
    }[progress.state];
    if (progress.state !== "read") this.later(() => this.refresh(), progress.state === "failing" ? 8 * READING : READING);
    this.controls.hidden = this.legend.hidden = series.length === 0;
    document.getElementById("filter-label").hidden = series.length < MANY;
    const several = new Set(series.map((each) => each.set)).size > 1;
    for (const each of series) {
      let card = this.cards.get(each.url);
      if (!card) {
        card = new Card(each, several);
        card.root.dataset.url = each.url;
        this.cards.set(each.url, card);
        this.charts.append(card.root);
        this.observer.observe(card.root);
      } else if (card.series.evaluations !== each.evaluations) {
        card.stale = true;
      }
      card.series = each;
      if (progress.state === "read") this.draw(card);
    }
    for (const [url, card] of this.cards) {
      if (series.some((each) => each.url === url)) continue;
      card.root.remove(); // the run began anew
      this.cards.delete(url);
    }
    this.applyFilter();
  }
}
