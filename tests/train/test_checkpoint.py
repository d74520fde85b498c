import errno

import pytest
import torch

from steelyard import files
from steelyard.errors import CapacityError, DataError
from steelyard.train.checkpoint import CheckpointStore, load_checkpoint


def _tensors(value: float) -> dict[str, torch.Tensor]:
    return {
        "model.weight": torch.full((3, 5), value),
        "history.losses": torch.tensor([value], dtype=torch.float64),
    }


def test_newest_two_and_pinned_stay(tmp_path):
    store = CheckpointStore(tmp_path, pinned=(2,))
    for step in range(1, 6):
        store.save(step, _tensors(step), {"note": step})
    assert store.steps() == [2, 4, 5]
    latest = store.latest()
    assert latest and latest.step == 5 and latest.scalars == {"note": 5}
    assert torch.equal(latest.tensors["model.weight"], torch.full((3, 5), 5.0))
    assert (
        sorted(item.suffix for item in tmp_path.iterdir()) == [".json"] * 3 + [".safetensors"] * 3
    )


def test_no_checkpoint_is_none(tmp_path):
    assert CheckpointStore(tmp_path / "missing").latest() is None


def test_one_flipped_byte_is_found_and_the_file_named(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, _tensors(1), {})
    path = store.save(2, _tensors(2), {})
    payload = bytearray(path.read_bytes())
    payload[-9] ^= 1
    path.write_bytes(payload)
    with pytest.raises(DataError, match=r"step-00000002\.safetensors is damaged") as caught:
        store.latest()
    assert "goes on from step 1" in caught.value.hint
    path.unlink()
    remaining = store.latest()
    assert remaining and remaining.step == 1


def test_damaged_description_is_named(tmp_path):
    store = CheckpointStore(tmp_path)
    path = store.save(1, _tensors(1), {})
    path.with_suffix(".json").write_text("{")
    with pytest.raises(DataError, match=r"step-00000001\.json is damaged"):
        store.latest()


def test_tensors_without_description_are_ignored_and_later_removed(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, _tensors(1), {})
    store.path(2).write_bytes(b"half")
    assert store.steps() == [1]
    store.save(3, _tensors(3), {})
    assert not store.path(2).exists()


def test_missing_start_is_refused(tmp_path):
    with pytest.raises(DataError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "step-00000001.safetensors")


@pytest.mark.parametrize(
    "words", ["IoError: No space left on device", "Os { code: 28, kind: StorageFull }"]
)
def test_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch, words):
    import safetensors

    store = CheckpointStore(tmp_path)
    store.save(1, _tensors(1), {})

    def fail(*_arguments):
        raise safetensors.SafetensorError(words)

    monkeypatch.setattr("steelyard.nn.mapped.save_file", fail)
    with pytest.raises(CapacityError, match="disk full"):
        store.save(2, _tensors(2), {})
    assert store.steps() == [1] and len(list(tmp_path.iterdir())) == 2


def test_full_disk_while_describing(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    store.save(1, _tensors(1), {})

    def fail(path, payload):
        with files.atomic_path(path):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_bytes", fail)
    with pytest.raises(CapacityError, match="disk full"):
        store.save(2, _tensors(2), {})
    assert CheckpointStore(tmp_path).steps() == [1]
