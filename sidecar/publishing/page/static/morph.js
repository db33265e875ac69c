// Change a part of the page into a newer one, and leave untouched what is equal: selection, focus, open details.

/** Return the key by which an element is found again among its siblings. */
function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE && node.id ? node.id : null;
}

/** Return whether a node can be changed into another one instead of being replaced. */
function isSameKind(before, after) {
  return before.nodeType === after.nodeType && before.nodeName === after.nodeName && keyOf(before) === keyOf(after);
}

/** Copy the attributes of `after`. Whether details are open is the reader's choice. */
function morphAttributes(before, after) {
  for (const { name } of [...before.attributes]) {
    if (!after.hasAttribute(name) && name !== "open") before.removeAttribute(name);
  }
  for (const { name, value } of after.attributes) {
    if (before.getAttribute(name) !== value) before.setAttribute(name, value);
  }
}

/** Change `before` into `after`: both are elements of the same kind. Elements with `data-own` belong to scripts.
 *  Rows that a reader has added to a list with `data-older` stay, and those that become older stay between them. */
export function morph(before, after) {
  if (before.dataset?.own !== undefined) return;
  if (before.nodeName === "TIME") {
    if (before.dateTime === after.dateTime) return; // its words are those of times.js
    before.textContent = after.textContent;
    morphAttributes(before, after);
    return;
  }
  if (before.isEqualNode(after)) return;
  morphAttributes(before, after);
  const keyed = new Map([...before.childNodes].filter(keyOf).map((child) => [keyOf(child), child]));
  let place = before.firstChild;
  for (const next of [...after.childNodes]) {
    const known = keyOf(next) === null ? place : keyed.get(keyOf(next));
    if (known && isSameKind(known, next)) {
      if (known === place) place = place.nextSibling;
      else before.insertBefore(known, place);
      if (known.nodeType === Node.ELEMENT_NODE) morph(known, next);
      else if (known.nodeValue !== next.nodeValue) known.nodeValue = next.nodeValue;
    } else {
      before.insertBefore(document.importNode(next, true), place);
    }
  }
  const keepsOlder = before.querySelector(":scope > [data-older]") !== null;
  while (place) {
    const rest = place.nextSibling;
    if (!keepsOlder) place.remove();
    else if (place.nodeType === Node.ELEMENT_NODE) place.dataset.older = ""; // else it would leave a gap
    place = rest;
  }
}
