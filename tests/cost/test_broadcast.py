"""A pipelined broadcast is what sending piece by piece gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.cost.broadcast import chain_arrivals_s
from steelyard.errors import ConfigError


def sent_s(size, members, rate, piece, busy, hop):
    """Send every piece over every link, one after the other."""
    sizes = [min(piece, size - begin) for begin in np.arange(0, size, piece)]
    have, ends = [0.0] * len(sizes), []
    for member in range(members):
        speed, free = rate * (1 - busy if member == 0 else 1), 0.0
        for place, part in enumerate(sizes):
            free = max(free, have[place]) + part / speed
            have[place] = free
        have = [item + hop for item in have]
        ends.append(have[-1])
    return ends


@given(
    st.floats(1, 100),
    st.integers(1, 9),
    st.floats(0.5, 120),
    st.sampled_from([0.0, 0.3, 0.9]),
    st.sampled_from([0.0, 0.1]),
)
@settings(max_examples=100, deadline=None)
def test_closed_form_is_the_sum_over_pieces(size, members, piece, busy, hop):
    found = chain_arrivals_s(size, members, 2.0, piece_bytes=piece, busy_fraction=busy, hop_s=hop)
    np.testing.assert_allclose(found, sent_s(size, members, 2.0, piece, busy, hop), rtol=1e-9)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="members is 0"):
        chain_arrivals_s(1.0, 0, 1.0)
    with pytest.raises(ConfigError, match="busy_fraction"):
        chain_arrivals_s(1.0, 1, 1.0, busy_fraction=1.0)
