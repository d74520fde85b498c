"""What one pass over a table computes: states that are fed batches, merged, and finished."""

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Fold"]

State = TypeVar("State")


class Fold(Protocol[State]):
    """Something that is computed by parts and put together.

    The result may not depend on how rows are cut into batches. Parts are merged in the order of
    their rows.
    """

    @property
    def name(self) -> str:
        """What it is called in results; it also says with which settings it runs."""
        ...

    def init(self, schema: "pa.Schema") -> State:
        """Return the state before any row."""
        ...

    def update(self, state: State, batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        ...

    def merge(self, state: State, later: State) -> None:
        """Take in the state of rows that come later."""
        ...

    def finish(self, state: State) -> Any:
        """Return the result of a state."""
        ...

    def sections(self, state: State) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        ...

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> State:
        """Return the state of such arrays."""
        ...
