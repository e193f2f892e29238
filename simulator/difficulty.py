"""How hard a simulated user is to please: three axes, and the line a scalar strictness walks through them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Difficulty:
    """A point in the cube [0, 1]^3; higher asks for more skill, it does not merely pay less.

    Raises:
        ValueError: an axis is outside [0, 1].
    """

    strictness: float
    """How much skill a reply must show before it moves the user."""
    reserve: float
    """How little the user says of the hidden intention and of what was felt."""
    impatience: float
    """How fast emotion drains while nothing helps."""

    def __post_init__(self) -> None:
        for axis in fields(self):
            value = getattr(self, axis.name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"difficulty.{axis.name} must be in [0, 1], got {value!r}")

    @classmethod
    def along(cls, d: float) -> Difficulty:
        """The difficulty at scalar strictness `d` in [0, 1].

        Piecewise linear through all zeros at 0, VANILLA at .35, CHALLENGING at .75 and all ones at 1.
        On this line the strictness axis equals `d`.
        """
        if not 0.0 <= d <= 1.0:
            raise ValueError(f"strictness must be in [0, 1], got {d!r}")
        if d == 1.0:
            return cls(strictness=1.0, reserve=1.0, impatience=1.0)
        # By hand: a teacher calls this for every task, and numpy would take ten times as long for three numbers.
        below = sum(knot <= d for knot, _ in LINE) - 1
        (start, a), (end, b) = LINE[below], LINE[below + 1]
        return cls(
            strictness=(b.strictness - a.strictness) / (end - start) * (d - start) + a.strictness,
            reserve=(b.reserve - a.reserve) / (end - start) * (d - start) + a.reserve,
            impatience=(b.impatience - a.impatience) / (end - start) * (d - start) + a.impatience,
        )

    def to_dict(self) -> dict[str, float]:
        """The axes by name."""
        return asdict(self)


VANILLA = Difficulty(strictness=0.35, reserve=0.25, impatience=0.3)
CHALLENGING = Difficulty(strictness=0.75, reserve=0.75, impatience=0.7)
"""RLVER's two environments (arXiv 2507.03112), placed on our axes by what their prompts ask of the user."""

LINE = (
    (0.0, Difficulty(strictness=0.0, reserve=0.0, impatience=0.0)),
    (0.35, VANILLA),
    (0.75, CHALLENGING),
    (1.0, Difficulty(strictness=1.0, reserve=1.0, impatience=1.0)),
)
