// User input: wheel, drag, keys, pointer, selection, legend, printing.
const lanes = panes[0], tip = byId("tip"), details = byId("details");
const LEAST = Math.min(END, 20);

function show(from, to) {
  const width = Math.min(END, Math.max(LEAST, to - from));
  state.from = Math.min(Math.max(0, from), END - width);
  state.to = state.from + width;
  redraw();
}

function zoom(factor, at) {
  show(at - (at - state.from) * factor, at + (state.to - at) * factor);
}

function pan(share) {
  const shift = share * (state.to - state.from);
  show(state.from + shift, state.to + shift);
}

const middle = () => (state.from + state.to) / 2;

function node(name, ...children) {
  const element = document.createElement(name);
  element.append(...children);
  return element;
}

function list(pairs) {
  const all = pairs.filter(([, value]) => value !== "").flatMap(([key, value]) => [node("dt", key), node("dd", value)]);
  return node("dl", ...all);
}

const laneOf = (track, span) => data.rows[track.row[span]].name + (double ? `, ${track.label}` : "");

function describeSpan(track, span, withNeighbours) {
  const start = track.start[span], length = track.end[span] - start, bytes = track.bytes[span];
  const other = twin(track, span), wait = track.wait[span];
  let versus = "";
  if (other >= 0) {
    const theirs = tracks[1 - track.index], theirLength = theirs.end[other] - theirs.start[other];
    const change = theirLength > 0 ? length / theirLength - 1 : 0;
    const words = `; this one takes ${percent(Math.abs(change))} ${change < 0 ? "less" : "more"}`;
    versus = `${duration(theirLength)} at ${moment(theirs.start[other])}${theirLength > 0 ? words : ""}`;
  }
  return [node("strong", track.labelOf(span)), ` ${track.kindOf(span).name}`, list([
    ["lane", laneOf(track, span)],
    ["stage", track.stage[span] >= 0 ? `s${track.stage[span]}` : ""],
    ["microbatch", track.microbatch[span] >= 0 ? `m${track.microbatch[span]}` : ""],
    ["layers", track.layers[span] >= 0 ? data.layers[track.layers[span]] : ""],
    ["start", moment(start)],
    ["duration", duration(length)],
    [double ? tracks[1 - track.index].label : "", versus],
    ["bytes", bytes >= 0 ? `${size(bytes)}${length > 0 ? `, ${(bytes / length).toFixed(2)} GB/s` : ""}` : ""],
    ["waited for", wait >= 0 ? `${data.causes[wait].name}: ${data.causes[wait].meaning}` : ""],
    ["unblocked by", withNeighbours ? neighbours(track, track.before(span)) : ""],
    ["unblocks", withNeighbours ? neighbours(track, track.next(span)) : ""],
  ])];
}

function neighbours(track, spans) {
  const words = Array.from(spans.subarray(0, 3), (span) => `${track.labelOf(span)} (${data.rows[track.row[span]]?.name ?? "?"})`);
  return words.join(", ") + (spans.length > 3 ? ` and ${spans.length - 3} more` : "");
}

function describeIdle(track, [row, start, end, number]) {
  const cause = data.causes[number];
  return [node("strong", `idle: ${cause.name}`), list([
    ["lane", data.rows[row].name + (double ? `, ${track.label}` : "")],
    ["meaning", cause.meaning],
    ["duration", `${duration(end - start)}${track.iteration ? `, ${percent((end - start) / track.iteration)} of the iteration` : ""}`],
    ["from, to", `${moment(start)}, ${moment(end)}`],
  ])];
}

// A column, where columns stand for actions: the time below one pixel, or a whole column.
function describeColumn(track, [row, from, to]) {
  const { kinds } = track.unpack(row), parts = track.columnShares(row, from, to);
  const name = (kind) => kind < FAMILIES ? data.families[kind].name : `idle: ${data.causes[kind - FAMILIES].name}`;
  const found = kinds.map((kind, at) => [name(kind), parts[at]]).filter(([, share]) => share > 0.0005);
  return [node("strong", "all actions in"), ` ${duration(to - from)}`, list([
    ["lane", data.rows[row].name + (double ? `, ${track.label}` : "")],
    ["from, to", `${moment(from)}, ${moment(to)}`],
    ...found.sort((a, b) => b[1] - a[1]).map(([kind, share]) => [kind, percent(share)]),
  ])];
}

function findColumn(track, row, time) {
  const width = Math.max(END / track.columns.count, (state.to - state.from) / plotWidth());
  const from = Math.floor(time / width) * width;
  return track.columns.rows[row] && from < END ? { track, column: [row, from, Math.min(END, from + width)] } : null;
}

// Returns the bar within two pixels of a point on the lanes, else the bubble there.
function find(x, y) {
  const inside = y + lanes.box.scrollTop;
  const placed = laneRows[after(laneRows.length, (at) => laneRows[at].bottom, inside)];
  if (!placed || inside < placed.top || x < LEFT || x > LEFT + plotWidth()) return null;
  const track = tracks[Math.min(tracks.length - 1, Math.floor((inside - placed.top) / BAR))];
  const time = toTime(x), reach = 2 / plotWidth() * (state.to - state.from), { spans, idle } = track.rows[placed.index];
  if (track.columns) return findColumn(track, placed.index, time);
  let best = -1, distance = reach;
  for (let at = track.firstAfter(placed.index, time - reach); at < spans.length && track.start[spans[at]] <= time + reach; at += 1) {
    const span = spans[at], away = Math.max(track.start[span] - time, time - track.end[span], 0);
    if (!state.hidden.family.has(track.familyOf(span)) && away <= distance) { best = span; distance = away; }
    if (away === 0) break;
  }
  const interval = idle[track.firstIdleAfter(placed.index, time)];
  const isIdle = interval && interval[1] <= time && !state.hidden.cause.has(interval[3]);
  if (best >= 0 && (distance === 0 || !isIdle)) return { track, span: best };
  return isIdle ? { track, idle: interval } : best >= 0 ? { track, span: best } : null;
}

function point(event, isLane) {
  const box = event.currentTarget.getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  state.time = x >= LEFT && x <= LEFT + plotWidth() ? toTime(x) : null;
  state.hover = isLane ? find(x, y) : null;
  tip.hidden = !state.hover;
  if (state.hover) {
    const { track, span, idle, column } = state.hover;
    tip.replaceChildren(...(column ? describeColumn(track, column) : idle ? describeIdle(track, idle) : describeSpan(track, span, true)));
    const { offsetWidth: wide, offsetHeight: high } = tip;
    const below = event.clientY + 18 + high < innerHeight;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - wide - 8))}px`;
    tip.style.top = `${Math.max(4, below ? event.clientY + 18 : event.clientY - high - 14)}px`;
  }
  redraw();
}

function choose(mark, reveal) {
  state.chosen = mark;
  details.replaceChildren();
  if (mark) {
    const { track, span } = mark;
    details.append(...describeSpan(track, span, false));
    const links = (title, spans) => {
      if (!spans.length) return;
      const buttons = Array.from(spans.subarray(0, 12), (other) => {
        const button = node("button", track.labelOf(other));
        button.type = "button";
        button.addEventListener("click", () => choose({ track, span: other }, true));
        return button;
      });
      details.append(node("div", title, ...buttons.flatMap((button) => [" ", button])));
    };
    links("unblocked by:", track.before(span));
    links("unblocks:", track.next(span));
    if (reveal) bringIntoView(track, span);
  }
  redraw();
}

function bringIntoView(track, span) {
  const placed = laneRows[track.row[span]], { box } = lanes;
  if (placed.top < box.scrollTop) box.scrollTop = placed.top - 8;
  else if (placed.bottom > box.scrollTop + box.clientHeight) box.scrollTop = placed.bottom - box.clientHeight + 8;
  if (track.start[span] < state.from || track.end[span] > state.to) {
    const width = Math.max(state.to - state.from, 1.2 * (track.end[span] - track.start[span]));
    const centre = (track.start[span] + track.end[span]) / 2;
    show(centre - width / 2, centre + width / 2);
  }
}

// Selects the next bar in the lane, or the bar at the same time in the next lane with bars.
function step(along, across) {
  const start = state.chosen || firstVisible();
  if (!start) return;
  const { track, span } = start;
  if (!state.chosen) return choose(start, true);
  if (along) {
    const { spans } = track.rows[track.row[span]];
    const next = spans[spans.indexOf(span) + along];
    return next === undefined ? undefined : choose({ track, span: next }, true);
  }
  const lines = data.rows.length * tracks.length;
  const centre = (track.start[span] + track.end[span]) / 2;
  for (let at = track.row[span] * tracks.length + track.index + across; at >= 0 && at < lines; at += across) {
    const other = tracks[at % tracks.length], row = Math.floor(at / tracks.length), { spans } = other.rows[row];
    if (spans.length) return choose({ track: other, span: spans[Math.min(other.firstAfter(row, centre), spans.length - 1)] }, true);
  }
}

function firstVisible() {
  for (const track of tracks) {
    for (const { index } of laneRows) {
      const span = track.rows[index].spans[track.firstAfter(index, state.from)];
      if (span !== undefined) return { track, span };
    }
  }
  return null;
}

function wheel(event) {
  const x = event.clientX - event.currentTarget.getBoundingClientRect().left;
  if (event.altKey || (x < LEFT && !event.ctrlKey)) return;
  event.preventDefault();
  const pixels = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
  const sideways = event.shiftKey ? event.deltaX || event.deltaY : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
  if (sideways) pan(sideways * pixels / plotWidth());
  else zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY * pixels)) * 0.0025), Math.min(END, Math.max(0, toTime(x))));
}

function keyDown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input, textarea, select"), pressing = event.target.closest("button, summary, a");
  if (typing || (pressing && ["Enter", " "].includes(event.key))) return;
  const scrolls = lanes.box.scrollHeight > lanes.box.clientHeight + 1;
  if (["ArrowUp", "ArrowDown"].includes(event.key) && !event.shiftKey && !scrolls) return;
  const actions = {
    w: () => zoom(0.7, state.time ?? middle()), s: () => zoom(1 / 0.7, state.time ?? middle()), a: () => pan(-0.15), d: () => pan(0.15),
    "?": () => { const help = byId("help"); help.open = !help.open; },
    "/": () => byId("search").focus(),
    "+": () => zoom(0.7, middle()), "=": () => zoom(0.7, middle()), "-": () => zoom(1 / 0.7, middle()),
    "0": () => show(0, END), Home: () => show(0, state.to - state.from), End: () => show(END, 2 * END),
    ArrowLeft: () => event.shiftKey ? step(-1, 0) : pan(-0.15),
    ArrowRight: () => event.shiftKey ? step(1, 0) : pan(0.15),
    ArrowUp: () => event.shiftKey ? step(0, -1) : lanes.box.scrollBy(0, -60),
    ArrowDown: () => event.shiftKey ? step(0, 1) : lanes.box.scrollBy(0, 60),
    Escape: () => choose(null),
    Enter: () => {
      if (!state.chosen) return step(1, 0);
      const { track, span } = state.chosen, length = Math.max(LEAST, track.end[span] - track.start[span]);
      show(track.start[span] - 2 * length, track.end[span] + 2 * length);
    },
  };
  const action = actions[event.key] || actions[event.key.toLowerCase()];
  if (action) {
    event.preventDefault();
    action();
  }
}

for (const pane of panes) {
  const isLane = pane === lanes, { canvas, box } = pane;
  let drag = null;
  canvas.addEventListener("wheel", wheel, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { x: event.clientX, y: event.clientY, from: state.from, to: state.to, scroll: box.scrollTop, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return point(event, isLane);
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) > 4) {
      drag.moved = true;
      canvas.setPointerCapture(event.pointerId);
      box.classList.add("dragging");
      tip.hidden = true;
    }
    if (drag.moved) {
      const shift = dx / plotWidth() * (drag.to - drag.from);
      if (event.pointerType === "mouse") box.scrollTop = drag.scroll - dy;
      show(drag.from - shift, drag.to - shift);
    }
  });
  const stop = () => { drag = null; box.classList.remove("dragging"); };
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved && isLane) {
      const edge = canvas.getBoundingClientRect(), mark = find(event.clientX - edge.left, event.clientY - edge.top);
      choose(mark && mark.span !== undefined ? mark : null);
    }
    stop();
  });
  canvas.addEventListener("pointercancel", stop);
  canvas.addEventListener("pointerleave", () => { state.hover = state.time = null; tip.hidden = true; redraw(); });
}
document.addEventListener("keydown", keyDown);

// Actions whose label, kind or lane contains the words, in the order of lanes and time.
let matches = [], match = -1;
function search(words) {
  matches = [];
  match = -1;
  const wanted = words.trim().toLowerCase();
  if (wanted) {
    for (const track of tracks) {
      for (const span of track.order) {
        const text = `${track.labelOf(span)} ${track.kindOf(span).name} ${laneOf(track, span)}`;
        if (text.toLowerCase().includes(wanted)) matches.push({ track, span });
      }
    }
  }
  byId("found").textContent = !wanted ? "" : tracks.every((track) => track.columns) ? "this page has no single actions" : `${matches.length} found`;
  if (matches.length) nextMatch(1);
  else choose(null);
}

function nextMatch(by) {
  if (!matches.length) return;
  match = (match + by + matches.length) % matches.length;
  byId("found").textContent = `${match + 1} of ${matches.length}`;
  choose(matches[match], true);
}

byId("search").addEventListener("input", (event) => search(event.target.value));
byId("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") nextMatch(event.shiftKey ? -1 : 1);
  if (event.key === "Escape") event.target.blur();
});

for (const button of document.querySelectorAll(".legend button")) {
  const [kind, number] = button.dataset.family !== undefined ? ["family", button.dataset.family] : ["cause", button.dataset.cause];
  button.addEventListener("click", () => {
    const hidden = state.hidden[kind], isShown = hidden.delete(Number(number));
    if (!isShown) hidden.add(Number(number));
    button.setAttribute("aria-pressed", String(isShown));
    redraw();
  });
}
byId("zoom-in").addEventListener("click", () => zoom(0.6, middle()));
byId("zoom-out").addEventListener("click", () => zoom(1 / 0.6, middle()));
byId("fit").addEventListener("click", () => show(0, END));
byId("arrows").addEventListener("change", (event) => { state.arrows = event.target.checked; redraw(); });

function repaint() {
  readTheme();
  drawNow();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
matchMedia("print").addEventListener("change", (event) => { printing = event.matches; repaint(); });
addEventListener("beforeprint", () => { printing = true; repaint(); });
addEventListener("afterprint", () => { printing = false; repaint(); });
new ResizeObserver(redraw).observe(chart);
repaint();
