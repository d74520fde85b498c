"""What tests of the data room share: lines that are run in processes of their own, and killed."""

import pytest
from tests.data.table.conftest import made_rates
from tests.killing import killed_lines

MODULES = (
    "steelyard.cli.main",
    "steelyard.cli.data.table",
    "steelyard.cli.data.learning",
    "steelyard.cli.data.itemsets",
    "steelyard.cli.data.communities",
    "steelyard.cli.data.lake",
    "steelyard.cli.data.profile_page",
    "steelyard.cli.data.scanning",
    "steelyard.data.anomalies",
    "steelyard.data.clustering",
    "steelyard.data.communities",
    "steelyard.data.lake",
    "steelyard.data.learning",
    "steelyard.data.mining",
    "steelyard.data.pipeline",
    "steelyard.data.table.cleaning",
    "steelyard.data.tasks",
    "steelyard.data.text",
    "steelyard.runs.ledger",
    "pyarrow.csv",
    "pyarrow.parquet",
)
"""Libraries that lines load; none of them starts a thread when it is imported."""


@pytest.fixture(scope="session")
def lines(tmp_path_factory):
    """What runs lines of the data room and kills them."""
    pytest.importorskip("pyarrow")
    from steelyard.catalog.scan_rates import store_scan_rates

    folder = tmp_path_factory.mktemp("lines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEELYARD_HOME", str(folder / "home"))
        store_scan_rates(made_rates())
    with killed_lines(folder, *MODULES) as running:
        yield running
