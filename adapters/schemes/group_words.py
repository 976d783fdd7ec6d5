"""Words of a `quantization_config` that several schemes of whole numbers share."""

from __future__ import annotations

from bringup.graphs.config.fields import Fields
from bringup.graphs.core.form import WHOLE

DEFAULT = 128


def group_size(words: Fields) -> int:
    """How many inputs share a scale: `group_size`, of which -1 stands for all of a row (WHOLE).

    Notes BU121 for another number below 1.
    """
    size = words.take("group_size", int, DEFAULT)
    if size == -1:
        return WHOLE
    if size < 1:
        words.error("BU121", f"config key `group_size` is {size}; a number of inputs or -1 is needed", "group_size")
        return DEFAULT
    return int(size)
