"use strict";
// Reads the Prometheus text format and does the arithmetic that PromQL would do on it. Pure: knows
// neither the page nor the clock nor any metric's name.
//
// A scrape is a Map from a metric's name to a Map from its labels, as written, to
// {labels, value}. What `increases` and `merge` return has the same form.

const SAMPLE =
  /^([a-zA-Z_:][\w:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\]|\\.)*",?)*)\})?[ \t]+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const GROWING = /_(total|bucket|count|sum)$/;
const SPECIAL = { "+Inf": Infinity, "-Inf": -Infinity, NaN: NaN };
const ESCAPED = { "\\n": "\n", "\\\\": "\\", '\\"': '"' };

/** The scrape of a text; throws on a line that is neither empty, comment nor sample. */
function parseExposition(text) {
  const scrape = new Map();
  for (const line of text.split("\n")) {
    if (line.trim() === "" || line.startsWith("#")) continue;
    const found = SAMPLE.exec(line);
    const value = found && (found[3] in SPECIAL ? SPECIAL[found[3]] : Number(found[3]));
    if (!found || (Number.isNaN(value) && found[3] !== "NaN")) {
      throw new Error(`exposition: a line must be name{labels} value, is ${line.slice(0, 80)}`);
    }
    const [, name, written = ""] = found;
    if (!scrape.has(name)) scrape.set(name, new Map());
    scrape.get(name).set(written, { labels: parseLabels(written), value });
  }
  return scrape;
}

function parseLabels(written) {
  const labels = {};
  for (const [, name, value] of written.matchAll(LABEL)) {
    labels[name] = value.replace(/\\[n\\"]/g, (pair) => ESCAPED[pair]);
  }
  return labels;
}

/**
 * How much every counter and every part of a histogram grew between two scrapes.
 *
 * A counter that fell was reset, and has grown by all that it shows now. So have all of them when
 * the process is another one, which a busy counter alone would not tell.
 */
function increases(before, after) {
  const start = "process_start_time_seconds";
  const restarted = sum(before, start) !== sum(after, start);
  const grown = new Map();
  for (const [name, series] of after) {
    if (!GROWING.test(name)) continue;
    const old = restarted ? undefined : before.get(name);
    const found = new Map();
    for (const [written, { labels, value }] of series) {
      const last = old?.get(written)?.value ?? 0;
      found.set(written, { labels, value: value < last ? value : value - last });
    }
    grown.set(name, found);
  }
  return grown;
}

/** The increases of a time that is made of shorter ones. */
function merge(parts) {
  const whole = new Map();
  for (const part of parts) {
    for (const [name, series] of part) {
      if (!whole.has(name)) whole.set(name, new Map());
      const found = whole.get(name);
      for (const [written, { labels, value }] of series) {
        found.set(written, { labels, value: value + (found.get(written)?.value ?? 0) });
      }
    }
  }
  return whole;
}

/** The series of a metric whose labels are those of `where`. */
function select(scrape, name, where = {}) {
  const wanted = Object.entries(where);
  return [...(scrape.get(name)?.values() ?? [])].filter(({ labels }) =>
    wanted.every(([label, value]) => labels[label] === value),
  );
}

/** sum(name{where}); null where there is no such series. */
function sum(scrape, name, where = {}) {
  const series = select(scrape, name, where);
  return series.length ? series.reduce((total, { value }) => total + value, 0) : null;
}

/** sum by (label) (name{where}) as a Map from the label's values, in order of appearance. */
function sumBy(scrape, name, label, where = {}) {
  const sums = new Map();
  for (const { labels, value } of select(scrape, name, where)) {
    sums.set(labels[label], (sums.get(labels[label]) ?? 0) + value);
  }
  return sums;
}

/** A histogram's [upper bound, cumulative count] pairs in ascending order, over all its series. */
function buckets(scrape, name, where = {}) {
  const counts = sumBy(scrape, `${name}_bucket`, "le", where);
  return [...counts]
    .map(([bound, count]) => [bound in SPECIAL ? SPECIAL[bound] : Number(bound), count])
    .sort(([one], [other]) => one - other);
}

/**
 * The q-quantile (0 to 1), interpolated within its bucket as histogram_quantile does; null without
 * observations. Beyond the last finite bound nothing is known but that bound.
 */
function quantile(q, pairs) {
  const total = pairs.length ? pairs[pairs.length - 1][1] : 0;
  if (!(total > 0)) return null;
  const rank = q * total;
  const index = pairs.findIndex(([, count]) => count >= rank && count > 0);
  const [low, below] = index > 0 ? pairs[index - 1] : [0, 0];
  const [high, count] = pairs[index];
  return high === Infinity ? low : low + ((high - low) * (rank - below)) / (count - below);
}

/** Observations per bucket as {above, bound, count}, from the first with any to the last. */
function observations(pairs) {
  const counts = pairs.map(([bound, count], i) => {
    const [above, below] = i ? pairs[i - 1] : [0, 0];
    return { above, bound, count: count - below };
  });
  const first = counts.findIndex(({ count }) => count > 0);
  const last = counts.findLastIndex(({ count }) => count > 0);
  return first < 0 ? [] : counts.slice(first, last + 1);
}
