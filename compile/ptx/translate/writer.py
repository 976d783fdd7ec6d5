"""BlockWriter: emits the statements of one basic block, and tracks the forms in which registers are available."""

from __future__ import annotations

from bringup.compile.ptx.assembly.errors import Unsupported
from bringup.compile.ptx.assembly.kernel import Instruction, Kernel
from bringup.compile.ptx.assembly.operands import Blank, Immediate, Operand, Register, Special, Symbol
from bringup.compile.ptx.hardware.spaces import LOCAL_BASE, SHARED_BASE
from bringup.compile.ptx.translate.constants import Constants
from bringup.compile.ptx.translate.forms import SIGNED, UNSIGNED, WIDTH, width_of
from bringup.compile.ptx.translate.specials import SPECIALS

CONVERTED = {"i16": "i32", "u16": "u32", "i32": "i64", "u32": "u64"}
"""Form -> the form of twice the width."""


class BlockWriter:
    """Emits statements. An expression that it returns is a name, so it can be used several times.

    `canonical` has the form of each register between blocks. `constants` are shared by all blocks.
    """

    def __init__(self, kernel: Kernel, canonical: list[str], constants: Constants) -> None:
        self.kernel, self.canonical, self.constants = kernel, canonical, constants
        self.lines: list[str] = []
        self.inputs: set[int] = set()
        self.changed: set[int] = set()
        self.carry: str | None = None
        self.predicate: str | None = None
        self.instruction: Instruction | None = None
        self._forms: dict[int, dict[str, str]] = {}
        self._halves: dict[int, tuple[str, int]] = {}
        self._widened: dict[tuple[int, str, str], str] = {}
        self._count = 0
        self._mask: str | None = None

    def begin(self, instruction: Instruction) -> None:
        """Begins an instruction, with its predicate."""
        self.instruction, self.predicate, self._mask = instruction, None, None
        if instruction.predicate is not None:
            self.predicate = self.read(instruction.predicate, "bool")

    def unsupported(self, reason: str) -> Unsupported:
        """The exception for an unsupported form of the current instruction."""
        assert self.instruction is not None
        where = self.kernel.where(self.instruction)
        return Unsupported(self.instruction.text, self.instruction.ptx_line, source=where, reason=reason)

    def emit(self, statement: str) -> None:
        """Appends a statement to the function."""
        self.lines.append(f"    {statement}")

    def name(self, expression: str) -> str:
        """Assigns an expression to a new name, and returns it."""
        self._count += 1
        self.emit(f"v{self._count} = {expression}")
        return f"v{self._count}"

    @property
    def mask(self) -> str:
        """The active lanes of the instruction, as an expression; it may be predicated."""
        if self.predicate is None:
            return "mask"
        if self._mask is None:
            self._mask = self.name(f"active(mask, {self.predicate})")
        return self._mask

    @property
    def here(self) -> str:
        """The instruction, as an expression, for functions that report it in a fault."""
        assert self.instruction is not None
        return f"instructions[{self.instruction.index}]"

    def constant(self, form: str, value: int) -> str:
        """The name of an integer or bit pattern in a form."""
        return self.constants.number(form, value)

    def width(self, operand: Operand) -> int:
        """The bits of a register; 0 for other operands."""
        return width_of(self.kernel.registers[operand.number][1]) if isinstance(operand, Register) else 0

    def form_of(self, operand: Operand, default: str) -> str:
        """A 32-bit form in which a register is available, so that copying it needs no conversion."""
        if not isinstance(operand, Register):
            return default
        known = next((form for form in self._forms.get(operand.number, {}) if WIDTH[form] == 32), None)
        return known or self.canonical[operand.number]

    def integer_form(self, form: str, operands: tuple[Operand, ...]) -> str:
        """i32, or u32 if the first register is available only in that form: the result has the same bits."""
        first = next((each for each in operands if isinstance(each, Register)), None)
        return "u32" if form == "i32" and first is not None and self.form_of(first, "i32") == "u32" else form

    def read(self, operand: Operand, form: str) -> str:
        """A name for the value of an operand in a form."""
        match operand:
            case Immediate(text=text):
                return self.constants.immediate(text, form)
            case Special(name=special):
                return self._special(special, form)
            case Symbol(name=symbol):
                return self._symbol(symbol, form)
            case Register(number=number, negated=True):
                return self.name(f"~{self._register(number, form)}")
            case Register(number=number):
                return self._register(number, form)
            case _:
                raise self.unsupported("these operands")

    def _special(self, special: str, form: str) -> str:
        if special not in SPECIALS:
            raise self.unsupported(f"special register %{special}")
        value = self.name(SPECIALS[special])
        return value if form == "i32" else self.name(f"{value}.astype({form})")

    def _symbol(self, symbol: str, form: str) -> str:
        if symbol in self.kernel.shared:
            return self.constant(form, self.kernel.shared[symbol].offset + SHARED_BASE)
        if symbol in self.kernel.local:
            return self.constant(form, self.kernel.local[symbol].offset + LOCAL_BASE)
        if symbol in self.kernel.tables:
            return f"context.launch.tables[{symbol!r}]"
        raise self.unsupported(f"{symbol} is not declared")

    def _register(self, number: int, form: str) -> str:
        if number not in self._forms and number not in self._halves:
            self.inputs.add(number)
            self._forms[number] = {self.canonical[number]: f"r{number}"}
        forms = self._forms.setdefault(number, {})
        if form in forms:
            return forms[form]
        if number in self._halves and not forms:
            source, high = self._halves[number]
            forms["u16"] = self.name(f"{'high_half' if high else 'low_half'}({source})")
            return self._register(number, form)
        present, value = next(iter(forms.items()))
        if WIDTH[present] == WIDTH[form]:
            forms[form] = self.name(f"{value}.view({form})")
            return forms[form]
        bits = self._register(number, UNSIGNED[WIDTH[present]])
        cast = self.name(f"{bits}.astype({UNSIGNED[WIDTH[form]]})")
        return cast if form == UNSIGNED[WIDTH[form]] else self.name(f"{cast}.view({form})")

    def half(self, operand: Operand) -> tuple[str, int] | None:
        """(u32, half: 0 low, 1 high) of an operand that is one half of a u32, if the half was never extracted."""
        if isinstance(operand, Register) and not self._forms.get(operand.number):
            return self._halves.get(operand.number)
        return None

    def write(self, operand: Operand, form: str, expression: str, *, named: bool = False) -> None:
        """Sets a register. `named`: the expression is already a name.

        A value narrower than the register is sign- or zero-extended, by its form.
        """
        if isinstance(operand, Blank):
            return
        assert isinstance(operand, Register)
        number, bits = operand.number, self.width(operand)
        if WIDTH[form] > bits:
            raise self.unsupported("the destination is too narrow")
        if WIDTH[form] < bits:
            wide = (SIGNED if form[0] == "i" else UNSIGNED)[bits]
            expression, form, named = f"({expression}).astype({wide})", wide, False
        if self.predicate is not None:
            old = self._register(number, form)
            expression, named = f"np.where({self.predicate}, {expression}, {old})", False
        value = expression if named else self.name(expression)
        self._forget(number)
        self._forms[number] = {form: value}
        self.changed.add(number)

    def write_half(self, operand: Operand, source: str, high: int) -> None:
        """Sets a 16-bit register to one half of a u32, which is extracted when it is used."""
        if self.predicate is not None:
            self.write(operand, "u16", f"{'high_half' if high else 'low_half'}({source})")
        elif isinstance(operand, Register):
            self._forget(operand.number)
            self._halves[operand.number] = (source, high)
            self.changed.add(operand.number)

    def copy(self, target: Register, source: Register) -> None:
        """Sets a register to another of its width, in all forms in which that is available."""
        form = self.canonical[target.number]
        if self.half(source) is None:
            self._register(source.number, form)
        forms, half = self._forms.get(source.number), self._halves.get(source.number)
        self._forget(target.number)
        if forms:
            self._forms[target.number] = dict(forms)
        if half is not None:
            self._halves[target.number] = half
        self.changed.add(target.number)

    def _forget(self, number: int) -> None:
        self._forms.pop(number, None)
        self._halves.pop(number, None)
        for key in [key for key in self._widened if key[0] == number]:
            del self._widened[key]

    def widened(self, operand: Operand, form: str, wide: str) -> str:
        """An operand in a form, converted to a wider one. The result is computed once."""
        if isinstance(operand, Immediate):
            return self.constant(wide, int(self.constants.values[self.constants.immediate(operand.text, form)]))
        if not isinstance(operand, Register):
            return self.name(f"{self.read(operand, form)}.astype({wide})")
        key = (operand.number, form, wide)
        if key not in self._widened:
            self._widened[key] = self.name(f"{self.read(operand, form)}.astype({wide})")
        return self._widened[key]
