"""Level 1: the checkpoint has the layout of a bringup family. No table is written; the family names its parts.

bringup check examples/authoring/as_it_is.py --checkpoint DIR
"""

from bringup.adapters.llama import adapter
from bringup.graphs import Family
from bringup.graphs.llama import Llama, LlamaConfig

family = Family(name="as_it_is", graph=Llama, config=LlamaConfig, adapter=adapter)
