import string
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steelyard.config import convert, dump, load, to_plain
from steelyard.errors import CatalogError, ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    latency_s: float
    name: str = "wire"

    def __post_init__(self):
        if self.latency_s < 0:
            raise CatalogError(f"latency {self.latency_s} is negative", hint="give 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    count: int
    link: Link
    others: tuple[Link, ...] = ()
    by_name: dict[str, Link] = field(default_factory=dict)
    maybe: Link | None = None
    out: Path | None = None


GOOD = {"count": 2, "link": {"latency_s": 1e-6}}


def test_convert_makes_nested_dataclasses():
    node = convert(GOOD | {"others": [{"latency_s": 1}], "out": "a/b"}, Node)
    assert node.others == (Link(latency_s=1.0),)
    assert node.out == Path("a/b")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"count": "two"}, r"\$\.count"),
        ({"count": 1.5}, r"\$\.count"),
        ({"link": {"latency_s": "x"}}, r"\$\.link\.latency_s"),
        ({"link": {}}, r"latency_s.*\$\.link"),
        ({"others": [{"latency_s": 1}, {"latency_s": []}]}, r"\$\.others\[1\]\.latency_s"),
        ({"countt": 2}, r"unknown field \$\.countt"),
        ({"link": {"latency_s": 1, "speed": 2}}, r"unknown field \$\.link\.speed"),
        ({"others": [{"latency_s": 1, "speed": 2}]}, r"unknown field \$\.others\[0\]\.speed"),
        ({"by_name": {"a": {"latency_s": 1, "speed": 2}}}, r"unknown field \$\.by_name\.a\.speed"),
        ({"maybe": {"latency_s": 1, "speed": 2}}, r"unknown field \$\.maybe\.speed"),
    ],
)
def test_errors_carry_the_file_and_the_dotted_path(change, path):
    with pytest.raises(ConfigError, match=r"plan\.toml: .*" + path) as caught:
        convert(GOOD | change, Node, where="plan.toml")
    assert caught.value.hint


def test_an_unknown_field_gets_the_near_name():
    with pytest.raises(ConfigError) as caught:
        convert(GOOD | {"link": {"latency": 1}}, Node)
    assert "did you mean 'latency_s'" in caught.value.hint


def test_a_refusal_of_the_dataclass_keeps_its_class_and_names_the_file():
    with pytest.raises(CatalogError, match=r"^plan\.toml: latency -1\.0 is negative") as caught:
        convert({"count": 1, "link": {"latency_s": -1}}, Node, where="plan.toml")
    assert caught.value.hint == "give 0 or more"


def test_load_reads_toml_and_json(tmp_path):
    (tmp_path / "a.toml").write_text("count = 2\n[link]\nlatency_s = 1e-6\n")
    (tmp_path / "a.JSON").write_text('{"count": 2, "link": {"latency_s": 1e-6}}')
    assert load(tmp_path / "a.toml", Node) == load(tmp_path / "a.JSON", Node) == convert(GOOD, Node)


@pytest.mark.parametrize(
    ("name", "payload"),
    [("a.toml", b"count ="), ("a.json", b"{"), ("a.toml", b"\xff\xfe"), ("a.json", b'"\xff"')],
)
def test_load_refuses_broken_files(tmp_path, name, payload):
    (tmp_path / name).write_bytes(payload)
    with pytest.raises(ConfigError, match=name):
        load(tmp_path / name, Node)


def test_load_refuses_missing_files_and_folders(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match="cannot read"):
            load(path, Node)


def test_dump_refuses_what_load_would_not_read(tmp_path):
    with pytest.raises(ConfigError, match=r"a\.toml"):
        dump(convert(GOOD, Node), tmp_path / "a.toml")
    assert not list(tmp_path.iterdir())


names = st.text(string.printable + "äß漢", max_size=8)
links = st.builds(Link, latency_s=st.floats(0, 1e300), name=names)
paths = st.none() | st.just(Path("/tmp/x y"))
nodes = st.builds(
    Node,
    count=st.integers(-(2**62), 2**62),
    link=links,
    others=st.lists(links, max_size=3).map(tuple),
    by_name=st.dictionaries(names, links, max_size=2),
    maybe=st.none() | links,
    out=paths,
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50
)
@given(node=nodes)
def test_dump_and_load_round_trip(tmp_path, node):
    dump(node, tmp_path / "node.json")
    assert load(tmp_path / "node.json", Node) == node
    assert convert(to_plain(node), Node) == node
