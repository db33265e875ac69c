// Show the examples that changed between two evaluations when a reader opens them: they are read from saved predictions.

const AGAIN = 250; // milliseconds until the daemon is asked again while it reads the predictions

/** Return the examples of a comparison's page as elements; ask until they were read. */
async function examplesOf(url) {
  for (;;) {
    const response = await fetch(url, { cache: "no-store" });
    if (response.status === 202) {
      await new Promise((done) => setTimeout(done, AGAIN));
      continue;
    }
    const body = await response.text();
    if (!response.ok) throw new Error(body);
    const section = new DOMParser().parseFromString(body, "text/html").getElementById("changed");
    section.querySelector("h2")?.remove();
    return [...section.childNodes].map((child) => document.importNode(child, true));
  }
}

/** Put the examples into details that were opened, once. */
async function fill(details) {
  if (details.dataset.filled !== undefined) return;
  details.dataset.filled = "";
  const words = details.querySelector("p");
  try {
    const examples = await examplesOf(details.dataset.page);
    words.before(...examples);
  } catch {
    delete details.dataset.filled; // opened again, they are asked for again
    words.prepend("They cannot be read now. ");
  }
}

/** Show examples when their details are opened. */
export function showChangedExamples() {
  document.addEventListener("toggle", ({ target }) => {
    if (target.matches?.("details.changed") && target.open) fill(target);
  }, true);
}
