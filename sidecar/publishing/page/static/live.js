// Keep the page up to date: ask for it every two seconds, and replace what changed.

import { morph } from "./morph.js";
import { duration, learnClock } from "./times.js";

const PAUSE = 2000; // milliseconds between two requests
const LONGEST_PAUSE = 30000; // while the daemon does not answer
const PATIENCE = 10000; // for one answer
const PARTS = ["alerts", "runs", "summary", "now", "numbers", "evaluations", "nodes"];

/** Replace the parts of the page by those of a newer one; return whether the journal has new entries. */
export function show(newer) {
  for (const name of PARTS) {
    const before = document.getElementById(name);
    const after = newer.getElementById(name);
    if (before && after) morph(before, after);
  }
  const header = document.querySelector("header");
  const newHeader = newer.querySelector("header");
  if (header && newHeader) morph(header, newHeader);
  if (document.title !== newer.title) document.title = newer.title;
  const page = document.getElementById("page");
  const entries = newer.getElementById("page").dataset.entries;
  const changed = page.dataset.entries !== entries;
  page.dataset.entries = entries;
  return changed;
}

/** Follow the daemon while the page is visible. `shown(changed)` is called after each new page. */
export function follow(shown) {
  const away = document.getElementById("away");
  let tag = null;
  let pause = PAUSE;
  let answeredAt = Date.now();
  let failed = false;
  let timer = null;

  function tellSilence() {
    const silent = (Date.now() - answeredAt) / 1000;
    away.hidden = !failed || silent < 3 * PAUSE / 1000;
    if (!away.hidden) away.textContent = `The daemon has not answered for ${duration(silent)}. The page shows the past.`;
  }

  async function ask() {
    try {
      const headers = tag === null ? {} : { "If-None-Match": tag };
      const response = await fetch("./", { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
      if (response.status === 200) {
        const newer = new DOMParser().parseFromString(await response.text(), "text/html");
        if (!newer.getElementById("page")) throw new Error("not the page of a daemon");
        tag = response.headers.get("ETag");
        learnClock(response);
        shown(show(newer));
      } else if (response.status === 304) {
        learnClock(response);
      } else {
        throw new Error(`status ${response.status}`);
      }
      answeredAt = Date.now();
      failed = false;
      pause = PAUSE;
    } catch {
      failed = true;
      pause = Math.min(1.5 * pause, LONGEST_PAUSE);
    }
    tellSilence();
    schedule(pause);
  }

  function schedule(milliseconds) {
    clearTimeout(timer);
    timer = document.hidden ? null : setTimeout(ask, milliseconds);
  }

  document.addEventListener("visibilitychange", () => schedule(0));
  setInterval(tellSilence, 1000);
  schedule(PAUSE);
}
