"""Draws docs/images/terrain.png, ground of all kinds: `python docs/terrain_picture.py`."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.colors import LightSource
from matplotlib.figure import Figure

from mjfleet.legged.terrain import BORDER, CELL, TERRAIN_KINDS, TILE, make_terrain

LEVELS = 8


def main() -> None:
    """Draw rows of levels, the easiest one below, and columns of kinds; light is from the left."""
    heights = make_terrain(LEVELS, len(TERRAIN_KINDS), kinds=tuple(TERRAIN_KINDS)).heights
    ground = heights[BORDER:-BORDER, BORDER:-BORDER].T.astype(float)
    colours = LightSource(azdeg=300, altdeg=45).shade(
        ground, matplotlib.colormaps["coolwarm"], blend_mode="soft", vmin=-1.5, vmax=1.5,
        vert_exag=1.5, dx=CELL, dy=CELL,
    )  # fmt: skip
    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots()
    axes.imshow(colours, origin="lower")
    middles = TILE * (np.arange(max(LEVELS, len(TERRAIN_KINDS))) + 0.5)
    axes.set_xticks(
        middles[: len(TERRAIN_KINDS)], [kind.replace("_", "\n") for kind in TERRAIN_KINDS]
    )
    axes.set_yticks(middles[:LEVELS], [str(level) for level in range(LEVELS)])
    axes.set_ylabel("level")
    figure.savefig(Path(__file__).parent / "images/terrain.png", dpi=85)


if __name__ == "__main__":
    main()
