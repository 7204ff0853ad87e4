"use strict";
const report = JSON.parse(document.getElementById("report").textContent);
const COLORS = { compute: "#2f6fde", vector: "#35a38a", dma: "#e0a21b", dram: "#d4572c",
  bank: "#9a5fc7", noc: "#c04f8b", dispatch: "#7b8796", dependency: "#c5ccd8" };
const ENERGY = { mac: "#2f6fde", vector: "#35a38a", sram: "#9a5fc7", dram: "#d4572c",
  noc: "#c04f8b", static: "#7b8796" };
const SVG = "http://www.w3.org/2000/svg";
const at = selector => document.querySelector(selector);
const layers = new Map(report.layers.map(layer => [layer.index, layer]));
let chosen = null, repaint = () => {};

/* Elements are made of text alone: names come from files. */
function make(parent, tag, text, attributes = {}) {
  const svg = ["svg", "path", "line", "circle", "text", "title", "rect"].includes(tag);
  const element = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined && text !== null) element.textContent = text;
  parent.append(element);
  return element;
}

function scaled(value, units, step) {
  let index = 0;
  while (index + 1 < units.length && Math.abs(value) >= step) { value /= step; index += 1; }
  const digits = value !== 0 && Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
  return `${value.toFixed(digits)} ${units[index]}`;
}
const time = seconds => seconds < 1e-6 ? `${(1e9 * seconds).toFixed(0)} ns`
  : scaled(1e6 * seconds, ["µs", "ms", "s"], 1000);
const bytes = count => scaled(count, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
const rate = value => scaled(value, ["", "k", "M", "G", "T", "P"], 1000);
const joules = value => scaled(1e9 * value, ["nJ", "µJ", "mJ", "J"], 1000);
const percent = share => `${(100 * share).toFixed(1)} %`;

function stack(element, parts, colors, whole, shown) {
  for (const [name, color] of Object.entries(colors)) {
    const part = parts[name] || 0;
    if (part <= 0 || whole <= 0) continue;
    make(element, "i", null, { style: `width:${100 * part / whole}%;background:${color}`,
      title: `${name}: ${shown(part)}, ${percent(part / whole)}` });
  }
}

function legend(element, parts, colors, whole, shown) {
  for (const [name, color] of Object.entries(colors)) {
    const part = parts[name] || 0;
    if (part > 0) make(element, "span", `${name} ${shown(part)} (${percent(part / whole)})`,
      { style: `--color:${color}` });
  }
}

function choose(index) {
  chosen = index;
  const layer = layers.get(index), list = at("#chosen dl");
  at("#chosen").hidden = !layer;
  list.replaceChildren();
  if (!layer) return;
  const rows = { command: `${layer.index} ${layer.op}, kernel ${layer.kernel}`, node: layer.node,
    module: layer.module, source: layer.source,
    time: `${time(layer.seconds)} from ${time(layer.start_s)} on, bound by ${layer.bound}`,
    work: `${rate(layer.operations)} operations, ${bytes(layer.dram_bytes)} of DRAM`,
    formula: layer.formula, "what would help": layer.advice };
  for (const [name, value] of Object.entries(rows)) {
    if (!value) continue;
    make(list, "dt", name);
    make(make(list, "dd"), name === "formula" ? "code" : "span", value);
  }
  for (const row of document.querySelectorAll("tr[data-layer]"))
    row.classList.toggle("chosen", Number(row.dataset.layer) === index);
  repaint();
}

/* ---- the head and the stalls ---- */

function head() {
  const cycles = report.cycles === null || report.cycles === undefined ? ""
    : `, ${Math.round(report.cycles).toLocaleString("en")} cycles`;
  const name = [report.model, report.method].filter(Boolean).join(", ");
  at("h1").textContent = `${name} on ${report.target}`;
  const energy = report.energy ? `, ${joules(report.energy.total)}` : "";
  at("#facts").textContent = `${time(report.seconds)}${cycles}${energy}; `
    + `${report.layers.length} commands, ${report.mode} dispatch. A prediction, not a measurement.`;
  stack(at("#stalls .stack"), report.stalls, COLORS, report.seconds, time);
  legend(at("#stalls .legend"), report.stalls, COLORS, report.seconds, time);
}

/* ---- the timeline ---- */

/* Spans that are joined have gaps: the unit works in a share of them. */
const works = event =>
  event.busy_s === undefined || !event.seconds ? 1 : event.busy_s / event.seconds;
const shade = event => 0.25 + 0.75 * Math.min(1, works(event));
const joined = event => event.count > 1
  ? `, ${event.count} spans in which it works ${percent(works(event))}` : "";

function timeline() {
  const canvas = at("canvas"), events = report.timeline, end = report.seconds || 1;
  const lanes = [...new Set(events.map(event => event.lane))];
  const LEFT = 70, ROW = 24, TOP = 20, height = TOP + ROW * lanes.length + 8;
  let from = 0, to = end, dragged = null, moved = false;
  const clamp = () => {
    const width = Math.min(end, Math.max(to - from, end / 1e6));
    from = Math.min(Math.max(from, 0), end - width);
    to = from + width;
  };
  const color = event => COLORS[{ mxu: "compute", vpu: "vector", host: "dispatch", dram: "dram",
    noc: "noc" }[event.lane.replace(/[0-9]+$/, "")] || "dma"];
  repaint = () => {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    const draw = canvas.getContext("2d"), place = second =>
      LEFT + (width - LEFT) * (second - from) / (to - from);
    draw.scale(ratio, ratio);
    draw.font = "11px system-ui, sans-serif";
    draw.fillStyle = "#5d6778";
    for (let tick = 0; tick <= 6; tick++) {
      const second = from + (to - from) * tick / 6;
      draw.fillText(time(second), Math.min(place(second), width - 50), 12);
    }
    lanes.forEach((lane, row) => draw.fillText(lane, 4, TOP + ROW * row + 15));
    draw.save();
    draw.beginPath();
    draw.rect(LEFT, 0, width, height);
    draw.clip();
    for (const event of events) {
      const left = place(event.start_s), wide = place(event.start_s + event.seconds) - left;
      if (left > width || left + wide < LEFT) continue;
      const top = TOP + ROW * lanes.indexOf(event.lane);
      draw.fillStyle = color(event);
      draw.globalAlpha = (chosen === null || event.layer === chosen ? 1 : 0.35) * shade(event);
      draw.fillRect(left, top + 2, Math.max(wide, 0.5), ROW - 4);
      if (wide > 60) {
        draw.fillStyle = "#fff";
        draw.fillText(event.name.slice(0, wide / 6), Math.max(left, LEFT) + 4, top + 16);
      }
    }
    draw.restore();
  };
  const zoom = (factor, x) => {
    const middle = from + (to - from) * (x - LEFT) / Math.max(canvas.clientWidth - LEFT, 1);
    [from, to] = [middle - (middle - from) * factor, middle + (to - middle) * factor];
    clamp();
    repaint();
  };
  const found = (x, y) => {
    const second = from + (to - from) * (x - LEFT) / (canvas.clientWidth - LEFT);
    const lane = lanes[Math.floor((y - TOP) / ROW)];
    return events.find(event => event.lane === lane && event.start_s <= second
      && second <= event.start_s + event.seconds);
  };
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX);
  }, { passive: false });
  canvas.addEventListener("keydown", event => {
    const factor = { "+": 0.8, "=": 0.8, "-": 1.25 }[event.key];
    if (factor) zoom(factor, canvas.clientWidth / 2);
  });
  canvas.addEventListener("pointerdown", event => {
    dragged = event.offsetX;
    moved = false;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", event => {
    const over = found(event.offsetX, event.offsetY);
    canvas.title = over ? `${over.name}: ${time(over.seconds)}${joined(over)}` : "";
    if (dragged === null) return;
    const by = (to - from) * (dragged - event.offsetX) / (canvas.clientWidth - LEFT);
    if (Math.abs(dragged - event.offsetX) > 2) moved = true;
    if (!moved) return;
    dragged = event.offsetX;
    from += by;
    to += by;
    clamp();
    repaint();
  });
  canvas.addEventListener("pointerup", event => {
    dragged = null;
    const over = moved ? null : found(event.offsetX, event.offsetY);
    if (over) choose(over.layer);
  });
  canvas.addEventListener("dblclick", () => { [from, to] = [0, end]; repaint(); });
  window.addEventListener("resize", () => repaint());
  const dropped = report.timeline_dropped || 0;
  at(".dropped").hidden = !dropped;
  at(".dropped").textContent = `${dropped.toLocaleString("en")} more spans are joined with others;`
    + " the more gaps they have, the paler they are.";
  repaint();
}

/* ---- groups ---- */

function groups(by) {
  const keys = { module: layer => layer.module.replace(/\b[0-9]+\b/g, "*") || "(none)",
    op: layer => layer.op, layer: layer => `${layer.index} ${layer.node}` };
  const found = new Map();
  for (const layer of report.layers) {
    const key = keys[by](layer), group = found.get(key) || { seconds: 0, stalls: {}, first: layer };
    group.seconds += layer.seconds;
    for (const [name, part] of Object.entries(layer.stalls))
      group.stalls[name] = (group.stalls[name] || 0) + part;
    found.set(key, group);
  }
  const rows = [...found].sort((a, b) => b[1].seconds - a[1].seconds).slice(0, 40);
  const element = at("#groups .rows"), most = rows.length ? rows[0][1].seconds : 1;
  element.replaceChildren();
  for (const [key, group] of rows) {
    make(element, "b", key, { title: key });
    const bar = make(element, "div", null, { class: "stack",
      style: `width:${100 * group.seconds / (most || 1)}%` });
    stack(bar, group.stalls, COLORS, group.seconds, time);
    make(element, "em", time(group.seconds));
  }
  for (const button of document.querySelectorAll("#groups button"))
    button.classList.toggle("chosen", button.dataset.by === by);
}

/* ---- tables ---- */

const COLUMNS = {
  command: [layer => layer.index, layer => `${layer.index} ${layer.op}`],
  module: [layer => layer.module, layer => layer.module],
  source: [layer => layer.source, layer => layer.source.split("/").pop()],
  time: [layer => layer.seconds, layer => time(layer.seconds)],
  "bound by": [layer => layer.bound, layer => layer.bound],
  "of the peak": [layer => layer.utilization, layer => percent(layer.utilization)],
  DRAM: [layer => layer.dram_bytes, layer => bytes(layer.dram_bytes)],
};

/* Numbers stand to the right; a command is sorted by its number, and is a name to read. */
const kind = (name, value) =>
  name === "command" ? "name" : name === "what would help" ? "long"
    : typeof value === "number" ? "number" : "";

function table(element, rows, columns) {
  element.replaceChildren();
  const line = make(make(element, "thead"), "tr"), body = make(element, "tbody");
  const fill = () => {
    body.replaceChildren();
    for (const layer of rows) {
      const row = make(body, "tr", null, { "data-layer": layer.index });
      for (const [name, [key, shown]] of Object.entries(columns))
        make(row, "td", shown(layer), { class: kind(name, key(layer)),
          title: name === "source" ? layer.source : "" });
      row.addEventListener("click", () => choose(layer.index));
    }
  };
  for (const [name, [key]] of Object.entries(columns)) {
    const cell = make(line, "th", name, { class: rows.length ? kind(name, key(rows[0])) : "" });
    let turned = false;
    cell.addEventListener("click", () => {
      const sign = turned ? 1 : -1;
      turned = !turned;
      rows.sort((a, b) => sign * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
      fill();
    });
  }
  fill();
}

/* ---- roofline, memories, energy ---- */

function roofline() {
  const ops = report.peaks.ops_per_second, rates = report.peaks.bytes_per_second;
  const points = report.layers.filter(l => l.operations > 0 && l.dram_bytes > 0 && l.seconds > 0)
    .map(l => ({ layer: l, x: l.operations / l.dram_bytes, y: l.operations / l.seconds }));
  if (!points.length || !(ops > 0) || !(rates > 0)) { at("#roofline").hidden = true; return; }
  const WIDTH = 760, HEIGHT = 340, LEFT = 56, BOTTOM = 30, ridge = ops / rates;
  const log = Math.log10, xs = [...points.map(p => p.x), ridge], ys = [...points.map(p => p.y), ops];
  const [x0, x1] = [Math.floor(log(Math.min(...xs))), Math.ceil(log(Math.max(...xs))) + 0.3];
  const [y0, y1] = [Math.floor(log(Math.min(...ys))), Math.ceil(log(Math.max(...ys)))];
  const px = x => LEFT + (WIDTH - LEFT - 10) * (log(x) - x0) / (x1 - x0);
  const py = y => 10 + (HEIGHT - BOTTOM - 10) * (y1 - log(y)) / (y1 - y0);
  const svg = make(at("#roofline div"), "svg", null,
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT });
  for (let power = x0; power <= x1; power++) {
    make(svg, "line", null, { x1: px(10 ** power), x2: px(10 ** power), y1: 10,
      y2: HEIGHT - BOTTOM, stroke: "#e6eaf1" });
    make(svg, "text", rate(10 ** power), { x: px(10 ** power), y: HEIGHT - 14,
      "text-anchor": "middle" });
  }
  for (let power = y0; power <= y1; power++) {
    make(svg, "line", null, { x1: LEFT, x2: WIDTH - 10, y1: py(10 ** power), y2: py(10 ** power),
      stroke: "#e6eaf1" });
    make(svg, "text", rate(10 ** power), { x: LEFT - 6, y: py(10 ** power) + 4,
      "text-anchor": "end" });
  }
  make(svg, "text", "operations a byte of DRAM", { x: WIDTH - 10, y: HEIGHT - 2,
    "text-anchor": "end" });
  make(svg, "text", "operations a second", { x: LEFT + 4, y: 20 });
  const foot = Math.max(10 ** x0, 10 ** y0 / rates);
  make(svg, "path", null, { d: `M${px(foot)} ${py(foot * rates)}L${px(ridge)} ${py(ops)}`
    + `L${WIDTH - 10} ${py(ops)}`, fill: "none", stroke: "#1c2330", "stroke-width": 1.5 });
  const most = Math.max(...report.layers.map(layer => layer.seconds));
  for (const { layer, x, y } of points) {
    const dot = make(svg, "circle", null, { cx: px(x), cy: py(y), fill: COLORS[layer.bound],
      r: 2.5 + 9 * Math.sqrt(layer.seconds / most), "fill-opacity": 0.55, stroke: "#fff" });
    make(dot, "title", `${layer.index} ${layer.op}: ${time(layer.seconds)}, bound by ${layer.bound}`);
    dot.addEventListener("click", () => choose(layer.index));
  }
}

function memories() {
  if (!report.memories.length) { at("#memories").hidden = true; return; }
  const WIDTH = 760, HEIGHT = 90;
  for (const memory of report.memories) {
    const element = at("#memories div"), whole = memory.bytes || memory.peak_bytes || 1;
    const limit = memory.bytes ? ` of ${bytes(memory.bytes)}` : "";
    make(element, "p", `${memory.name}: at most ${bytes(memory.peak_bytes)}${limit}`);
    const svg = make(element, "svg", null, { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: "100%",
      height: HEIGHT, preserveAspectRatio: "none" });
    const top = Math.max(whole, memory.peak_bytes);
    let path = `M0 ${HEIGHT}`, level = HEIGHT;
    for (const [second, held] of memory.occupancy) {
      const x = WIDTH * second / (report.seconds || 1);
      path += `L${x} ${level}`;
      level = HEIGHT - (HEIGHT - 4) * held / top;
      path += `L${x} ${level}`;
    }
    make(svg, "rect", null, { x: 0, y: 4, width: WIDTH, height: HEIGHT - 4, fill: "#f5f7fb" });
    make(svg, "path", null, { d: `${path}L${WIDTH} ${level}L${WIDTH} ${HEIGHT}Z`, fill: "#9a5fc7",
      "fill-opacity": 0.45, stroke: "#9a5fc7" });
  }
}

function energy() {
  if (!report.energy) { at("#energy").hidden = true; return; }
  stack(at("#energy .stack"), report.energy, ENERGY, report.energy.total, joules);
  legend(at("#energy .legend"), report.energy, ENERGY, report.energy.total, joules);
}

head();
timeline();
table(at("#matters table"), [...report.layers].sort((a, b) => b.seconds - a.seconds).slice(0, 10),
  { ...COLUMNS, "what would help": [layer => layer.advice, layer => layer.advice] });
groups("module");
for (const button of document.querySelectorAll("#groups button"))
  button.addEventListener("click", () => groups(button.dataset.by));
roofline();
memories();
energy();
table(at("#all table"), [...report.layers], COLUMNS);
document.body.dataset.ready = "true";
