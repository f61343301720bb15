"use strict";
// The traces and queries on them. Times are in nanoseconds; nothing here depends on pixels.
const data = JSON.parse(document.getElementById("data").textContent);
const END = data.end;

const MILLISECONDS = new Intl.NumberFormat("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 3 });
const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];

function duration(ns) {
  const [unit, factor] = UNITS.find(([, factor]) => ns >= factor) || UNITS[3];
  const value = ns / factor;
  const digits = unit === "ns" ? 0 : value < 10 ? 3 : value < 100 ? 2 : value < 10000 ? 1 : 0;
  return `${value.toFixed(digits)} ${unit}`;
}

// Formats a point in time to the microsecond.
function moment(ns) {
  return `${MILLISECONDS.format(ns / 1e6)} ms`;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit += 1; }
  return `${bytes.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

// Returns the first index below `length` whose `key` (ascending) is greater than `value`.
function after(length, key, value) {
  let low = 0, high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(middle) > value) high = middle; else low = middle + 1;
  }
  return low;
}

class Track {
  constructor(raw, index) {
    Object.assign(this, raw);
    this.index = index;
    this.count = this.start.length;
    // Per row: its spans by start, and the running maximum of their ends, for bisection.
    this.rows = data.rows.map(() => ({ spans: [], ends: null, idle: [] }));
    for (const span of this.order) this.rows[this.row[span]].spans.push(span);
    for (const row of this.rows) {
      row.ends = new Float64Array(row.spans.length);
      let latest = 0;
      row.spans.forEach((span, at) => { latest = Math.max(latest, this.end[span]); row.ends[at] = latest; });
    }
    for (const interval of this.idle) this.rows[interval[0]].idle.push(interval);
    for (const row of this.rows) row.idle.sort((a, b) => a[1] - b[1]);
    this.before = this.links(1, 0);
    this.next = this.links(0, 1);
  }

  // Returns the neighbours of each span along arrows: for span i, items[first[i] .. first[i + 1]].
  links(from, to) {
    const first = new Int32Array(this.count + 1);
    const pairs = this.arrows;
    for (let at = 0; at < pairs.length; at += 2) first[pairs[at + from] + 1] += 1;
    for (let at = 0; at < this.count; at += 1) first[at + 1] += first[at];
    const items = new Int32Array(pairs.length / 2), filled = first.slice();
    for (let at = 0; at < pairs.length; at += 2) items[filled[pairs[at + from]]++] = pairs[at + to];
    return (span) => items.subarray(first[span], first[span + 1]);
  }

  // Returns the position in a row of the first span that ends after `time`.
  firstAfter(row, time) {
    const ends = this.rows[row].ends;
    return after(ends.length, (at) => ends[at], time);
  }

  firstIdleAfter(row, time) {
    const idle = this.rows[row].idle;
    return after(idle.length, (at) => idle[at][2], time);
  }

  // Unpacks the columns that stand for a lane's actions: per kind, the running sums of its shares in
  // 255ths of a column.
  unpack(row) {
    const lane = this.rows[row], packed = this.columns.rows[row];
    if (lane.running) return lane;
    const { count } = this.columns, text = packed ? atob(packed.shares) : "";
    lane.kinds = packed ? packed.kinds : [];
    lane.running = lane.kinds.map((_, at) => {
      const running = new Uint32Array(count + 1);
      for (let column = 0; column < count; column += 1) running[column + 1] = running[column] + text.charCodeAt(at * count + column);
      return running;
    });
    if (packed) packed.shares = "";
    return lane;
  }

  // Returns how much of a time each kind of a lane takes, where columns stand for actions.
  columnShares(row, from, to) {
    const { running } = this.unpack(row), { count } = this.columns;
    const upTo = (sums, time) => {
      const at = Math.min(count, Math.max(0, time / END * count)), whole = Math.min(count - 1, Math.floor(at));
      return sums[whole] + (sums[whole + 1] - sums[whole]) * (at - whole);
    };
    const most = 255 * count * (to - from) / END;
    return running.map((sums) => (upTo(sums, to) - upTo(sums, from)) / most);
  }

  kindOf(span) { return data.kinds[this.kind[span]]; }
  familyOf(span) { return data.kinds[this.kind[span]].family; }

  subject(span) {
    const parts = [];
    if (this.stage[span] >= 0) parts.push(`s${this.stage[span]}`);
    if (this.microbatch[span] >= 0) parts.push(`m${this.microbatch[span]}`);
    return parts.join(" ");
  }

  labelOf(span) {
    const kind = this.kindOf(span);
    if (!kind.letter) return `${kind.name} ${this.subject(span)}`.trim();
    const number = (id) => id >= 0 ? id : "";
    return number(this.stage[span]) + kind.letter + number(this.microbatch[span]);
  }
}

const tracks = data.tracks.map((raw, index) => new Track(raw, index));
const double = tracks.length > 1;

// Returns the same action in the other track: the same occurrence of its lane, kind and subject.
let twins = null;
function twin(track, span) {
  if (!double) return -1;
  if (!twins) {
    const keys = tracks.map((track) => {
      const seen = new Map(), bySpan = new Map(), byKey = new Map();
      for (const span of track.order) {
        const name = [track.row[span], track.kind[span], track.stage[span], track.microbatch[span], track.layers[span]].join();
        const nth = seen.get(name) || 0;
        seen.set(name, nth + 1);
        bySpan.set(span, `${name},${nth}`);
        byKey.set(`${name},${nth}`, span);
      }
      return { bySpan, byKey };
    });
    twins = keys;
  }
  const other = twins[1 - track.index].byKey.get(twins[track.index].bySpan.get(span));
  return other === undefined ? -1 : other;
}

// Returns the bytes held in a memory at `time`.
function heldAt(curve, time) {
  const at = after(curve.at.length, (index) => curve.at[index], time);
  return at ? curve.bytes[at - 1] : 0;
}

// Returns ticks at multiples of 1, 2 or 5 times a power of ten, about one per `step` nanoseconds.
function ticks(from, to, step) {
  let power = 10 ** Math.floor(Math.log10(Math.max(step, 1)));
  const width = [1, 2, 5, 10].map((digit) => digit * power).find((width) => width >= step) || step;
  const [unit, factor] = UNITS.find(([, factor]) => Math.max(to / 2, width) >= factor) || UNITS[3];
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(width / factor) - 1e-9)));
  const marks = [];
  for (let at = Math.ceil(from / width) * width; at <= to && marks.length < 100; at += width) {
    marks.push([at, (at / factor).toFixed(digits)]);
  }
  return { unit, marks };
}
