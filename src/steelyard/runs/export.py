"""Runs to other tools: JSON, Parquet and TensorBoard event files, an MLflow tracking server."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.config import flatten, to_plain
from steelyard.errors import BackendError
from steelyard.files import write_bytes, write_json
from steelyard.runs.record import RunRecord

if TYPE_CHECKING:
    import polars

__all__ = ["export_json", "export_mlflow", "export_parquet", "export_tensorboard"]

# What MLflow's server takes in one batch, and characters of one parameter.
_MLFLOW_METRICS = 1000
_MLFLOW_PARAMS = 100
_MLFLOW_LENGTH = 5000


def export_json(record: RunRecord, frame: "polars.DataFrame", out: Path) -> str:
    """Write a run with its columns as one JSON file.

    Args:
        record: the run.
        frame: logged columns of the run.
        out: the file.

    Returns:
        Where it went.
    """
    write_json(out, to_plain(record) | {"columns": frame.to_dict(as_series=False)})
    return str(out)


def export_parquet(frame: "polars.DataFrame", out: Path) -> str:
    """Write a run's columns as one Parquet file.

    Args:
        frame: logged columns of the run.
        out: the file.

    Returns:
        Where it went.
    """
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    write_bytes(out, buffer.getvalue())
    return str(out)


def _series(frame: "polars.DataFrame") -> list[tuple[str, list[int], list[float]]]:
    """List (name, steps, values) of the logged columns, missing values left out."""
    series: list[tuple[str, list[int], list[float]]] = []
    for name in (name for name in frame.columns if name != "step"):
        part = frame.select("step", name).drop_nulls()
        series.append((name, part["step"].to_list(), part[name].to_list()))
    return series


def export_tensorboard(record: RunRecord, frame: "polars.DataFrame", out: Path) -> str:
    """Write a run as TensorBoard event files.

    Columns as scalars, measurements as scalars at step 0, the recipe as text.

    Args:
        record: the run.
        frame: logged columns of the run.
        out: log folder; the run gets a folder of its id in it.

    Returns:
        Where it went.

    Raises:
        BackendError: the tensorboard package is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise BackendError(
            "export to TensorBoard needs the tensorboard package", hint="pip install tensorboard"
        ) from error
    folder = out / record.id
    with SummaryWriter(str(folder)) as writer:
        for name, steps, values in _series(frame):
            for step, value in zip(steps, values, strict=True):
                writer.add_scalar(name, value, step, walltime=record.started_s)
        for item in record.measurements:
            writer.add_scalar(item.quantity, item.value, 0, walltime=item.time_s)
        lines = "\n".join(
            f"| {path} | {value} |" for path, value in flatten(record.recipe).items() if path
        )
        writer.add_text(
            "recipe", f"| field | value |\n|---|---|\n{lines}", 0, walltime=record.started_s
        )
    return str(folder)


def export_mlflow(record: RunRecord, frame: "polars.DataFrame", uri: str) -> str:
    """Log a run to MLflow.

    The recipe as parameters, columns and measurements as metrics, status and versions as tags.

    Args:
        record: the run.
        frame: logged columns of the run.
        uri: tracking address; empty for the one that MLflow is set to.

    Returns:
        The MLflow run id and its address.

    Raises:
        BackendError: the mlflow package is not installed, or its server refused.
    """
    try:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise BackendError(
            "export to MLflow needs the mlflow package", hint="pip install mlflow"
        ) from error
    try:
        client = MlflowClient(tracking_uri=uri or None)
        found = client.get_experiment_by_name("steelyard")
        experiment = found.experiment_id if found else client.create_experiment("steelyard")
        tags = {f"version.{name}": version for name, version in record.versions.items()} | {
            "steelyard.id": record.id,
            "kind": record.kind,
        }
        run = client.create_run(
            experiment,
            start_time=int(record.started_s * 1000),
            tags=tags,
            run_name=record.name or record.id,
        )
        _log_mlflow(client, run.info.run_id, record, frame)
        end = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}.get(
            record.status, "RUNNING"
        )
        client.set_terminated(
            run.info.run_id, end, int((record.finished_s or record.started_s) * 1000)
        )
    except (MlflowException, ImportError) as error:
        raise BackendError(
            f"MLflow refused: {str(error).splitlines()[0]}",
            hint="check the tracking address; a database address needs the whole mlflow package",
        ) from error
    return f"{run.info.run_id} in {uri or 'the default MLflow store'}"


def _log_mlflow(client: Any, run_id: str, record: RunRecord, frame: "polars.DataFrame") -> None:
    """Send parameters and metrics in batches of the sizes MLflow allows."""
    from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

    start = int(record.started_s * 1000)
    metrics = [
        Metric(name, value, start, step)
        for name, steps, values in _series(frame)
        for step, value in zip(steps, values, strict=True)
    ]
    metrics += [
        Metric(item.quantity, item.value, int(item.time_s * 1000), 0)
        for item in record.measurements
    ]
    params = [
        Param(path, str(value)[:_MLFLOW_LENGTH])
        for path, value in flatten(record.recipe | {"seed": record.seed}).items()
    ]
    for begin in range(0, len(params), _MLFLOW_PARAMS):
        client.log_batch(run_id, params=params[begin : begin + _MLFLOW_PARAMS])
    for begin in range(0, len(metrics), _MLFLOW_METRICS):
        client.log_batch(run_id, metrics=metrics[begin : begin + _MLFLOW_METRICS])
