"use strict";
// Asks for /metrics, keeps what came back for some minutes, and shows it.

const POLL_S = 2;
// Single numbers and every point of a line are over this time, or one poll's would jump about.
const RECENT_S = 10;
// What lines and tables reach back to. The history lives here, in the reader's browser, from when
// the page was opened: Prometheus is there to keep one, and the service has better things to hold.
const HISTORY_S = 300;
const SHORTEST_SPAN_S = 60;
const TIMEOUT_S = 5;

const byId = (id) => document.getElementById(id);

/** One scrape after another as {time, seconds, grown, scrape, figures}; times in seconds. */
class Timeline {
  points = [];
  last = null;

  /** Take in a scrape made at `time`. */
  add(time, scrape) {
    const { last } = this;
    this.last = { time, scrape };
    if (last === null) return;
    // Whole milliseconds, so that five polls of 2 s are 10 s and not a little less.
    const seconds = Math.round((time - last.time) * 1e3) / 1e3;
    if (seconds <= 0 || seconds > HISTORY_S) {
      // The clock was set back, or the tab was hidden for longer than anything here is about.
      this.points = [];
      return;
    }
    this.points.push({ time, seconds, grown: increases(last.scrape, scrape) });
    this.points = this.points.filter((point) => point.time > time - HISTORY_S);
    const recent = this.over(RECENT_S);
    Object.assign(this.points[this.points.length - 1], {
      figures: figures(recent.grown, recent.seconds, scrape),
      gpus: gpuRows(scrape),
    });
  }

  /** What grew in the last `seconds` or a little more, and in how many they were. */
  over(seconds) {
    const parts = [];
    let covered = 0;
    for (let i = this.points.length - 1; i >= 0 && covered < seconds; i -= 1) {
      parts.push(this.points[i].grown);
      covered += this.points[i].seconds;
    }
    return { grown: merge(parts), seconds: covered };
  }

  /** [time, what `read` finds in a point] of every point. */
  values(read) {
    return this.points.map((point) => [point.time, read(point)]);
  }

  /** The time that lines are drawn over. */
  span() {
    const to = this.last.time;
    const from = this.points.length ? this.points[0].time - this.points[0].seconds : to;
    return { from: Math.min(from, to - SHORTEST_SPAN_S), to };
  }
}

const timeline = new Timeline();
let paused = false;
let asking = false;
let timer = 0;

async function poll() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  try {
    const answer = await get("metrics");
    if (!answer.ok) throw new Error(`/metrics answered ${answer.status}`);
    const scrape = parseExposition(await answer.text());
    // Not performance.now(), which may stand still while a laptop is suspended: what was counted
    // meanwhile would all be put down to the few seconds around it.
    timeline.add(Date.now() / 1e3, scrape);
    const now = state(scrape);
    showState(now);
    show();
    if (!now.ready || !now.healthy) await showReason();
  } catch (error) {
    setStatus("bad", "No answer", `${error.message}; the numbers below are old.`);
  } finally {
    asking = false;
    if (!paused && !document.hidden) timer = setTimeout(poll, POLL_S * 1e3);
  }
}

/** GET something fresh, in time or not at all. */
function get(url, options = {}) {
  const signal = AbortSignal.timeout(TIMEOUT_S * 1e3);
  return fetch(url, { cache: "no-store", signal, ...options });
}

function showState({ ready, healthy, build, started }) {
  byId("build").textContent = [
    build.model,
    build.backend && `${build.backend} backend`,
    build.device,
    build.version && `tilemlp ${build.version}`,
    build.python && `Python ${build.python}`,
  ]
    .filter(Boolean)
    .join(" · ");
  loadDefaults(build.model, started).catch(forgetDefaults);
  if (ready && healthy) {
    setStatus("good", "Ready", "");
  } else {
    const word = healthy ? "Not ready" : "Engine unhealthy";
    // The last poll's reason stays until this one's is known, if it is about the same.
    const same = byId("status").textContent === word;
    setStatus(healthy ? "wait" : "bad", word, same ? byId("reason").textContent : "");
  }
}

/** Why requests are not accepted, in the service's words; that it does not say, if so. */
async function showReason() {
  try {
    const { error } = await (await get("health/ready")).json();
    setReason(error ?? "");
  } catch (error) {
    setReason(`Why is not known: /health/ready: ${error.message}`);
  }
}

/** Writes only what is new: screen readers announce every change of a status. */
function setStatus(kind, word, reason) {
  byId("status").className = `status ${kind}`;
  if (byId("status").textContent !== word) byId("status").textContent = word;
  setReason(reason);
  document.body.classList.toggle("stale", word === "No answer");
}

function setReason(reason) {
  if (byId("reason").textContent !== reason) byId("reason").textContent = reason;
  byId("reason").hidden = !reason;
}

function show() {
  const now = timeline.points[timeline.points.length - 1]?.figures;
  if (!now) return;
  for (const cell of document.querySelectorAll("[data-figure]")) {
    cell.textContent = FORMATS[cell.dataset.format](now[cell.dataset.figure]);
  }
  byId("mfu-note").hidden = now.mfu !== null;
  const span = timeline.span();
  const line = (label, name) => ({ label, values: timeline.values(({ figures: f }) => f[name]) });
  const draw = (id, lines, format) => drawLines(byId(id), lines, span, format);
  draw(
    "requests-chart",
    [line("ok", "okPerSecond"), line("not ok", "notOkPerSecond")],
    FORMATS.perSecond,
  );
  draw("latency-chart", ["p50", "p90", "p99"].map((name) => line(name, name)), formatSeconds);
  draw("device-chart", [line("busy", "busyShare"), line("MFU", "mfu")], formatShare);
  draw("queue-chart", [line("tokens waiting", "queueTokens")], formatNumber);
  showTables(timeline.over(HISTORY_S).grown);
  showGpus(span);
}

function showTables(grown) {
  const counted = ({ label, count, share }) => ({
    label,
    share,
    cells: [formatNumber(count), formatShare(share)],
  });
  drawBars(byId("outcomes"), outcomeRows(grown).map(counted));
  drawBars(byId("batch-tokens"), batchRows(grown, "tokens").map(counted));
  drawBars(byId("batch-requests"), batchRows(grown, "requests").map(counted));
  drawBars(
    byId("kernels"),
    kernelRows(grown).map(({ kernel, count, share, p50, p99 }) => ({
      label: kernel,
      share,
      cells: [formatNumber(count), formatShare(share), formatSeconds(p50), formatSeconds(p99)],
    })),
  );
  drawBars(
    byId("stages"),
    stageRows(grown).map(({ stage, p50, p99 }) => ({
      label: stage,
      share: null,
      cells: [formatSeconds(p50), formatSeconds(p99)],
    })),
  );
}

/** The GPUs' card, which is there when they are measured. */
function showGpus(span) {
  const { gpus } = timeline.points[timeline.points.length - 1];
  byId("gpu-card").hidden = !gpus.length;
  if (!gpus.length) return;
  const cells = (gpu) => [
    formatShare(gpu.utilisation),
    formatBytes(gpu.memoryBytes),
    FORMATS.watts(gpu.watts),
    FORMATS.hertz(gpu.clockHertz),
  ];
  drawBars(
    byId("gpus"),
    gpus.map((gpu) => ({ label: `GPU ${gpu.gpu}`, share: gpu.utilisation, cells: cells(gpu) })),
  );
  const lines = gpus.map(({ gpu }) => ({
    label: `GPU ${gpu}`,
    values: timeline.values((point) => point.gpus.find((one) => one.gpu === gpu)?.utilisation ?? null),
  }));
  drawLines(byId("gpu-chart"), lines, span, formatShare);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").textContent = paused ? "Resume" : "Pause";
  if (paused) clearTimeout(timer);
  else poll();
});
document.addEventListener("visibilitychange", () => document.hidden || paused || poll());
window.addEventListener("resize", show);
poll();
