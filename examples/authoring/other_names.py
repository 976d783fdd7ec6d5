"""Level 2: other names. The text model of LLaVA, in a file that also has a vision tower.

bringup check llama --checkpoint DIR --config TEXT_CONFIG --adapter examples/authoring/other_names.py
"""

from bringup.adapters import Adapter
from bringup.adapters.llama import adapter as llama
from bringup.graphs.llama import LlamaConfig

IMAGES = "it sees images; this graph is the text model"


def adapter(config: LlamaConfig) -> Adapter:
    return llama(config).with_(
        "text of llava",
        names={"model": "language_model.model", "lm_head": "language_model.lm_head"},
        drops={"vision_tower.{x:**}": IMAGES, "multi_modal_projector.{x:**}": IMAGES},
    )
