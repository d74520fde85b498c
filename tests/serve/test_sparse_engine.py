import numpy as np
import pytest
import torch
from torch.nn import functional as F

from steelyard.errors import ConfigError
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepPlan
from steelyard.serve.sparse.engine import SparseDecoder
from steelyard.serve.sparse.evaluate import controller_recall, evaluate, evaluate_full
from steelyard.serve.sparse.policies import H2O, Adore, Full, Sinks, TopK, Window
from steelyard.serve.sparse.prefill import fill
from steelyard.serve.sparse.slots import BLOCK_SIZE, SlotTable
from steelyard.serve.sparse.training import ControllerModule


@pytest.fixture(scope="module")
def controller(model):
    torch.manual_seed(0)
    return ControllerModule(model.embedding.weight, 16, 8).export(model.architecture.hidden_size)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(1).integers(0, 97, (2, 60))


class Remembered:
    """The slow obvious cache: keys and values by position, one query at a time."""

    def __init__(self):
        self.states = {}

    def attend(self, positions):
        def call(layer, query, key, value):
            for row, position in enumerate(positions):
                self.states[position, layer] = key[row], value[row]
            out = torch.empty_like(query)
            for row, position in enumerate(positions):
                seen = sorted(
                    place for place, at in self.states if at == layer and place <= position
                )
                k, v = (
                    torch.stack([self.states[place, layer][part] for place in seen], 1)[None]
                    for part in (0, 1)
                )
                out[row] = F.scaled_dot_product_attention(
                    query[row][None, :, None], k, v, enable_gqa=True
                )[0, :, 0]
            return out

        return call

    def keep(self, positions):
        self.states = {
            place: state for place, state in self.states.items() if place[0] in positions
        }


def masked_logits(model, tokens, allowed):
    """A plain forward in which token t sees only the tokens of allowed [T, T]."""

    def attend(layer, query, key, value):
        parts = (item.transpose(1, 2) for item in (query, key, value))
        return F.scaled_dot_product_attention(*parts, attn_mask=allowed, enable_gqa=True).transpose(
            1, 2
        )

    with torch.inference_mode():
        return model.head(
            model.run(torch.from_numpy(tokens), torch.arange(tokens.shape[1]), attend)
        )


@pytest.mark.parametrize(
    "policy",
    [
        Full(),
        Window(120),
        Sinks(120),
        Sinks(120, renumber=True),
        H2O(120),
        TopK(120),
        Adore(capacity=120, rebuild=8),
    ],
    ids=lambda item: type(item).__name__,
)
def test_a_cache_that_holds_everything_equals_full_attention(
    model, controller, greedy, complete, policy
):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 97, size).tolist() for size in (5, 33, 20)]
    decoder = SparseDecoder(model, policy, num_requests=2, max_length=120, controller=controller)
    assert complete(decoder, prompts, 12) == [greedy(prompt, 12) for prompt in prompts]
    assert decoder.stats().released == 0


@pytest.mark.parametrize(("sinks", "size"), [(0, 8), (3, 8), (3, 20)])
def test_windows_and_sinks_equal_a_banded_forward(model, tokens, sinks, size):
    found = evaluate(model, Sinks(size, num_sinks=sinks) if sinks else Window(size), tokens)
    distance = torch.arange(60)[:, None] - torch.arange(60)
    allowed = (distance >= 0) & ((distance <= size - sinks) | (torch.arange(60) < sinks))
    logits = masked_logits(model, tokens, allowed)[:, :-1]
    expected = F.cross_entropy(
        logits.flatten(0, 1), torch.from_numpy(tokens[:, 1:]).flatten(), reduction="none"
    ).view(2, -1)
    assert found.losses == pytest.approx(expected.numpy(), abs=1e-4)


def test_rebuilding_equals_the_slow_obvious_version(model, controller, tokens):
    policy = Adore(capacity=10, rebuild=3, num_sinks=2, recent=0.2)
    decoder = SparseDecoder(
        model, policy, num_requests=1, max_length=60, controller=controller, chunk=1
    )
    states, slow = controller.states(1, 60), Remembered()
    row, cached, rebuilt = np.zeros(1, dtype=np.int64), set(), 0
    for now, token in enumerate(tokens[0]):
        logits = decoder.feed(row, [np.array([token])])
        states.append(row, np.array([token]))
        scores = states.scores(row)[0]
        again = []
        if len(cached) == 10:
            floor = min(scores[place] for place in cached if place >= 2 and place < now - 2)
            released = [
                place for place in range(now) if place not in cached and scores[place] > floor
            ]
            again = sorted(sorted(released, key=lambda place: -scores[place])[:3])
        rebuilt += len(again)
        places = [*again, now]
        with torch.inference_mode():
            hidden = model.run(
                torch.from_numpy(tokens[0, places]), torch.tensor(places), slow.attend(places)
            )
            assert torch.allclose(logits[0], model.head(hidden[-1]), atol=2e-3)
        cached |= set(places)
        free = sorted(
            (place for place in cached if 2 <= place <= now - 2), key=lambda place: scores[place]
        )
        cached -= set(free[: max(len(cached) - 10, 0)])
        slow.keep(cached)
        assert set(decoder.table.positions[0][decoder.table.positions[0] >= 0]) == cached
    assert rebuilt > 20
    assert decoder.stats().rebuilt == rebuilt


def test_memory_does_not_grow_with_length(model, controller):
    sizes = {
        SparseDecoder(
            model, Adore(capacity=32), num_requests=2, max_length=length, controller=controller
        )
        .stats()
        .kv_bytes_per_request
        for length in (64, 128)
    }
    assert len(sizes) == 1


def test_chunked_prompts_release_between_chunks(model, controller, complete, tokens):
    decoder = SparseDecoder(
        model, Adore(capacity=16, rebuild=2), num_requests=2, max_length=60, controller=controller
    )
    out = complete(decoder, tokens[:, :40].tolist(), 10)
    assert [len(item) for item in out] == [10, 10]
    assert decoder.stats().released > 40


@pytest.mark.parametrize(
    "policy",
    [Window(16), H2O(16), Adore(capacity=16, rebuild=2, num_sinks=2)],
    ids=lambda item: type(item).__name__,
)
def test_filling_a_prompt_keeps_exact_states_of_the_best_tokens(model, controller, tokens, policy):
    prompt = tokens[0, :40]
    decoder = SparseDecoder(model, policy, num_requests=2, max_length=60, controller=controller)
    logits = fill(decoder, 1, prompt)
    with torch.inference_mode():
        assert torch.allclose(logits, model(torch.from_numpy(prompt)[None])[0, -1], atol=1e-4)
    held = decoder.table.positions[1]
    assert (held >= 0).sum() == 16
    assert 39 in held
    full = SparseDecoder(model, Full(), num_requests=1, max_length=60, chunk=40)
    full.feed(np.array([0]), [prompt])
    places = held[held >= 0]
    assert torch.allclose(
        decoder.kv[:, :, 1][:, :, :, held >= 0], full.kv[:, :, 0][:, :, :, places], atol=1e-4
    )
    with pytest.raises(ConfigError, match="cannot be filled"):
        fill(decoder, 1, prompt)


def decode_plan(table, rows, tokens):
    """The latest token of some requests as a step of the engine, with slabs as block tables."""
    last = table.lengths[rows] - 1
    slots = (table.positions[rows] == last[:, None]).argmax(1)
    blocks = table.width // BLOCK_SIZE
    return StepPlan(
        request_ids=[str(row) for row in rows],
        num_decodes=len(rows),
        token_ids=tokens[rows, last],
        positions=last,
        slot_mapping=rows * table.width + slots,
        query_lengths=np.ones(len(rows), dtype=np.int64),
        context_lengths=table.live[rows],
        block_tables=rows[:, None] * blocks + np.arange(blocks),
        sample_rows=np.arange(len(rows)),
        sampled=[Request(id=str(row), prompt=[0]) for row in rows],
        output_positions=last,
    )


def test_the_engines_runner_executes_slabs_as_block_tables(model, tokens):
    table = SlotTable(Window(20), 2, 60)
    runner = TorchRunner(model, SchedulerConfig(num_blocks=4, max_model_len=64, max_num_seqs=2))
    decoder = SparseDecoder(model, Window(20), num_requests=2, max_length=60, chunk=1)
    rows = np.arange(2)
    for place in range(50):
        table.on_append(rows, np.full(2, place))
        chosen = runner.execute(decode_plan(table, rows, tokens)).tokens
        table.select_release(table.received)
        assert (
            chosen.tolist()
            == decoder.feed(rows, list(tokens[:, place : place + 1])).argmax(-1).tolist()
        )


def test_the_top_k_oracle_attends_to_the_most_attended(model, tokens):
    full, near = evaluate_full(model, tokens), evaluate(model, TopK(40), tokens)
    far = evaluate(model, TopK(2), tokens)
    assert near.agreement(full) > far.agreement(full)
    assert near.losses[:, :40] == pytest.approx(full.losses[:, :40], abs=1e-4)


def test_renumbered_sinks_stand_before_the_window(model, tokens):
    size, sinks = 12, 3
    found = evaluate(model, Sinks(size, num_sinks=sinks, renumber=True), tokens[:1])
    plain = evaluate(model, Sinks(size, num_sinks=sinks), tokens[:1])
    assert found.losses[:, : size + 1] == pytest.approx(plain.losses[:, : size + 1], abs=1e-5)
    assert not np.allclose(found.losses, plain.losses, atol=1e-3)


def test_evaluation_counts_spans_that_are_right_throughout(model, tokens):
    found = evaluate_full(model, tokens)
    place = int(np.argmin(found.choices[0] == tokens[0, 1:])) + 1
    assert found.recall_accuracy([[(place, place + 1)], []]) == 0.0
    assert np.isnan(found.recall_accuracy([[], []]))


def test_a_controller_that_names_every_token_recalls_all(model, controller, tokens):
    rows = np.array([30, 50])
    assert controller_recall(model, controller, tokens, rows, top=60) == pytest.approx(1.0)
    assert 0 < controller_recall(model, controller, tokens, rows, top=8) < 1


def test_bad_input_is_refused(model, controller):
    with pytest.raises(ConfigError, match="needs a controller"):
        SparseDecoder(model, Adore(), num_requests=1, max_length=60)
    with pytest.raises(ConfigError, match="positions"):
        SparseDecoder(model, Full(), num_requests=1, max_length=500)
    decoder = SparseDecoder(model, Window(20), num_requests=1, max_length=60)
    with pytest.raises(ConfigError, match="a chunk has"):
        decoder.feed(np.array([0]), [np.arange(17)])
    with pytest.raises(ConfigError, match="outgrow"):
        for _ in range(4):
            decoder.feed(np.array([0]), [np.arange(16)])
    with pytest.raises(ConfigError, match="T >= 2"):
        evaluate(model, Full(), np.zeros((1, 1), dtype=np.int64))
