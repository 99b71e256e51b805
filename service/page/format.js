"use strict";
// Numbers as people read them: three digits, a prefix, a unit. Pure.

const UNKNOWN = "–";
const LARGE = ["", "k", "M", "G", "T", "P"];

/** Three significant digits with a decimal prefix: 12345 is "12.3 k". */
function formatNumber(value, unit = "") {
  return scaled(value, 1000, LARGE, unit);
}

/** With a binary prefix: 1536 is "1.5 KiB". */
function formatBytes(value) {
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"], "");
}

/** Seconds as µs, ms or s: 0.00123 is "1.23 ms". */
function formatSeconds(value) {
  if (value === null || !Number.isFinite(value)) return UNKNOWN;
  if (value === 0) return "0 s";
  const micro = Number((value * 1e6).toPrecision(3));
  if (micro < 1e3) return `${digits(micro)} µs`;
  return micro < 1e6 ? `${digits(micro / 1e3)} ms` : `${digits(micro / 1e6)} s`;
}

/** A share of 1 in percent. */
function formatShare(value) {
  return value === null || !Number.isFinite(value) ? UNKNOWN : `${digits(value * 100)} %`;
}

function scaled(value, step, prefixes, unit) {
  if (value === null || !Number.isFinite(value)) return UNKNOWN;
  let rest = value;
  let power = 0;
  // 999.6 would round to 1000, which is the next prefix's 1.
  while (Number(rest.toPrecision(3)) >= step && power < prefixes.length - 1) {
    rest /= step;
    power += 1;
  }
  const suffix = prefixes[power] + unit;
  return `${digits(rest)}${suffix && !suffix.startsWith("/") ? " " : ""}${suffix}`;
}

function digits(value) {
  if (value !== 0 && Math.abs(value) < 0.01) return "<0.01";
  const rounded = Number(value.toPrecision(3));
  return String(Math.abs(rounded) < 1 ? Number(value.toFixed(2)) : rounded);
}

/** The formats that index.html and the charts name. */
const FORMATS = {
  number: formatNumber,
  perSecond: (value) => formatNumber(value, "/s"),
  flops: (value) => formatNumber(value, "FLOP/s"),
  watts: (value) => formatNumber(value, "W"),
  hertz: (value) => formatNumber(value, "Hz"),
  bytes: formatBytes,
  seconds: formatSeconds,
  share: formatShare,
};
