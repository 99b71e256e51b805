"use strict";
// Line charts as SVG and tables with bars, drawn anew for every scrape: some 150 points each.

const HEIGHT = 150;
const MARGIN = { left: 62, right: 6, top: 8, bottom: 20 };
const SVG = "http://www.w3.org/2000/svg";

/** The lowest of 1, 2, 4, 6 and 8 times a power of ten that is not below `value`. */
function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  // The factor absorbs what binary fractions are off by: 0.6 / 0.1 is not 6.
  const step = [1, 2, 4, 6, 8, 10].find((one) => one * (1 + 1e-9) >= value / power);
  return Number((step * power).toPrecision(12));
}

/** The d of a path through [x, y] points; null for y breaks it, a point alone is a dot. */
function linePath(points) {
  let down = false;
  return points
    .map(([x, y]) => {
      if (y === null) {
        down = false;
        return "";
      }
      const step = `${down ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}${down ? "" : "h0"}`;
      down = true;
      return step;
    })
    .join("");
}

/**
 * Draw lines over time into `box`, with a legend that holds their numbers.
 *
 * @param box holds the chart; data-title names it for those who do not see it
 * @param lines {label, values: [[time, number or null], …]}
 * @param span {from, to} in seconds
 * @param format of numbers
 */
function drawLines(box, lines, span, format) {
  const width = Math.max(box.clientWidth, 200);
  const known = lines.map(({ values }) => values.map(([, y]) => y).filter((y) => y !== null));
  const top = niceCeiling(Math.max(0, ...known.flat()));
  const right = width - MARGIN.right;
  const bottom = HEIGHT - MARGIN.bottom;
  const x = (time) =>
    MARGIN.left + ((time - span.from) / (span.to - span.from)) * (right - MARGIN.left);
  const y = (value) => bottom - (value / top) * (bottom - MARGIN.top);

  const svg = element(SVG, "svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
  svg.setAttribute("aria-label", describe(box.dataset.title, lines, known, span, format));
  for (const value of [0, top / 2, top]) {
    svg.append(
      element(SVG, "line", { x1: MARGIN.left, x2: right, y1: y(value), y2: y(value) }),
      element(SVG, "text", { x: MARGIN.left - 6, y: y(value) + 4, class: "end" }, format(value)),
    );
  }
  svg.append(
    element(SVG, "text", { x: MARGIN.left, y: HEIGHT - 4 }, `${ago(span)} ago`),
    element(SVG, "text", { x: right, y: HEIGHT - 4, class: "end" }, "now"),
  );
  lines.forEach(({ values }, index) => {
    const points = values.map(([time, value]) => [x(time), value === null ? null : y(value)]);
    svg.append(element(SVG, "path", { d: linePath(points), class: `line series-${index}` }));
  });
  if (!known.flat().length) {
    const middle = { x: (MARGIN.left + right) / 2, y: y(top / 2) - 6, class: "middle" };
    svg.append(element(SVG, "text", middle, box.dataset.empty));
  }
  box.replaceChildren(svg, legend(lines, format));
}

function legend(lines, format) {
  const list = element(null, "ul", { class: "legend" });
  lines.forEach(({ label, values }, index) => {
    const item = element(null, "li", {});
    const swatch = element(null, "span", { class: `swatch series-${index}` });
    item.append(swatch, `${label} `, element(null, "b", {}, format(latest(values))));
    list.append(item);
  });
  return list;
}

function describe(title, lines, known, span, format) {
  const parts = lines.map(({ label, values }, index) => {
    const highest = known[index].length ? Math.max(...known[index]) : null;
    return `${label}: now ${format(latest(values))}, highest ${format(highest)}.`;
  });
  return `${title}, last ${ago(span)}. ${parts.join(" ")}`;
}

function latest(values) {
  return values.length ? values[values.length - 1][1] : null;
}

function ago({ from, to }) {
  const seconds = Math.round(to - from);
  return seconds < 120 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
}

/**
 * Fill a table: one row each, its name over a bar, then its numbers.
 *
 * With data-stacked the numbers stand below the name, for names that are too long for a phone.
 *
 * @param rows {label, share or null, cells: [text, …]}
 */
function drawBars(table, rows) {
  const columns = table.tHead.rows[0].cells.length;
  const stacked = "stacked" in table.dataset;
  const scope = stacked ? { scope: "rowgroup", colspan: columns } : { scope: "row" };
  const groups = rows.map(({ label, share, cells }) => {
    const name = element(null, "th", scope, label);
    if (share !== null) {
      const bar = element(null, "span", { class: "bar" });
      bar.style.width = `${Math.min(share, 1) * 100}%`;
      name.append(bar);
    }
    const numbers = cells.map((text) => element(null, "td", {}, text));
    if (!stacked) return [tableRow(name, ...numbers)];
    const below = tableRow(element(null, "td", {}), ...numbers);
    below.className = "numbers";
    return [tableRow(name), below];
  });
  if (!rows.length) {
    const words = { colspan: columns, class: "empty" };
    groups.push([tableRow(element(null, "td", words, table.dataset.empty))]);
  }
  for (const old of [...table.tBodies]) old.remove();
  // A header of several rows names those of its own body.
  for (const group of stacked ? groups : [groups.flat()]) table.createTBody().append(...group);
}

function tableRow(...cells) {
  const row = element(null, "tr", {});
  row.append(...cells);
  return row;
}

/** A new element of a namespace (null for HTML) with attributes and text. */
function element(namespace, name, attributes, text = "") {
  const made = namespace
    ? document.createElementNS(namespace, name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}
