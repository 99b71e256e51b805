"""What /metrics says, as numbers."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.servers import get, wait_until

QUEUE_GAUGES = ("mlp_queue_requests", "mlp_queue_tokens", "mlp_queue_bytes")


class Scrape:
    """One scrape."""

    def __init__(self, url: str) -> None:
        status, body = get(url, "/metrics")
        assert status == 200
        self.read(body.decode())

    def read(self, text: str) -> None:
        """Take this text instead of asking for it."""
        self.text = text
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """The value of one series."""
        return self.samples[name, frozenset(labels.items())]

    def outcomes(self, api: str) -> dict[str, int]:
        """Requests of an API by outcome, where there were any."""
        found = {}
        for (name, labels), value in self.samples.items():
            fields = dict(labels)
            if name == "mlp_requests_total" and fields["api"] == api and value:
                found[fields["outcome"]] = int(value)
        return found

    def buckets(self, name: str, **labels: str) -> dict[float, float]:
        """Observations per bucket, by its upper bound, where there were any."""
        cumulative = sorted(
            (float(dict(found)["le"]), value)
            for (sample, found), value in self.samples.items()
            if sample == f"{name}_bucket" and labels.items() <= dict(found).items()
        )
        before = 0.0
        counts = {}
        for bound, value in cumulative:
            if value > before:
                counts[bound] = value - before
            before = value
        return counts

    def queue(self) -> tuple[float, ...]:
        """Requests, tokens and bytes that wait."""
        return tuple(self(name) for name in QUEUE_GAUGES)


def wait_at_rest(url: str, timeout_s: float = 10.0) -> None:
    """Until nothing is queued; fails when something stays."""
    wait_until(lambda: Scrape(url).queue() == (0, 0, 0), timeout_s)
