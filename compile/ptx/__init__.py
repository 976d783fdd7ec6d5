"""A PTX emulator: runs the PTX of compiled kernels on the CPU, and observes their reads and writes."""

from bringup.compile.ptx.assembly.errors import Fault as Fault
from bringup.compile.ptx.assembly.errors import Malformed as Malformed
from bringup.compile.ptx.assembly.errors import Unsupported as Unsupported
from bringup.compile.ptx.hardware.device import Device as Device
from bringup.compile.ptx.program import Program as Program
from bringup.compile.ptx.program import Run as Run
from bringup.compile.ptx.program import program_of as program_of
from bringup.compile.ptx.watch.banks import Banks as Banks
from bringup.compile.ptx.watch.early import Early as Early
from bringup.compile.ptx.watch.last_store import LastStore as LastStore
from bringup.compile.ptx.watch.order import Order as Order
from bringup.compile.ptx.watch.races import Races as Races
from bringup.compile.ptx.watch.traffic import Bytes as Bytes
from bringup.compile.ptx.watch.unwritten import Unwritten as Unwritten
