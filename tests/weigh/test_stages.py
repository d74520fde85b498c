import pytest

from steelyard.errors import DataError
from steelyard.weigh.stages import Stages


def test_a_finished_stage_is_not_done_twice(tmp_path):
    calls = []
    stages = Stages(tmp_path)
    for _ in range(2):
        assert stages.run("one", {"seed": 1}, lambda: calls.append(1) or {"value": (1, 2.5)}) == {
            "value": [1, 2.5]
        }
    assert len(calls) == 1


def test_other_inputs_do_the_work_again(tmp_path):
    stages = Stages(tmp_path)
    assert stages.run("one", 1, lambda: "first") == "first"
    assert stages.run("one", 2, lambda: "second") == "second"
    assert stages.run("one", 2, lambda: "third") == "second"


def test_a_stage_that_fails_leaves_nothing(tmp_path):
    stages = Stages(tmp_path)
    with pytest.raises(ZeroDivisionError):
        stages.run("one", 1, lambda: 1 / 0)
    assert not list(tmp_path.iterdir())


def test_a_changed_result_is_refused(tmp_path):
    stages = Stages(tmp_path)
    stages.run("one", 1, lambda: {"loss": 2.5})
    path = tmp_path / "one.json"
    path.write_text(path.read_text().replace("2.5", "1.5"))
    with pytest.raises(DataError, match=r"one\.json is corrupted"):
        stages.run("one", 1, lambda: {"loss": 2.5})
