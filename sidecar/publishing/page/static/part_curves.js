// Draw the curves of a class or a slice below its table, when its name is clicked.

import { Chart, printable } from "./chart.js";

const AGAIN = 250; // milliseconds until the daemon is asked again while it reads the journal
const MOST_METRICS = 6; // as many as there are colours

/** Return a curve; ask until the journal was read. Null if there is none. */
async function curveOf(url) {
  for (;;) {
    const response = await fetch(url, { cache: "no-store" });
    if (response.status === 202) await new Promise((done) => setTimeout(done, AGAIN));
    else return response.ok ? response.json() : null;
  }
}

/** Return what draws curves in a box. */
function chartIn(box) {
  const title = document.createElement("h4"), readout = document.createElement("p"), plot = document.createElement("div");
  readout.className = "readout";
  plot.className = "plot";
  plot.tabIndex = 0;
  for (const [name, value] of Object.entries({ role: "slider", "aria-valuemin": "1", "aria-valuemax": "1", "aria-valuenow": "1" })) plot.setAttribute(name, value);
  box.replaceChildren(title, readout, plot);
  box.hidden = false;
  const view = { axis: "step", range: null, log: false, all: true, zoom: (range) => { view.range = range; chart.fit(); } };
  const chart = new Chart(plot, readout, view, ({ plan }) => { location.hash = `#evaluation-${plan}`; }, () => {});
  return { title, plot, readout, chart };
}

/** Show the curves of the class or slice that a link names below its table: one for each metric. */
async function show(link) {
  const box = link.closest(".scroll").nextElementSibling, name = printable(link.textContent);
  const { title, plot, readout, chart } = chartIn(box);
  title.textContent = name;
  readout.textContent = "The journal is being read …";
  plot.setAttribute("aria-label", `${name} by step; arrows choose a point, Enter shows its evaluation, plus, minus and 0 zoom`);
  const base = link.getAttribute("href").replace(/&metric=.*$/, ""), asked = box.dataset.asked = String(Math.random());
  const curves = await Promise.all(box.dataset.metrics.split(" ").slice(0, MOST_METRICS).map((metric) => curveOf(`${base}&metric=${metric}`)));
  if (box.dataset.asked !== asked) return; // another class was chosen meanwhile
  const lines = curves.filter(Boolean).map((curve, place) => ({ name: curve.metric, place, dash: 0, base: "", curve }));
  if (lines.length) chart.show(lines);
  else readout.textContent = "No evaluation has these numbers.";
  box.dataset.drawn = link.textContent;
}

/** Show curves when the name of a class or slice is clicked. */
export function showPartCurves() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a.part");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    show(link).catch(() => { link.closest(".scroll").nextElementSibling.querySelector(".readout").textContent = "The daemon does not answer."; });
  });
}
