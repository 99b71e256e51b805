"use strict";
// What the page shows, from scrapes: the only place that knows metrics by name. Pure.

/**
 * Every single number, over a time of `seconds` in which counters grew by `grown`.
 *
 * null is "not known": no request to have a latency, no device whose peak is known.
 */
function figures(grown, seconds, scrape) {
  const rate = (name, where) => {
    const total = sum(grown, name, where);
    return total === null ? null : total / seconds;
  };
  const latency = buckets(grown, "mlp_request_duration_seconds");
  const queued = buckets(grown, "mlp_stage_duration_seconds", { stage: "queue" });
  const requests = rate("mlp_requests_total");
  const ok = rate("mlp_requests_total", { outcome: "ok" });
  const flops = rate("mlp_flops_total");
  return {
    requestsPerSecond: requests,
    okPerSecond: ok,
    notOkPerSecond: requests === null ? null : requests - ok,
    notOkShare: requests > 0 ? (requests - ok) / requests : null,
    p50: quantile(0.5, latency),
    p90: quantile(0.9, latency),
    p99: quantile(0.99, latency),
    queueDelayP99: quantile(0.99, queued),
    tokensPerSecond: rate("mlp_tokens_total"),
    batchesPerSecond: rate("mlp_batches_total"),
    flopsPerSecond: flops,
    mfu: ratio(flops, sum(scrape, "mlp_gpu_peak_flops")),
    busyShare: rate("mlp_gpu_busy_seconds_total"),
    queueRequests: sum(scrape, "mlp_queue_requests"),
    queueTokens: sum(scrape, "mlp_queue_tokens"),
    queueBytes: sum(scrape, "mlp_queue_bytes"),
  };
}

function ratio(above, below) {
  return above === null || !below ? null : above / below;
}

/** Requests by outcome and API as {label, count, share}, those that occurred. */
function outcomeRows(grown) {
  const series = select(grown, "mlp_requests_total").filter(({ value }) => value > 0);
  const total = sum(grown, "mlp_requests_total");
  return series
    .map(({ labels: { api, outcome }, value }) => ({
      label: `${outcome} (${api})`,
      count: value,
      share: value / total,
    }))
    .sort((one, other) => other.count - one.count);
}

/** Batches by how many tokens or requests they held as {label, count, share}. */
function batchRows(grown, what) {
  const pairs = buckets(grown, what === "tokens" ? "mlp_batch_tokens" : "mlp_batch_requests");
  const counts = observations(pairs);
  const total = counts.reduce((all, { count }) => all + count, 0);
  return counts.map(({ above, bound, count }) => ({
    label: wholeNumbers(above, bound),
    count,
    share: count / total,
  }));
}

/** The whole numbers of a bucket: above the one bound, up to the other. */
function wholeNumbers(above, bound) {
  if (bound === Infinity) return `over ${above}`;
  return above + 1 === bound ? `${bound}` : `${above + 1}–${bound}`;
}

/** Kernels that were launched as {kernel, count, share, p50, p99}; share is of device time. */
function kernelRows(grown) {
  const name = "mlp_kernel_duration_seconds";
  const seconds = sumBy(grown, `${name}_sum`, "kernel");
  const total = [...seconds.values()].reduce((all, value) => all + value, 0);
  return [...sumBy(grown, "mlp_kernel_launches_total", "kernel")]
    .filter(([, count]) => count > 0)
    .map(([kernel, count]) => {
      const pairs = buckets(grown, name, { kernel });
      const share = ratio(seconds.get(kernel) ?? null, total);
      return { kernel, count, share, p50: quantile(0.5, pairs), p99: quantile(0.99, pairs) };
    })
    .sort((one, other) => other.share - one.share);
}

/** Stages of a request that had any as {stage, p50, p99}, in the order a request meets them. */
function stageRows(grown) {
  const name = "mlp_stage_duration_seconds";
  return [...sumBy(grown, `${name}_count`, "stage")]
    .filter(([, count]) => count > 0)
    .map(([stage]) => {
      const pairs = buckets(grown, name, { stage });
      return { stage, p50: quantile(0.5, pairs), p99: quantile(0.99, pairs) };
    });
}

/** Every GPU that is measured as {gpu, utilisation, memoryBytes, watts, clockHertz}. */
function gpuRows(scrape) {
  const columns = {
    utilisation: "mlp_gpu_utilization_ratio",
    memoryBytes: "mlp_gpu_memory_used_bytes",
    watts: "mlp_gpu_power_watts",
    clockHertz: "mlp_gpu_sm_clock_hertz",
  };
  const names = Object.values(columns);
  const gpus = new Set(names.flatMap((name) => select(scrape, name).map((one) => one.labels.gpu)));
  return [...gpus].map((gpu) => {
    const row = { gpu };
    for (const [key, name] of Object.entries(columns)) row[key] = sum(scrape, name, { gpu });
    return row;
  });
}

/** Whether requests are accepted, whether the engine computes right, what runs and since when. */
function state(scrape) {
  return {
    ready: sum(scrape, "mlp_ready") === 1,
    healthy: sum(scrape, "mlp_engine_healthy") === 1,
    build: select(scrape, "mlp_build_info")[0]?.labels ?? {},
    started: sum(scrape, "process_start_time_seconds"),
  };
}
