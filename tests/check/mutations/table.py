"""All mutations, in the order of the page."""

from __future__ import annotations

from tests.check.mutations.bloom import BLOOM
from tests.check.mutations.combinations import COMBINATIONS
from tests.check.mutations.config_words import CONFIG_WORDS
from tests.check.mutations.configs import CONFIGS
from tests.check.mutations.deepseek import DEEPSEEK
from tests.check.mutations.deepseek_fp8 import DEEPSEEK_FP8
from tests.check.mutations.files import FILES
from tests.check.mutations.folders import FOLDERS
from tests.check.mutations.gpt_oss import GPT_OSS
from tests.check.mutations.graphs import GRAPHS
from tests.check.mutations.layouts import LAYOUTS
from tests.check.mutations.mixtral import MIXTRAL
from tests.check.mutations.mutation import Mutation
from tests.check.mutations.names import NAMES
from tests.check.mutations.numbers import NUMBERS
from tests.check.mutations.quantised import QUANTISED
from tests.check.mutations.values import VALUES

OF_FAMILIES = (*MIXTRAL, *BLOOM, *GPT_OSS, *DEEPSEEK, *DEEPSEEK_FP8, *QUANTISED, *COMBINATIONS)
OF_GPT2_AND_LLAMA = (*NAMES, *LAYOUTS, *GRAPHS, *NUMBERS, *CONFIGS, *CONFIG_WORDS, *FILES, *VALUES, *FOLDERS)
MUTATIONS: tuple[Mutation, ...] = tuple(sorted((*OF_GPT2_AND_LLAMA, *OF_FAMILIES), key=lambda mutation: mutation.pain))
