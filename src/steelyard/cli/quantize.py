"""`steelyard serve quantize`: a model's weights in fewer bits, as a folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from steelyard.cli.flags import flags
from steelyard.cli.following import say_next
from steelyard.cli.models import find_model
from steelyard.cli.output import Switch, print_report
from steelyard.runs.progress import progress
from steelyard.serve.quantize.options import QuantizeOptions

if TYPE_CHECKING:
    from steelyard.serve.quantize.options import QuantizeOptions as _QuantizeFlags
else:
    _QuantizeFlags = flags(QuantizeOptions)


def quantize(
    model: str,
    *,
    out: Annotated[Path | None, cyclopts.Parameter(alias="-o")] = None,
    options: _QuantizeFlags | None = None,
    json: Switch = False,
) -> None:
    """Write a model's weights in 4 or 8 bits, and measure what that costs.

    Example: steelyard serve quantize quickstart-out --weights int4 --calibrate texts

    The folder is served like any other, and `transformers` reads it with the package
    compressed-tensors. It appears when it is complete; a run that was killed goes on where it was.

    Args:
        model: Folder of a model or of a quickstart, or a run's name or id.
        out: Folder to make, or to replace; the model's name and its type of weights when left out.
        options: Types, method, text and budgets.
        json: Print what was measured as JSON.
    """
    chosen = options or QuantizeOptions()
    found = find_model(model)
    target = out or Path(f"{found.names[0]}-{chosen.weights}")
    with progress("quantize", quiet=json) as advance:
        from steelyard.serve.quantize.job import quantize as run

        result = run(found.folder, target, chosen, advance=advance)
    print_report(result.report(), json=json, values=result.values())
    if not json:
        say_next("serve", target)
