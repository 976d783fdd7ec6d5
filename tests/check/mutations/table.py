"""All mutations, in the order of the page."""

from __future__ import annotations

from tests.check.mutations.configs import CONFIGS
from tests.check.mutations.files import FILES
from tests.check.mutations.graphs import GRAPHS
from tests.check.mutations.layouts import LAYOUTS
from tests.check.mutations.mutation import Mutation
from tests.check.mutations.names import NAMES
from tests.check.mutations.numbers import NUMBERS
from tests.check.mutations.values import VALUES

MUTATIONS: tuple[Mutation, ...] = tuple(
    sorted((*NAMES, *LAYOUTS, *GRAPHS, *NUMBERS, *CONFIGS, *FILES, *VALUES), key=lambda mutation: mutation.pain)
)
