// What the reader chose to see of the curves, kept in the address of the page, so that it can be shared and survives a reload.

const AXES = ["step", "time", "order", "epoch"];

/** Return a number within bounds, or the first bound. */
function within(text, least, most) {
  const value = Number(text);
  return text !== null && value >= least && value <= most ? value : least;
}

/** Return the range that two texts name, or null. */
function rangeOf(from, to) {
  const range = [from, to].map((text) => (text === null || text === "" ? NaN : Number(text)));
  return range.every(Number.isFinite) && range[0] < range[1] ? range : null;
}

/** The choices of the reader: `smoothing` from 0 to 0.99, `log`, `all` (values), `axis`, `epoch`, its steps, `range` of the axis or null,
 *  `filter`, `without`, the names of eval sets that are not shown, and `runs`, those of the runs that are, or null. `zoom(range)` shows another range. */
export class View {
  constructor(zoom) {
    const chosen = new URLSearchParams(location.search);
    this.zoom = zoom;
    this.smoothing = within(chosen.get("smoothing"), 0, 0.99);
    this.log = chosen.has("log");
    this.all = chosen.has("all");
    this.epoch = within(chosen.get("epoch"), 1, Infinity);
    this.axis = AXES.includes(chosen.get("x")) ? chosen.get("x") : AXES[0];
    this.range = rangeOf(chosen.get("from"), chosen.get("to"));
    this.filter = chosen.get("filter") ?? "";
    this.without = new Set(chosen.getAll("without"));
    this.runs = chosen.has("run") ? new Set(chosen.getAll("run")) : null;
  }

  /** Change choices, and the address. */
  set(choices) {
    Object.assign(this, choices);
    const chosen = new URLSearchParams();
    if (this.smoothing > 0) chosen.set("smoothing", this.smoothing);
    if (this.log) chosen.set("log", "");
    if (this.all) chosen.set("all", "");
    if (this.axis !== AXES[0]) chosen.set("x", this.axis);
    if (this.epoch !== 1) chosen.set("epoch", this.epoch);
    if (this.range) for (const [place, name] of ["from", "to"].entries()) chosen.set(name, Number(this.range[place].toPrecision(12)));
    if (this.filter) chosen.set("filter", this.filter);
    for (const name of this.without) chosen.append("without", name);
    for (const name of this.runs ?? []) chosen.append("run", name);
    const words = chosen.toString().replaceAll(/=(?=&|$)/g, "");
    history.replaceState(history.state, "", `${location.pathname}${words ? `?${words}` : ""}${location.hash}`);
  }
}
