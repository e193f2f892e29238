"""One hue from pale to dark, for maps: read the same in grey and without colour vision."""

from __future__ import annotations

BLUES = ((247, 251, 255), (198, 219, 239), (107, 174, 214), (33, 113, 181), (8, 48, 107))


def blue(share: float) -> str:
    """The colour of a share in [0, 1] of the way from pale to dark."""
    place = share * (len(BLUES) - 1)
    i = min(int(place), len(BLUES) - 2)
    mixed = [round(a + (b - a) * (place - i)) for a, b in zip(BLUES[i], BLUES[i + 1], strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)
