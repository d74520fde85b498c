import sys

from steelyard.runs import progress as module
from steelyard.runs.progress import progress


class Clock:
    now_s = 0.0

    def monotonic(self):
        return self.now_s


def test_without_a_terminal_a_job_writes_a_line_now_and_then(monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    with progress("train", total=100) as advance:
        for step in range(1, 101):
            clock.now_s += 1.0
            advance(step, f"loss {5 - step / 50:.2f}")
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "train: 10 of 100, loss 4.80, 90 s left"
    assert len(shown) == 11
    assert shown[-1].startswith("✓ train") and shown[-1].endswith("100.0 s")


def test_a_share_is_shown_in_per_cent_and_quiet_shows_nothing(monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    with progress("read") as advance:
        advance(0.1, "")
        clock.now_s = 20.0
        advance(0.25, "")
    assert capsys.readouterr().err.splitlines()[0] == "read: 25 %, 100 s left"
    with progress("read", quiet=True) as advance:
        advance(0.5, "half")
    assert capsys.readouterr().err == ""


def test_what_passes_before_the_first_amount_is_not_the_pace_of_the_rest(monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    with progress("calibrate") as advance:
        clock.now_s = 60.0  # waited for a quiet machine
        advance(0.1, "products")
        clock.now_s = 70.0
        advance(0.2, "products")
    shown = capsys.readouterr().err.splitlines()
    assert shown[:2] == ["calibrate: 10 %, products", "calibrate: 20 %, products, 80 s left"]


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress("bar") as advance:
        advance(0.5, "half")
    assert "✓ bar" in capsys.readouterr().err
