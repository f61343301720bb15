// Level of detail: where a lane has many actions for each pixel, a column of one pixel stands for all
// that happens in its time. Its parts are as high as their shares of that time, from the bottom:
// actions by family, then idle time by cause. So the area of a colour is the time that it stands for.
const FAMILIES = data.families.length, KINDS = FAMILIES + data.causes.length;
// A bar or bubble of that many pixels is drawn by itself.
const WIDE = 8;

// The kinds in a lane: families by number, then causes.
function kindsOf(track, row) {
  const lane = track.columns ? track.unpack(row) : track.rows[row];
  if (!lane.kinds) {
    const present = new Set([...lane.spans.map((span) => track.familyOf(span)), ...lane.idle.map((idle) => FAMILIES + idle[3])]);
    lane.kinds = [...present].sort((a, b) => a - b);
    lane.place = new Int32Array(KINDS).fill(-1);
    lane.kinds.forEach((kind, at) => { lane.place[kind] = at; });
  }
  return lane;
}

let sums = new Float64Array(0);
// Returns the shares of the kinds in a lane in `count` equal parts of the time from `from` to `to`:
// item column × kinds + place of the kind. Shares of actions that overlap add up to more than one.
// The next call overwrites them.
function shares(track, row, [from, to], count, hidden) {
  if (track.columns) return packedShares(track, row, [from, to], count, hidden);
  const { spans, idle, kinds, place } = kindsOf(track, row), { start, end, kind } = track, many = kinds.length;
  if (sums.length < count * many) sums = new Float64Array(count * many);
  else sums.fill(0, 0, count * many);
  const scale = count / (to - from);
  const add = (left, right, at) => {
    const first = Math.floor(left), last = Math.floor(right);
    if (first === last) {
      sums[first * many + at] += right - left;
      return;
    }
    sums[first * many + at] += first + 1 - left;
    for (let column = first + 1; column < last; column += 1) sums[column * many + at] += 1;
    if (last < count) sums[last * many + at] += right - last;
  };
  const within = (begin, finish, at) => {
    const left = Math.max(0, (begin - from) * scale), right = Math.min(count, (finish - from) * scale);
    if (right > left) add(left, right, at);
  };
  for (let at = track.firstAfter(row, from); at < spans.length && start[spans[at]] < to; at += 1) {
    const span = spans[at], family = data.kinds[kind[span]].family;
    if (!hidden.family.has(family)) within(start[span], end[span], place[family]);
  }
  for (let at = track.firstIdleAfter(row, from); at < idle.length && idle[at][1] < to; at += 1) {
    if (!hidden.cause.has(idle[at][3])) within(idle[at][1], idle[at][2], place[FAMILIES + idle[at][3]]);
  }
  return sums;
}

// The places of the borders of `count` equal parts of a time among a page's own columns. All lanes of a
// drawing have the same.
let borders = { key: "" };
function bordersOf([from, to], count, fine) {
  const key = `${from} ${to} ${count} ${fine}`;
  if (borders.key !== key) {
    borders = { key, whole: new Int32Array(count + 1), part: new Float64Array(count + 1) };
    for (let border = 0; border <= count; border += 1) {
      const at = Math.min(fine, Math.max(0, (from + (to - from) * border / count) / END * fine));
      borders.whole[border] = Math.min(fine - 1, Math.floor(at));
      borders.part[border] = at - borders.whole[border];
    }
  }
  return borders;
}

// The same of a lane whose actions are columns in the page already.
function packedShares(track, row, time, count, hidden) {
  const { kinds, running } = track.unpack(row), many = kinds.length, fine = track.columns.count;
  if (sums.length < count * many) sums = new Float64Array(count * many);
  const { whole, part } = bordersOf(time, count, fine), unit = 255 * (time[1] - time[0]) / count / END * fine;
  kinds.forEach((kind, place) => {
    const all = running[place], isHidden = kind < FAMILIES ? hidden.family.has(kind) : hidden.cause.has(kind - FAMILIES);
    const factor = isHidden ? 0 : 1 / unit;
    let before = all[whole[0]] + (all[whole[0] + 1] - all[whole[0]]) * part[0];
    for (let column = 0; column < count; column += 1) {
      const next = whole[column + 1], low = all[next], now = low + (all[next + 1] - low) * part[column + 1];
      sums[column * many + place] = (now - before) * factor;
      before = now;
    }
  });
  return sums;
}

// Whether a lane has so many actions in view that columns stand for them.
function isDense(track, row) {
  if (track.columns) return true;
  const visible = after(track.rows[row].spans.length, (at) => track.start[track.rows[row].spans[at]], state.to) - track.firstAfter(row, state.from);
  return visible > plotWidth() / 4;
}

// A colour over the page as one number in the order of a canvas's bytes.
function packed(color, share) {
  const parts = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const paper = parts(theme.paper);
  const [red, green, blue] = parts(color).map((part, at) => Math.round(part * share + paper[at] * (1 - share)));
  return (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
}

// Draws a lane's columns over the whole plot, without the transformation of `ink`.
function paintColumns(ink, track, row, top) {
  const scale = ink.getTransform().a, wide = Math.round(plotWidth() * scale), high = Math.max(1, Math.round((BAR - 1) * scale));
  const parts = shares(track, row, [state.from, state.to], wide, state.hidden), { kinds } = track.rows[row], many = kinds.length;
  const image = ink.createImageData(wide, high), pixels = new Uint32Array(image.data.buffer);
  for (let column = 0; column < wide; column += 1) {
    let total = 0, filled = 0, share = 0;
    for (let at = 0; at < many; at += 1) total += parts[column * many + at];
    const factor = high / Math.max(1, total);
    for (let at = 0; at < many; at += 1) {
      share += parts[column * many + at] * factor;
      // Any time at all is visible; rounding errors are not.
      const up = Math.min(high, Math.ceil(share - 1e-6)), color = theme.columns[kinds[at]];
      for (; filled < up; filled += 1) pixels[(high - 1 - filled) * wide + column] = color;
    }
  }
  ink.putImageData(image, Math.round(LEFT * scale), Math.round(top * scale));
}
