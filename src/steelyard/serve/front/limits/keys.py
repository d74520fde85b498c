"""How much the holder of an API key may ask: requests and tokens a minute."""

from dataclasses import dataclass, field

from steelyard.api_keys import KeyOwners
from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.limits.backlog import Backlog

__all__ = ["Client", "KeyRing", "TokenBucket"]


@dataclass(slots=True)
class TokenBucket:
    """A bucket that fills at a steady rate; it may fall below empty.

    It does where a request turns out to cost more than foreseen: what is taken in excess is waited
    for by the next one.

    Attributes:
        per_min: amount filled in a minute, which is also the most it holds; 0 for no limit.
        level: amount held now.
        seen_s: when it was last filled.
    """

    per_min: float
    level: float = field(init=False)
    seen_s: float = 0.0

    def __post_init__(self) -> None:
        """Start full."""
        self.level = self.per_min

    def take(self, amount: float, now_s: float) -> float:
        """Take an amount if it is there.

        Args:
            amount: what is wanted; at most `per_min` of it is taken, as more could never be there.
            now_s: time on a clock that never falls.

        Returns:
            0 when it was taken, else the seconds until it will be there.
        """
        if not self.per_min:
            return 0.0
        self.level = (
            min(self.per_min, self.level + (now_s - self.seen_s) * self.per_min / 60)
            if self.seen_s
            else self.level
        )
        self.seen_s = now_s
        amount = min(amount, self.per_min)
        if self.level >= amount:
            self.level -= amount
            return 0.0
        return (amount - self.level) * 60 / self.per_min

    def give(self, amount: float) -> None:
        """Put back what was not used; a negative amount takes what was used in excess."""
        if self.per_min:
            self.level = min(self.level + amount, self.per_min)


@dataclass(slots=True)
class Client:
    """Who sent a request.

    Attributes:
        name: owner of the key.
        requests: its bucket of requests.
        tokens: its bucket of tokens.
    """

    name: str
    requests: TokenBucket
    tokens: TokenBucket

    def enter(self, tokens: int, backlog: Backlog, now_s: float) -> None:
        """Take tokens from the bucket and room in the backlog, or neither.

        Args:
            tokens: predicted tokens of the request.
            backlog: what is in flight in the whole server.
            now_s: time on a clock that never falls.

        Raises:
            ApiError: 429 with the time until both are there.
        """
        wait_s = self.tokens.take(tokens, now_s)
        if wait_s:
            raise ApiError(
                429,
                f"the key's tokens per minute are used up; try again in {wait_s:.0f} s",
                retry_after_s=wait_s,
            )
        # Both or neither: tokens of a request that the backlog refuses are not used up.
        try:
            backlog.enter(tokens)
        except ApiError:
            self.tokens.give(tokens)
            raise


class KeyRing:
    """Keys and their buckets.

    Without keys everyone is one client, named "default": a name from the address would let one
    machine pose as many, and a proxy make many into one.
    """

    def __init__(
        self, keys: dict[str, str], *, requests_per_min: float = 0.0, tokens_per_min: float = 0.0
    ) -> None:
        """Keep digests of the keys only.

        Args:
            keys: owner's name by key.
            requests_per_min: most requests of each key in a minute, 0 for no limit.
            tokens_per_min: most tokens of each key in a minute, 0 for no limit.
        """
        self._owners = KeyOwners(keys)
        # Two keys of one owner have a bucket each: a limit is a limit of a key.
        self._clients = [
            self._client(name, requests_per_min, tokens_per_min) for name in keys.values()
        ]
        self._anyone = self._client("default", requests_per_min, tokens_per_min)

    @property
    def has_keys(self) -> bool:
        """Whether requests need a key."""
        return bool(self._clients)

    @staticmethod
    def _client(name: str, requests_per_min: float, tokens_per_min: float) -> Client:
        """Make a client with full buckets."""
        return Client(name, TokenBucket(requests_per_min), TokenBucket(tokens_per_min))

    def identify(self, authorization: bytes) -> Client:
        """Find whose key a request carries.

        Args:
            authorization: the header, as it was sent.

        Returns:
            The client.

        Raises:
            ApiError: 401 when keys are asked for and this is none of them.
        """
        if not self._clients:
            return self._anyone
        place = self._owners.place(authorization)
        if place is None:
            raise ApiError(
                401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'"
            )
        return self._clients[place]
