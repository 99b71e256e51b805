"use strict";
// The form that sends a request to POST /mlp and shows what comes back.

const form = document.getElementById("try");
// Beside these, a browser lists headers of its own and of proxies.
const HEADERS = [
  "X-MLP-Kernel",
  "X-MLP-Batch-Tokens",
  "X-Tensor-Shape",
  "X-Tensor-Dtype",
  "Server-Timing",
  "X-Request-Id",
  "Content-Type",
  "Retry-After",
];
const PREVIEW_ROWS = 4;
const PREVIEW_VALUES = 6;

let defaultsOf = null;
let hiddenSize = 0;
let sending = false;

/**
 * Layers and hidden size of the model, asked for once in the life of a service that `started`
 * then, or again when a key was missing or there was no good answer.
 */
async function loadDefaults(model, started) {
  // After a restart the same model may have other layers resident.
  const wanted = `${model} since ${started}`;
  if (!model || defaultsOf === wanted) return;
  defaultsOf = wanted;
  const url = `v2/models/${encodeURIComponent(model)}/config`;
  const answer = await get(url, { headers: authorization() });
  document.getElementById("key-hint").hidden = answer.status !== 401;
  if (!answer.ok) {
    // With the same key the answer would be 401 again.
    if (answer.status !== 401) forgetDefaults();
    return;
  }
  const config = await answer.json();
  // While it was on its way, another service may have been asked.
  if (defaultsOf !== wanted) return;
  const sizeBefore = hiddenSize;
  hiddenSize = config.input[0].dims[1];
  const layers = config.parameters.layers.string_value.split(",");
  const chosen = form.layer.value;
  form.layer.replaceChildren(
    ...layers.map((layer) => new Option(layer, layer, false, layer === chosen)),
  );
  document.getElementById("shape").textContent =
    `${model}: rows of ${hiddenSize} numbers, ${config.parameters.activation.string_value}`;
  // A body that still fits may be the reader's own.
  if (hiddenSize !== sizeBefore) fill();
}

/** Have the next poll ask again. */
function forgetDefaults() {
  defaultsOf = null;
}

function authorization() {
  return form.key.value ? { Authorization: `Bearer ${form.key.value}` } : {};
}

/** Rows of ones or of the standard normal distribution, as the text to send. */
function fill() {
  if (!hiddenSize || !form.rows.checkValidity()) return;
  // Three decimals keep it readable.
  const next = form.values.value === "ones" ? () => 1 : () => Number(normal().toFixed(3));
  const rows = Array.from({ length: form.rows.valueAsNumber }, () =>
    Array.from({ length: hiddenSize }, next),
  );
  form.body.value = JSON.stringify({ inputs: rows });
}

/** A draw from the standard normal distribution (Box–Muller). */
function normal() {
  const radius = Math.sqrt(-2 * Math.log(1 - Math.random()));
  return radius * Math.cos(2 * Math.PI * Math.random());
}

async function send(event) {
  event.preventDefault();
  // Not by disabling the button, which would take the focus from it.
  if (sending) return;
  sending = true;
  showResult("wait", "Sending", [], "");
  const query = new URLSearchParams({ output: form.output.value });
  if (form.layer.value) query.set("layer", form.layer.value);
  const began = performance.now();
  try {
    const answer = await fetch(`mlp?${query}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...authorization() },
      body: form.body.value,
    });
    const text = await answer.text();
    showAnswer(answer, text, (performance.now() - began) / 1e3);
  } catch (error) {
    showResult("bad", `No answer: ${error.message}`, [], "");
  } finally {
    sending = false;
  }
}

function showAnswer(answer, text, seconds) {
  const rows = HEADERS.filter((name) => answer.headers.has(name)).map((name) => [
    name,
    answer.headers.get(name),
  ]);
  const kind = answer.ok ? "good" : "bad";
  const status = `${answer.status} ${answer.statusText} after ${formatSeconds(seconds)}`;
  showResult(kind, status, rows, preview(text, answer.ok));
}

function showResult(kind, status, headers, text) {
  const line = document.getElementById("answer-status");
  line.className = `status ${kind}`;
  line.textContent = status;
  const list = document.getElementById("answer-headers");
  list.replaceChildren(
    ...headers.flatMap(([name, value]) => [
      element(null, "dt", {}, name),
      element(null, "dd", {}, value),
    ]),
  );
  document.getElementById("answer-body").textContent = text;
}

/** The beginning of an answer's rows, or an error's sentence and slug. */
function preview(text, ok) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    // Also an answer with NaN or Infinity in it, which JSON has no words for.
    return text.length > 500 ? `${text.slice(0, 500)} …` : text;
  }
  if (!ok) return found.code ? `${found.code}: ${found.error}` : text;
  const more = (list, limit) => (list.length > limit ? `, … ${list.length} in all` : "");
  const rows = found.outputs.slice(0, PREVIEW_ROWS).map((row) => {
    const values = row.slice(0, PREVIEW_VALUES).map((value) => Number(value.toPrecision(4)));
    return `[${values.join(", ")}${more(row, PREVIEW_VALUES)}]`;
  });
  return rows.join("\n") + more(found.outputs, PREVIEW_ROWS);
}

form.addEventListener("submit", send);
form.rows.addEventListener("input", fill);
form.values.addEventListener("change", fill);
form.key.addEventListener("change", () => {
  if (!hiddenSize || !document.getElementById("key-hint").hidden) forgetDefaults();
});
