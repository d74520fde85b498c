"""Verbs of the data room, killed at random moments: the same line then makes the same files."""

import shutil

import pytest

pytest.importorskip("pyarrow")

from tests.data import verb_lines as verbs
from tests.killing import files_of

from steelyard.data.lake import deleted_tables, rebuild_table


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return verbs.make_data(tmp_path_factory.mktemp("data"))


def seen(here):
    """Files of the lake and its state, what is said of tables that went, and these rebuilt."""
    lake = here / "lake"
    found = dict.fromkeys(files_of(here), "")
    for entry in deleted_tables(lake):
        found[f"{entry.table} of {entry.parent}"] = rebuild_table(lake, entry.table).read_bytes()
    return found


LEAN = [2, pytest.param(20, marks=pytest.mark.slow)]


VERBS = [
    verbs.profile,
    verbs.scan,
    verbs.clean,
    verbs.convert,
    verbs.parts,
    verbs.mine,
    verbs.mine_parts,
    verbs.mine_items,
    verbs.index,
    verbs.fit,
    verbs.fit_forest,
    verbs.fit_linear,
    verbs.cluster,
    verbs.detect,
    verbs.transform,
]


@pytest.mark.parametrize("kills", LEAN)
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_killed_verb_makes_what_an_undisturbed_one_does(lines, data, tmp_path, verb, kills):
    begun = lines.check(lambda here: verb(data, here), tmp_path, kills=kills, timed=kills > 2)
    # Of many kills some fall where something was begun.
    assert begun > kills // 4 or kills == 2
    print(f"{verb.__name__}: {kills} kills, {begun} after something was begun")


@pytest.mark.parametrize("kills", LEAN)
def test_a_killed_plan_of_deletions_is_applied_whole(lines, data, tmp_path, kills):
    kept = tmp_path / "kept"

    def prepare(here):
        if not kept.exists():
            verbs.lake_with_plan(here)
            shutil.copytree(here, kept)
        # Times of change are kept: they belong to what the plan says of each file.
        shutil.copytree(kept, here, dirs_exist_ok=True)

    lines.check(
        lambda here: verbs.apply(data, here),
        tmp_path,
        kills=kills,
        prepare=prepare,
        made=seen,
        timed=kills > 2,
    )
