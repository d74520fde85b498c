"""Routes of mixed fleets: the heat map, expected lengths, and the policy that weighs them."""

from dataclasses import replace

import numpy as np
import pytest

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.errors import ConfigError, DataError, FitError
from steelyard.serve.elastic import Lifetime
from steelyard.serve.fleet_replay import replay_fleet
from steelyard.serve.routes.combined import Combined, ServiceSeconds
from steelyard.serve.routes.heat_map import HeatMap, simulated_map
from steelyard.serve.routes.length_predictor import LengthPredictor, OutputHistory
from steelyard.serve.routing import fewest_requests
from steelyard.sim.fleet import FleetJob
from steelyard.sim.fleet.instance import ReplicaGroup, simulate_fleet

TIMES = PhaseStepTime.from_fits(
    prefill=(0.018, 1e-4, 7e-9), decode=(0.02, 6e-7, 4e-5), source="made up"
)
BOTH = ReplicaGroup(step_time=TIMES, blocks=2000, token_budget=512, max_num_seqs=64)
PROMPTS = replace(BOTH, role="prefill", whole_prompts=True)
DECODES = replace(BOTH, role="decode", transfer_s_per_token=1e-6)
ROLES = {"both": replace(BOTH, count=2), "prefill": PROMPTS, "decode": DECODES}


def made_map(values, rates=(1.0, 2.0)):
    return HeatMap(np.array(rates), np.array([100.0, 1000.0]), np.array([0.1, 1.0]), values)


def job(at=0.0, prompt=100, output=10, **changes):
    return FleetJob(arrival_s=at, input_tokens=prompt, output_tokens=output, **changes)


def test_scores_interpolate_and_hold_at_the_edges():
    found = made_map([[[1, 2], [3, 4]], [[1, 2], [3, 4]]])
    assert found.score(100, 10) == 2
    assert found.score(10, 1) == 2  # below every axis
    assert found.score(1e5, 1e9) == 8
    middle = found.score(np.sqrt(100 * 1000), np.sqrt(100 * 1000) * np.sqrt(0.1))
    assert middle == pytest.approx(5)


def test_signs_are_stable_where_all_rates_agree():
    found = made_map([[[1, -2], [np.nan, 0.004]], [[2, 1], [np.nan, -0.2]]])
    assert found.sign_stability() == pytest.approx(1 / 3)
    assert found.sign_stability(tolerance=0.01) == pytest.approx(2 / 3)


def test_maps_come_back_from_their_file(tmp_path):
    found = made_map([[[1, -2], [np.nan, 0.5]], [[2, 1], [np.nan, -0.2]]])
    found.save(tmp_path / "map.json")
    again = HeatMap.load(tmp_path / "map.json")
    np.testing.assert_array_equal(again.values, found.values)
    (tmp_path / "other.json").write_text('{"loads": [1]}')
    with pytest.raises(DataError, match="no heat map"):
        HeatMap.load(tmp_path / "other.json")
    with pytest.raises(ConfigError, match="shape"):
        made_map([[[1, 2]]])


def test_a_cell_is_what_both_fleets_take_for_the_same_requests():
    axes = {"loads": [0.2], "prompts": [300], "ratios": [0.2], "requests": 40}
    found = simulated_map(replace(BOTH, count=2), (PROMPTS, DECODES), spread=0.0, **axes)
    arrivals = np.random.default_rng((0, 0, 0)).exponential(1.0, 40).cumsum()
    # Two replicas that prompts of 300 tokens keep busy for a fifth of the time.
    arrivals *= (0.018 + 300 * 1e-4 + 300**2 * 7e-9) / 2 / 0.2
    means = []
    for groups in ((replace(BOTH, count=2),), (PROMPTS, DECODES)):
        timeline = simulate_fleet(groups, arrivals, [300] * 40, [60] * 40).timeline
        means.append((timeline.last_token_s - timeline.arrival_s).mean())
    assert found.values[0, 0, 0] == pytest.approx(means[0] / means[1] - 1)
    small = replace(BOTH, blocks=4)
    assert np.isnan(simulated_map(small, (PROMPTS, DECODES), **axes).values).all()


def test_history_finds_the_deepest_beginning_as_a_walk_does():
    generator, history, slow = np.random.default_rng(0), OutputHistory(), {}
    for _ in range(200):
        ids = [100 * depth + int(generator.integers(3)) for depth in range(6)]
        # Equal ids stand for equal beginnings, so that an id carries those before it.
        names = [hash(tuple(ids[: depth + 1])) for depth in range(int(generator.integers(1, 7)))]
        item = job(output=int(generator.integers(1, 900)), block_ids=names)
        known = [name for name in names if name in slow]
        expected = (slow[known[-1]], len(known) / len(names)) if known else (0, 0.0)
        assert history.latest(item) == expected
        history.seen(item)
        slow |= dict.fromkeys(names, item.output_tokens)


def test_history_keeps_a_bounded_number_of_blocks_beginnings_last():
    history = OutputHistory(most_blocks=3)
    history.seen(job(output=7, block_ids=(1, 2, 3, 4)))
    assert len(history) == 3
    assert history.latest(job(block_ids=(1, 2, 3, 4))) == (7, 0.75)


def made_jobs(count, seed):
    """Two kinds of requests by length, and conversations that go on as they began."""
    generator = np.random.default_rng(seed)
    jobs = []
    for row in range(count):
        talk = int(generator.integers(20))
        output = 60 if talk % 2 else 600
        prompt = int(generator.integers(200, 4000))
        ids = tuple(range(1000 * talk, 1000 * talk + 3))
        jobs.append(job(float(row), prompt, output + int(generator.integers(20)), block_ids=ids))
    return jobs


def test_lengths_of_conversations_are_learned():
    predictor = LengthPredictor.fit(made_jobs(300, 0))
    rest = made_jobs(100, 1)
    hits = [predictor.bucket_of(item) == predictor.true_bucket(item.output_tokens) for item in rest]
    assert np.mean(hits) > 0.95
    assert predictor.probabilities(rest[0]).sum() == pytest.approx(1.0)
    errors = [abs(predictor.expected(item) - item.output_tokens) for item in rest]
    assert np.mean(errors) < 60
    with pytest.raises(FitError, match="10 requests"):
        LengthPredictor.fit(made_jobs(10, 0))


@pytest.mark.parametrize("gain", [-0.5, 0.5])
def test_the_published_rule_follows_the_map_and_then_balance(gain):
    route = Combined(made_map(np.full((2, 2, 2), gain)), balance_threshold=1000)
    jobs = [job(0.3 * row, 200, 5, block_ids=(1,) * 12) for row in range(20)]
    replay_fleet(jobs, ROLES, route=route, route_second=fewest_requests)
    assert {item.first for item in jobs} <= ({2} if gain > 0 else {0, 1})


def test_a_crowd_outweighs_a_small_gain_where_all_are_seconds():
    small = made_map(np.full((2, 2, 2), 0.05))
    service = ServiceSeconds(prompt_s_per_token=2e-4, output_s_per_token=0.02)
    weighed, ruled = Combined(small, service=service), Combined(small)
    ends = {}
    for name, route in (("weighed", weighed), ("ruled", ruled)):
        jobs = [job(0.01 * row, 1500, 20) for row in range(40)]
        replay = replay_fleet(jobs, ROLES, route=route, route_second=fewest_requests)
        ends[name] = replay.completion_s.mean()
    assert ends["weighed"] < 0.7 * ends["ruled"]


def test_a_prompt_goes_where_it_is_held():
    flat = made_map(np.zeros((2, 2, 2)))
    service = ServiceSeconds(prompt_s_per_token=2e-4, output_s_per_token=0.02)
    for route in (Combined(flat), Combined(flat, service=service)):
        jobs = [
            job(
                2.0 * row,
                16 * 40 + 1,
                2,
                block_ids=tuple(range(40 * (row % 2), 40 * (row % 2) + 40)),
            )
            for row in range(12)
        ]
        cached = {name: replace(item, prefix_caching=True) for name, item in ROLES.items()}
        replay = replay_fleet(jobs, cached, route=route, route_second=fewest_requests)
        assert replay.prefix_hits > 0.8


def test_routes_refuse_what_only_decodes():
    from steelyard.serve.replica import replicas_of

    with pytest.raises(ConfigError, match="only decodes"):
        Combined(made_map(np.zeros((2, 2, 2))))(replicas_of(DECODES), job())
    with pytest.raises(ConfigError, match="roles prefill"):
        replay_fleet([job()], {"prefill": PROMPTS}, route=fewest_requests,
                     route_second=fewest_requests)  # fmt: skip


@pytest.mark.parametrize("place", [0, 3])
def test_no_request_is_lost_when_an_instance_dies(place):
    jobs = [job(0.05 * row, 300, 30, block_ids=(row % 3,) * 18) for row in range(60)]
    calm = [job(0.05 * row, 300, 30, block_ids=(row % 3,) * 18) for row in range(60)]
    replay_fleet(calm, ROLES, route=fewest_requests, route_second=fewest_requests)
    death = Lifetime(dies_at_s=1.0, start_s=lambda: 0.5)
    replay = replay_fleet(
        jobs, ROLES, route=fewest_requests, route_second=fewest_requests, lives={place: death}
    )
    retried = [item for item in jobs if item.retries]
    assert retried and all(item.retries == 1 for item in retried)
    assert all(np.isfinite(item.last_token_s) for item in jobs)
    # Nothing runs on it between its death and its start, and it serves again afterwards.
    steps = replay.replicas[place].steps
    assert not [step for step in steps if step.start_s < 1.5 and step.end_s > 1.0]
    assert [step for step in steps if step.start_s >= 1.5]
    assert replay.completion_s.mean() > np.mean([i.last_token_s - i.arrival_s for i in calm])


def test_requests_wait_where_the_only_instance_starts():
    jobs = [job(0.0, 100, 400), job(2.0, 100, 5)]
    death = {0: Lifetime(dies_at_s=1.0, start_s=lambda: 4.0)}
    replay_fleet(
        jobs, {"both": BOTH}, route=fewest_requests, route_second=fewest_requests, lives=death
    )
    assert [item.retries for item in jobs] == [1, 0]
    assert min(item.first_token_s for item in jobs) > 5.0


def test_prompts_instances_and_unknown_ones_do_not_die():
    death = Lifetime(dies_at_s=1.0)
    for place, words in ((2, "prompts alone"), (9, "instance 9")):
        with pytest.raises(ConfigError, match=words):
            replay_fleet([job()], ROLES, route=fewest_requests, route_second=fewest_requests,
                         lives={place: death})  # fmt: skip


def test_instances_are_given_back_and_woken_by_requests():
    jobs = [job(at, 100, 5) for at in (0.0, 0.0, 0.0, 60.0, 61.0, 200.0)]
    life = Lifetime(start_s=lambda: 2.0, keep_alive_s=10.0, is_asleep=True)
    replay = replay_fleet(
        jobs,
        {"both": replace(BOTH, count=3)},
        route=fewest_requests,
        route_second=fewest_requests,
        lives=dict.fromkeys(range(3), life),
        most_requests=2,
    )
    # Two starts for three requests at once, one for the next two, one for the last.
    assert replay.num_starts == 4
    # The second of two came a second into the start of the first.
    waits = [item.first_token_s - item.arrival_s > 2.0 for item in jobs]
    assert waits == [True, True, True, True, False, True]
    busy_s = max(item.last_token_s for item in jobs[:3])
    stays = [stay for item in replay.replicas for stay in item.stays]
    clipped_s = sum(min(end, replay.span_s) - begin for begin, end in stays)
    assert replay.instance_s == pytest.approx(clipped_s)
    ends = sorted(end for item in replay.replicas for _, end in item.stays)
    assert ends[1] == pytest.approx(busy_s + 10.0, abs=0.3)
    assert replay.asked_at(np.array([1.0, 50.0, 60.5, 201.0])).tolist() == [2, 0, 1, 1]


def test_one_ordered_after_a_death_is_idle_from_its_start_on():
    jobs = [job(0.0, 100, 5), job(30.0, 100, 5)]
    life = Lifetime(start_s=lambda: 8.0, keep_alive_s=10.0, dies_at_s=9.0)
    replay = replay_fleet(
        jobs, {"both": BOTH}, route=fewest_requests, route_second=fewest_requests, lives={0: life}
    )
    # Dead at 9 s, ready at 17 s, given back at 27 s; the second request orders one once more.
    assert replay.replicas[0].stays[0] == (0.0, pytest.approx(27.0))
    assert replay.num_starts == 2 and jobs[1].first_token_s > 38.0


def test_instance_hours_of_a_fleet_that_stays_are_its_size():
    jobs = [job(0.1 * row, 100, 5) for row in range(5)]
    replay = replay_fleet(jobs, ROLES, route=fewest_requests, route_second=fewest_requests)
    assert replay.instance_s == pytest.approx(4 * replay.span_s)
    assert replay.num_starts == 0
