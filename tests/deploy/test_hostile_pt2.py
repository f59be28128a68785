"""Files that would make PyTorch's reader run code: refused before it sees them, unless they are trusted."""

import json
import zipfile
from contextlib import suppress

import pytest
import torch
from hostile import CONSTANTS, MODEL, SAMPLES, WEIGHTS, changed, members, pickled, save_small, saved, write
from tests.raising import raises

from ripe_mambaspike.deploy.export import pt2_expression
from ripe_mambaspike.deploy.export.pt2_archive import TENSORS, rebuilt
from ripe_mambaspike.deploy.export.registry import export_format
from ripe_mambaspike.errors import InputError


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return save_small(tmp_path_factory.mktemp("good") / "clip.pt2")


@pytest.fixture
def mark(tmp_path):
    """The file that hostile code makes."""
    return tmp_path / "made-by-code"


def run(path, **how):
    return export_format("torch-export").load(path, **how)(torch.ones(2, 1, 2, 8, 8))


def graph_of(document):
    return document["graph_module"]["graph"]


def renamed(document, old, new):
    """One value renamed everywhere."""
    text = json.dumps(document).replace(json.dumps(old), json.dumps(new))
    document.clear()
    document.update(json.loads(text))


def code(mark):
    return f"open({str(mark)!r}, 'w')"


def in_an_expression(document, mark):
    graph_of(document)["tensor_values"]["x"]["sizes"][0] = {
        "as_expr": {"expr_str": f"[{code(mark)}, 2][1]", "hint": None}
    }


def in_a_function(document, mark):
    node = graph_of(document)["nodes"][0]
    word = {"as_string": f"touch {mark}"}
    node.update(target="torch.os.system", inputs=[{"name": "", "arg": word, "kind": 1}], name="flatten")


def in_the_name_of_an_input(document, mark):
    renamed(document, "x", f"x, y={code(mark)}")


def in_the_name_of_a_value(document, mark):
    name = graph_of(document)["nodes"][0]["name"]
    renamed(document, name, f"{code(mark)}; {name}")


def in_the_name_of_an_argument(document, mark):
    call = document["graph_module"]["module_call_graph"][0]["signature"]
    call["forward_arg_names"] = [f"x={code(mark)}"]


GRAPH_ATTACKS = [in_an_expression, in_a_function, in_the_name_of_an_input, in_the_name_of_a_value]
GRAPH_ATTACKS += [in_the_name_of_an_argument]


@pytest.mark.parametrize("attack", GRAPH_ATTACKS, ids=lambda attack: attack.__name__)
def test_code_in_the_graph(good, tmp_path, mark, attack):
    path = changed(good, tmp_path / "clip.pt2", lambda document: attack(document, mark))
    with raises(InputError, path=path) as caught:
        run(path)
    assert caught.value.field.startswith(MODEL)
    assert not mark.exists()


@pytest.mark.parametrize("attack", [in_an_expression, in_the_name_of_an_input], ids=lambda attack: attack.__name__)
def test_trusted_files_run_the_code(good, tmp_path, mark, attack):
    """The attacks work on a trusted file; PyTorch itself stops those that are not in this list."""
    path = changed(good, tmp_path / "clip.pt2", lambda document: attack(document, mark))
    with suppress(InputError):  # it may fail afterwards
        run(path, trust=True)
    assert mark.exists()


def pickled_weight(good, out, mark):
    parts = members(good)
    config = json.loads(parts[WEIGHTS])
    entry = config["config"]["head.weight"]
    entry["use_pickle"] = True
    place = f"data/weights/{entry['path_name']}"
    return write(out, {**parts, WEIGHTS: json.dumps(config).encode(), place: saved(mark)})


def pickled_samples(good, out, mark):
    return write(out, {**members(good), SAMPLES: saved(mark)})


def pickled_weights_of_an_older_format(good, out, mark):
    return write(out, {**members(good), "data/weights/model.pt": saved(mark)})


def pickled_object(good, out, mark):
    parts = members(good)
    config = json.loads(parts[CONSTANTS])
    entry = next(iter(config["config"].values()))
    config["config"]["more"] = {**entry, "path_name": "opaque_obj_0", "use_pickle": True, "tensor_meta": None}
    more = {CONSTANTS: json.dumps(config).encode(), "data/constants/opaque_obj_0": pickled(mark)}
    return write(out, {**parts, **more})


def a_second_graph_of_the_same_name(good, out, mark):
    """Two zip readers may read different ones."""
    parts = members(good)
    document = json.loads(parts[MODEL])
    in_an_expression(document, mark)
    with pytest.warns(UserWarning, match="Duplicate name"):
        return write(out, [(MODEL, json.dumps(document).encode()), *parts.items()])


def another_graph_beside_it(good, out, mark):
    parts = members(good)
    document = json.loads(parts[MODEL])
    in_an_expression(document, mark)
    beside = {
        "models/a.json": json.dumps(document).encode(),
        "data/sample_inputs/a.pt": b"",
        "data/weights/a_weights_config.json": parts[WEIGHTS],
        "data/constants/a_constants_config.json": parts[CONSTANTS],
    }
    return write(out, {**parts, **beside})


ARCHIVE_ATTACKS = [pickled_weight, pickled_samples, pickled_weights_of_an_older_format, pickled_object]
ARCHIVE_ATTACKS += [a_second_graph_of_the_same_name, another_graph_beside_it]


@pytest.mark.parametrize("attack", ARCHIVE_ATTACKS, ids=lambda attack: attack.__name__)
def test_code_in_the_archive(good, tmp_path, mark, attack):
    path = attack(good, tmp_path / "clip.pt2", mark)
    with raises(InputError, path=path) as caught:
        run(path)
    assert caught.value.field is not None
    assert not mark.exists()
    if attack is not a_second_graph_of_the_same_name:
        with suppress(InputError):
            run(path, trust=True)
        assert mark.exists()  # the attack is a real one


def spec(context):
    leaf = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": "builtins.dict", "context": context, "children_spec": [leaf]}])


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("guards_code", ["__import__('os').abort()"]),
        ("verifiers", ["os"]),
        ("range_constraints", {"__import__('os').abort()": {"min_val": 0, "max_val": None}}),
        ("torch_version", "1\n2"),
        ("schema_version", {"major": 8, "minor": True}),
        ("opset_version", {"aten": 10**30}),
        ("graph_module", []),
        ("something_new", ["value"]),
    ],
)
def test_other_parts_are_removed_or_refused(good, tmp_path, where, value):
    path = changed(good, tmp_path / "clip.pt2", lambda document: document.update({where: value}))
    if where == "guards_code":  # PyTorch would execute it; it gets none
        assert b"abort" not in rebuilt(path.read_bytes())[0]
        return
    with pytest.raises(InputError) as caught:
        run(path)
    assert caught.value.field.startswith(f"{MODEL}.{where}")


@pytest.mark.parametrize(
    "value",
    [
        spec('[{"__enum__": true, "fqn": "antigravity:Flight", "name": "off"}]'),
        json.dumps([1, {"type": "collections.defaultdict", "context": "{}", "children_spec": []}]),
        json.dumps([2, {"type": None, "context": None, "children_spec": []}]),
        "[" * 2000,
        "7",
        None,
    ],
    ids=["import", "factory", "protocol", "deep", "number", "none"],
)
def test_tree_specs(good, tmp_path, value):
    def change(document):
        document["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = value

    with pytest.raises(InputError) as caught:
        run(changed(good, tmp_path / "clip.pt2", change))
    assert caught.value.field.endswith("in_spec")


@pytest.mark.parametrize(
    "argument",
    [
        {"as_operator": "torch.os.system"},
        {"as_custom_obj": {"name": "a", "class_fqn": "b"}},
        {"as_graph": {"name": "a", "graph": {}}},
        {"as_string": "a/file"},
        {"as_device": {"type": "cuda", "index": 0}},
        {"as_int": 2**70},
        {"as_int": True},
        {},
        None,
    ],
)
def test_arguments_of_other_kinds(good, tmp_path, argument):
    def change(document):
        graph_of(document)["nodes"][0]["inputs"][-1]["arg"] = argument

    with pytest.raises(InputError) as caught:
        run(changed(good, tmp_path / "clip.pt2", change))
    assert ".nodes[0].inputs[" in caught.value.field


@pytest.mark.parametrize("target", ["torch.ops.aten.from_file.default", "torch.load", "math.factorial", "#x:y", "", 3])
def test_operators_that_are_not_allowed(good, tmp_path, target):
    path = changed(good, tmp_path / "clip.pt2", lambda document: graph_of(document)["nodes"][0].update(target=target))
    with pytest.raises(InputError) as caught:
        run(path)
    assert caught.value.field.endswith("nodes[0].target")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sizes", [{"as_int": 2**40}, {"as_int": 128}]),
        ("strides", [{"as_int": 2**40}, {"as_int": 1}]),
        ("storage_offset", {"as_int": 10**9}),
        ("sizes", [{"as_int": 3}]),
        ("dtype", 99),
        ("layout", 1),
    ],
)
def test_tensors_outside_their_bytes(good, tmp_path, key, value):
    def change(document):
        document["config"]["head.weight"]["tensor_meta"][key] = value

    with pytest.raises(InputError) as caught:
        run(changed(good, tmp_path / "clip.pt2", change, WEIGHTS))
    assert caught.value.field.startswith(f"{WEIGHTS}")


def test_compressed_members_are_refused(good, tmp_path):
    with zipfile.ZipFile(tmp_path / "clip.pt2", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members(good).items():
            archive.writestr(f"archive/{name}", data + bytes(10**6) if name.endswith("weight_0") else data)
    with raises(InputError, "archive"):
        run(tmp_path / "clip.pt2")


def test_each_part_missing_or_damaged(good, tmp_path):
    """An InputError, or the same logits where the part has no effect."""
    parts = members(good)
    (expected,) = run(good)
    for name in (name for name in parts if not TENSORS.fullmatch(name)):  # any bytes are valid tensors
        for damaged in (
            {other: data for other, data in parts.items() if other != name},
            {**parts, name: b""},
            {**parts, name: b"[" * 10**5},
            {**parts, name: b'{"config": NaN}'},
        ):
            path = write(tmp_path / "clip.pt2", damaged)
            try:
                (logits,) = run(path)
            except InputError:
                continue
            assert torch.equal(logits, expected), name


def test_checked_and_trusted_files_give_equal_logits(good):
    for batch in (1, 2, 5):
        x = torch.rand(batch, 1, 2, 8, 8)
        plain, trusted = (export_format("torch-export").load(good, trust=trust)(x)[0] for trust in (False, True))
        assert torch.equal(plain, trusted)


# Expressions alone


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Symbol('s0', positive=True, integer=True)", "Symbol('s0', positive=True, integer=True)"),
        (
            "Add(Mul(Integer(-2), Symbol('s0', integer=True)), 3)",
            "Add(Mul(Integer(-2), Symbol('s0', integer=True)), 3)",
        ),
        ("Max(Integer(1), FloorDiv(Add(s0, -1), Integer(2)))", "Max(Integer(1), FloorDiv(Add(s0, -1), Integer(2)))"),
        ("(s4*s80 + 1) // 2 % 7", "((((s4 * s80) + 1) // 2) % 7)"),
        ("Pow(Symbol('s3', integer=True), Integer(2))", "Pow(Symbol('s3', integer=True), Integer(2))"),
    ],
)
def test_size_expressions_are_rebuilt(text, expected):
    assert pt2_expression.checked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "Symbol('s0').__class__",
        "Symbol('os', integer=True)",
        "Symbol('s0', cls=open)",
        "Symbol('s0', **{})",
        "Add(*[1])",
        "Add(x=1)",
        "Integer(True)",
        "Integer(9223372036854775808)",
        "Integer(" + "9" * 5000 + ")",
        "9**9**9",
        "Pow(Pow(s0, Integer(4)), Integer(4))",
        "Pow(s0, Integer(5))",
        "lambda: 1",
        "(s0 := 1)",
        "f'{1}'",
        "s0.x",
        "s0[0]",
        "os",
        "1.5",
        "'s0'",
        "",
        "Add(" * 100 + "1" + ")" * 100,
        "(" * 5000,
        "s0 + " * 5000 + "s0",
        "ｓ0",
        "s0\0",
        None,
        ["s0"],
    ],
)
def test_other_expressions_are_refused(text):
    with pytest.raises(ValueError, match="expected"):
        pt2_expression.checked(text)
