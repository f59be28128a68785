"""A document is read into its type, or refused with the name of the field that does not fit."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from raising import raises
from ripe_mambaspike.errors import ConfigError, DataError, WeightsError
from ripe_mambaspike.schema import Document, convert, decode_json, read_json


class Shard(Document):
    events: Annotated[int, Meta(ge=0, le=9)]
    name: str = ""
    kind: Literal["raw", "packed"] = "raw"


class Index(Document):
    shards: list[Shard] = msgspec.field(default_factory=list)
    cuts: dict[str, Shard] = msgspec.field(default_factory=dict)
    grid: int | tuple[int, int] = 1


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1

    def __post_init__(self):
        if self.rate < 0:
            raise ConfigError(f"rate: expected at least 0, got {self.rate}", field="rate")


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    several: list[Inner] = field(default_factory=list)


def test_a_document_that_fits():
    made = convert({"shards": [{"events": 3}], "cuts": {"a": {"events": 0, "kind": "packed"}}, "grid": [1, 2]}, Index)
    assert made == Index(shards=[Shard(events=3)], cuts={"a": Shard(events=0, kind="packed")}, grid=(1, 2))
    assert convert({"inner": {"rate": 1}}, Outer) == Outer(Inner(1.0))
    assert convert({"events": "3"}, Shard, strict=False) == Shard(events=3)


@pytest.mark.parametrize(
    ("kind", "values", "where"),
    [
        (Index, {"shards": [{"events": "x"}]}, "shards[0].events"),
        (Index, {"shards": [{"events": True}]}, "shards[0].events"),
        (Index, {"shards": [{"events": 1}, {"events": 10}]}, "shards[1].events"),
        (Index, {"shards": [{}]}, "shards[0].events"),
        (Index, {"shards": [{"events": 1, "nam": ""}]}, "shards[0].nam"),
        (Index, {"cuts": {"a": {"events": 1}, "b": {"events": -1}}}, "cuts.b.events"),
        (Index, {"cuts": {"a": {"events": 1, "kind": "x"}}}, "cuts.a.kind"),
        (Index, {"grid": [1, 2, 3]}, "grid"),
        (Index, {"grid": "48,48"}, "grid"),
        (Index, [], None),
        (Outer, {"inner": {"rat": 1}}, "inner.rat"),
        (Outer, {"several": [{}, {"rate": float("nan")}]}, "several[1].rate"),
        (Outer, {"several": [{}, {"rate": -1}]}, "several[1].rate"),
        (Outer, {"inner": {"rate": -1}}, "inner.rate"),
        (Outer, {"inner": {"rate": "x" * 100_000}}, "inner.rate"),
    ],
)
def test_what_does_not_fit_is_named(kind, values, where):
    with raises(WeightsError) as caught:
        convert(values, kind, origin="a.json", error=WeightsError)
    assert (caught.value.field, caught.value.path) == (where, "a.json")
    assert str(caught.value).startswith(f"a.json: {where}: expected " if where else "a.json: expected ")
    assert ", got " in str(caught.value)
    assert len(str(caught.value)) < 250


def test_names_that_are_close_are_suggested():
    with raises(DataError, field="top.shards[0].nam") as caught:
        convert({"shards": [{"events": 1, "nam": ""}]}, Index, field="top")
    assert "'name'" in str(caught.value)
    with raises(DataError, field="shards[0].kind") as caught:
        convert({"shards": [{"events": 1, "kind": "row"}]}, Index)
    assert "'raw', 'packed'" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 9999, '{"events": NaN}', '{"events": 1e999}', '{"events": ' + "9" * 5000 + "}", '{"name": "\xff'],
)
def test_damaged_json_is_refused(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    with raises(DataError, path=path):
        read_json(path, Shard)
    with raises(DataError):
        decode_json(text.encode("latin-1"), Shard)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    path = tmp_path / "a.json"
    with raises(DataError, path=path):
        read_json(path, Shard)
    path.write_text('{"events": 1}')
    assert read_json(path, Shard) == Shard(events=1)
    with raises(DataError, path=path):
        read_json(path, Shard, max_bytes=5)
    with raises(DataError, path=tmp_path):
        read_json(tmp_path, Shard)


def test_nesting_without_end_is_refused():
    values = inner = []
    for _ in range(10_000):
        inner.append([])
        inner = inner[0]
    with raises(DataError):
        convert({"grid": values}, Index)


def test_half_of_a_surrogate_pair_is_refused():
    with raises(ConfigError):
        convert("\ud800", Literal["a", "b"], error=ConfigError)
