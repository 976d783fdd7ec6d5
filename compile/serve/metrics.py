"""Figures in Prometheus' text format.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from bringup.compile.serve.worker import Figures

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counts of requests and tokens, and figures of the batch, which are read at each scrape."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "bringup_requests", "Requests by endpoint and HTTP status.", ["endpoint", "status"], registry=registry
        )
        self.disconnects = Counter(
            "bringup_disconnects", "Clients that disconnected before their answer was complete.", registry=registry
        )
        self.prompt_tokens = Counter("bringup_prompt_tokens", "Tokens of prompts.", registry=registry)
        self.new_tokens = Counter("bringup_generated_tokens", "Tokens of answers.", registry=registry)
        self.seconds = Histogram(
            "bringup_request_seconds", "From the body to the end of the answer.", buckets=SECONDS, registry=registry
        )
        self.first = Histogram(
            "bringup_first_token_seconds", "From the body to the first token.", buckets=SECONDS, registry=registry
        )
        registry.register(_OfBatch(figures))

    def text(self) -> tuple[bytes, str]:
        """The response to a scrape, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _OfBatch(Collector):
    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        found = self._figures()
        host, device = found.loras
        gauges = {
            "running_requests": ("Sequences in the batch.", found.running),
            "waiting_requests": ("Sequences that wait for the batch.", found.waiting),
            "cache_blocks": ("Blocks of the cache.", found.blocks),
            "cache_blocks_in_use": ("Blocks that sequences use.", found.blocks_used),
            "lora_host_bytes": ("Bytes of LoRAs on the host.", host.size),
            "lora_slots": ("Slots for LoRAs on the device.", device.limit),
            "lora_slots_in_use": ("Slots whose LoRA a running request uses.", device.pinned),
        }
        counters = {
            "steps": ("Steps of the program.", found.steps),
            "failed_steps": ("Steps that failed.", found.failures),
            "preemptions": ("Sequences whose blocks were freed for older ones.", found.preemptions),
            "shared_tokens": ("Tokens of prompts that were found in the cache.", found.shared_tokens),
            "draft_steps": ("Steps of requests after their prompts, with a draft.", found.draft.steps),
            "draft_step_tokens": ("Tokens of these steps.", found.draft.tokens),
            "draft_proposed_tokens": ("Tokens that the draft proposed.", found.draft.proposed),
            "draft_accepted_tokens": ("Proposed tokens that were accepted.", found.draft.accepted),
            "lora_slot_hits": ("Requests whose LoRA was in a slot.", device.hits),
            "lora_slot_misses": ("Requests whose LoRA was not in a slot.", device.misses),
            "lora_slot_evictions": ("LoRAs that were replaced in a slot.", device.evictions),
        }
        for name, (help, value) in gauges.items():
            yield GaugeMetricFamily(f"bringup_{name}", help, value)
        for name, (help, value) in counters.items():
            yield CounterMetricFamily(f"bringup_{name}", help, value)
