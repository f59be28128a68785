"""Sizes as PyTorch writes them into a `.pt2`, checked before PyTorch reads them: it hands each to Python's `eval`.

    checked("Add(Symbol('s0', positive=True, integer=True), Integer(-1))")

Whole numbers, symbols named s0, s1, … and a few functions of them are all there is; the text is written anew from what
was understood of it.
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
    """The expression, written anew; a ValueError for anything but arithmetic of sizes."""
    if not isinstance(text, str):
        raise ValueError(f"expected an expression, got {_short(text)}")
    return _parsed(text)


@lru_cache(1024)  # a file repeats the same few
def _parsed(text: str) -> str:
    if len(text) > MAX_CHARACTERS or not text.isascii():
        raise ValueError(f"expected an expression of at most {MAX_CHARACTERS} characters, got {_short(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"expected an expression of sizes, got {_short(text)}") from error
    if sum(1 for _ in ast.walk(tree)) > 6 * MAX_PARTS:  # a symbol with its assumptions has six nodes
        raise ValueError(f"expected an expression of at most {MAX_PARTS} parts, got {_short(text)}")
    return _written(tree, MAX_DEPTH)


def _written(node: ast.expr, depth: int) -> str:
    if depth == 0:
        raise ValueError(f"expected an expression of at most {MAX_DEPTH} levels")
    if isinstance(node, ast.Constant | ast.UnaryOp):
        return str(_whole(node))
    if isinstance(node, ast.Name) and SYMBOL.fullmatch(node.id):
        return node.id
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        if isinstance(node.op, ast.Pow):
            _check_power(node.left, node.right)
        left, right = _written(node.left, depth - 1), _written(node.right, depth - 1)
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
            return f"{name}({', '.join(_written(part, depth - 1) for part in node.args)})"
    raise ValueError(f"expected arithmetic of sizes, got {_short(ast.unparse(node))}")


def _check_power(base: ast.expr, exponent: ast.expr) -> None:
    """A small one, and none of another power: those have no bound."""
    powers = [node for node in ast.walk(base) if isinstance(node, ast.Pow) or getattr(node, "id", "") == "Pow"]
    number = exponent.args[0] if isinstance(exponent, ast.Call) and len(exponent.args) == 1 else exponent
    if powers or not 0 <= _whole(number) <= MAX_POWER:
        raise ValueError(f"expected a power of at most {MAX_POWER}, got {_short(ast.unparse(exponent))}")


def _whole(node: ast.expr) -> int:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    value = node.operand if negative else node  # type: ignore[attr-defined]
    if not isinstance(value, ast.Constant) or type(value.value) is not int or value.value > MAX_INT64:
        raise ValueError(f"expected a whole number below 2^63, got {_short(ast.unparse(node))}")
    return -value.value if negative else value.value


def _symbol(node: ast.Call) -> str:
    known = {word.arg: word.value for word in node.keywords}
    name = node.args[0].value if len(node.args) == 1 and isinstance(node.args[0], ast.Constant) else None
    if not isinstance(name, str) or not SYMBOL.fullmatch(name) or not known.keys() <= ASSUMPTIONS:
        raise ValueError(f"expected a symbol such as s0, got {_short(ast.unparse(node))}")
    if not all(isinstance(value, ast.Constant) and value.value is True for value in known.values()):
        raise ValueError(f"expected a symbol such as s0, got {_short(ast.unparse(node))}")
    return f"Symbol({name!r}{''.join(f', {word}=True' for word in known)})"


def _short(value: object) -> str:
    return repr(value if not isinstance(value, str) or len(value) <= 60 else value[:60] + "…")[:80]
