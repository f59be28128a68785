"""Checks of size expressions in a `.pt2`, which PyTorch would pass to Python's `eval`.

    checked("Add(Symbol('s0', positive=True, integer=True), Integer(-1))")

Only ints, symbols named s0, s1, … and a few functions are allowed; the text is rebuilt from the parsed expression.
"""

import ast
import re
from functools import lru_cache

FUNCTIONS = {"Add", "Mul", "FloorDiv", "CeilDiv", "CleanDiv", "Mod", "PythonMod", "ModularIndexing", "Max", "Min"}
SYMBOL = re.compile(r"s\d{1,4}", re.ASCII)
ASSUMPTIONS = {"positive", "nonnegative", "integer"}  # of a symbol, each True
MAX_CHARACTERS = 20_000
MAX_PARTS = 2_000  # numbers, symbols and functions of one expression
MAX_DEPTH = 40
MAX_POWER = 4
MAX_INT64 = 2**63 - 1
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}


def checked(text: object) -> str:
    """The rebuilt expression; raises a ValueError for anything but arithmetic of sizes."""
    if not isinstance(text, str):
        raise ValueError(f"expected an expression, got {_shorten(text)}")
    return _parse(text)


@lru_cache(1024)  # a file repeats a few expressions
def _parse(text: str) -> str:
    if len(text) > MAX_CHARACTERS or not text.isascii():
        raise ValueError(f"expected an expression of at most {MAX_CHARACTERS} characters, got {_shorten(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"expected an expression of sizes, got {_shorten(text)}") from error
    if sum(1 for _ in ast.walk(tree)) > 6 * MAX_PARTS:  # a symbol with its assumptions has six nodes
        raise ValueError(f"expected an expression of at most {MAX_PARTS} parts, got {_shorten(text)}")
    return _rebuild(tree, MAX_DEPTH)


def _rebuild(node: ast.expr, depth: int) -> str:
    if depth == 0:
        raise ValueError(f"expected an expression of at most {MAX_DEPTH} levels")
    if isinstance(node, ast.Constant | ast.UnaryOp):
        return str(_whole(node))
    if isinstance(node, ast.Name) and SYMBOL.fullmatch(node.id):
        return node.id
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        if isinstance(node.op, ast.Pow):
            _check_power(node.left, node.right)
        left, right = _rebuild(node.left, depth - 1), _rebuild(node.right, depth - 1)
        return f"({left} {OPERATORS[type(node.op)]} {right})"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if name == "Integer" and len(node.args) == 1 and not node.keywords:
            return f"Integer({_whole(node.args[0])})"
        if name == "Symbol":
            return _symbol(node)
        if name == "Pow" and len(node.args) == 2:
            _check_power(*node.args)
        if name in {*FUNCTIONS, "Pow"} and node.args and not node.keywords:
            return f"{name}({', '.join(_rebuild(part, depth - 1) for part in node.args)})"
    raise ValueError(f"expected arithmetic of sizes, got {_shorten(ast.unparse(node))}")


def _check_power(base: ast.expr, exponent: ast.expr) -> None:
    """Allow small constant exponents only, and no nested powers, whose size is unbounded."""
    powers = [node for node in ast.walk(base) if isinstance(node, ast.Pow) or getattr(node, "id", "") == "Pow"]
    number = exponent.args[0] if isinstance(exponent, ast.Call) and len(exponent.args) == 1 else exponent
    if powers or not 0 <= _whole(number) <= MAX_POWER:
        raise ValueError(f"expected a power of at most {MAX_POWER}, got {_shorten(ast.unparse(exponent))}")


def _whole(node: ast.expr) -> int:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    value = node.operand if negative else node  # type: ignore[attr-defined]
    if not isinstance(value, ast.Constant) or type(value.value) is not int or value.value > MAX_INT64:
        raise ValueError(f"expected an int below 2^63, got {_shorten(ast.unparse(node))}")
    return -value.value if negative else value.value


def _symbol(node: ast.Call) -> str:
    known = {word.arg: word.value for word in node.keywords}
    name = node.args[0].value if len(node.args) == 1 and isinstance(node.args[0], ast.Constant) else None
    if not isinstance(name, str) or not SYMBOL.fullmatch(name) or not known.keys() <= ASSUMPTIONS:
        raise ValueError(f"expected a symbol such as s0, got {_shorten(ast.unparse(node))}")
    if not all(isinstance(value, ast.Constant) and value.value is True for value in known.values()):
        raise ValueError(f"expected a symbol such as s0, got {_shorten(ast.unparse(node))}")
    return f"Symbol({name!r}{''.join(f', {word}=True' for word in known)})"


def _shorten(value: object) -> str:
    return repr(value if not isinstance(value, str) or len(value) <= 60 else value[:60] + "…")[:80]
