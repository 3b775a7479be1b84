"""AMD's instruction pseudocode to Python source: the translator behind :mod:`.pcode_reference`."""

from __future__ import annotations

import re
from typing import Any

_TOKEN = re.compile(
    r"""\s*(?:(?P<cast>\d+'[UIFB](?=\())
    | (?P<sized>\d+'(?:0x[0-9a-fA-F]+|\d+)U?)
    | (?P<type>\d+'[UIFB])
    | (?P<real>\d+\.\d+F?)
    | (?P<integer>0x[0-9a-fA-F]+(?:ULL|LL|U)?|\d+(?:ULL|LL|U)?)
    | (?P<member>\.[a-z]+\d+\b)
    | (?P<name>[A-Za-z_][A-Za-z_0-9.]*?(?=\.[uibf]f?\d+\b)|[A-Za-z_][A-Za-z_0-9.]*)
    | (?P<op>\*\*|<<|>>|<=|>=|==|!=|<>|&&|\|\||\+=|[-+*/&|^~!<>=?:()\[\]{},;]))""",
    re.VERBOSE,
)
_REGISTERS = ("S0", "S1", "S2", "D0", "D1", "SCC", "VCC", "EXEC", "VCCZ", "EXECZ", "SIMM16", "SIMM32", "laneId")
_FIELDS = ("WAVE_MODE.IEEE", "INST.OMOD", "INST.ABS", "INST.NEG", "OPSEL")
FUNCTIONS = ("signext", "signext_from_bit", "isNAN", "isSignalNAN", "cvtToQuietNAN", "fma")
"""What pseudocode calls and :mod:`.pcode_reference` provides."""
_LEVELS = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!=", "<>"), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
    ("*",),
)  # fmt: skip


class PcodeUnsupported(ValueError):
    """The pseudocode has something that the translator does not know."""


def _suffixed(text: str) -> str:
    kind = "U" if "U" in text else "I"
    width = 64 if text.endswith("LL") else 32
    digits = text.rstrip("UL")
    number = int(digits, 0)
    if number >= 1 << 32:
        width = 64
    return f"Value({number}, {width}, {kind!r})"


class Translator:
    """Translates the statements of one instruction; :attr:`lines` are the body of a function of the registers ``s``."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"//[^\n]*", "", text).replace("\n", ";")
        self.tokens: list[tuple[str, str]] = []
        at = 0
        text = text.strip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise PcodeUnsupported(text[at : at + 30])
            self.tokens.append((str(match.lastgroup), match[match.lastgroup or 0]))
            at = match.end()
            while at < len(text) and text[at] == " ":
                at += 1
        self.at = 0
        self.lines: list[str] = []
        self.depth = 1
        self.locals: set[str] = set()

    # tokens
    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if expected is not None and token != expected:
            raise PcodeUnsupported(f"{token!r} where {expected!r} was expected")
        self.at += 1
        return token

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    # statements
    def block(self, *ends: str) -> str:
        start = len(self.lines)
        while True:
            while self.peek() == ";":
                self.take()
            if self.peek() in ends or (not self.peek() and "" in ends):
                break
            if not self.peek():
                raise PcodeUnsupported(f"no {ends}")
            self.statement()
        if len(self.lines) == start:
            self.emit("pass")
        return self.take() if self.peek() else ""

    def nested(self, *ends: str) -> str:
        self.depth += 1
        end = self.block(*ends)
        self.depth -= 1
        return end

    def statement(self) -> None:
        token = self.peek()
        if token == "if":
            self.conditional()
        elif token == "for":
            self.take()
            name = self.take()
            name = self.local(name)
            self.take("in")
            first = self.expression()
            self.take(":")
            last = self.expression()
            self.take("do")
            self.emit(f"for _i in range({first}.number, {last}.number + 1):")
            self.emit(f"    {name} = Value(_i, 32)")
            self.nested("endfor")
        elif token == "break":
            self.take()
            self.emit("break")
        elif token == "return":
            self.take()
            self.emit(f"return {self.expression()}")
        elif token == "declare":
            self.take()
            name = self.take()
            self.take(":")
            width, kind = self.take().split("'")
            name = self.local(name)
            if self.peek() == "[":
                self.take()
                count = int(self.take())
                self.take("]")
                self.emit(f"{name} = [None] * {count}")
            else:
                self.emit(f"{name} = Value(0, {width}, {kind!r})")
        elif self.peek(1) == "=" and self.peek(2) == "lambda":
            self.function()
        else:
            self.assignment()

    def conditional(self) -> None:
        self.take("if")
        word = "if"
        while True:
            self.emit(f"{word} {self.expression()}:")
            self.take("then")
            end = self.nested("elsif", "else", "endif")
            if end == "elsif":
                word = "elif"
                continue
            if end == "else":
                self.emit("else:")
                self.nested("endif")
            return

    def local(self, name: str) -> str:
        """The Python name of a variable of the pseudocode, known from here on."""
        self.locals.add(name)
        return f"{name}_"

    def function(self) -> None:
        name = self.local(self.take())
        self.take("=")
        self.take("lambda")
        self.take("(")
        parameters = []
        while self.peek() != ")":
            parameters.append(self.local(self.take()))
            if self.peek() == ",":
                self.take()
        self.take(")")
        self.take("(")
        self.emit(f"def {name}({', '.join(parameters)}):")
        self.depth += 1
        while self.peek() == ";":
            self.take()
        if self.peek() in ("declare", "if", "for", "return"):
            self.block(")")
        else:
            self.emit(f"return {self.expression()}")
            self.take(")")
        self.depth -= 1

    def target(self) -> tuple[str, list[tuple[str, Any]]]:
        name = self.take()
        steps: list[tuple[str, Any]] = []
        while True:
            kind = self.tokens[self.at][0] if self.at < len(self.tokens) else ""
            if kind == "member":
                steps.append(("type", self.take()[1:]))
            elif self.peek() == "[":
                self.take()
                high = self.expression()
                low = high
                if self.peek() == ":":
                    self.take()
                    low = self.expression()
                self.take("]")
                steps.append(("bits", (high, low)))
            else:
                return name, steps

    def assignment(self) -> None:
        targets = []
        if self.peek() == "{":
            self.take()
            parts = []
            while self.peek() != "}":
                parts.append(self.target())
                if self.peek() == ",":
                    self.take()
            self.take("}")
            self.take("=")
            self.emit(f"_v = {self.expression()}")
            low = 0
            for part in reversed(parts):
                width = int(re.sub(r"\D", "", part[1][0][1]))
                self.store(part, f"_v.slice({low + width - 1}, {low})")
                low += width
            return
        while True:
            mark = self.at
            target = self.target() if self.tokens[self.at][0] == "name" else None
            if target is not None and self.peek() == "=":
                self.take()
                targets.append(target)
                continue
            if target is not None and self.peek() == "+=":
                self.take()
                name = self.local(target[0])
                self.emit(f"{name} = pv.add({name}, {self.expression()}).view({name}.kind, {name}.width)")
                return
            self.at = mark
            break
        if not targets:
            raise PcodeUnsupported(f"statement at {self.peek()!r}")
        self.emit(f"_v = {self.expression()}")
        for target in reversed(targets):
            self.store(target, "_v")

    def store(self, target: tuple[str, list[tuple[str, Any]]], value: str) -> None:
        name, steps = target
        name = "D0" if name == "D" else name  # V_BITOP3_B32
        state = name in _REGISTERS
        known = name in self.locals
        place = f"s[{name!r}]" if state else self.local(name)
        if not steps:
            if name in ("SCC",):
                self.emit(f"{place} = Value({value}.bits, 1)")
            elif state:
                self.emit(f"{place} = pv.stored({place}, {value}.width - 1, 0, {value}, 'B')")
            else:
                self.emit(f"{place} = {value}")
            return
        kind, width, bits = "B", 0, None
        for what, detail in steps:
            if what == "bits":
                bits = detail
            else:
                letter, size = re.match(r"([a-z]+)(\d+)", detail).groups()  # type: ignore[union-attr]
                kind, width = letter.upper(), int(size)
        if not state and not known:
            if bits is None:
                fresh = f"pv.stored(Value(0, {width}), {width - 1}, 0, {value}, {kind!r})"
                self.emit(f"{place} = {fresh}.view({kind!r}, {width})")
                return
            self.emit(f"{place} = Value(0, 64)")
        if bits is not None and len(steps) == 1 and self.is_list(place):
            self.emit(f"{place}[{bits[0]}.number] = {value}")
            return
        if bits is None:
            high, low = f"{width - 1}", "0"
        else:
            high, low = f"{bits[0]}.number", f"{bits[1]}.number"
        self.emit(f"{place} = pv.stored({place}, {high}, {low}, {value}, {kind!r})")

    def is_list(self, name: str) -> bool:
        return any(f"{name} = [None]" in line for line in self.lines)

    # expressions
    def expression(self) -> str:
        condition = self.level(0)
        if self.peek() == "?":
            self.take()
            yes = self.expression()
            self.take(":")
            no = self.expression()
            return f"({yes} if {condition} else {no})"
        return condition

    def level(self, depth: int) -> str:
        if depth == len(_LEVELS):
            return self.unary()
        left = self.level(depth + 1)
        while self.peek() in _LEVELS[depth] and self.tokens[self.at][0] == "op":
            operator = self.take()
            # "== -0.0" beside "== +0.0" (V_MIN_F32, V_MAX_F32) tells the zeros apart: the bits are meant.
            signed_zero = operator == "==" and self.peek() in ("+", "-") and self.peek(1) == "0.0"
            right = self.level(depth + 1)
            if signed_zero:
                left = f"Value({left}.bits == {right}.bits, 1)"
                continue
            left = {
                "||": f"Value(bool({left}) or bool({right}), 1)",
                "&&": f"Value(bool({left}) and bool({right}), 1)",
                "+": f"pv.add({left}, {right})",
                "-": f"pv.subtract({left}, {right})",
                "*": f"pv.multiply({left}, {right})",
            }.get(operator) or (
                f"pv.bitwise({operator!r}, {left}, {right})" if operator in "&|^"
                else f"pv.shift({operator!r}, {left}, {right})" if operator in ("<<", ">>")
                else f"pv.compare({operator!r}, {left}, {right})"
            )  # fmt: skip
        return left

    def unary(self) -> str:
        token = self.peek()
        if token in ("-", "~", "!", "+") and self.tokens[self.at][0] == "op":
            self.take()
            inner = self.unary()
            return {
                "-": f"pv.negate({inner})", "~": f"pv.invert({inner})", "!": f"Value(not {inner}, 1)", "+": inner,
            }[token]  # fmt: skip
        return self.postfix()

    def postfix(self) -> str:
        value = self.primary()
        while self.at < len(self.tokens):
            kind, token = self.tokens[self.at]
            if kind == "member":
                self.take()
                letter, size = re.match(r"\.([a-z]+)(\d+)", token).groups()  # type: ignore[union-attr]
                if letter not in "uibf":
                    raise PcodeUnsupported(token)
                value = f"{value}.view({letter.upper()!r}, {size})"
            elif token == "[" and kind == "op":
                self.take()
                high = self.expression()
                low = None
                if self.peek() == ":":
                    self.take()
                    low = self.expression()
                self.take("]")
                if low is None:
                    value = f"{value}[{high}.number]" if self.is_list(value) else f"_bit({value}, {high}.number)"
                else:
                    value = f"{value}.slice({high}.number, {low}.number)"
            else:
                break
        return value

    def arguments(self) -> list[str]:
        self.take("(")
        found = []
        while self.peek() != ")":
            found.append(self.expression())
            if self.peek() == ",":
                self.take()
        self.take(")")
        return found

    def primary(self) -> str:
        kind, token = self.tokens[self.at]
        self.take()
        if kind == "cast":
            width, letter = token.split("'")
            (inner,) = self.arguments()
            return f"pv.cast({width}, {letter!r}, {inner})"
        if kind == "sized":
            width, digits = token.split("'")
            return f"Value({int(digits.rstrip('U'), 0)}, {width}, {'U' if 'U' in digits or 'x' in digits else 'I'!r})"
        if kind == "real":
            return f"pv.round_to({token.rstrip('F')}, {32 if token.endswith('F') else 64})"
        if kind == "integer":
            return _suffixed(token)
        if token == "(":
            inner = self.expression()
            self.take(")")
            return f"({inner})"
        if token == "{":
            parts = []
            while self.peek() != "}":
                parts.append(self.expression())
                if self.peek() == ",":
                    self.take()
            self.take("}")
            return f"pv.concatenate({', '.join(parts)})"
        if kind == "name":
            if self.peek() == "(":
                arguments = ", ".join(self.arguments())
                if token in self.locals:
                    return f"{token}_({arguments})"
                if token.startswith("v_"):
                    return f"_call({token.upper()!r}, s, {arguments})"
                if token in FUNCTIONS:
                    return f"_FUNCTIONS[{token!r}]({arguments})"
                raise PcodeUnsupported(f"function {token}")
            if token in self.locals:
                return f"{token}_"
            if token in _REGISTERS or token in _FIELDS:
                return f"s[{token!r}]"
        raise PcodeUnsupported(f"{token!r}")
