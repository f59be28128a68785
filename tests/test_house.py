"""The layout holds: packages use the packages before them, nothing unpickles, nothing speaks of a machine."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ripe_mambaspike"
PACKAGES = [
    "events", "data", "ops", "nn", "models", "train", "inference", "deploy", "account", "studies", "bench",
    "report", "live", "cli",
]  # fmt: skip
SOURCES = sorted(PACKAGE.rglob("*.py"))


# Words of British spelling: identifiers have PyTorch's.
BRITISH = re.compile(
    "colour|centre|grey|neighbour|behaviour|labelled|modelling|cancelled|favour|licence|"
    "(?:optim|quant|normal|initial|general|standard|serial|summar|recogn|organ|minim|maxim|synchron|util|visual|"
    "categor|random|parallel|parameter|special|final|local|vector|character|emphas|penal|discret|binar)is(?:e|ing|ation)",
    re.IGNORECASE,
)


def definitions():
    """Of classes and public functions, at the top of a module: names, and the places that define them.

    The implementations of one operator (reference, C++, Triton), side by side in `ops/<operator>/`, share its name.
    """
    places = {}
    for path in SOURCES:
        where = path.relative_to(PACKAGE)
        for node in ast.parse(path.read_text()).body:
            function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")
            if isinstance(node, ast.ClassDef) or function:
                operator = where.parts[0] == "ops" and len(where.parts) > 2
                places.setdefault(node.name, set()).add(str(where.parent if operator else where))
    return places


def imported_packages(path: Path) -> set[str]:
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "ripe_mambaspike" and len(parts) > 1:
                packages.add(parts[1])
            elif parts == ["ripe_mambaspike"] and isinstance(node, ast.ImportFrom):
                packages |= {f"the root's {alias.name}" for alias in node.names if alias.name != "__version__"}
    return packages


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_package_uses_the_packages_before_it(path):
    package = path.relative_to(PACKAGE).parts[0]
    if package not in PACKAGES:
        return
    # Modules beside the packages.
    shared = {
        "commit",
        "errors",
        "files",
        "folders",
        "schema",
        "templating",
        "yaml_text",
        "callable_package",
        "command_options",
        "own_modules",
    }
    allowed = {*PACKAGES[: PACKAGES.index(package) + 1], *shared}
    packages = imported_packages(path)
    if package == "cli":  # which calls the public functions of the package
        packages = {name for name in packages if not name.startswith("the root's")}
    assert packages <= allowed


@pytest.mark.parametrize("package", ["inference", "deploy"])
def test_a_network_is_used_without_training_code(package):
    assert not [
        path for path in SOURCES if path.is_relative_to(PACKAGE / package) and "train" in imported_packages(path)
    ]


def test_every_package_is_in_the_list():
    packages = {path.relative_to(PACKAGE).parts[0] for path in SOURCES if path.parent != PACKAGE}
    assert packages == set(PACKAGES)


def test_nothing_unpickles():
    pattern = re.compile(r"\bimport pickle|\btorch\.load\(|allow_pickle=True|\bfrom pickle\b")
    assert not [path for path in SOURCES if pattern.search(path.read_text())]


def test_help_does_not_wait_for_torch():
    """The command line's own modules import torch inside the commands only."""
    import subprocess
    import sys

    code = "import sys; from ripe_mambaspike.cli.main import main; main(['--help']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_name_is_defined_once():
    doubles = {name: sorted(places) for name, places in definitions().items() if len(places) > 1}
    assert doubles == {}


def test_identifiers_have_the_spelling_of_pytorch():
    found = {
        f"{path.relative_to(PACKAGE)}: {token.string}"
        for path in SOURCES
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type == tokenize.NAME and BRITISH.search(token.string)
    }
    assert sorted(found) == []
