// Show an evaluation in a dialog when the fragment of the address names it: #evaluation-7.

import { offerTables } from "./download.js";
import { makeSortable } from "./sort.js";
import { showTimes } from "./times.js";

const AGAIN = 250; // milliseconds until the daemon is asked again while it reads the records
const PATIENCE = 10000; // milliseconds until the reader is told that storage is slow
const FRAGMENT = /^#evaluation-(\d{1,18})$/;

/** Return a paragraph with a text. */
function paragraph(words) {
  const made = document.createElement("p");
  made.textContent = words;
  return made;
}

/** Show evaluations by the fragment of the address, so that they can be linked and the back button leaves them. */
export function showEvaluations() {
  const dialog = document.getElementById("evaluation");
  let wanted = null;
  let wantedSince = 0;

  async function load(plan) {
    const response = await fetch(`evaluation?plan=${plan}`, { cache: "no-store" });
    if (wanted !== plan) return;
    if (response.status === 202) {
      const isSlow = Date.now() - wantedSince > PATIENCE;
      if (isSlow) fill([paragraph(`Evaluation ${plan} is still being read: the shared storage is slow, or fails.`)]);
      setTimeout(() => { if (wanted === plan) show(plan); }, isSlow ? 8 * AGAIN : AGAIN);
      return;
    }
    const body = await response.text();
    if (!response.ok) {
      fill([paragraph(`Evaluation ${plan} cannot be shown: ${body}`)]);
      return;
    }
    const article = new DOMParser().parseFromString(body, "text/html").getElementById("details");
    fill([document.importNode(article, true)]);
  }

  function fill(content) {
    const close = document.createElement("button");
    close.type = "button";
    close.className = "close";
    close.textContent = "Close";
    close.addEventListener("click", () => dialog.close());
    dialog.replaceChildren(close, ...content);
    showTimes(dialog);
    makeSortable(dialog);
    offerTables(dialog);
    dialog.scrollTop = 0;
  }

  function show(plan) {
    load(plan).catch(() => { if (wanted === plan) fill([paragraph("The daemon does not answer.")]); });
  }

  function followFragment() {
    const named = FRAGMENT.exec(location.hash)?.[1] ?? null;
    if (named !== null && named === wanted) return; // two events tell of one change
    wanted = named;
    if (wanted === null) {
      if (dialog.open) dialog.close();
      return;
    }
    wantedSince = Date.now();
    fill([paragraph(`Evaluation ${wanted} is being read …`)]);
    if (!dialog.open) dialog.showModal();
    show(wanted);
  }

  dialog.addEventListener("close", () => {
    wanted = null;
    if (FRAGMENT.test(location.hash)) history.pushState(null, "", location.pathname + location.search);
  });
  document.addEventListener("keydown", (event) => {
    if (!dialog.open || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("[role=region], [role=slider], input, select")) return;
    const way = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
    if (way) dialog.querySelector(`a[rel=${way}]`)?.click();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-plan]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    location.hash = `#evaluation-${link.dataset.plan}`;
  });
  window.addEventListener("hashchange", followFragment);
  window.addEventListener("popstate", followFragment);
  followFragment();
}
