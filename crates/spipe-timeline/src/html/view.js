// Drawing: two scrolling panes and an axis over one window of time. Only visible parts are drawn.
const root = document.documentElement;
const byId = (id) => document.getElementById(id);
const chart = byId("chart"), axis = byId("axis");
const AXIS = 30, BAR = double ? 19 : 24, GAP = 5, DEVICE_GAP = 9, MEMORY = 58;
const FONT = 'system-ui, "DejaVu Sans", Verdana, sans-serif';
const pen = document.createElement("canvas").getContext("2d");

const state = {
  from: 0, to: END, hidden: { family: new Set(), cause: new Set() }, arrows: true,
  hover: null, // the object under the pointer: { track, span } or { track, idle }
  chosen: null, // the selected span: { track, span }
  time: null, // the time under the pointer
};

let theme = {};
function readTheme() {
  const style = getComputedStyle(root);
  for (const name of ["paper", "ink", "quiet", "line", "grid", "fault", "focus", "control", "curve0", "curve1"]) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
  theme.dark = !printing && matchMedia("(prefers-color-scheme: dark)").matches;
  theme.hatch = data.causes.map((cause) => pen.createPattern(hatch(causeColor(cause)), "repeat"));
  theme.tint = data.causes.map((cause) => `${causeColor(cause)}${theme.dark ? "60" : "38"}`);
  theme.columns = [...data.families.map((family) => packed(familyColor(family), 1)), ...data.causes.map((cause) => packed(causeColor(cause), theme.dark ? 0.38 : 0.22))];
}

// Dark grey bars would be invisible on a dark page.
function familyColor(family) {
  return family.neutral && theme.dark ? theme.control : family.color;
}

function causeColor(cause) {
  return cause.neutral && theme.dark ? theme.control : cause.color;
}

function hatch(color) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 7;
  const ink = tile.getContext("2d");
  ink.globalAlpha = theme.dark ? 0.28 : 0.14;
  ink.fillStyle = color;
  ink.fillRect(0, 0, 7, 7);
  ink.globalAlpha = theme.dark ? 0.5 : 0.32;
  ink.strokeStyle = color;
  ink.beginPath();
  for (const shift of [-7, 0, 7]) { ink.moveTo(shift - 1, 8); ink.lineTo(shift + 8, -1); }
  ink.stroke();
  return tile;
}

// A pattern beside the colour, by family: for eyes and printers that see no hue. Forward, backward,
// transfers between stages and checks are plain.
const MARKS = { 1: "/", 3: "|", 4: "-", 6: "\\", 7: "x", 8: "=", 9: "." };
const patterns = new Map();
function patternOf(number, ink) {
  const mark = MARKS[number], key = `${mark}${ink}`;
  if (!mark) return null;
  if (!patterns.has(key)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const brush = tile.getContext("2d");
    brush.globalAlpha = 0.3;
    brush.strokeStyle = brush.fillStyle = ink;
    const stroke = (x0, y0, x1, y1) => { brush.beginPath(); brush.moveTo(x0, y0); brush.lineTo(x1, y1); brush.stroke(); };
    if ("/x".includes(mark)) for (const at of [-6, 0, 6]) stroke(at - 1, 7, at + 7, -1);
    if ("\\x".includes(mark)) for (const at of [-6, 0, 6]) stroke(at - 1, -1, at + 7, 7);
    if (mark === "|") stroke(2.5, 0, 2.5, 6);
    if ("-=".includes(mark)) stroke(0, 1.5, 6, 1.5);
    if (mark === "=") stroke(0, 3.5, 6, 3.5);
    if (mark === ".") brush.fillRect(2, 2, 2, 2);
    patterns.set(key, pen.createPattern(tile, "repeat"));
  }
  return patterns.get(key);
}

pen.font = `600 12px ${FONT}`;
const most = (widths) => widths.reduce((one, other) => Math.max(one, other), 0);
const DEVICES = Math.min(150, most(data.rows.map((row) => pen.measureText(row.device).width))) + 12;
pen.font = `12px ${FONT}`;
const TRACKS = double ? Math.max(...tracks.map((track) => pen.measureText(track.label).width)) + 10 : 0;
const names = data.rows.map((row) => pen.measureText(row.short).width);
const LEFT = 12 + Math.max(DEVICES + Math.min(180, Math.max(60, most(names))) + 10 + TRACKS, 130);

// The rows of the lanes, with their top and bottom.
const laneRows = [];
let laneHeight = 4;
data.rows.forEach((row, index) => {
  const opens = index === 0 || data.rows[index - 1].device !== row.device;
  if (opens && index > 0) laneHeight += DEVICE_GAP;
  laneRows.push({ top: laneHeight, bottom: laneHeight + BAR * tracks.length, opens, row, index });
  laneHeight += BAR * tracks.length + GAP;
});
const memoryRows = data.memories.map((memory, index) => ({ top: 12 + index * (MEMORY + 20), memory }));
const memoryHeight = memoryRows.length ? 12 + memoryRows.length * (MEMORY + 20) : 0;

let printing = false;
class Pane {
  constructor(id, height, paint) {
    this.box = byId(id);
    this.canvas = this.box.querySelector("canvas");
    this.height = height;
    this.paint = paint;
    this.box.querySelector(".spacer").style.height = `${height}px`;
    this.box.hidden = height === 0;
    this.box.addEventListener("scroll", redraw);
  }

  draw() {
    if (this.box.hidden) return;
    const limit = printing ? 14000 : parseFloat(getComputedStyle(this.box).maxHeight) || 600;
    const visible = Math.max(1, Math.min(this.height, Math.floor(limit)));
    this.box.style.height = `${visible}px`;
    const ink = prepare(this.canvas, this.box.clientWidth, visible);
    this.paint(ink, this.box.clientWidth, printing ? 0 : this.box.scrollTop, visible);
  }
}

function prepare(canvas, width, height) {
  const scale = height > 8000 ? 1 : window.devicePixelRatio || 1;
  const [wide, high] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const ink = canvas.getContext("2d");
  ink.setTransform(scale, 0, 0, scale, 0, 0);
  ink.fillStyle = theme.paper;
  ink.fillRect(0, 0, width, height);
  ink.textBaseline = "middle";
  return ink;
}

// Reading the width forces a layout of the page, so it is read once per drawing.
let paneWidth = 0;
// On a narrow screen the chart has the room of the busy shares; the table has them too.
const right = () => paneWidth < 480 ? 8 : 72;
const plotWidth = () => Math.max(50, paneWidth - LEFT - right());
const toX = (time) => LEFT + (time - state.from) / (state.to - state.from) * plotWidth();
const toTime = (x) => state.from + (x - LEFT) / plotWidth() * (state.to - state.from);

function clipPlot(ink, height, paint) {
  ink.save();
  ink.beginPath();
  ink.rect(LEFT, 0, plotWidth(), height);
  ink.clip();
  paint();
  ink.restore();
}

const widths = new Map();
function fits(ink, text, room) {
  const key = ink.font + text;
  if (!widths.has(key)) {
    if (widths.size > 20000) widths.clear();
    widths.set(key, ink.measureText(text).width);
  }
  return widths.get(key) <= room;
}

// A text with its end left out where it has no room: letters are never condensed.
function shortened(ink, text, room) {
  if (fits(ink, text, room)) return text;
  const length = after(text.length, (at) => ink.measureText(`${text.slice(0, at + 1)}…`).width, room);
  return `${text.slice(0, length)}…`;
}

function paintLanes(ink, width, scroll, height) {
  paintGrid(ink, height);
  const first = after(laneRows.length, (at) => laneRows[at].bottom, scroll);
  const visible = [];
  for (let at = first; at < laneRows.length && laneRows[at].top < scroll + height; at += 1) visible.push(laneRows[at]);
  for (const placed of visible) paintName(ink, width, placed, placed.top - scroll);
  clipPlot(ink, height, () => {
    for (const placed of visible) {
      tracks.forEach((track) => {
        if (placed.row.lanes[track.index] === null) return;
        const top = placed.top - scroll + track.index * BAR;
        const dense = isDense(track, placed.index);
        if (dense) paintColumns(ink, track, placed.index, top);
        paintBubbles(ink, track, placed.index, top, dense ? WIDE : 0);
        paintBars(ink, track, placed.index, top, dense ? WIDE : 0);
      });
    }
    paintMarks(ink, height);
    for (const mark of [state.chosen, state.hover]) if (mark && mark.span !== undefined) paintMarked(ink, mark, scroll);
    paintPointer(ink, height);
  });
}

function paintName(ink, width, placed, top) {
  const middle = top + Math.min(placed.bottom - placed.top, 2 * BAR) / 2;
  if (placed.opens) {
    ink.strokeStyle = theme.line;
    ink.beginPath();
    ink.moveTo(0, top - 4.5);
    ink.lineTo(width, top - 4.5);
    ink.stroke();
    ink.fillStyle = theme.ink;
    ink.textAlign = "left";
    ink.font = `600 12px ${FONT}`;
    ink.fillText(shortened(ink, placed.row.device, DEVICES - 8), 12, middle);
  }
  ink.font = `12px ${FONT}`;
  ink.fillStyle = theme.ink;
  ink.textAlign = "left";
  ink.fillText(shortened(ink, placed.row.short, LEFT - DEVICES - TRACKS - 20), 12 + DEVICES, middle);
  ink.textAlign = "right";
  ink.fillStyle = theme.quiet;
  tracks.forEach((track) => {
    const share = placed.row.share[track.index], y = top + (track.index + 0.5) * BAR;
    ink.font = `12px ${FONT}`;
    if (double && placed.row.lanes[track.index] !== null) ink.fillText(track.label, LEFT - 7, y);
    ink.font = `12px ${FONT}`;
    if (share !== null && right() > 8) ink.fillText(percent(share), width - 10, y);
  });
}

// Draws the bubbles of a lane that are at least `least` pixels wide.
function paintBubbles(ink, track, row, top, least) {
  const idle = track.rows[row].idle, bottom = top + BAR - 1;
  ink.font = `12px ${FONT}`;
  ink.textAlign = "center";
  for (let at = track.firstIdleAfter(row, state.from); at < idle.length && idle[at][1] < state.to; at += 1) {
    const [, start, end, number] = idle[at];
    if (state.hidden.cause.has(number)) continue;
    const left = Math.max(toX(start), LEFT - 2), right = Math.min(toX(end), LEFT + plotWidth() + 2);
    const cause = data.causes[number], color = causeColor(cause);
    if (right - left < least) continue;
    if (right - left < 1) {
      ink.fillStyle = color;
      ink.fillRect(left, bottom - 3, 1, 3);
      // The others within this pixel would be drawn over each other.
      at = Math.max(at, track.firstIdleAfter(row, toTime(Math.floor(left) + 1)) - 1);
      continue;
    }
    ink.fillStyle = right - left < 8 ? theme.tint[number] : theme.hatch[number];
    ink.fillRect(left, top, right - left, bottom - top);
    ink.fillStyle = color;
    ink.fillRect(left, bottom - 3, right - left, 3);
    const word = right - left > 14 && [cause.name, cause.code].find((word) => fits(ink, word, right - left - 6));
    if (word) {
      const wide = widths.get(ink.font + word);
      ink.fillStyle = theme.paper;
      ink.globalAlpha = 0.75;
      ink.fillRect((left + right - wide) / 2 - 2, top + 3, wide + 4, BAR - 9);
      ink.globalAlpha = 1;
      ink.fillStyle = theme.ink;
      ink.fillText(word, (left + right) / 2, top + BAR / 2 - 1);
    }
  }
}

// Draws the bars of a lane that are at least `least` pixels wide.
function paintBars(ink, track, row, top, least) {
  const { spans } = track.rows[row], height = BAR - 1;
  ink.font = `12px ${FONT}`;
  ink.textAlign = "center";
  for (let at = track.firstAfter(row, state.from); at < spans.length && track.start[spans[at]] < state.to; at += 1) {
    const span = spans[at], number = track.familyOf(span);
    if (state.hidden.family.has(number)) continue;
    const left = toX(track.start[span]), right = toX(track.end[span]), width = right - left;
    if (width < least) continue;
    const family = data.families[number];
    ink.fillStyle = familyColor(family);
    if (width < 0.7) {
      // Thin ones within one pixel are one column, as high as their share of it.
      let time = width, count = 1;
      for (; at + 1 < spans.length; at += 1, count += 1) {
        const [start, end] = [toX(track.start[spans[at + 1]]), toX(track.end[spans[at + 1]])];
        if (start >= Math.floor(left) + 1 || end - start >= 0.7) break;
        time += end - start;
      }
      const share = count > 1 ? Math.min(1, time) : 1;
      ink.fillRect(left, top + height * (1 - share), 0.8, height * share);
      continue;
    }
    ink.fillRect(left, top, Math.max(width - (width > 4 ? 1 : 0), 0.8), height);
    if (width < WIDE) continue;
    const pattern = patternOf(number, family.ink);
    if (pattern) {
      ink.fillStyle = pattern;
      ink.fillRect(left, top, Math.max(width - 1, 0.8), height);
    }
    const [from, to] = [Math.max(left, LEFT), Math.min(right, LEFT + plotWidth())];
    const label = labels(track, span).find((label) => label && fits(ink, label, to - from - 4));
    if (label) {
      ink.fillStyle = family.neutral && theme.dark ? "#000000" : family.ink;
      ink.fillText(label, (from + to) / 2, top + height / 2 + 0.5);
    }
  }
}

function labels(track, span) {
  const microbatch = track.microbatch[span];
  return [track.labelOf(span), track.kindOf(span).letter ? "" : track.subject(span), microbatch >= 0 ? String(microbatch) : ""];
}

function paintMarks(ink, height) {
  for (const track of tracks) {
    const stopped = track.shortage !== null, at = stopped ? track.shortage : track.iteration;
    ink.strokeStyle = stopped ? theme.fault : theme.ink;
    ink.lineWidth = stopped ? 2 : 1;
    line(ink, toX(at), 0, toX(at), height);
    ink.lineWidth = 1;
  }
}

function paintPointer(ink, height) {
  if (state.time === null) return;
  ink.strokeStyle = theme.quiet;
  ink.setLineDash([3, 3]);
  line(ink, toX(state.time), 0, toX(state.time), height);
  ink.setLineDash([]);
}

function line(ink, x0, y0, x1, y1) {
  ink.beginPath();
  ink.moveTo(x0, y0);
  ink.lineTo(x1, y1);
  ink.stroke();
}

// Outlines a bar and its twin, and draws the arrows of the bar.
function paintMarked(ink, { track, span }, scroll) {
  const box = (track, span) => {
    const top = laneRows[track.row[span]].top - scroll + track.index * BAR;
    return { left: toX(track.start[span]), right: toX(track.end[span]), top, middle: top + BAR / 2 };
  };
  const outline = ({ left, right, top }, color) => {
    ink.lineWidth = 2;
    ink.strokeStyle = color;
    ink.strokeRect(left - 1, top - 1, Math.max(right - left, 2) + 1, BAR + 1);
    ink.lineWidth = 1;
  };
  const own = box(track, span), other = twin(track, span);
  if (other >= 0) outline(box(tracks[1 - track.index], other), theme.quiet);
  outline(own, theme.ink);
  if (!state.arrows) return;
  for (const from of track.before(span)) if (track.row[from] >= 0) arrow(ink, box(track, from), own);
  for (const to of track.next(span)) if (track.row[to] >= 0) arrow(ink, own, box(track, to));
}

function arrow(ink, from, to) {
  const [x0, y0, x1, y1] = [from.right, from.middle, to.left, to.middle];
  const bend = Math.max(14, Math.min(60, Math.abs(x1 - x0) / 2));
  for (const [color, width] of [[theme.paper, 4.5], [theme.ink, 1.75]]) {
    ink.strokeStyle = color;
    ink.fillStyle = color;
    ink.lineWidth = width;
    ink.beginPath();
    ink.moveTo(x0, y0);
    ink.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    ink.stroke();
    ink.beginPath();
    ink.moveTo(x1 + 1, y1);
    ink.lineTo(x1 - 7, y1 - 4.5);
    ink.lineTo(x1 - 7, y1 + 4.5);
    ink.fill();
  }
  ink.lineWidth = 1;
}

function paintGrid(ink, height) {
  ink.strokeStyle = theme.grid;
  for (const [at] of ticks(state.from, state.to, (state.to - state.from) / plotWidth() * 90).marks) {
    line(ink, toX(at), 0, toX(at), height);
  }
}

function paintAxis() {
  const width = paneWidth, ink = prepare(axis, width, AXIS);
  const { unit, marks } = ticks(state.from, state.to, (state.to - state.from) / plotWidth() * 90);
  ink.font = `12px ${FONT}`;
  ink.fillStyle = theme.quiet;
  ink.textAlign = "right";
  ink.fillText(`time in ${unit}`, LEFT - 14, 15);
  if (right() > 8) ink.fillText("busy", width - 10, 15);
  ink.textAlign = "center";
  ink.strokeStyle = theme.line;
  for (const [at, label] of marks) {
    ink.fillText(label, toX(at), 15);
    line(ink, toX(at), 24, toX(at), AXIS);
  }
  if (state.time !== null) {
    const text = moment(Math.max(0, state.time)), half = ink.measureText(text).width / 2 + 5, x = toX(state.time);
    ink.fillStyle = theme.ink;
    ink.fillRect(x - half, 5, 2 * half, 20);
    ink.fillStyle = theme.paper;
    ink.fillText(text, x, 15);
  }
  byId("window").textContent = state.from > 0 || state.to < END ? `${duration(state.from)} to ${duration(state.to)}` : "";
}

function paintMemories(ink, width, scroll, height) {
  paintGrid(ink, height);
  for (const { top, memory } of memoryRows) {
    if (top - scroll < height && top + MEMORY + 20 > scroll) paintMemory(ink, memory, top + 6 - scroll);
  }
  clipPlot(ink, height, () => { paintMarks(ink, height); paintPointer(ink, height); });
}

function paintMemory(ink, memory, top) {
  const curves = memory.curves.filter((curve) => curve), bottom = top + MEMORY;
  const peak = Math.max(1, ...curves.map((curve) => curve.peak));
  const capacity = Math.max(0, ...curves.map((curve) => curve.capacity || 0));
  const reachable = capacity > 0 && capacity <= 3 * peak;
  const most = reachable ? Math.max(peak, capacity) : peak;
  const y = (bytes) => bottom - Math.min(1.05, bytes / most) * MEMORY;
  ink.textAlign = "left";
  ink.font = `600 12px ${FONT}`;
  ink.fillStyle = theme.ink;
  ink.fillText(shortened(ink, memory.name, LEFT - 20), 12, top + 6);
  ink.font = `12px ${FONT}`;
  memory.curves.forEach((curve, index) => {
    if (!curve) return;
    const now = state.time === null ? `peak ${size(curve.peak)}` : `${size(heldAt(curve, state.time))} at pointer`;
    ink.fillStyle = double ? theme[`curve${index}`] : theme.quiet;
    ink.fillText(`${double ? `${tracks[index].label} ` : ""}${now}`, 12, top + 22 + 14 * index, LEFT - 16);
  });
  ink.fillStyle = theme.quiet;
  if (capacity) ink.fillText(`of ${size(capacity)}`, 12, top + 22 + 14 * tracks.length, LEFT - 16);
  clipPlot(ink, 1e6, () => {
    memory.curves.forEach((curve, index) => { if (curve) paintCurve(ink, curve, index, bottom, y); });
    if (reachable) {
      ink.strokeStyle = theme.fault;
      ink.setLineDash([6, 4]);
      line(ink, LEFT, y(capacity), LEFT + plotWidth(), y(capacity));
      ink.setLineDash([]);
    }
  });
  if (reachable) {
    ink.fillStyle = theme.fault;
    ink.fillText("capacity", LEFT + plotWidth() + 5, y(capacity));
  }
}

function paintCurve(ink, curve, index, bottom, y) {
  const right = LEFT + plotWidth();
  let held = heldAt(curve, state.from), pixel = -1, high = 0;
  ink.beginPath();
  ink.moveTo(LEFT, y(held));
  for (let at = after(curve.at.length, (at) => curve.at[at], state.from); at < curve.at.length && curve.at[at] <= state.to; at += 1) {
    const x = toX(curve.at[at]), bytes = curve.bytes[at];
    // Memory that is released and allocated again at one instant was never free.
    if (curve.at[at + 1] === curve.at[at] && curve.bytes[at + 1] >= bytes) continue;
    // Within one pixel, only a new maximum or the last value is visible.
    if (Math.floor(x) === pixel && bytes <= high && Math.floor(toX(curve.at[at + 1])) === pixel) { held = bytes; continue; }
    if (Math.floor(x) !== pixel) { pixel = Math.floor(x); high = 0; }
    high = Math.max(high, bytes);
    ink.lineTo(x, y(held));
    ink.lineTo(x, y(bytes));
    held = bytes;
  }
  ink.lineTo(right, y(held));
  ink.strokeStyle = theme[`curve${index}`];
  ink.lineWidth = 1.5;
  ink.stroke();
  ink.lineWidth = 1;
  if (index === 0) {
    ink.lineTo(right, bottom);
    ink.lineTo(LEFT, bottom);
    ink.globalAlpha = 0.25;
    ink.fillStyle = theme.curve0;
    ink.fill();
    ink.globalAlpha = 1;
  }
}

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(drawNow);
}

function drawNow() {
  waiting = false;
  paneWidth = byId("lanes").clientWidth;
  panes.forEach((pane) => pane.draw());
  paintAxis();
}

const panes = [new Pane("lanes", laneHeight + 4, paintLanes), new Pane("memories", memoryHeight, paintMemories)];
