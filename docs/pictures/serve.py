"""Pictures of the serve room; `python docs/pictures/serve.py` writes docs/assets/serve/*.svg."""

from collections.abc import Callable
from pathlib import Path

from canvas import DARK, LIGHT, Canvas, Palette

TARGET = Path(__file__).parents[1] / "assets" / "serve"
A, B, C, D = "teal", "amber", "indigo", "rose"


def block_table(palette: Palette) -> Canvas:
    """Two sequences, their block tables and the pool; the first block is shared."""
    canvas = Canvas(
        960,
        520,
        palette,
        "Two sequences share the first of their blocks; tables say where in the pool each block "
        "lies",
    )
    canvas.text(20, 30, "What a sequence is", size=17, bold=True)
    canvas.text(20, 50, "tokens in logical blocks (here of 4)", size=13, color=palette.muted)
    canvas.text(432, 30, "Block table", size=17, bold=True)
    canvas.text(432, 50, "one entry a block", size=13, color=palette.muted)
    canvas.text(640, 30, "Pool", size=17, bold=True)
    canvas.text(640, 50, "keys and values, in any order", size=13, color=palette.muted)
    rows = {
        ("Request A", A, 88): [
            ["The", "cat", "sat", "on"],
            ["the", "mat", "and", "slept"],
            ["until", "noon", "", ""],
        ],
        ("Request B", B, 282): [["The", "cat", "sat", "on"], ["a", "chair", "", ""]],
    }
    places = {"Request A": [3, 7, 1], "Request B": [3, 5]}
    pool = {
        3: (["The", "cat", "sat", "on"], "", "2 users"),
        7: (["the", "mat", "and", "slept"], A, "1 user"),
        1: (["until", "noon", "", ""], A, "1 user, filling"),
        5: (["a", "chair", "", ""], B, "1 user, filling"),
        2: (["Once", "upon", "a", "time"], "gray", "idle, still findable"),
    }
    at = {number: 68 + 66 * index for index, number in enumerate([3, 7, 1, 5, 2, 6])}
    block_rows(canvas, rows, places, at)
    pool_rows(canvas, pool, at)
    canvas.text(
        20,
        482,
        "A block is known by the hash of its tokens and of all blocks before it, so equal "
        "beginnings are found and shared.",
        size=13.5,
    )
    canvas.text(
        20,
        505,
        "Writing into a block with several users copies it first. Memory is lost only in the last "
        "block of each sequence.",
        size=13.5,
    )
    return canvas


def block_rows(
    canvas: Canvas,
    rows: dict[tuple[str, str, int], list[list[str]]],
    places: dict[str, list[int]],
    at: dict[int, int],
) -> None:
    """Draw the sequences in logical blocks, with an arrow from each table entry to its block."""
    palette = canvas.palette
    for (name, hue, top), blocks in rows.items():
        canvas.text(20, top, name, size=14, bold=True, color=palette.hues[hue][1])
        for index, (words, number) in enumerate(zip(blocks, places[name], strict=True)):
            y = top + 12 + 46 * index
            for column, word in enumerate(words):
                cell(canvas, 20 + 88 * column, y, 84, 32, word, hue)
            canvas.arrow([(20 + 88 * 4 + 4, y + 16), (426, y + 16)], color=palette.line)
            canvas.cell(432, y, 64, 32, f"#{number}", hue, size=14, mono=True)
            canvas.arrow(
                [(500, y + 16), (634, at[number] + 24)], color=palette.hues[hue][1], curved=True
            )


def pool_rows(
    canvas: Canvas, pool: dict[int, tuple[list[str], str, str]], at: dict[int, int]
) -> None:
    """Draw the blocks of the pool in the order they lie in memory."""
    palette = canvas.palette
    for number, y in at.items():
        words, hue, note = pool.get(number, ([""] * 4, "free", "free"))
        canvas.text(640, y + 10, f"#{number}", size=12, mono=True, color=palette.muted)
        canvas.text(940, y + 10, note, size=12, color=palette.muted, anchor="end")
        for column, word in enumerate(words):
            shared = A if column < 2 else B
            cell(canvas, 640 + 76 * column, y + 15, 72, 28, word, hue or shared)


def cell(canvas: Canvas, x: float, y: float, w: float, h: float, word: str, hue: str) -> None:
    """Draw a token, or an empty slot."""
    if word:
        canvas.cell(x, y, w, h, word, hue)
    else:
        canvas.box(
            x, y, w, h, fill=canvas.palette.free, line=canvas.palette.line, radius=4, dash="3 3"
        )


def one_step(palette: Palette) -> Canvas:
    """From the queue to the tokens of one step."""
    canvas = Canvas(
        960,
        640,
        palette,
        "One step: the scheduler fills a token budget, the runner runs all tokens as one batch, "
        "sampled rows give tokens",
    )
    draw_schedule(canvas)
    canvas.arrow([(480, 166), (480, 190)])
    draw_plan(canvas)
    canvas.arrow([(480, 336), (480, 360)])
    draw_runner(canvas)
    canvas.arrow([(480, 522), (480, 546)])
    draw_completion(canvas)
    return canvas


def draw_schedule(canvas: Canvas) -> None:
    """Draw the scheduler's choice: what decodes, what prefills and what waits."""
    palette = canvas.palette
    panel(
        canvas,
        16,
        14,
        928,
        150,
        "1  Scheduler.schedule",
        "plain Python, no tensors: the simulator runs the same class",
    )
    canvas.text(40, 86, "decoding", size=13, color=palette.muted)
    for index, (name, hue) in enumerate((("A", A), ("B", B), ("C", C))):
        canvas.cell(40 + 46 * index, 98, 40, 30, name, hue, size=14)
    canvas.text(220, 86, "prompt under way", size=13, color=palette.muted)
    canvas.cell(220, 98, 172, 30, "D: 5 of 9 tokens left", D)
    canvas.text(420, 86, "waiting", size=13, color=palette.muted)
    for index in range(3):
        canvas.cell(420 + 46 * index, 98, 40, 30, "EFG"[index], "gray", size=14)
    canvas.text(600, 86, "token budget of a step: 8", size=13, color=palette.muted)
    for index, hue in enumerate((A, B, C, D, D, D, D, D)):
        canvas.box(600 + 38 * index, 98, 34, 30, hue=hue, radius=3)
    canvas.text(
        600, 148, "decodes first, then prompts in order; E waits", size=12.5, color=palette.muted
    )


def draw_plan(canvas: Canvas) -> None:
    """Draw the plan of the step: index arrays."""
    palette = canvas.palette
    panel(canvas, 16, 192, 928, 142, "2  StepPlan", "index arrays only, one column a token")
    labels = ("token", "position", "slot")
    columns = [
        ("noon", "9", "#1+1", A),
        ("chair", "5", "#5+1", B),
        ("so", "12", "#9+0", C),
        ("and", "4", "#6+0", D),
        ("then", "5", "#6+1", D),
        ("it", "6", "#6+2", D),
        ("went", "7", "#6+3", D),
        ("home", "8", "#8+0", D),
    ]
    for row, label in enumerate(labels):
        canvas.text(40, 258 + 27 * row, label, size=13, color=palette.muted)
    for column, (*values, hue) in enumerate(columns):
        for row, value in enumerate(values):
            canvas.cell(
                124 + 86 * column, 240 + 27 * row, 82, 24, value, hue, size=12.5, mono=row > 0
            )
    canvas.text(822, 258, "block tables,", size=13, color=palette.muted)
    canvas.text(822, 277, "context lengths,", size=13, color=palette.muted)
    canvas.text(822, 296, "sampled rows", size=13, color=palette.muted)


def draw_runner(canvas: Canvas) -> None:
    """Draw the runner's stages."""
    palette = canvas.palette
    panel(canvas, 16, 362, 928, 158, "3  Runner", "one flat batch through every layer")
    stage(
        canvas,
        40,
        412,
        190,
        ("dense products", "all 8 rows at once:", "weights are read once"),
        "gray",
    )
    stage(
        canvas,
        262,
        412,
        190,
        ("store keys, values", "each row into its slot", "of the pool"),
        "gray",
    )
    canvas.box(484, 408, 236, 98, fill="none", line=palette.line, dash="4 4")
    canvas.text(602, 426, "attention", size=13, bold=True, anchor="middle")
    canvas.cell(494, 436, 104, 28, "A, B, C", "teal", size=12.5)
    canvas.cell(606, 436, 104, 28, "D", "rose", size=12.5)
    canvas.text(
        602, 484, "one query each over its blocks;", size=12, anchor="middle", color=palette.muted
    )
    canvas.text(
        602, 499, "a chunk over its whole context", size=12, anchor="middle", color=palette.muted
    )
    stage(
        canvas, 752, 412, 176, ("head and sampling", "sampled rows only:", "A, B, C and D"), "gray"
    )
    for x in (232, 454, 722):
        canvas.arrow([(x, 457), (x + 28, 457)])


def draw_completion(canvas: Canvas) -> None:
    """Draw what happens to the sampled tokens."""
    palette = canvas.palette
    panel(
        canvas,
        16,
        548,
        928,
        78,
        "4  Scheduler.complete",
        "tokens to their requests; full blocks become findable; who ends gives blocks back",
    )
    for index, (word, hue) in enumerate(
        (
            ("A  \u2192 \u201cthe\u201d", A),
            ("B  \u2192 \u201cby\u201d", B),
            ("C  \u2192 end", C),
            ("D  \u2192 \u201c.\u201d", D),
        )
    ):
        canvas.cell(40 + 128 * index, 588, 118, 28, word, hue)
    canvas.text(
        576,
        607,
        "and the next step begins, with room for E",
        size=13,
        color=palette.muted,
        italic=True,
    )


def panel(canvas: Canvas, x: float, y: float, w: float, h: float, name: str, about: str) -> None:
    """Draw a titled area."""
    canvas.box(x, y, w, h, fill=canvas.palette.panel, line=canvas.palette.line, radius=9, weight=1)
    canvas.text(x + 22, y + 30, name, size=16, bold=True)
    canvas.text(x + w - 22, y + 30, about, size=13, color=canvas.palette.muted, anchor="end")


def stage(
    canvas: Canvas, x: float, y: float, w: float, lines: tuple[str, str, str], hue: str
) -> None:
    """Draw one stage of the runner."""
    canvas.box(x, y, w, 90, hue=hue)
    color = canvas.palette.hues[hue][2]
    canvas.text(x + w / 2, y + 30, lines[0], size=13.5, bold=True, anchor="middle", color=color)
    for index, line in enumerate(lines[1:]):
        canvas.text(x + w / 2, y + 53 + 18 * index, line, size=12.5, anchor="middle", color=color)


def one_ahead(palette: Palette) -> Canvas:
    """Steps in turn, and with the next planned while one runs."""
    canvas = Canvas(960, 250, palette, "Planning the next step while one runs hides the planning")
    for top, name, about, ahead in (
        (20, "In turn", "plan, run, take the results", False),
        (
            132,
            "One step ahead",
            "step i + 1 is planned while step i runs; its newest tokens are read on the device",
            True,
        ),
    ):
        canvas.text(20, top + 14, name, size=15, bold=True)
        canvas.text(170 if ahead else 100, top + 14, about, size=13, color=palette.muted)
        canvas.text(20, top + 46, "scheduler", size=13, color=palette.muted)
        canvas.text(20, top + 80, "runner", size=13, color=palette.muted)
        canvas.box(100, top + 60, 840, 1, fill=palette.line, radius=0, weight=0)
        hues, plan, run = (A, B, C, D), 52, 120
        for index, hue in enumerate(hues * 2):
            start = 100 + (plan + run + 26) * index if not ahead else 100 + (run + 6) * index
            begin = start + plan + 2 if not ahead else 154 + (run + 6) * index
            if begin + run > 946:
                break
            canvas.cell(start, top + 30, plan, 24, f"plan {index + 1}", hue, size=11.5)
            canvas.cell(begin, top + 66, run, 24, f"step {index + 1}", hue, size=12.5)
            if not ahead:
                canvas.cell(begin + run + 2, top + 30, 20, 24, "\u2713", hue, size=12)
    return canvas


PICTURES: dict[str, Callable[[Palette], Canvas]] = {
    "block-table": block_table,
    "one-step": one_step,
    "one-ahead": one_ahead,
}


def main() -> None:
    """Write every picture in both palettes."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        for palette in (LIGHT, DARK):
            (TARGET / f"{name}-{palette.name}.svg").write_text(draw(palette).svg())


if __name__ == "__main__":
    main()
