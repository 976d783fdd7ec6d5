"""All mistakes in quantised checkpoints, in the order of their page."""

from __future__ import annotations

from tests.check.mutations.mutation import Mutation
from tests.check.mutations.stored.in_headers import IN_HEADERS
from tests.check.mutations.stored.in_values import IN_VALUES

STORED_MUTATIONS: tuple[Mutation, ...] = (*IN_HEADERS, *IN_VALUES)
