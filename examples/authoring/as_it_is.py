"""Level 1: the checkpoint is as bringup's family has it. Nothing is written; a family only says which parts it has.

bringup check examples/authoring/as_it_is.py --checkpoint DIR
"""

from bringup.adapters.llama import adapter
from bringup.graphs import Family
from bringup.graphs.llama import Llama, LlamaConfig

family = Family(name="as_it_is", graph=Llama, config=LlamaConfig, adapter=adapter)
