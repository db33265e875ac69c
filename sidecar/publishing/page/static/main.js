// Start the scripts of the page: keep it up to date, draw curves, show evaluations, add older ones.

import { showChangedExamples } from "./changed_examples.js";
import { Curves } from "./curves.js";
import { offerTables } from "./download.js";
import { showEvaluations } from "./evaluation.js";
import { addOlderOnRequest } from "./older.js";
import { follow } from "./live.js";
import { showPartCurves } from "./part_curves.js";
import { makeSortable } from "./sort.js";
import { showTimes } from "./times.js";

showTimes(document);
makeSortable(document);
offerTables(document);
showPartCurves();
showChangedExamples();
setInterval(() => showTimes(document), 5000);

if (document.getElementById("page")) {
  const curves = document.getElementById("charts") ? new Curves(document) : null; // a list without a run has none
  showEvaluations();
  addOlderOnRequest();
  follow((changed) => {
    showTimes(document);
    if (changed) curves?.refresh();
  });
}
