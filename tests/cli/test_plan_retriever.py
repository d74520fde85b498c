"""`steelyard plan retriever` with wrong input: refused in the words of the command line."""

from pathlib import Path

import numpy as np
import pytest

from steelyard.cli.main import main


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--qps", "0"], "--qps is 0"),
        (["--docs", "0"], "--docs is 0"),
        (["--budget", "$0"], "--budget is 0"),
        (["--hours", "0"], "--hours is 0"),
        (["--memory", "0 GB"], "--memory is 0"),
        (["--p95", "0 ms"], "--p95 is 0"),
        (["--vectors", "few.npy"], "has 10 vectors"),
        ([], "column entropy of ladder.csv"),
    ],
)
def test_wrong_numbers_are_named_before_any_work(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ladder.csv").write_text("parameters,entropy\n1000,low\n2000,2.5\n")
    np.save("vectors.npy", np.ones((1200, 8), np.float32))
    np.save("few.npy", np.ones((10, 8), np.float32))
    given = {"--vectors": "vectors.npy", "--docs": "1M", "--qps": "50", "--p95": "20 ms"}
    given.update(zip(words[::2], words[1::2], strict=True))
    flags = [word for pair in given.items() for word in pair]
    with pytest.raises(SystemExit) as ended:
        main(["plan", "retriever", "ladder.csv", *flags])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert told in said
