from dataclasses import dataclass

import pytest

from steelyard.errors import ConfigError, DataError
from steelyard.runs.stages import Stages


@dataclass(frozen=True)
class Found:
    values: tuple[float, ...]


def test_a_finished_stage_is_not_done_twice(tmp_path):
    calls = []
    stages = Stages(tmp_path)
    for _ in range(2):
        found = stages.run("one", {"seed": 1}, Found, lambda: calls.append(1) or Found((1, 2.5)))
        assert found == Found((1, 2.5))
    assert len(calls) == 1


def test_other_inputs_do_the_work_again(tmp_path):
    stages = Stages(tmp_path)
    assert stages.run("one", 1, str, lambda: "first") == "first"
    assert stages.run("one", 2, str, lambda: "second") == "second"
    assert stages.run("one", 2, str, lambda: "third") == "second"


def test_a_stored_result_of_another_type_is_named(tmp_path):
    stages = Stages(tmp_path)
    stages.run("one", 1, str, lambda: "first")
    with pytest.raises(ConfigError, match=r"one\.json"):
        stages.run("one", 1, Found, lambda: Found((1.0,)))


def test_a_stage_that_fails_leaves_nothing(tmp_path):
    stages = Stages(tmp_path)
    with pytest.raises(ZeroDivisionError):
        stages.run("one", 1, float, lambda: 1 / 0)
    assert not list(tmp_path.iterdir())


def test_a_changed_result_is_refused(tmp_path):
    stages = Stages(tmp_path)
    stages.run("one", 1, Found, lambda: Found((2.5,)))
    path = tmp_path / "one.json"
    path.write_text(path.read_text().replace("2.5", "1.5"))
    with pytest.raises(DataError, match=r"one\.json is corrupted"):
        stages.run("one", 1, Found, lambda: Found((2.5,)))
