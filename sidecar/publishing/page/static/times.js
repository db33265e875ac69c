// Show times relative to now: "3 min ago". The element keeps the exact time in its attributes.

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

let ahead = 0; // milliseconds that the daemon's clock is ahead of this machine's

/** Learn the daemon's clock from the Date header of an answer. */
export function learnClock(response) {
  const date = Date.parse(response.headers.get("Date"));
  if (!Number.isNaN(date)) ahead = date - Date.now();
}

/** Return the time of the daemon's clock in milliseconds since 1970. */
export function now() {
  return Date.now() + ahead;
}

/** Return a duration in one unit: 12 s, 3 min, 2 h, 5 d. */
export function duration(seconds) {
  const whole = Math.max(0, seconds);
  const unit = UNITS.find(([size]) => whole >= 2 * size);
  return unit ? `${Math.round(whole / unit[0])} ${unit[1]}` : `${Math.round(whole)} s`;
}

/** Return how long ago a time of a record was. */
export function ago(timestamp) {
  const then = Date.parse(timestamp);
  return Number.isNaN(then) ? "" : `${duration((now() - then) / 1000)} ago`;
}

/** Write all times below an element as relative times, and the local time into their tooltips. */
export function showTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const then = Date.parse(time.dateTime);
    if (Number.isNaN(then)) continue;
    const passed = duration((now() - then) / 1000);
    const words = time.dataset.since === undefined ? `${passed} ago` : passed;
    if (time.textContent !== words) time.textContent = words;
    time.title = `${new Date(then).toLocaleString()} (${time.dateTime})`;
  }
}
