"""The cells of a study, their order, and whole studies in this process."""

import json
import shutil
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import config as configs
from steelyard.catalog.architecture import Architecture
from steelyard.cli import study as cli
from steelyard.cli.main import main
from steelyard.data.shards import TokenShards
from steelyard.errors import ConfigError, DivergedError
from steelyard.laws import RunTable
from steelyard.runs.store import RunStore
from steelyard.train import TrainConfig
from steelyard.train.study import Cell, OpenStudy, StudyRecipe, resized, run_study, study_cells
from steelyard.train.study.order import makespan
from steelyard.train.study.processes import TrainProcesses
from steelyard.train.trainer import train
from steelyard.train.weight_average import WeightAverage


@pytest.fixture(scope="module")
def recipe() -> StudyRecipe:
    arch = Architecture(
        name="atom",
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        intermediate_size=64,
        vocab_size=300,
        max_positions=64,
    )
    base = TrainConfig(
        architecture=arch,
        steps=30,
        batch_size=4,
        sequence_length=16,
        learning_rate=5e-3,
        warmup_steps=2,
        eval_tokens=512,
        threads=1,
        seed=3,
    )
    return StudyRecipe(train=base, shapes=((32, 1), (64, 1)), lengths=(0.5, 1.0))


def _train_here(patch: pytest.MonkeyPatch) -> list[str]:
    """Train cells in this process: what is tested is the study, not the child."""
    asked: list[str] = []

    def launch(self, config, directory, *, pool="", start_from=None, on_step=None):
        asked.append(str(directory))
        source = TokenShards(self._data / pool)
        return train(config, source, directory, start_from=start_from, on_step=on_step)

    patch.setattr(TrainProcesses, "train", launch)
    patch.setattr(TrainProcesses, "warm", lambda self: None)
    return asked


@pytest.fixture
def in_process(monkeypatch):
    return _train_here(monkeypatch)


@pytest.fixture(scope="module")
def trained(recipe, data, tmp_path_factory):
    """Return the folder and the outcome of a finished study, and its cells as they ended."""
    folder, seen = tmp_path_factory.mktemp("trained") / "study", []
    with pytest.MonkeyPatch.context() as patch:
        _train_here(patch)
        found = run_study(recipe, data, folder, jobs=1, on_cell=seen.append)
    return folder, found, seen


@pytest.fixture
def copied(trained, tmp_path):
    """Return a copy of the finished study's folder."""
    return shutil.copytree(trained[0], tmp_path / "study")


def test_cells_are_a_trunk_and_branches_per_model_rate_and_seed(recipe):
    cells = study_cells(replace(recipe, rate_factors=(0.5, 1.0), seeds=(0, 1)))
    assert len(cells) == 2 * 2 * 2 * 3
    assert len({cell.folder for cell in cells}) == len(cells)
    trunk, short, long = cells[:3]
    assert trunk.is_trunk and trunk.config.checkpoint_at == (short.start, long.start)
    assert short.folder == "32x1-rate0.5-seed0/cooldown-000015"
    assert short.start_file == f"32x1-rate0.5-seed0/trunk/step-{short.start:08d}.safetensors"
    rates = {cell.config.learning_rate for cell in cells}
    base = recipe.train.learning_rate
    assert rates == {base * 0.5, base, base * 0.25}  # half the rate at twice the width


def test_cosine_has_a_run_of_its_own_per_length(recipe):
    train = replace(recipe.train, schedule="cosine")
    cells = study_cells(replace(recipe, train=train))
    assert [cell.config.steps for cell in cells] == [15, 30, 15, 30]
    assert not any(cell.start or cell.is_trunk for cell in cells)


def test_shapes_and_fractions_share_a_trunk_and_averages_lengthen_it(recipe):
    averages = (WeightAverage(kind="ema"),)
    train = replace(recipe.train, steps=100, averages=averages, eval_every=50)
    cells = study_cells(
        replace(
            recipe,
            train=train,
            shapes=((32, 1),),
            schedules=("1-sqrt", "linear", "cosine"),
            cooldown_fractions=(0.1, 0.4),
        )
    )
    trunk, *rest = cells
    assert trunk.is_trunk and trunk.config.steps == 100 and trunk.config.averages == averages
    assert trunk.config.checkpoint_at == (30, 40, 60, 90)
    assert len(rest) == 2 * 2 * 2 + 2 and not any(cell.config.averages for cell in rest)
    assert rest[0].folder == "32x1/cooldown-1-sqrt-0.1-000050" and rest[0].start == 40
    assert [cell.folder for cell in rest[-2:]] == ["32x1/whole-000050", "32x1/whole-000100"]


def test_batches_keep_tokens_and_other_axes_cross(recipe):
    train = replace(recipe.train, eval_every=10, warmup_steps=4)
    cells = study_cells(
        replace(
            recipe,
            train=train,
            shapes=(),
            batch_sizes=(2, 4, 16),
            unique_tokens=(500, 1000),
            pools=("clean", "noisy"),
            cooldown_fractions=(0.0,),
        )
    )
    assert len(cells) == 3 * 2 * 2 and not any(cell.is_trunk or cell.start for cell in cells)
    small, large = cells[0].config, cells[-1].config
    assert cells[-1].folder == "32x2-batch16-unique1000-noisy/constant-000008"
    assert (cells[-1].pool, large.unique_tokens) == ("noisy", 1000)
    assert (small.steps, small.eval_every, small.warmup_steps) == (60, 20, 8)
    assert (large.steps, large.eval_every, large.warmup_steps) == (8, 2, 1)
    assert large.learning_rate == pytest.approx(2 * train.learning_rate)


def test_experts_cross_sizes_and_one_is_the_dense_model(recipe):
    routed = replace(
        recipe.train.architecture, num_experts=4, experts_per_token=1, moe_intermediate_size=64
    )
    train = replace(recipe.train, architecture=routed)
    cells = study_cells(replace(recipe, train=train, experts=(1, 8), cooldown_fractions=(0.0,)))
    found = [cell.config.architecture for cell in cells]
    assert [item.num_experts for item in found] == [0, 8, 0, 8]
    assert found[0] == replace(resized(recipe.train.architecture, 32, 1), name=found[0].name)
    assert found[3].moe_intermediate_size == 128
    assert cells[3].folder == "64x1-experts8/constant-000030"
    with pytest.raises(ConfigError, match="experts"):
        replace(recipe, experts=(1, 8))


def test_tokens_per_parameter_follow_the_size_and_name_every_run_that_is_too_long(recipe):
    short = replace(recipe, tokens_per_parameter=(0.01, 0.02))
    with pytest.raises(ConfigError, match="32x1 would run 3 to") as error:
        study_cells(replace(short, tokens_per_parameter=(0.01, 0.5)))
    assert "64x1 would run" in str(error.value)
    steps = {
        cell.config.architecture.hidden_size: cell.config.steps
        for cell in study_cells(
            replace(short, train=replace(short.train, schedule="cosine", warmup_steps=0))
        )
    }
    assert steps[64] > steps[32]


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": (1.0, 0.5)},
        {"lengths": (0.5, 1.5)},
        {"rate_factors": (0.0,)},
        {"seeds": (1, 1)},
        {"cooldown_fractions": (0.0, 0.5)},
        {"tokens_per_parameter": (20.0, 10.0)},
        {"batch_sizes": (4, 0)},
        {"pools": ("one", "one")},
    ],
)
def test_lists_that_no_study_can_have_are_refused(recipe, change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        replace(recipe, **change)


def test_what_a_study_sets_may_not_stand_in_its_recipe(recipe):
    with pytest.raises(ConfigError, match="belong to one run"):
        replace(recipe, train=replace(recipe.train, cooldown_steps=3))


def test_resized_keeps_heads_and_proportions(recipe):
    base = recipe.train.architecture
    wide = resized(base, 128, 5)
    assert (wide.num_heads, wide.num_kv_heads, wide.head_dim) == (8, 4, base.head_dim)
    assert wide.intermediate_size == 4 * base.intermediate_size
    with pytest.raises(ConfigError, match="groups of 2 of 16"):
        resized(base, 40, 1)


@given(seconds=st.lists(st.floats(0.1, 10), min_size=1, max_size=8), jobs=st.integers(1, 4))
def test_makespan_lies_between_its_bounds(config_of, seconds, jobs):
    cells = [Cell(folder=str(index), config=config_of) for index in range(len(seconds))]
    taken = {str(index): value for index, value in enumerate(seconds)}
    found = makespan(cells, taken, dict.fromkeys(taken, 0.0), jobs=jobs)
    least = max(max(seconds), sum(seconds) / jobs)
    # The longest first is never worse than 4/3 of the least (Graham 1969, theorem 2).
    assert least - 1e-9 <= found <= 4 / 3 * least + max(seconds)
    if jobs == 1:
        assert found == pytest.approx(sum(seconds))


@pytest.fixture(scope="module")
def config_of(recipe):
    return replace(recipe.train, steps=10, warmup_steps=0)


def test_branches_begin_while_their_trunk_goes_on(config_of):
    trunk = Cell(folder="trunk", config=replace(config_of, checkpoint_at=(4, 10)), is_trunk=True)
    early = Cell(folder="early", config=config_of, trunk="trunk", start=4)
    late = Cell(folder="late", config=config_of, trunk="trunk", start=10)
    seconds = {"trunk": 10.0, "early": 6.0, "late": 1.0}
    step_s = dict.fromkeys(seconds, 1.0)
    assert makespan([trunk, early, late], seconds, step_s, jobs=1) == 17
    assert makespan([trunk, early, late], seconds, step_s, jobs=2) == 11


def test_study_equals_its_runs_alone_and_goes_on(
    recipe, trained, copied, data, in_process, tmp_path
):
    _, found, seen = trained
    assert found.cells == tuple(sorted(seen, key=[*found.cells].index))
    assert [item.result.steps for item in found.cells] == [15, 30, 15, 30]
    assert [item.cell.folder for item in found.trunks] == ["32x1/trunk", "64x1/trunk"]
    assert found.forecast.value > 0 and found.wall_s > 0
    cell = found.cells[1].cell
    config = replace(cell.config, cooldown_steps=cell.config.steps - cell.start)
    alone = train(config, TokenShards(data), tmp_path / "alone")
    assert alone.losses == found.cells[1].result.losses
    again = run_study(recipe, data, copied, jobs=1)
    assert [item.losses for item in again.results] == [item.losses for item in found.results]
    assert again.forecast == found.forecast and not in_process


def test_changed_recipe_in_the_same_folder_is_refused(recipe, data, copied, in_process):
    other = replace(recipe, train=replace(recipe.train, learning_rate=1e-3))
    with pytest.raises(ConfigError, match="holds another run"):
        run_study(other, data, copied, jobs=1)


def test_a_run_that_diverges_does_not_stop_the_others(
    recipe, data, copied, in_process, monkeypatch
):
    launch = TrainProcesses.train

    def diverge(self, config, directory, **options):
        if "trunk" in str(directory):
            raise DivergedError("training diverged: the loss of step 3 is nan")
        return launch(self, config, directory, **options)

    monkeypatch.setattr(TrainProcesses, "train", diverge)
    shutil.rmtree(copied / "64x1")
    found = run_study(recipe, data, copied, jobs=1)
    assert [item.failure for item in found.cells] == ["", "", *["its trunk diverged"] * 2]
    assert len(found.results) == 2


def test_command_keeps_runs_that_laws_read(recipe, data, copied, in_process, tmp_path, capsys):
    path = tmp_path / "study.json"
    configs.dump(recipe, path)
    cli.study(path, data=data, out=copied, jobs=1)
    printed = capsys.readouterr().out
    assert "64x1/cooldown-000030" in printed and "study.wall_time" in printed
    cli.study(path, data=data, out=copied, jobs=1, json=True)
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 4
    with RunStore.existing(copied / "runs").database.read():
        table = RunTable.from_store(RunStore.existing(copied / "runs"))
    assert [run.kind for run in RunStore(copied / "runs").list(kind="study")] == ["study"]
    assert len(table["loss"]) == 4 and len({*table["parameters"]}) == 2  # kept once each


def test_price_trains_nothing_of_the_study(recipe, data, in_process, tmp_path, capsys):
    path = tmp_path / "study.json"
    configs.dump(recipe, path)
    cli.study(path, data=data, out=tmp_path / "out", jobs=1, price=True)
    assert "6 runs" in capsys.readouterr().out
    timed = len(in_process)
    cli.study(path, data=data, out=tmp_path / "out", jobs=1, price=True)
    assert len(in_process) == timed == 2
    configs.dump(replace(recipe, train=replace(recipe.train, batch_size=2)), path)
    cli.study(path, data=data, out=tmp_path / "out", jobs=1, price=True, json=True)
    assert len(in_process) == 4  # another batch has another time
    with pytest.raises(ConfigError, match="-1 jobs"):
        cli.study(path, data=data, out=tmp_path / "out", jobs=-1)
    assert all("pace-" in folder for folder in in_process)


def test_ctrl_c_says_how_to_go_on(recipe, data, tmp_path, monkeypatch, capsys):
    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(OpenStudy, "__enter__", stop)
    configs.dump(recipe, tmp_path / "small.json")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["train", "study", "small.json", "--data", str(data)])
    assert ended.value.code == 130
    assert "run the same command again to continue" in capsys.readouterr().err


@pytest.mark.slow
def test_study_in_processes_survives_an_error_and_a_second_call(recipe, data, tmp_path):
    words = []

    def stop(done: float, text: str) -> None:
        words.append(text)
        if "cooldown" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(recipe, data, tmp_path / "study", jobs=2, advance=stop)
    found = run_study(recipe, data, tmp_path / "study", jobs=2)
    assert len(found.results) == 4
