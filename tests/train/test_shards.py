"""Checkpoints that several processes write together, and others read."""

import threading

import pytest
import torch

from steelyard.errors import CapacityError, DataError, StoreError
from steelyard.train.checkpoint import CheckpointStore, load_checkpoint
from steelyard.train.pieces import TensorPiece, assemble, rows_of


class Meeting:
    """A reducer of workers in threads, for what checkpoints need."""

    def __init__(self, rank, values, barrier):
        self.rank, self.world_size = rank, len(values)
        self.values, self.barrier = values, barrier

    def gather(self, values):
        self.values[self.rank] = values
        self.barrier.wait()
        found = torch.cat(self.values)
        self.barrier.wait()
        return found

    def wait(self):
        self.barrier.wait()


def by_workers(count, work):
    """Call `work` in `count` threads with their reducers; return what each gave or raised."""
    values, barrier, found = [None] * count, threading.Barrier(count, timeout=20), [None] * count

    def run(rank):
        try:
            found[rank] = work(Meeting(rank, values, barrier))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def drawn(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "model.weight": torch.randn(257, 129, generator=generator),
        "model.vector": torch.randn(40_001, generator=generator),
        "exp_avg.weight": torch.randn(3, 40_000, generator=generator),
        "model.gain": torch.randn(5, generator=generator),
        "step.scalar": torch.tensor(3.0),
        "history.losses": torch.randn(20_000, generator=generator, dtype=torch.float64),
        "history.cold": torch.zeros(7, dtype=torch.bool),
    }


def save(folder, step, count, tensors, **options):
    return by_workers(
        count,
        lambda reducer: CheckpointStore(folder, reducer=reducer, **options).save(
            step, tensors, {"note": step}
        ),
    )


def test_any_number_of_processes_reads_what_another_number_wrote(tmp_path):
    tensors = drawn(0)
    for step, count in enumerate((1, 2, 4, 3, 1), start=1):
        save(tmp_path, step, count, tensors)
        latest = CheckpointStore(tmp_path).latest()
        assert latest and latest.step == step and latest.scalars == {"note": step}
        assert latest.tensors.keys() == tensors.keys()
        assert all(torch.equal(latest.tensors[name], tensors[name]) for name in tensors)
        assert all(latest.tensors[name].dtype == tensors[name].dtype for name in tensors)
        tensors = latest.tensors
    # Two checkpoints stay: the shards of three processes, and the two files of one.
    assert len(list(tmp_path.iterdir())) == 3 + 1 + 2


def test_the_bytes_are_shared_evenly(tmp_path):
    save(tmp_path, 1, 4, {"model.weight": torch.randn(1024, 64)})
    sizes = [item.stat().st_size for item in tmp_path.glob("*.safetensors")]
    assert len(sizes) == 4 and max(sizes) < 1.02 * 1024 * 64


def test_one_flipped_byte_is_found_and_the_shard_named(tmp_path):
    save(tmp_path, 1, 2, drawn(1))
    save(tmp_path, 2, 2, drawn(2))
    path = tmp_path / "step-00000002.1-of-2.safetensors"
    payload = bytearray(path.read_bytes())
    payload[-9] ^= 1
    path.write_bytes(payload)
    with pytest.raises(DataError, match=r"00000002\.1-of-2\.safetensors is damaged") as caught:
        CheckpointStore(tmp_path).latest()
    assert "goes on from step 1" in caught.value.hint
    path.unlink()
    remaining = CheckpointStore(tmp_path).latest()
    assert remaining and remaining.step == 1
    with pytest.raises(DataError, match=r"1-of-2\.safetensors, which step-00000002\.json"):
        load_checkpoint(tmp_path / "step-00000002.safetensors")


@pytest.mark.parametrize("file", ["1-of-2", "0-of-2", ".json"])
def test_a_full_disk_of_any_process_leaves_the_old_one_and_is_told_to_all(
    file, tmp_path, monkeypatch
):
    import errno
    from pathlib import Path

    save(tmp_path, 1, 2, drawn(1))
    before = {item.name for item in tmp_path.iterdir()}
    replace = Path.replace

    def fail(self, target):
        if file in Path(target).name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    found = save(tmp_path, 2, 2, drawn(2))
    assert all(isinstance(error, CapacityError) for error in found)
    monkeypatch.undo()
    assert CheckpointStore(tmp_path).steps() == [1]
    assert {item.name for item in tmp_path.iterdir()} == before
    save(tmp_path, 2, 2, drawn(2))
    latest = CheckpointStore(tmp_path).latest()
    assert latest and latest.step == 2


def test_shards_of_an_unfinished_checkpoint_are_ignored_and_later_removed(tmp_path):
    save(tmp_path, 1, 2, drawn(1))
    leftover = tmp_path / "step-00000002.0-of-4.safetensors"
    leftover.write_bytes(b"half")
    assert CheckpointStore(tmp_path).steps() == [1]
    save(tmp_path, 2, 2, drawn(2))
    assert CheckpointStore(tmp_path).steps() == [1, 2] and not leftover.exists()


def test_processes_with_folders_of_their_own_are_refused(tmp_path):
    found = by_workers(
        2,
        lambda reducer: CheckpointStore(tmp_path / str(reducer.rank), reducer=reducer).save(
            1, drawn(1), {}
        ),
    )
    assert isinstance(found[0], StoreError) and "share" in found[0].hint
    assert isinstance(found[1], CapacityError)


def test_a_record_that_names_a_file_elsewhere_is_refused(tmp_path):
    save(tmp_path, 1, 2, drawn(1))
    record = tmp_path / "step-00000001.json"
    record.write_text(record.read_text().replace("step-00000001.1-of-2", "../other"))
    with pytest.raises(DataError, match="is no shard"):
        load_checkpoint(record.with_suffix(".safetensors"))


def test_pieces_must_make_up_the_whole():
    tensor = torch.arange(24.0).view(4, 6)
    pieces = [
        TensorPiece("a", tensor[:2], (0, 0), (4, 6)),
        TensorPiece("a", tensor[2:, :3], (2, 0), (4, 6)),
        TensorPiece("a", tensor[2:, 3:], (2, 3), (4, 6)),
    ]
    assert torch.equal(assemble(pieces)["a"], tensor)
    with pytest.raises(DataError, match="the parts of a do not"):
        assemble(pieces[:2])
    with pytest.raises(DataError, match="the parts of a do not"):
        assemble([*pieces[:2], TensorPiece("a", tensor[1:3, :3], (1, 0), (4, 6))])


def test_each_row_is_written_once():
    tensors = drawn(3)
    pieces = [piece for rank in range(3) for piece in rows_of(tensors, rank, 3)]
    whole = assemble(pieces)
    assert all(torch.equal(whole[name], tensors[name]) for name in tensors)
