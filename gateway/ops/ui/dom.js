// Elements, made and kept. Rule of this file: text goes in as text only, and an element that is there already is
// changed where it differs, so that nothing jumps and the focus stays.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  set(node, attributes);
  node.append(...children);
  return node;
}

// Attributes; null and false take one away. `text` is the text.
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") {
      if (node.textContent !== String(value)) node.textContent = value;
    } else if (value === null || value === false) {
      if (node.hasAttribute(name)) node.removeAttribute(name);
    } else if (node.getAttribute(name) !== String(value)) {
      node.setAttribute(name, value);
    }
  }
  return node;
}

// Make the children of parent one per item, in order: those of known keys stay, others come and go.
export function keyed(parent, items, key, make, update) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let node = known.get(name);
    known.delete(name);
    if (node === undefined) {
      node = make(item);
      node.dataset.key = name;
    }
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
    update(node, item);
  }
  for (const node of known.values()) node.remove();
}

// Where a click on a descendant of `parent` fell: the closest element that matches.
export function onClick(parent, selector, act) {
  parent.addEventListener("click", (event) => {
    const node = event.target.closest(selector);
    if (node !== null && parent.contains(node)) act(node);
  });
}
