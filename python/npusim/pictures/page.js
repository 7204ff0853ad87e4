"use strict";
const canvas = document.getElementById("canvas"), main = document.querySelector("main");
const details = document.getElementById("details"), search = document.querySelector("input");
const methods = [...document.querySelectorAll(".method")];
const SVG = "http://www.w3.org/2000/svg", DROP = 17;
let x = 0, y = 0, scale = 1, shown = methods[0], chosen = null;

const move = () => { canvas.style.transform = `translate(${x}px, ${y}px) scale(${scale})`; };

/* Where an element stands within its method, whatever the zoom. */
function place(element) {
  const box = element.getBoundingClientRect(), origin = shown.getBoundingClientRect();
  return { left: (box.left - origin.left) / scale, right: (box.right - origin.left) / scale,
    top: (box.top - origin.top) / scale, bottom: (box.bottom - origin.top) / scale };
}

/* An open group is entered and left where the value's own line stands inside of it. */
function gate(cell, value, side) {
  if (!cell.classList.contains("open")) return cell;
  const lines = cell.querySelectorAll(`:scope > .rows > div > .${side}`);
  return [...lines].find(line => line.dataset.value === value) || cell;
}

const visible = element => element.offsetParent !== null;

function draw() {
  const picture = shown.querySelector(".lines"), labels = new Set(), parts = [];
  picture.replaceChildren();
  for (const [from, to, value, label] of JSON.parse(shown.dataset.links)) {
    const source = document.getElementById(from), target = document.getElementById(to);
    if (!visible(source) || !visible(target)) continue;
    const a = place(gate(source, value, "leaves")), b = place(gate(target, value, "enters"));
    const outer = place(source), inner = place(target), row = place(source.parentElement);
    const isWire = source.classList.contains("wire"), ends = target.classList.contains("wire");
    const x1 = (a.left + a.right) / 2, x2 = (b.left + b.right) / 2;
    let y1 = outer.bottom, y2 = inner.top;
    if (isWire) {  // from the group's edge, or through the row
      const group = source.closest(".group");
      y1 = source.classList.contains("enters") && group ? place(group).top : outer.top;
    }
    if (ends && target.classList.contains("leaves")) y2 = place(target.closest(".group")).bottom;
    const low = Math.max(y1, row.bottom), path = document.createElementNS(SVG, "path");
    path.setAttribute("d", `M${x1} ${y1}V${low}C${x1} ${low + DROP} ${x2} ${y2 - DROP} ${x2} ${y2}`
      + (ends ? "" : `m-3 -6l3 6l3 -6`));
    path.dataset.from = from;
    path.dataset.to = to;
    parts.push(path);
    if (label && !labels.has(from + value)) {
      labels.add(from + value);
      const text = document.createElementNS(SVG, "text");
      text.setAttribute("x", x1 + 4);
      text.setAttribute("y", y1 + 11);
      text.textContent = label;
      parts.push(text);
    }
  }
  picture.append(...parts);
  mark();
}

function mark() {
  for (const path of shown.querySelectorAll(".lines path"))
    path.classList.toggle("strong", !!chosen
      && (path.dataset.from === chosen.id || path.dataset.to === chosen.id));
}

function fit() {
  scale = Math.min(1, (main.clientWidth - 24) / shown.offsetWidth);
  scale = Math.max(scale, 0.15);
  x = (main.clientWidth - shown.offsetWidth * scale) / 2;
  y = 8;
  move();
}

function choose(box) {
  if (chosen) chosen.classList.remove("chosen");
  chosen = box;
  if (box) box.classList.add("chosen");
  details.hidden = !box;
  details.textContent = box ? box.dataset.details : "";
  mark();
}

/* Opens the outermost closed groups, or closes the innermost open ones. */
function level(step) {
  const groups = [...shown.querySelectorAll(".group")];
  const now = step > 0
    ? groups.filter(g => !g.classList.contains("open") && visible(g))
    : groups.filter(g => g.classList.contains("open") && !g.querySelector(".group.open"));
  for (const group of now) group.classList.toggle("open", step > 0);
  draw();
}

function find(text) {
  const wanted = text.trim().toLowerCase();
  let first = null;
  for (const box of shown.querySelectorAll(".box")) {
    const hit = wanted && !box.classList.contains("group")
      && (box.dataset.details + box.textContent).toLowerCase().includes(wanted);
    box.classList.toggle("found", !!hit);
    if (hit) {
      first = first || box;
      for (let g = box.parentElement.closest(".group"); g; g = g.parentElement.closest(".group"))
        g.classList.add("open");
    }
  }
  draw();
  if (first) {
    const at = first.getBoundingClientRect(), view = main.getBoundingClientRect();
    x += view.left + view.width / 2 - at.left - at.width / 2;
    y += view.top + view.height / 2 - at.top - at.height / 2;
    move();
  }
}

let dragged = false;
main.addEventListener("pointerdown", () => { dragged = false; });
main.addEventListener("pointermove", event => {
  if (!(event.buttons & 1)) return;
  if (Math.abs(event.movementX) + Math.abs(event.movementY) > 1) dragged = true;
  x += event.movementX; y += event.movementY; move();
});
main.addEventListener("wheel", event => {
  event.preventDefault();
  const factor = Math.exp(-event.deltaY / 500), view = main.getBoundingClientRect();
  const px = event.clientX - view.left, py = event.clientY - view.top;
  x = px - (px - x) * factor; y = py - (py - y) * factor; scale *= factor; move();
}, { passive: false });
main.addEventListener("click", event => {
  if (dragged) return;
  const box = event.target.closest(".box");
  if (box && box.classList.contains("group") && event.target.closest(".head")) {
    const before = box.getBoundingClientRect();
    box.classList.toggle("open");
    const after = box.getBoundingClientRect();
    x += before.left + before.width / 2 - after.left - after.width / 2;
    y += before.top - after.top;
    move(); draw();
  }
  choose(box);
});
search.addEventListener("change", () => find(search.value));
for (const button of document.querySelectorAll("button")) button.addEventListener("click", () => {
  if (button.dataset.depth) level(Number(button.dataset.depth));
  if ("fit" in button.dataset) fit();
  if (button.dataset.tab) {
    methods.forEach((m, i) => { m.hidden = i !== Number(button.dataset.tab); });
    shown = methods[Number(button.dataset.tab)];
    for (const tab of document.querySelectorAll("[data-tab]"))
      tab.classList.toggle("chosen", tab === button);
    choose(null); fit(); draw();
  }
});
document.querySelector("[data-tab]")?.classList.add("chosen");
fit(); draw();
