"""Serve what a plan says: the file of a deployment as the options of an engine."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from steelyard.cli.models import FoundModel
from steelyard.config import dump, load
from steelyard.errors import ConfigError
from steelyard.serve.deployment import Deployment
from steelyard.serve.options import ServeOptions

__all__ = ["deployed_options"]

_SHARE = 0.5
"""Share of the machine's memory that keys and values of a reduced deployment may take."""


def deployed_options(
    found: FoundModel,
    options: ServeOptions,
    deployment: Path | None,
    shrunk: Path | None,
    steps: Path | None,
) -> ServeOptions:
    """Return the options of the server of a deployment.

    Args:
        found: model that is served.
        options: options that were given.
        deployment: file of the deployment; None leaves the options as they are.
        shrunk: file for the deployment at the size of this machine; None runs it as it is.
        steps: step times of the model's engine here; needed to reduce.

    Returns:
        The options with the engine of the deployment.

    Raises:
        ConfigError: an option needs another one, the file is wrong, or one engine does not run it.
        CapacityError: the memory here does not hold the longest request.
        InfeasibleError: the engine here keeps the limits at no rate.
    """
    if deployment is None:
        for name, given in (("--reduced", shrunk), ("--steps", steps)):
            if given is not None:
                raise ConfigError(f"{name} needs --deployment", hint="give its file too")
        return options
    planned = load(deployment, Deployment)
    if shrunk is not None:
        planned = _reduce(planned, found, shrunk, steps)
    elif steps is not None:
        raise ConfigError("--steps needs --reduced", hint="give --reduced FILE too")
    name = planned.model if shrunk is not None else _architecture_name(found.folder)
    return replace(options, engine=planned.engine_options(name, options.engine))


def _architecture_name(folder: Path) -> str:
    """Return the name of the model in a folder."""
    from steelyard.catalog.huggingface import from_huggingface

    if not folder.is_dir():
        raise ConfigError(
            f"--deployment needs a model folder, {folder} is a file",
            hint="give the folder of the model",
        )
    return from_huggingface(folder).name


def _reduce(planned: Deployment, found: FoundModel, shrunk: Path, steps: Path | None) -> Deployment:
    """Write the deployment at the size of this machine, and say what was reduced."""
    if steps is None:
        raise ConfigError(
            "--reduced needs --steps",
            hint=f"steelyard serve profile {found.folder} --out step-table.json, "
            "then --steps step-table.json",
        )
    # Imported here: a server that reduces nothing does not wait for the simulator.
    from steelyard.catalog.huggingface import from_huggingface
    from steelyard.cost.phase_time import PhaseStepTime
    from steelyard.plan.service.reduced import reduced

    _architecture_name(found.folder)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    made = reduced(
        planned,
        from_huggingface(found.folder),
        PhaseStepTime.load(steps),
        memory_bytes=_SHARE * memory,
    )
    dump(made, shrunk)
    for line in made.reduced:
        sys.stderr.write(f"reduced: {line}\n")
    sys.stderr.write(f"replay the load: steelyard serve bench URL --deployment {shrunk}\n")
    return made
