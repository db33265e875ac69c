// The section of curves: one card for each metric with its eval sets, or with several runs, drawn when it becomes visible.

import { Chart, COLOURS, printable } from "./chart.js";
import { downloads } from "./download.js";
import { View } from "./view.js";

const READING = 500; // milliseconds between two questions while the journal is being read
const FIRST_RUNS = 5; // runs that are shown until the reader chooses others: those with the newest evaluations
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

/** Return a number with a noun. */
function counted(count, one, several) {
  return `${count} ${count === 1 ? one : several}`;
}

/** One card: title, reading of a point, chart. `series`: those of one metric, for each eval set and run that has it. */
class Card {
  constructor(view, choose) {
    this.view = view;
    this.series = [];
    this.lines = null; // what the chart shows
    this.stale = true;
    this.visible = false;
    this.asked = 0;
    this.title = element("h3");
    this.readout = element("p", "readout", "…");
    this.note = element("p", "note points");
    this.plot = element("div", "plot");
    this.plot.tabIndex = 0;
    for (const [attribute, value] of Object.entries({ role: "slider", "aria-valuemin": "1", "aria-valuemax": "1", "aria-valuenow": "1" })) {
      this.plot.setAttribute(attribute, value);
    }
    const saved = downloads(() => ({ title: this.name, metric: this.series[0].metric, chart: this.chart, lines: this.lines }));
    this.root = element("article", "card", this.title, this.readout, this.plot, this.note, saved);
    this.chart = new Chart(this.plot, this.readout, view, choose, () => this.tell());
  }

  /** Take the series of the metric; note whether one has new points. `several`: there are several eval sets. */
  take(series, several) {
    const told = (all) => JSON.stringify(all.map(({ url, evaluations, name }) => [url, evaluations, name]));
    if (told(series) !== told(this.series)) this.stale = true;
    this.series = series;
    const [{ set, metric, goal }] = series;
    const name = this.name = printable(several && new Set(series.map((each) => each.set)).size === 1 ? `${set}/${metric}` : metric);
    const arrow = { max: ["↑", "more is better"], min: ["↓", "less is better"] }[goal];
    this.title.replaceChildren(name);
    if (arrow) {
      const sign = element("span", "goal", ` ${arrow[0]}`);
      sign.setAttribute("aria-hidden", "true");
      this.title.append(sign, element("span", "unseen", ` (${arrow[1]})`));
    }
    this.plot.setAttribute("aria-label", `${name} by step; arrows choose a point, Enter shows its evaluation, plus, minus and 0 zoom`);
  }

  /** Return whether the reader wants to see this card. */
  isWanted() {
    const words = this.view.filter.toLowerCase();
    return this.shown().length > 0 && this.series.some(({ set, metric }) => `${set}/${metric}`.toLowerCase().includes(words));
  }

  /** Return the series of the eval sets that are shown. */
  shown() {
    return this.series.filter(({ set }) => !this.view.without.has(set));
  }

  /** Load and show the curves if they are visible and something changed. */
  async refresh() {
    if (!this.visible || !this.stale) return;
    this.stale = false;
    const asked = ++this.asked;
    const points = Math.min(MOST_POINTS, 2 * this.chart.width());
    try {
      const lines = await Promise.all(this.shown().map(async ({ url, ...series }) => {
        const response = await fetch(`${url}&points=${points}&smoothing=${this.view.smoothing}`, { cache: "no-store" });
        if (response.status !== 200) throw new Error(`status ${response.status}`);
        return { ...series, curve: await response.json() };
      }));
      if (asked !== this.asked || !lines.length) return; // a later request is under way, or no eval set is shown
      this.lines = lines;
      this.chart.show(lines);
      this.root.dataset.drawn = String(Math.max(...lines.map(({ curve }) => curve.evaluations)));
    } catch {
      this.stale = true;
      setTimeout(() => this.refresh(), AGAIN);
    }
  }

  /** Say below the chart what it does not show. */
  tell() {
    const curves = this.lines.map(({ curve }) => curve);
    const values = curves.flatMap((curve) => curve.values);
    const notes = [];
    const lost = values.filter((value) => value === null).length;
    const thinned = curves.find((curve) => curve.downsampled);
    if (curves.some((curve) => curve.breaks.includes(true))) {
      notes.push("The curve is broken where the data or the task changed: numbers on both sides cannot be compared.");
    }
    if (new Set(this.lines.map(({ set, data }) => `${set} ${data}`)).size > new Set(this.lines.map(({ set }) => set)).size) {
      notes.push("The runs evaluated different data: their numbers cannot be compared.");
    }
    if (lost) notes.push(`${counted(lost, "value is", "values are")} NaN or infinite, and not drawn.`);
    if (this.view.log && values.some((value) => value !== null && value <= 0)) notes.push("Values of 0 and less have no place on a log scale.");
    if (this.chart.outside) notes.push(`${counted(this.chart.outside, "value is", "values are")} out of sight: “All values” shows them.`);
    if (thinned) notes.push(`${thinned.plans.length} of ${thinned.evaluations} evaluations are drawn: the lowest and highest of each interval.`);
    this.note.textContent = notes.join(" ");
  }
}

/** All curves, with their controls. */
export class Curves {
  constructor(page) {
    this.page = page;
    this.charts = page.getElementById("charts");
    this.note = page.getElementById("curves-note");
    this.controls = page.getElementById("curve-controls");
    this.legend = page.getElementById("legend");
    this.sets = page.getElementById("eval-sets");
    this.runs = page.getElementById("chosen-runs");
    this.isOfRuns = page.querySelector("#runs[data-each]") !== null;
    this.whole = page.getElementById("whole-range");
    this.view = new View((range) => this.zoom(range));
    this.places = { set: new Map(), run: new Map() }; // by name, in the order in which they were first seen
    this.cards = new Map(); // by metric and goal
    this.timer = null;
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const card = [...this.cards.values()].find(({ root }) => root === entry.target);
        if (!card) continue;
        card.visible = entry.isIntersecting;
        card.refresh();
      }
    }, { rootMargin: "200px" });
    this.connect();
    this.refresh();
  }

  /** Let the controls show the view, and change it. */
  connect() {
    const { view } = this, by = (id) => this.page.getElementById(id);
    const smoothing = by("smoothing"), told = by("smoothing-value");
    const smooth = () => {
      told.textContent = view.smoothing;
      this.legend.classList.toggle("smooth", view.smoothing > 0);
    };
    smoothing.value = view.smoothing;
    smooth();
    smoothing.addEventListener("input", () => {
      view.set({ smoothing: Number(smoothing.value) });
      smooth();
      this.later(() => this.redraw(), SMOOTHING_PAUSE);
    });
    for (const [id, name] of [["log-scale", "log"], ["all-values", "all"]]) {
      by(id).checked = view[name];
      by(id).addEventListener("change", () => { view.set({ [name]: by(id).checked }); this.redraw(); });
    }
    by("x-axis").value = view.axis;
    const turn = (choices) => {
      view.set({ ...choices, range: null });
      by("epoch-label").hidden = view.axis !== "epoch";
      this.whole.hidden = true;
      this.redraw();
    };
    by("x-axis").addEventListener("change", () => turn({ axis: by("x-axis").value }));
    by("epoch").value = view.epoch;
    by("epoch-label").hidden = view.axis !== "epoch";
    by("epoch").addEventListener("change", () => { if (by("epoch").checkValidity()) turn({ epoch: Number(by("epoch").value) }); });
    by("filter").value = view.filter;
    by("filter").addEventListener("input", () => { view.set({ filter: by("filter").value.trim() }); this.hide(); });
    this.whole.hidden = view.range === null;
    this.whole.addEventListener("click", () => this.zoom(null));
    this.controls.addEventListener("submit", (event) => event.preventDefault());
  }

  /** Do something after a pause, unless something else is to be done by then. */
  later(task, milliseconds) {
    clearTimeout(this.timer);
    this.timer = setTimeout(task, milliseconds);
  }

  /** Draw all cards anew. */
  redraw() {
    this.hide();
    for (const card of this.cards.values()) {
      card.stale = true;
      card.refresh();
    }
  }

  /** Show a range of the axis in all charts; null shows all points. */
  zoom(range) {
    this.view.set({ range });
    this.whole.hidden = range === null;
    for (const card of this.cards.values()) card.chart.fit();
  }

  /** Hide the cards that the reader does not want to see. */
  hide() {
    for (const card of this.cards.values()) card.root.hidden = !card.isWanted();
  }

  /** Offer a switch for each name, if there are several. `mark(place)`: the class of the sign in front of it. */
  offer(fieldset, title, names, mark, isChosen, choose) {
    fieldset.hidden = names.length < 2;
    const boxes = [...fieldset.querySelectorAll("input")];
    boxes.forEach((box, place) => { box.checked = isChosen(names[place]); });
    if (boxes.length === names.length) return;
    const switches = names.map((name, place) => {
      const box = element("input");
      box.type = "checkbox";
      box.checked = isChosen(name);
      box.addEventListener("change", () => choose(name, box.checked));
      return element("label", "", box, element("i", mark(place)), printable(name));
    });
    fieldset.replaceChildren(element("legend", "unseen", title), ...switches);
  }

  /** Offer switches for eval sets and runs. */
  offerAll(chosen) {
    const coloured = (place) => `key set-${place % COLOURS}`, dashed = (place) => `dash dash-${place % 3}`;
    this.offer(this.sets, "Eval sets", [...this.places.set.keys()], this.isOfRuns ? dashed : coloured,
      (name) => !this.view.without.has(name),
      (name, isShown) => {
        const without = new Set(this.view.without);
        if (isShown) without.delete(name);
        else without.add(name);
        this.view.set({ without });
        this.redraw();
      });
    this.offer(this.runs, "Runs", [...this.places.run.keys()], coloured,
      (name) => chosen.has(name),
      (name, isShown) => {
        const runs = new Set(chosen);
        if (isShown) runs.add(name);
        else runs.delete(name);
        this.view.set({ runs });
        this.refresh();
      });
  }

  /** Return the answer to a question. */
  async ask(path) {
    const response = await fetch(path, { cache: "no-store" });
    if (!response.ok) throw new Error(`status ${response.status}`);
    return response.json();
  }

  /** Return the addresses of the runs to show by their names: of this page's run, or of those that were chosen. */
  async sources() {
    if (!this.isOfRuns) return new Map([["", "./"]]);
    const { runs } = await this.ask("api/status");
    const served = runs.filter(({ pending }) => pending !== null);
    for (const { run } of served) if (!this.places.run.has(run)) this.places.run.set(run, this.places.run.size);
    const byTime = [...served].sort((one, other) => (other.newest_completed_at ?? "").localeCompare(one.newest_completed_at ?? ""));
    const chosen = this.view.runs ?? new Set(byTime.slice(0, FIRST_RUNS).map(({ run }) => run));
    return new Map(served.filter(({ run }) => chosen.has(run)).map(({ run, url }) => [run, url]));
  }

  /** Ask which curves there are, and draw those that have new points. */
  async refresh() {
    let sources, answers;
    try {
      sources = await this.sources();
      answers = await Promise.all([...sources].map(async ([run, base]) => ({ run, base, ...await this.ask(`${base}api/curves`) })));
    } catch {
      this.later(() => this.refresh(), 4 * READING);
      return;
    }
    const series = answers.flatMap(({ run, base, series: found }) => found.map((each) => ({ ...each, run, base })));
    this.tell(answers.map(({ progress }) => progress), series.length === 0);
    this.controls.hidden = this.legend.hidden = series.length === 0 && this.places.run.size === 0;
    this.page.getElementById("filter-label").hidden = series.length < MANY;
    this.show(series, answers.every(({ progress }) => progress.state === "read"), new Set(sources.keys()));
  }

  /** Say how much was read, and ask again until that is all. */
  tell(progresses, isEmpty) {
    const failing = progresses.find(({ state }) => state === "failing"), reading = progresses.filter(({ state }) => state === "reading");
    const share = Math.min(...reading.map((progress) => progress.share));
    const chosen = progresses.length ? "There is no result yet: curves appear with the first one." : "No run is chosen.";
    this.note.textContent = failing ? `The journal cannot be read now: ${failing.reason}`
      : reading.length ? `The journal is being read: ${Math.round(100 * share)} %.` : isEmpty ? chosen : "";
    if (failing || reading.length) this.later(() => this.refresh(), failing ? 8 * READING : READING);
  }

  /** Give each metric a card with its series. */
  show(series, isRead, chosen) {
    const { set: sets, run: runs } = this.places;
    for (const { set } of series) if (!sets.has(set)) sets.set(set, sets.size);
    this.offerAll(chosen);
    const byMetric = new Map();
    for (const each of series) {
      const key = JSON.stringify([each.metric, each.goal]), place = sets.get(each.set);
      const line = this.isOfRuns
        ? { name: sets.size > 1 ? `${each.run} · ${each.set}` : each.run, place: runs.get(each.run), dash: place }
        : { name: each.set, place, dash: 0 };
      byMetric.set(key, [...(byMetric.get(key) ?? []), { ...each, ...line }]);
    }
    for (const [key, found] of byMetric) {
      let card = this.cards.get(key);
      if (!card) {
        card = new Card(this.view, ({ base, plan }) => { location.assign(`${this.isOfRuns ? base : ""}#evaluation-${plan}`); });
        this.cards.set(key, card);
        this.charts.append(card.root);
        this.observer.observe(card.root);
      }
      card.take(found, sets.size > 1);
      if (isRead) card.refresh();
    }
    for (const [key, card] of this.cards) {
      if (byMetric.has(key)) continue;
      card.root.remove(); // the run began anew
      this.cards.delete(key);
    }
    this.hide();
  }
}
