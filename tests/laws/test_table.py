import gzip
import json
import math
import os
import threading

import numpy as np
import polars as pl
import pytest

from steelyard import laws
from steelyard.catalog import architecture_by_name, count_parameters
from steelyard.errors import CatalogError, DataError, FitError
from steelyard.laws.tables.conversions import (
    CHINCHILLA_EMBEDDING_SCALE,
    convert_counts,
    convert_loss,
    embedding_parts,
)
from steelyard.laws.tables.table import RunTable
from steelyard.quantity import Measurement
from steelyard.runs import RunStore


def frame(rows=16):
    size, tokens = (
        np.repeat([1e6, 3e6, 1e7, 3e7], rows // 4),
        np.tile(np.geomspace(2e7, 2e9, rows // 4), 4),
    )
    loss = 1.7 + 300 / size**0.35 + 900 / tokens**0.37
    return pl.DataFrame(
        {
            "params": size.astype(int),
            "toks": tokens.astype(int),
            "val_loss": loss,
            "set": ["c4", "rw"] * (rows // 2),
            "lr": tokens * 0 + 1e-3,
        }
    )


def read(data=None, **options):
    names = {"parameters": "params", "tokens": "toks", "loss": "val_loss"}
    return RunTable.read(frame() if data is None else data, **(names | options))


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv", ".parquet", ".jsonl", ".jsonl.gz"])
def test_every_kind_of_file_gives_the_same_columns(tmp_path, ending):
    path, data = tmp_path / f"runs{ending}", frame()
    writers = {
        "csv": lambda: data.write_csv(separator=",").encode(),
        "tsv": lambda: data.write_csv(separator="\t").encode(),
        "jsonl": lambda: data.write_ndjson().encode(),
    }
    if ending == ".parquet":
        data.write_parquet(path)
    else:
        content = writers[ending.split(".")[1]]()
        path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    table = read(path, counts="total", tokenizer="gpt-neox")
    assert set(table) == {"parameters", "tokens", "loss", "lr"} and table.num_runs == 16
    assert all(table[name].dtype == np.float64 for name in table)
    np.testing.assert_allclose(table["loss"], data["val_loss"], rtol=1e-12)
    assert table.words["set"].tolist()[:2] == ["c4", "rw"]
    assert (
        f"runs{ending}: 16 runs; counts total" in table.source
        and "loss_unit unstated" in table.source
    )


def test_a_fit_takes_the_table_and_keeps_its_source():
    table = read(counts="total", loss_unit="nat/token")
    fitted = laws.fit(laws.chinchilla(), table, "loss", bootstrap=laws.Bootstrap(count=0))
    plain = laws.fit(
        laws.chinchilla(),
        {"parameters": table["parameters"], "tokens": table["tokens"]},
        table["loss"],
        bootstrap=laws.Bootstrap(count=0),
    )
    assert fitted.params == plain.params
    assert "tokenizer unstated" in fitted.source


def test_where_split_and_groups_keep_row_numbers():
    table = read()
    small, large = table.split("parameters", 5e6)
    assert small.num_runs == large.num_runs == 8 and large.rows.tolist() == list(range(9, 17))
    assert table.where(set="c4", parameters=(None, 3e6)).rows.tolist() == [1, 3, 5, 7]
    assert table.where(parameters=[1e6, 3e7]).num_runs == 8
    assert table.where(table["loss"] < np.median(table["loss"])).num_runs == 8
    assert table.where(loss=lambda loss: loss == loss.min()).num_runs == 1
    assert {name: part.num_runs for name, part in table.groups("set").items()} == {"c4": 8, "rw": 8}
    assert list(table.groups("parameters")) == ["1e+06", "3e+06", "1e+07", "3e+07"]
    with pytest.raises(DataError, match="no run has set='pile'") as caught:
        table.where(set="pile")
    assert "set is c4, rw" in caught.value.hint
    with pytest.raises(DataError, match="one side empty"):
        table.split("tokens", 1e20)


@pytest.mark.parametrize("column", ["params", "tokenss", "losses", "set"])
def test_a_missing_column_names_near_ones(column):
    with pytest.raises(DataError) as caught:
        read()[column]
    expected = {
        "params": "use 'parameters'",
        "tokenss": "tokens",
        "losses": "loss",
        "set": "groups",
    }[column]
    assert expected in caught.value.hint and "\\" not in str(caught.value)
    assert column not in read() and read().get(column) is None


def test_reading_names_what_is_wrong():
    with pytest.raises(DataError, match="no column 'val_los'") as caught:
        read(loss="val_los")
    assert "did you mean val_loss" in caught.value.hint
    with pytest.raises(DataError, match="no column 'total'") as caught:
        read(count="total")
    assert "counts='total'" in caught.value.hint
    with pytest.raises(FitError, match="counts 'totl'") as caught:
        read(counts="totl")
    assert "'total'" in caught.value.hint
    words = frame().with_columns(val_loss=pl.Series(["3.1"] * 6 + ["diverged"] + ["3.0"] * 9))
    with pytest.raises(
        DataError, match=r"val_loss \(loss\) holds text in row 7 \(first: 'diverged'"
    ):
        read(words)
    empty = frame().with_columns(toks=pl.Series([None] * 2 + [5] * 14))
    with pytest.raises(DataError, match="is empty in rows 1, 2"):
        read(empty)
    with pytest.raises(DataError, match="one length"):
        RunTable.read({"parameters": [1.0, 2.0, 3.0], "loss": [1.0, 2.0]})
    with pytest.raises(DataError, match="no run"):
        read(frame().head(0))


def test_files_that_cannot_be_read(tmp_path):
    broken = {
        "a.csv.gz": b"not gzip",
        "b.parquet": bytes(range(256)),
        "c.jsonl": b"{",
        "d.xlsx": b"x",
    }
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=r"cannot be read|unknown kind"):
            RunTable.read(tmp_path / name)
    with pytest.raises(DataError, match="no such file"):
        RunTable.read(tmp_path / "absent.csv")


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_losses_that_are_not_positive_are_refused_or_dropped(bad):
    data = frame().with_columns(val_loss=pl.Series([2.0] * 4 + [bad] + [2.0] * 11))
    with pytest.raises(
        FitError, match="val_loss must be positive and finite; it is not in row 5"
    ) as caught:
        read(data)
    assert "drop_invalid" in caught.value.hint
    table = read(data, drop_invalid=True)
    assert (
        table.num_runs == 15
        and table.num_dropped == 1
        and 5 not in table.rows
        and "1 runs without" in table.source
    )


def test_flops_far_from_six_n_d_are_refused():
    data = frame().with_columns(
        flops=6.0 * pl.col("params") * pl.col("toks") * pl.Series([1.0] * 10 + [2.5] + [1.2] * 5)
    )
    with pytest.raises(
        FitError, match=r"factor 2 of 6 parameters \* tokens in row 11 \(first: 2.5 times\)"
    ):
        read(data)
    assert read(data, flops_factor=3).num_runs == 16


def test_mixed_conventions_are_refused_on_access_with_their_rows():
    data = frame().with_columns(
        kind=pl.Series(["total"] * 14 + ["non-embedding"] * 2),
        done=pl.Series([True] * 15 + [False]),
        tok=pl.Series(["gpt2"] * 15 + ["bpe"]),
    )
    table = read(data, counts="kind", schedule="done", tokenizer="tok", loss_unit="nats/token")
    with pytest.raises(
        FitError,
        match="column parameters mixes counts non-embedding and total: rows 15, 16 have "
        "non-embedding",
    ):
        table["parameters"]
    with pytest.raises(FitError, match="mixes tokenizer bpe and gpt2: row 16 has bpe") as caught:
        table["loss"]
    assert "bytes_per_token" in caught.value.hint
    finished = table.where(tokenizer="gpt2", schedule="finished", counts="total")
    assert finished["loss"].shape == (14,)
    bytes_ = table.to_loss_unit("bit/byte", bytes_per_token={"gpt2": 4.4, "bpe": 3.3})
    with pytest.raises(
        FitError, match="mixes schedule finished and unfinished: row 16 has unfinished"
    ):
        bytes_["loss"]
    assert bytes_.where(schedule="finished")["loss"].shape == (15,)
    assert table["tokens"].shape == (16,)
    partly = read(data.with_columns(tok=pl.Series(["gpt2"] * 15 + [""])), tokenizer="tok")
    with pytest.raises(FitError, match="row 16 has unstated"):
        partly["loss"]


def test_unstated_conventions_matter_only_where_tables_meet():
    table = read()
    assert table["loss"].shape == (16,)
    with pytest.raises(FitError, match="do not state which parameters"):
        table.to_counts("total", embedding_scale=1e4)
    with pytest.raises(FitError, match="do not state the unit"):
        table.to_loss_unit("bit/byte", bytes_per_token=4.0)
    with pytest.raises(FitError, match=r"has counts total, .* has unstated"):
        laws.published["besiroglu2024"].check_table(table)
    with pytest.raises(FitError, match="unstated counts"):
        RunTable.concat([table, table])
    stated = read(
        counts="non-embedding", loss_unit="nat/token", tokenizer="gpt2", schedule="finished"
    )
    assert RunTable.concat([stated, stated]).num_runs == 32
    laws.published["kaplan2020"].check_table(stated)
    with pytest.raises(FitError, match="besiroglu2024 has counts total") as caught:
        laws.published["besiroglu2024"].check_table(stated)
    assert "to_counts('total'" in caught.value.hint
    with pytest.raises(FitError, match="kaplan2020 has tokenizer gpt2"):
        laws.published["kaplan2020"].check_table(
            read(counts="non-embedding", loss_unit="nat/token", tokenizer="bpe")
        )
    other = read(
        counts="non-embedding", loss_unit="nat/token", tokenizer="bpe", schedule="finished"
    )
    with pytest.raises(FitError, match="different or unstated tokenizer"):
        RunTable.concat([stated, other])
    per_byte = [
        item.to_loss_unit("bit/byte", bytes_per_token=ratio)
        for item, ratio in ((stated, 4.4), (other, 3.3))
    ]
    assert RunTable.concat(per_byte)["loss"].shape == (32,)


def test_counts_convert_by_the_catalog():
    names = ["gpt2", "gpt2-xl", "gpt2"]
    counted = [count_parameters(architecture_by_name(name)) for name in names]
    data = {
        "parameters": [float(item.total) for item in counted],
        "loss": [3.0, 2.5, 3.0],
        "model": names,
    }
    table = RunTable.read(data, counts="total")
    assert table.to_counts("non-embedding", architectures="model")["parameters"].tolist() == [
        item.non_embedding for item in counted
    ]
    head = table.to_counts(
        "non-embedding+head", architectures=[architecture_by_name(name) for name in names]
    )
    assert head["parameters"][0] == counted[0].non_embedding + 50257 * 768
    back = head.to_counts("total", architectures="model")
    np.testing.assert_allclose(back["parameters"], table["parameters"], rtol=1e-15)
    assert not back.estimated
    with pytest.raises(CatalogError):
        table.to_counts("total", architectures=["gtp2"] * 3)
    with pytest.raises(
        FitError, match="embeddings hold more than the 1000 parameters stated in rows 1, 2, 3"
    ):
        RunTable.read({**data, "parameters": [1e3] * 3}, counts="total").to_counts(
            "non-embedding", architectures="model"
        )
    with pytest.raises(FitError, match="exactly one"):
        table.to_counts("total")
    with pytest.raises(FitError, match="cannot turn total parameters into active"):
        table.to_counts("active", architectures="model")


def test_counts_convert_by_widths():
    data = {
        "parameters": [1e6, 2e6],
        "loss": [3.0, 2.5],
        "width": [64.0, 128.0],
        "mixed": ["total", "non-embedding"],
    }
    table = RunTable.read(data, counts="non-embedding")
    assert table.to_counts("total", hidden_size="width", vocab_size=1000)[
        "parameters"
    ].tolist() == [1.064e6, 2.128e6]
    assert table.to_counts("total", hidden_size="width", vocab_size=1000, tied=False)[
        "parameters"
    ].tolist() == [1.128e6, 2.256e6]
    mixed = RunTable.read(data, counts="mixed").to_counts(
        "total", hidden_size="width", vocab_size=1000
    )
    assert mixed["parameters"].tolist() == [1e6, 2.128e6]
    with pytest.raises(FitError, match="positive whole"):
        table.to_counts("total", hidden_size="width")


def test_estimated_embeddings_are_marked_and_invert():
    layers = np.geomspace(1e4, 1e12, 30)
    total = convert_counts(layers, "non-embedding", "total", CHINCHILLA_EMBEDDING_SCALE)
    np.testing.assert_allclose(total, layers + 47491 * layers ** (1 / 3), rtol=1e-14)
    np.testing.assert_allclose(
        convert_counts(total, "total", "non-embedding", CHINCHILLA_EMBEDDING_SCALE),
        layers,
        rtol=1e-9,
    )
    table = read(counts="non-embedding").to_counts(
        "total", embedding_scale=CHINCHILLA_EMBEDDING_SCALE
    )
    assert table.estimated == ("parameters",) and "estimated parameters" in table.source
    with pytest.raises(FitError, match="cannot turn"):
        read(counts="non-embedding+head").to_counts("total", embedding_scale=1e4)
    assert embedding_parts(["gpt2"]).head[0] == 50257 * 768


def test_losses_convert():
    loss = np.array([2.0, 3.0])
    per_token = np.full(2, 4.0)
    np.testing.assert_allclose(
        convert_loss(loss, "nat/token", "bit/byte", per_token), loss / np.log(2) / 4
    )
    np.testing.assert_allclose(convert_loss(loss, "bit/token", "nat/token", None), loss * np.log(2))
    for source in ("nat/token", "bit/token", "nat/byte", "bit/byte"):
        for target in ("nat/token", "bit/token", "nat/byte", "bit/byte"):
            there = convert_loss(loss, source, target, per_token)
            np.testing.assert_allclose(
                convert_loss(there, target, source, per_token), loss, rtol=1e-15
            )
    with pytest.raises(FitError, match="needs the bytes per token"):
        convert_loss(loss, "nat/token", "bit/byte", None)
    with pytest.raises(FitError, match="cannot turn"):
        convert_loss(loss, "error fraction", "bit/byte", per_token)
    table = read(loss_unit="nat/token", tokenizer="a")
    with pytest.raises(FitError, match="no bytes per token for tokenizer a"):
        table.to_loss_unit("bit/byte", bytes_per_token={"b": 4.0})
    with pytest.raises(FitError, match="positive"):
        table.to_loss_unit("bit/byte", bytes_per_token=-1.0)
    assert table.to_loss_unit("bit/byte", bytes_per_token=4.0).unit("loss") == "bit/byte"


def test_runs_of_a_store(tmp_path):
    store = RunStore(tmp_path)
    for index, size in enumerate((1e6, 2e6, 4e6)):
        with store.create(
            "train", {"model": {"hidden_size": 64 * 2**index}}, seed=index, name=f"size {index}"
        ) as run:
            for quantity, value in (
                ("model.parameters", size),
                ("train.tokens", 20 * size),
                ("eval.loss", 4.0 - index),
                ("eval.loss", 3.0),
            ):
                run.measure(Measurement(quantity=quantity, value=value))
    with store.create("serve", {}, seed=0):
        pass
    table = RunTable.from_store(store, width="recipe.model.hidden_size")
    assert table["parameters"].tolist() == [1e6, 2e6, 4e6] and table["width"].tolist() == [
        64,
        128,
        256,
    ]
    assert table["loss"].tolist() == [3.0, 3.0, 3.0] and table["seed"].tolist() == [0, 1, 2]
    assert table.conventions.described() == {
        "counts": "total",
        "loss_unit": "nat/token",
        "tokenizer": "unstated",
        "schedule": "unstated",
    }
    assert table.words["name"][2] == "size 2" and "flops" not in table
    with pytest.raises(DataError, match=r"and 2 more has no eval.bits_per_byte for column loss"):
        RunTable.from_store(store, loss="eval.bits_per_byte")
    with pytest.raises(DataError, match="no rl with status done"):
        RunTable.from_store(store, kind="rl")


ROWS = "1e7,1e9,3.5\n2e7,2e9,3.2\n4e7,4e9,3.0\n"


@pytest.mark.parametrize(
    "text",
    [
        "parameters,tokens,loss\n" + ROWS,
        " parameters , tokens, loss\n" + ROWS.replace(",", " , "),
        "parameters;tokens;loss\n" + ROWS.replace(",", ";"),
    ],
    ids=["plain", "padded", "semicolons"],
)
def test_tables_are_read_as_people_write_them(tmp_path, text):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    table = RunTable.read(path)
    np.testing.assert_allclose(table["loss"], [3.5, 3.2, 3.0])
    np.testing.assert_allclose(table["parameters"], [1e7, 2e7, 4e7])


def test_a_column_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("parameters,tokens,loss,loss\n1e7,1e9,3.5,3.6\n")
    with pytest.raises(DataError, match="more than one column 'loss'"):
        RunTable.read(path)


def test_a_pipe_is_read_once(tmp_path):
    place = tmp_path / "pipe"
    os.mkfifo(place)
    writer = threading.Thread(target=place.write_text, args=("parameters,tokens,loss\n" + ROWS,))
    writer.start()
    assert len(RunTable.read(place)["loss"]) == 3
    writer.join()


def test_a_loss_of_nan_as_json_writes_it_is_a_diverged_run(tmp_path):
    path = tmp_path / "runs.jsonl"
    rows = [{"parameters": 1e7, "tokens": 1e9, "loss": loss} for loss in (3.5, math.nan, 3.4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(FitError, match="row 2"):
        RunTable.read(path)
    np.testing.assert_allclose(RunTable.read(path, drop_invalid=True)["loss"], [3.5, 3.4])


def test_two_of_parameters_tokens_and_flops_are_enough():
    size, tokens = np.array([1e7, 2e7, 4e7]), np.array([1e9, 3e9, 5e9])
    flops, loss = 6 * size * tokens, np.array([4.0, 3.5, 3.2])
    table = RunTable.read({"parameters": size, "flops": flops, "loss": loss})
    assert table["tokens"] == pytest.approx(tokens)
    assert table.derived == {"tokens": "flops / (6 parameters)"}
    assert "derived tokens = flops / (6 parameters)" in table.source
    other = RunTable.read({"tokens": tokens, "flops": flops, "loss": loss})
    assert other["parameters"] == pytest.approx(size) and "derived parameters" in other.source
    plain = RunTable.read({"parameters": size, "tokens": tokens, "loss": loss})
    assert plain.derived == {} and "flops" not in plain
