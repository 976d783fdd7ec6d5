"""Falcon-H1 as published: Bamba's names, with a mixer and attention in each layer."""

from __future__ import annotations

from bringup.adapters.bamba import adapter as bamba
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.falcon_h1 import FalconH1Config


def adapter(config: FalconH1Config) -> Adapter:
    return bamba(config)
